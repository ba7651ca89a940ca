#include "graph/flows.h"

namespace autobatch {
namespace {

bool check(const Flows& flows) {
  ptrdiff_t n = flows.n_types();
  if (flows.n_ports.size != n || flows.flow_ptr.size != n + 1 || flows.flow_ptr[0] != 0) return false;
  for (ptrdiff_t t = 0; t < n; t++) {
    int64_t n_outputs = flows.n_outputs[t], n_ports = flows.n_ports[t];
    if (n_outputs < 0 || n_ports < 0 || flows.flow_ptr[t] + n_outputs * n_ports != flows.flow_ptr[t + 1]) return false;
  }
  return flows.flow_ptr[n] == flows.flow.size;
}

}  // namespace

bool read_flows(PyObject* tuple, Flows& flows) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4) {
    PyErr_Format(PyExc_TypeError, "flows must be a tuple of 4 arrays, got %.80s", Py_TYPE(tuple)->tp_name);
    return false;
  }
  if (!read<int32_t>(PyTuple_GET_ITEM(tuple, 0), "n_outputs", flows.n_outputs) ||
      !read<int32_t>(PyTuple_GET_ITEM(tuple, 1), "n_ports", flows.n_ports) ||
      !read<int32_t>(PyTuple_GET_ITEM(tuple, 2), "flow_ptr", flows.flow_ptr) ||
      !read_flags(PyTuple_GET_ITEM(tuple, 3), "flow", flows.flow))
    return false;
  if (check(flows)) return true;
  PyErr_SetString(PyExc_ValueError, "flows must be consistent flow arrays, got sizes that do not fit each other");
  return false;
}

}  // namespace autobatch
