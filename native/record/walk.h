// Walks over a tape, which record derivatives.
//
// Read backwards, the calls give gradients: for each call that they depend on, a call of another type is recorded,
// which takes what the call took and the gradients of its results, and gives those of its arguments. Read forwards,
// they give tangents in the same way. A `Rule` says how to record a derivative; Python makes it for the first call of a
// kind.

#pragma once

#include "record/tape.h"

namespace autobatch {

// Records gradients, given those of some values as terms, and returns `Derivatives`; null with an error. Calls
// that depend on no wanted value and no parameter are skipped.
PyObject* record_gradients(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms,
                           Span<const int64_t> wanted, PyObject* parameters);

// Records tangents, given those of some values as terms, and those of parameters as `along`: values or parameters.
PyObject* record_tangents(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms, PyObject* parameters,
                          PyObject* along);

}  // namespace autobatch
