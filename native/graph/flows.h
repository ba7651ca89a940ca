// Gradient flows: the ports that each output of a type depends on; see `autobatch.ir.flows.FlowArrays`.

#pragma once

#include "support/arrays.h"

namespace autobatch {

struct Flows {
  Span<const int32_t> n_outputs, n_ports, flow_ptr;
  Span<const uint8_t> flow;

  ptrdiff_t n_types() const { return n_outputs.size; }
};

// Reads a `FlowArrays`; sets an error if its arrays do not fit each other.
bool read_flows(PyObject* tuple, Flows& flows);

}  // namespace autobatch
