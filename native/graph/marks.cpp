#include "graph/marks.h"

#include "graph/graph.h"

namespace autobatch {

Marked mark_all(const Graph& graph, const Flows& flows, Span<const uint8_t> wanted, const Table<uint8_t>& marks) {
  auto mark = [&marks](int32_t node, int32_t word) {
    bool exists = (word & OUTPUT) + 1 < marks.columns;
    if (exists) marks[node][(word & OUTPUT) + 1] = 1;
    return exists;
  };
  ptrdiff_t size = marks.rows * marks.columns;
  if (size) memset(marks.data, 0, (size_t)size);
  for (ptrdiff_t o = 0; o < graph.out_node.size; o++) {
    int32_t slot = graph.out_slot[o];
    if (slot < 0 || slot >= wanted.size) return Marked::WRONG;
    if (wanted[slot] && !mark(graph.out_node[o], graph.out_port[o])) return Marked::WRONG;
  }
  bool is_whole = true;
  for (ptrdiff_t node = graph.n_nodes() - 1; node >= 0; node--) {
    int32_t type_id = graph.type_id[node], n_ports = flows.n_ports[type_id];
    uint8_t* own = marks[node];
    for (int32_t output = 0; output < flows.n_outputs[type_id]; output++) {
      if (!own[output + 1]) continue;
      own[0] = 1;
      Span<const uint8_t> flow =
          flows.flow.part(flows.flow_ptr[type_id] + output * n_ports, flows.flow_ptr[type_id + 1]);
      for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
        if (graph.edge_in[e] >= n_ports) return Marked::WRONG;
        if (flow[graph.edge_in[e]] && !mark(graph.edge_src[e], graph.edge_out[e])) return Marked::WRONG;
      }
    }
    is_whole &= own[0] != 0;
  }
  return is_whole ? Marked::WHOLE : Marked::PART;
}

// mark_outputs(words, flows, wanted, marks): marks the outputs that the wanted slots depend on; returns whether every
// node has such an output.
PyObject* mark_outputs(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> words;
  Graph graph;
  Sizes sizes;
  Flows flows;
  Span<const uint8_t> wanted;
  Table<uint8_t> marks;
  if (!takes("mark_outputs", n, 4) || !read<int32_t>(arguments[0], "words", words) ||
      !view_graph(words, graph, sizes) || !read_flows(arguments[1], flows) ||
      !read_flags(arguments[2], "wanted", wanted) ||
      !read_table<uint8_t>(arguments[3], "marks", marks, NPY_BOOL, "bool"))
    return nullptr;
  if (!within(graph.type_id, 0, flows.n_types())) {
    PyErr_Format(PyExc_ValueError, "words must be of the %zd types of flows, got a graph with another type",
                 flows.n_types());
    return nullptr;
  }
  if (marks.rows != sizes.nodes || marks.columns > INT32_MAX || !within(flows.n_outputs, 0, marks.columns)) {
    PyErr_Format(PyExc_ValueError,
                 "marks must have a row for each node and a column more than types have outputs, got %zd, %zd",
                 marks.rows, marks.columns);
    return nullptr;
  }
  Span<const uint8_t> written{marks.data, marks.rows * marks.columns};
  if (overlap(written, words) || overlap(written, flows.n_outputs) || overlap(written, flows.n_ports) ||
      overlap(written, flows.flow_ptr)) {
    PyErr_SetString(PyExc_ValueError, "marks must have memory of their own, got memory shared with words or flows");
    return nullptr;
  }
  Marked marked;
  {
    Unlocked unlocked;
    marked = mark_all(graph, flows, wanted, marks);
  }
  if (marked != Marked::WRONG) return PyBool_FromLong(marked == Marked::WHOLE);
  PyErr_SetString(PyExc_ValueError, "words must name slots, outputs and ports that exist, got one that does not exist");
  return nullptr;
}

}  // namespace autobatch
