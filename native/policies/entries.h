// Reads the arguments that Python passes to the functions of this folder, and makes their results.

#pragma once

#include "policies/directed.h"
#include "policies/learning.h"

namespace autobatch {

// Returns whether an edge points backward; if so, sets a ValueError.
bool refuse_backward_edges(const Dag& dag);

// Read a `MachineRules`, a `Weights`, a `CoreRule`, and a `LearningRules`; false with an error.
bool read_machine(PyObject* tuple, Machine& machine);
bool read_weights(PyObject* tuple, Weights& weights);
bool read_directed_rule(PyObject* tuple, DirectedRule& rule);
bool read_rules(PyObject* tuple, LearningRules& rules);

// Makes the arrays of a schedule: (batch_type, batch_ptr, order).
PyObject* to_python(const Batches& batches);

}  // namespace autobatch
