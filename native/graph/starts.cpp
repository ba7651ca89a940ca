// Finding where the attributes of each node begin.

#include "graph/graph.h"
#include "graph/words.h"

namespace autobatch {

// data_starts(type_id, attr, types): finds where the int and float attributes of each node begin.
PyObject* data_starts(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> type_ids, attr;
  Types types;
  Vec<int32_t> int_starts, float_starts;
  if (!takes("data_starts", n, 3) || !read<int32_t>(arguments[0], "type_id", type_ids) ||
      !read<int32_t>(arguments[1], "attr", attr) || !read_types(arguments[2], types))
    return nullptr;
  if (!within(type_ids, 0, types.n_types())) {
    PyErr_Format(PyExc_ValueError, "type_id must lie in 0..%zd, got another type", types.n_types() - 1);
    return nullptr;
  }
  if (!set_problem(find_starts(type_ids, attr, -1, types, int_starts, float_starts))) return nullptr;
  Ref ints = to_array<int32_t>(int_starts), floats = to_array<int32_t>(float_starts);
  if (!ints || !floats) return nullptr;
  return Py_BuildValue("NN", ints.release(), floats.release());
}

}  // namespace autobatch
