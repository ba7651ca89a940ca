// Walks over a tape that record derivatives.
//
// A backward walk records gradients: for each call that they depend on, a call of another type, which takes the
// arguments of the original call and the gradients of its results, and returns the gradients of its arguments. A
// forward walk records tangents in the same way. A `Rule` describes how to record a derivative; Python makes it for the
// first call of a kind.

#pragma once

#include "record/tape.h"

namespace autobatch {

// Records gradients and returns them as `Derivatives`; null with an error. `terms` are the gradients of `values`. Calls
// that depend on neither a wanted value nor a parameter are skipped.
PyObject* record_gradients(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms,
                           Span<const int64_t> wanted, PyObject* parameters);

// Records tangents and returns them likewise. `terms` are the tangents of `values`, and `along` has the tangents of
// parameters: values or parameters.
PyObject* record_tangents(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms, PyObject* parameters,
                          PyObject* along);

}  // namespace autobatch
