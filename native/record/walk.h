// Walks over a tape, which record derivatives.
//
// Read backwards, the calls give gradients: for each call that they depend on, a call of another type is recorded,
// which takes what the call took and the gradients of its results, and gives those of its arguments. Read forwards,
// they give tangents in the same way. How to record a derivative is a `Rule`, which Python makes for the first call of
// a kind.

#pragma once

#include "record/tape.h"

namespace autobatch {

// Record the gradients of values, given as terms, and return `Derivatives`; null with an error.
PyObject* record_gradients(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms,
                           Span<const int64_t> wanted, PyObject* parameters);

// Records tangents along those of values, and of parameters, which may be parameters.
PyObject* record_tangents(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms, PyObject* parameters,
                          PyObject* along);

}  // namespace autobatch
