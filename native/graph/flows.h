// Which ports the outputs of types depend on: `autobatch.ir.flows.FlowArrays`, which says what each array holds.

#pragma once

#include "support/arrays.h"

namespace autobatch {

struct Flows {
  Span<const int32_t> n_outputs, n_ports, flow_ptr;
  Span<const uint8_t> flow;

  ptrdiff_t n_types() const { return n_outputs.size; }
};

// Reads a `FlowArrays`; an error unless its arrays agree with each other.
bool read_flows(PyObject* tuple, Flows& flows);

}  // namespace autobatch
