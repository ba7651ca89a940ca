// Emitting the graph of a round: the chosen nodes, and a source for each value of an earlier round.

#include "graph/graph.h"
#include "graph/growing/round.h"

namespace autobatch {

// Computes the sizes of the graph, and checks the offsets that `write` uses.
Ended Emission::measure(const Growing& g) {
  if (ptr_.size < 1 || ptr_[0] != 0 || ptr_[ptr_.size - 1] != values_.size || slots_.size != values_.size)
    return Ended::WRONG;
  for (ptrdiff_t i = 0; i + 1 < ptr_.size; i++)
    if (ptr_[i] > ptr_[i + 1]) return Ended::WRONG;
  sizes_ = {ptr_.size - 1, nodes.size + sources.size, 0, sources.size, values_.size};
  for (int32_t node : nodes) {
    Range edges, attr, floats;
    if (!g.has_node(node) || !g.edges_of(node, edges) || !Growing::part_of(g.attr_ptr, node, g.attr.size, attr) ||
        !Growing::part_of(g.float_ptr, node, g.floats.size, floats))
      return Ended::WRONG;
    sizes_.edges += edges.size();
    sizes_.attr += attr.size();
    sizes_.floats += floats.size();
  }
  return Ended::WELL;
}

// Writes a source: a node that reads a value of an earlier round from the table of its slot.
Ended Emission::write_source(const Growing& g, int32_t v, Place& at) {
  int32_t slot = g.slot[v];
  if (slot < 0 || slot >= source_type.size) return Ended::WRONG;
  graph_.type_id[at.node] = source_type[slot];
  graph_.attr[at.attr++] = g.kept[v];
  g.number[v] = -1 - at.node;  // negative marks a source, whose only output is 0
  graph_.edge_ptr[++at.node] = at.edge;
  return Ended::WELL;
}

// Finds the node that holds a value in the round's graph, and the word that names the value there. Returns false if the
// node is not among the `n_nodes` that are written so far.
static bool read_value(const Growing& g, int32_t v, int32_t word, int32_t n_nodes, int32_t& node, int32_t& out) {
  bool is_source = g.number[v] < 0;
  node = is_source ? -1 - g.number[v] : g.number[v];
  out = is_source ? 0 : word;
  return node < n_nodes;
}

Ended Emission::write_node(const Growing& g, int32_t node, Place& at) {
  Range own;
  if (!g.values_of(node, own)) return Ended::WRONG;
  graph_.type_id[at.node] = g.type_id[node];
  g.state[node] = DONE;
  for (int32_t e = g.edge_ptr[node]; e < g.edge_ptr[node + 1]; e++) {
    int32_t v = g.value_of(g.source[e], g.output[e]);
    if (v < 0 || !read_value(g, v, g.output[e], at.node, graph_.edge_src[at.edge], graph_.edge_out[at.edge]))
      return Ended::WRONG;
    graph_.edge_in[at.edge++] = g.port[e];
  }
  for (int32_t a = g.attr_ptr[node]; a < g.attr_ptr[node + 1]; a++) graph_.attr[at.attr++] = g.attr[a];
  for (int32_t f = g.float_ptr[node]; f < g.float_ptr[node + 1]; f++) new_floats_[at.floats++] = g.floats[f];
  for (int32_t v = own.first; v < own.stop; v++) g.number[v] = at.node;
  graph_.edge_ptr[++at.node] = at.edge;
  return Ended::WELL;
}

// Writes the graph, and marks its nodes as done.
Ended Emission::write(const Growing& g) {
  ptrdiff_t n = 0, s = 0;
  Place at;
  for (int32_t i = 0; i < sizes_.instances; i++) {
    for (; s < sources.size; s++) {
      int32_t v = sources[s];
      if (!g.has_value(v) || !g.has_node(g.made_by[v])) return Ended::WRONG;
      if (g.owner[g.made_by[v]] != i) break;
      if (write_source(g, v, at) != Ended::WELL) return Ended::WRONG;
    }
    for (; n < nodes.size && g.owner[nodes[n]] == i; n++)
      if (write_node(g, nodes[n], at) != Ended::WELL) return Ended::WRONG;
    graph_.instance_ptr[i + 1] = at.node;
    for (int32_t& o = at.output; o < ptr_[i + 1]; o++) {
      int32_t v = values_[o];
      if (!g.has_value(v) || !read_value(g, v, g.word[v], at.node, graph_.out_node[o], graph_.out_port[o]))
        return Ended::WRONG;
      graph_.out_slot[o] = slots_[o];
    }
    graph_.output_ptr[i + 1] = at.output;
  }
  return s == sources.size && n == nodes.size ? Ended::WELL : Ended::WRONG;
}

bool Emission::read_results(PyObject* results) {
  if (!PyTuple_Check(results) || PyTuple_GET_SIZE(results) != 3) {
    PyErr_Format(PyExc_TypeError, "results must be a tuple of 3 arrays, got %.80s", Py_TYPE(results)->tp_name);
    return false;
  }
  return read<int32_t>(PyTuple_GET_ITEM(results, 0), "values", values_) &&
         read<int32_t>(PyTuple_GET_ITEM(results, 1), "slots", slots_) &&
         read<int32_t>(PyTuple_GET_ITEM(results, 2), "ptr", ptr_);
}

bool Emission::has_types(const Growing& g) const {
  for (int32_t v : sources) {
    int32_t slot = g.slot[v];
    if (slot >= 0 && (slot >= source_type.size || source_type[slot] == NOWHERE)) return false;
  }
  return true;
}

bool Emission::make_arrays(const Growing& g) {
  if (!is_well(measure(g))) return false;
  words = make_words(sizes_, graph_);
  if (words) floats = make_array<double>((ptrdiff_t)sizes_.floats, new_floats_);
  return bool(floats);
}

// emit_graph(nodes, values, source_type, picked, sources, results): returns the words and floats of a round's graph.
PyObject* emit_graph(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Emission emission;
  if (!takes("emit_graph", n, 6) || !read_growing(arguments, n, g) ||
      !read<int32_t>(arguments[2], "source_type", emission.source_type) ||
      !read<int32_t>(arguments[3], "picked", emission.nodes) ||
      !read<int32_t>(arguments[4], "sources", emission.sources) || !emission.read_results(arguments[5]) ||
      !emission.make_arrays(g) || !run([&] { return emission.write(g); }))
    return nullptr;
  return Py_BuildValue("NN", emission.words.release(), emission.floats.release());
}

}  // namespace autobatch
