// Emitting the graph of a round: the chosen nodes, and a source for each value of an earlier round.

#include "graph/graph.h"
#include "graph/growing/tables.h"

namespace autobatch {
namespace {

struct Emitted {
  Span<const int32_t> source_type, nodes, sources;  // source type by slot; nodes and source values, in order
  Span<const int32_t> values, slots, ptr;           // returned values, their slots, where each instance begins
  Sizes sizes;
  NewGraph graph;
  Span<double> floats;
};

// Finds the sizes of the graph.
Ended measure(const Growing& g, Emitted& emitted) {
  if (emitted.ptr.size < 1 || emitted.ptr[0] != 0 || emitted.ptr[emitted.ptr.size - 1] != emitted.values.size ||
      emitted.slots.size != emitted.values.size)
    return Ended::WRONG;
  for (ptrdiff_t i = 0; i + 1 < emitted.ptr.size; i++)
    if (emitted.ptr[i] > emitted.ptr[i + 1]) return Ended::WRONG;
  Sizes& sizes = emitted.sizes;
  sizes = {emitted.ptr.size - 1, emitted.nodes.size + emitted.sources.size, 0, emitted.sources.size,
           emitted.values.size};
  for (int32_t node : emitted.nodes) {
    Range edges, attr, floats;
    if (!g.has_node(node) || !g.edges_of(node, edges) || !Growing::part_of(g.attr_ptr, node, g.attr.size, attr) ||
        !Growing::part_of(g.float_ptr, node, g.floats.size, floats))
      return Ended::WRONG;
    sizes.edges += edges.size();
    sizes.attr += attr.size();
    sizes.floats += floats.size();
  }
  return Ended::WELL;
}

// Where new nodes, edges etc. go in the graph.
struct Place {
  int32_t node = 0, edge = 0, attr = 0, floats = 0, output = 0;
};

// Writes a source: a node that reads a value of an earlier round from the table of its slot.
Ended write_source(const Growing& g, Emitted& emitted, int32_t v, Place& at) {
  int32_t slot = g.slot[v];
  if (slot < 0 || slot >= emitted.source_type.size) return Ended::WRONG;
  emitted.graph.type_id[at.node] = emitted.source_type[slot];
  emitted.graph.attr[at.attr++] = g.kept[v];
  g.number[v] = -1 - at.node;
  emitted.graph.edge_ptr[++at.node] = at.edge;
  return Ended::WELL;
}

// Finds the written node that gives a value, and the word that names the value there; false if there is none yet.
bool read_value(const Growing& g, int32_t v, int32_t word, const Place& at, int32_t& node, int32_t& out) {
  bool is_source = g.number[v] < 0;
  node = is_source ? -1 - g.number[v] : g.number[v];
  out = is_source ? 0 : word;
  return node < at.node;
}

Ended write_node(const Growing& g, Emitted& emitted, int32_t node, Place& at) {
  NewGraph& graph = emitted.graph;
  Range own;
  if (!g.values_of(node, own)) return Ended::WRONG;
  graph.type_id[at.node] = g.type_id[node];
  g.state[node] = DONE;
  for (int32_t e = g.edge_ptr[node]; e < g.edge_ptr[node + 1]; e++) {
    int32_t v = g.value_of(g.source[e], g.output[e]);
    if (v < 0 || !read_value(g, v, g.output[e], at, graph.edge_src[at.edge], graph.edge_out[at.edge]))
      return Ended::WRONG;
    graph.edge_in[at.edge++] = g.port[e];
  }
  for (int32_t a = g.attr_ptr[node]; a < g.attr_ptr[node + 1]; a++) graph.attr[at.attr++] = g.attr[a];
  for (int32_t f = g.float_ptr[node]; f < g.float_ptr[node + 1]; f++) emitted.floats[at.floats++] = g.floats[f];
  for (int32_t v = own.first; v < own.stop; v++) g.number[v] = at.node;
  graph.edge_ptr[++at.node] = at.edge;
  return Ended::WELL;
}

// Writes the graph, and marks its nodes as done.
Ended write(const Growing& g, Emitted& emitted) {
  NewGraph& graph = emitted.graph;
  ptrdiff_t n = 0, s = 0;
  Place at;
  for (int32_t i = 0; i < emitted.sizes.instances; i++) {
    for (; s < emitted.sources.size; s++) {
      int32_t v = emitted.sources[s];
      if (!g.has_value(v) || !g.has_node(g.made_by[v])) return Ended::WRONG;
      if (g.owner[g.made_by[v]] != i) break;
      if (write_source(g, emitted, v, at) != Ended::WELL) return Ended::WRONG;
    }
    for (; n < emitted.nodes.size && g.owner[emitted.nodes[n]] == i; n++)
      if (write_node(g, emitted, emitted.nodes[n], at) != Ended::WELL) return Ended::WRONG;
    graph.instance_ptr[i + 1] = at.node;
    for (int32_t& o = at.output; o < emitted.ptr[i + 1]; o++) {
      int32_t v = emitted.values[o];
      if (!g.has_value(v) || !read_value(g, v, g.word[v], at, graph.out_node[o], graph.out_port[o]))
        return Ended::WRONG;
      graph.out_slot[o] = emitted.slots[o];
    }
    graph.output_ptr[i + 1] = at.output;
  }
  return s == emitted.sources.size && n == emitted.nodes.size ? Ended::WELL : Ended::WRONG;
}

}  // namespace

// emit_graph(nodes, values, source_type, picked, sources, results): the words and floats of the graph of a round.
PyObject* emit_graph(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Emitted emitted;
  if (!takes("emit_graph", n, 6) || !read_growing(arguments, n, g) ||
      !read<int32_t>(arguments[2], "source_type", emitted.source_type) ||
      !read<int32_t>(arguments[3], "picked", emitted.nodes) || !read<int32_t>(arguments[4], "sources", emitted.sources))
    return nullptr;
  PyObject* results = arguments[5];
  if (!PyTuple_Check(results) || PyTuple_GET_SIZE(results) != 3) {
    PyErr_Format(PyExc_TypeError, "results must be a tuple of 3 arrays, got %.80s", Py_TYPE(results)->tp_name);
    return nullptr;
  }
  if (!read<int32_t>(PyTuple_GET_ITEM(results, 0), "values", emitted.values) ||
      !read<int32_t>(PyTuple_GET_ITEM(results, 1), "slots", emitted.slots) ||
      !read<int32_t>(PyTuple_GET_ITEM(results, 2), "ptr", emitted.ptr) || !is_well(measure(g, emitted)))
    return nullptr;
  Ref words = make_words(emitted.sizes, emitted.graph);
  Ref floats = words ? make_array<double>((ptrdiff_t)emitted.sizes.floats, emitted.floats) : Ref();
  if (!floats || !run([&] { return write(g, emitted); })) return nullptr;
  return Py_BuildValue("NN", words.release(), floats.release());
}

}  // namespace autobatch
