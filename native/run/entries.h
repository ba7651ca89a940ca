// Readers of arguments that the Python bindings of this folder share.

#pragma once

#include "run/team.h"
#include "support/arrays.h"

namespace autobatch {

extern PyTypeObject SweepType;

// Reads an array (n, 2) of calls.
bool read_calls(PyObject* array, Span<const Call>& calls);

// Reads a `CallList` of Python, and checks that its parts first:last have only calls of these steps.
bool read_call_list(PyObject* tuple, Span<const BoundStep> steps, int64_t first, int64_t last, CallSpans& list);

// Returns whether the calls at:end exist and name these steps; if not, sets an error.
bool check_calls(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end);

}  // namespace autobatch
