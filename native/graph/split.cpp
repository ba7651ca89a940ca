// Splitting the graph of a mini-batch into the graphs of its instances.

#include "graph/graph.h"
#include "graph/words.h"

namespace autobatch {
namespace {

// Finds the first node that another instance reads or returns; -1 if the instances are independent.
int32_t find_crossing(const Graph& graph) {
  for (ptrdiff_t i = 0; i < graph.n_instances(); i++) {
    int32_t first = graph.instance_ptr[i], stop = graph.instance_ptr[i + 1];
    for (int32_t e = graph.edge_ptr[first]; e < graph.edge_ptr[stop]; e++)
      if (graph.edge_src[e] < first || graph.edge_src[e] >= stop) return graph.edge_src[e];
    for (int32_t o = graph.output_ptr[i]; o < graph.output_ptr[i + 1]; o++)
      if (graph.out_node[o] < first || graph.out_node[o] >= stop) return graph.out_node[o];
  }
  return -1;
}

// Where the parts of an instance begin and end in the arrays of a graph.
struct Bounds {
  int32_t node, nodes_end, edge, edges_end, attr, attr_end, output, outputs_end, floats, floats_end;

  Bounds(const TypedGraph& whole, ptrdiff_t i) {
    const Graph& graph = whole.graph;
    node = graph.instance_ptr[i], nodes_end = graph.instance_ptr[i + 1];
    edge = graph.edge_ptr[node], edges_end = graph.edge_ptr[nodes_end];
    attr = whole.int_starts[node], attr_end = whole.int_starts[nodes_end];
    output = graph.output_ptr[i], outputs_end = graph.output_ptr[i + 1];
    floats = whole.float_starts[node], floats_end = whole.float_starts[nodes_end];
  }

  Sizes sizes() const {
    return {1, nodes_end - node, edges_end - edge, attr_end - attr, outputs_end - output, floats_end - floats};
  }
};

void write_instance(const Graph& graph, const Bounds& of, NewGraph part) {
  part.instance_ptr[1] = of.nodes_end - of.node;
  part.output_ptr[1] = of.outputs_end - of.output;
  copy_shifted(part.type_id, 0, graph.type_id.part(of.node, of.nodes_end), 0);
  copy_shifted(part.edge_ptr, 0, graph.edge_ptr.part(of.node, of.nodes_end + 1), -of.edge);
  copy_shifted(part.edge_src, 0, graph.edge_src.part(of.edge, of.edges_end), -of.node);
  copy_shifted(part.edge_out, 0, graph.edge_out.part(of.edge, of.edges_end), 0);
  copy_shifted(part.edge_in, 0, graph.edge_in.part(of.edge, of.edges_end), 0);
  copy_shifted(part.attr, 0, graph.attr.part(of.attr, of.attr_end), 0);
  copy_shifted(part.out_node, 0, graph.out_node.part(of.output, of.outputs_end), -of.node);
  copy_shifted(part.out_port, 0, graph.out_port.part(of.output, of.outputs_end), 0);
  copy_shifted(part.out_slot, 0, graph.out_slot.part(of.output, of.outputs_end), 0);
}

}  // namespace

// crossing_node(words): returns the first node that another instance reads or returns, or -1.
PyObject* crossing_node(PyObject*, PyObject* argument) {
  Span<const int32_t> words;
  Graph graph;
  Sizes sizes;
  if (!read<int32_t>(argument, "words", words) || !view_graph(words, graph, sizes)) return nullptr;
  return PyLong_FromLong(find_crossing(graph));
}

// split_words(words, types): returns the graphs of the instances, one after another, and the offsets at which the words
// and floats of each begin.
PyObject* split_words(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph whole;
  if (!takes("split_words", n, 2) || !read_graph_and_types(arguments[0], arguments[1], whole) ||
      !set_problem(find_starts(whole)))
    return nullptr;
  int32_t stranger = find_crossing(whole.graph);
  if (stranger >= 0) {
    PyErr_Format(PyExc_ValueError, "words must encode independent instances, got node %d that another one uses",
                 stranger);
    return nullptr;
  }
  ptrdiff_t n_instances = whole.graph.n_instances();
  Span<int64_t> ptr, float_ptr;
  Ref made_ptr = make_array<int64_t>(n_instances + 1, ptr),
      made_float_ptr = make_array<int64_t>(n_instances + 1, float_ptr);
  if (!made_ptr || !made_float_ptr) return nullptr;
  ptr[0] = float_ptr[0] = 0;
  for (ptrdiff_t i = 0; i < n_instances; i++) {
    Bounds of(whole, i);
    ptr[i + 1] = ptr[i] + of.sizes().words();
    float_ptr[i + 1] = of.floats_end;
  }
  Span<int32_t> words;
  Ref made = make_array<int32_t>((ptrdiff_t)ptr[n_instances], words);
  if (!made) return nullptr;
  {
    Unlocked unlocked;
    for (ptrdiff_t i = 0; i < n_instances; i++) {
      Bounds of(whole, i);
      write_instance(whole.graph, of, begin_words(words.data + ptr[i], of.sizes()));
    }
  }
  return Py_BuildValue("NNN", made.release(), made_ptr.release(), made_float_ptr.release());
}

}  // namespace autobatch
