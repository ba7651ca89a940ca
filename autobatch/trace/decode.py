"""The codes with which a form tells the decoder of the log what its calls logged; see `native/record/decode.h`."""

VALUE, WORDS, EACH, ROWS, END = 0, 1, 2, 3, 4
STALE, TOO_LARGE = 1, 2  # how decoding failed
ID = (1 << 32) - 1  # of a ref without its output: the number of the call
