// Decoding: makes the words of a graph from the log of a recording.
//
// The code of a form is its type, then items, then END. The items are:
//
// - VALUE, n, n ports: a value. The first port reads it, the others read the outputs that follow it.
// - WORDS, n: n int attributes.
// - EACH, n_parts, and for each part n, n ports: a list, logged as its length, then the n_parts values of each element.
// - ROWS, n: data of any length, logged as its length, then n ints per element.
//
// A port is -1 if the cell does not read that value.

#pragma once

#include "record/log.h"

namespace autobatch {

enum Code : int32_t { VALUE = 0, WORDS = 1, EACH = 2, ROWS = 3, END = 4 };

// Returns whether ints are a valid code of a form.
bool is_code(Span<const int32_t> code);

// Adds the `FixedForm` of a form with this code, and its edges and words; returns false if memory runs out.
bool add_fixed(Log* log, Span<const int32_t> code);

// Returns whether ints fit the code of a form, i.e. can be the ints that a call logs after its ref.
bool fits_code(const Log* log, int32_t form, Span<const int64_t> ints);

// log.decode(log_ptr, refs, slots, output_ptr, owner): returns the words and floats of the graph of the logged calls,
// and the first fault or None.
PyObject* decode(PyObject* log, PyObject* const* args, Py_ssize_t n_args);

}  // namespace autobatch
