// Decoding: makes the words of a graph from the log of a recording.
//
// The code of a form is its type, then items, then END. The items are:
//
// - VALUE, n, n ports: a value; the ports read it and the outputs that follow it.
// - WORDS, n: n int attributes.
// - EACH, parts, for each part n, n ports: a list, logged as its length, then its values, element by element.
// - ROWS, n: data of any length, logged as its length, then n ints per element.
//
// A port is -1 if the cell does not read the value.

#pragma once

#include "record/log.h"

namespace autobatch {

enum Code : int32_t { VALUE = 0, WORDS = 1, EACH = 2, ROWS = 3, END = 4 };

// Whether ints are a valid code of a form.
bool is_code(Span<const int32_t> code);

// Adds the `FixedForm` of a form with this code, and its edges and words; false if memory runs out.
bool add_fixed(Log* log, Span<const int32_t> code);

// Whether ints are what a call of a form logs after its ref.
bool fits_code(const Log* log, int32_t form, Span<const int64_t> ints);

// log.decode(log_ptr, refs, slots, output_ptr, owner): the words and floats of the graph of the logged calls, and the
// first fault or None.
PyObject* decode(PyObject* log, PyObject* const* args, Py_ssize_t n_args);

}  // namespace autobatch
