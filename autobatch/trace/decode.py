"""The codes with which a form tells the decoder of the log what its calls logged; see `native/record/decode.h`."""

VALUE, WORDS, EACH, ROWS, END = 0, 1, 2, 3, 4
STALE = 1  # decoding failed because a value of another recording was used
ID = (1 << 32) - 1  # of a ref without its output: the number of the call
