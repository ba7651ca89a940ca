// Reading what Python gives the functions of this folder, and making what they give.

#pragma once

#include "policies/machine.h"

namespace autobatch {

// Sets a ValueError if an edge points backward.
bool refuse_backward_edges(const Dag& dag);

// Reads a `MachineRules`, and a `Weights`.
bool read_machine(PyObject* tuple, Machine& machine);
bool read_weights(PyObject* tuple, Weights& weights);

// Makes the arrays of a schedule: (batch_type, batch_ptr, order).
PyObject* to_python(const Batches& batches);

}  // namespace autobatch
