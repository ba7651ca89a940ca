// What the entries of this folder share.

#pragma once

#include "run/team.h"
#include "support/arrays.h"

namespace autobatch {

extern PyTypeObject SweepType;

// Reads calls, an array (n, 2).
bool read_calls(PyObject* array, Span<const Call>& calls);

// Reads the parts first:last of a list of calls of these steps.
bool read_call_list(PyObject* tuple, Span<const BoundStep> steps, int64_t first, int64_t last, CallSpans& list);

// Whether the calls at:end are of these steps; if not, sets an error.
bool check_calls(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end);

}  // namespace autobatch
