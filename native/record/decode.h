// Decoding: the log of a recording becomes the words of a graph.
//
// The code of a form is its type, then items, then END: VALUE, n, n ports (a value, whose next outputs are those of the
// other ports); WORDS, n (int attributes); EACH, parts, and for each part n, n ports (a list: its length, then its
// values, element by element); ROWS, n (data of any length: its length, then n ints an element). A port is -1 where the
// cell does not read the value.

#pragma once

#include "record/log.h"

namespace autobatch {

enum Code : int32_t { VALUE = 0, WORDS = 1, EACH = 2, ROWS = 3, END = 4 };

// Whether ints are the code of a form.
bool is_code(Span<const int32_t> code);

// Adds how to read the calls of a form with this code, if they have one width; false where there is no memory.
bool add_fixed(Log* log, Span<const int32_t> code);

// Whether ints are what a call of a form logs after its ref.
bool fits_code(const Log* log, int32_t form, Span<const int64_t> ints);

// log.decode(log_ptr, refs, slots, output_ptr, owner): the words and floats of the graph of what was logged, and a
// fault.
PyObject* decode(PyObject* log, PyObject* const* args, Py_ssize_t n_args);

}  // namespace autobatch
