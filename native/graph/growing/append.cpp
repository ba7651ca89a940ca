// Appending the nodes of a phase to a growing graph.

#include "graph/graph.h"
#include "graph/growing/tables.h"

namespace autobatch {
namespace {

// A phase to append; its edges may come from nodes of earlier phases.
struct Phase : TypedGraph {
  Span<const int32_t> rows;  // [outputs] the variadic group whose edges are the rows; NOWHERE for a single value
  Vec<int64_t> lengths;      // lengths of the groups of one node

  // Counts the values of an output of the node that `lengths` describes; -1 if `rows` names no group of its type.
  int64_t n_rows(int32_t type_id, int32_t out) const {
    int32_t output = types.out_ptr[type_id] + out;
    int32_t group = output < rows.size ? rows[output] : INT32_MAX;
    if (group == NOWHERE) return 1;
    return group >= 0 && group < types.group_ptr[type_id + 1] - types.group_ptr[type_id] ? lengths[group] : -1;
  }
};

// Reads a phase. `rows` need not cover types that have no nodes in it.
bool read_phase(PyObject* words, PyObject* types, PyObject* rows, Phase& phase) {
  if (!read_typed_graph(words, types, phase, Sources::EARLIER) || !read<int32_t>(rows, "rows", phase.rows))
    return false;
  return phase.lengths.resize(phase.types.n_groups() + 1) || (PyErr_NoMemory(), false);
}

// Counts the values of all outputs of a phase; -1 if there are too many, or if `rows` does not cover an output.
int64_t count(Phase& phase) {
  int64_t total = 0;
  for (ptrdiff_t node = 0; node < phase.graph.n_nodes(); node++) {
    int32_t type_id = phase.graph.type_id[node];
    count_groups(phase.graph, node, phase.int_starts[node], phase.types, phase.lengths.data());
    for (int32_t out = 0; out < phase.types.out_ptr[type_id + 1] - phase.types.out_ptr[type_id]; out++) {
      int64_t n_rows = phase.n_rows(type_id, out);
      if (n_rows < 0 || n_rows > INT32_MAX >> OUTPUT_BITS) return -1;
      total += n_rows;
    }
    if (total > INT32_MAX) return -1;
  }
  return total;
}

// The positions at which new nodes, edges etc. go into the tables.
struct Ends {
  int32_t node, edge, attr, floats, output, value;
};

// Returns whether the tables have room for the phase at these positions.
bool has_room(const Growing& g, const Phase& phase, const Ends& ends, ptrdiff_t n_outputs, int64_t n_values) {
  auto fits = [](int32_t at, int64_t more, ptrdiff_t room) {
    return at >= 0 && at + more <= room && at + more <= INT32_MAX;
  };
  return fits(ends.node, phase.sizes.nodes + 1, g.type_id.size) && fits(ends.edge, phase.sizes.edges, g.source.size) &&
         fits(ends.attr, phase.sizes.attr, g.attr.size) && fits(ends.floats, phase.sizes.floats, g.floats.size) &&
         fits(ends.output, n_outputs + 1, g.first_value.size) && fits(ends.value, n_values, g.n_values());
}

void append_value(const Growing& g, int32_t v, int32_t node, int32_t word) {
  g.made_by[v] = node;
  g.word[v] = word;
  g.in_use[v] = g.readers[v] = g.mark[v] = 0;
  g.run[v] = g.kept[v] = NOWHERE;
}

// Appends the edges of a node of the phase.
Ended append_edges(const Growing& g, const Phase& phase, ptrdiff_t n, const Ends& ends) {
  for (int32_t e = phase.graph.edge_ptr[n]; e < phase.graph.edge_ptr[n + 1]; e++) {
    int64_t source = (int64_t)ends.node + phase.graph.edge_src[e];
    if (source < 0 || source >= ends.node + n) return Ended::WRONG;  // not an earlier node, of this phase or another
    int32_t v = g.value_of((int32_t)source, phase.graph.edge_out[e]), edge = ends.edge + e;
    if (v < 0) return Ended::WRONG;
    g.source[edge] = (int32_t)source;
    g.output[edge] = phase.graph.edge_out[e];
    g.port[edge] = phase.graph.edge_in[e];
    g.add_readers(v, 1);
  }
  return Ended::WELL;
}

// Appends all nodes, and moves the ends of outputs and values past them.
Ended append(const Growing& g, Phase& phase, Span<const double> floats, Ends& ends) {
  const Graph& graph = phase.graph;
  int64_t n_outputs = 0, n_values = count(phase);
  for (int32_t type_id : graph.type_id) n_outputs += phase.types.out_ptr[type_id + 1] - phase.types.out_ptr[type_id];
  if (n_values < 0 || !has_room(g, phase, ends, (ptrdiff_t)n_outputs, n_values)) return Ended::WRONG;
  copy_shifted(g.attr, ends.attr, graph.attr, 0);
  for (ptrdiff_t k = 0; k < floats.size; k++) g.floats[ends.floats + k] = floats[k];
  int32_t output = ends.output, v = ends.value;
  for (ptrdiff_t i = 0; i < graph.n_instances(); i++)
    for (int32_t n = graph.instance_ptr[i]; n < graph.instance_ptr[i + 1]; n++) {
      int32_t node = ends.node + n, type_id = graph.type_id[n];
      g.type_id[node] = type_id;
      g.owner[node] = (int32_t)i;
      g.state[node] = PENDING;
      count_groups(graph, n, phase.int_starts[n], phase.types, phase.lengths.data());
      for (int32_t out = 0; out < phase.types.out_ptr[type_id + 1] - phase.types.out_ptr[type_id]; out++) {
        int64_t n_rows = phase.n_rows(type_id, out);
        for (int32_t row = 0; row < n_rows; row++) append_value(g, v++, node, out | row << OUTPUT_BITS);
        g.first_value[++output] = v;
      }
      g.edge_ptr[node + 1] = ends.edge + graph.edge_ptr[n + 1];
      g.attr_ptr[node + 1] = ends.attr + phase.int_starts[n + 1];
      g.float_ptr[node + 1] = ends.floats + phase.float_starts[n + 1];
      g.output_ptr[node + 1] = output;
      Ended ended = append_edges(g, phase, n, ends);
      if (ended != Ended::WELL) return ended;
    }
  ends.output = output;
  ends.value = v;
  return Ended::WELL;
}

// Finds the values that the phase returned, after its nodes have been appended; `first` is the first of them.
Ended find_returned(const Growing& g, const Phase& phase, int32_t first, Span<int32_t> returned) {
  for (ptrdiff_t k = 0; k < returned.size; k++) {
    int64_t node = (int64_t)first + phase.graph.out_node[k];
    returned[k] = g.has_node((int32_t)node) ? g.value_of((int32_t)node, phase.graph.out_port[k]) : -1;
    if (returned[k] < 0) return Ended::WRONG;
  }
  return Ended::WELL;
}

}  // namespace

// count_values(words, types, rows): counts the values of all outputs of a phase.
PyObject* count_values(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Phase phase;
  if (!takes("count_values", n, 3) || !read_phase(arguments[0], arguments[1], arguments[2], phase)) return nullptr;
  int64_t total;
  if (!run([&] { return (total = count(phase)) < 0 ? Ended::WRONG : Ended::WELL; })) return nullptr;
  return PyLong_FromLongLong(total);
}

// append_phase(nodes, values, words, floats, types, rows, n_nodes, n_edges, pending): appends a phase; returns the new
// numbers of outputs and values, the pending nodes including the new ones, and the values that the phase returned.
PyObject* append_phase(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Phase phase;
  Span<const double> floats;
  Span<const int32_t> before;
  Span<int32_t> pending, returned;
  Ends ends;
  if (!takes("append_phase", n, 9) || !read_growing(arguments, n, g) || !read<double>(arguments[3], "floats", floats) ||
      !read_phase(arguments[2], arguments[4], arguments[5], phase) || !read_int(arguments[6], "n_nodes", ends.node) ||
      !read_int(arguments[7], "n_edges", ends.edge) || !read<int32_t>(arguments[8], "pending", before))
    return nullptr;
  // Offsets have an entry after the last node, which must also lie within the tables.
  bool fits = floats.size == phase.sizes.floats && ends.node >= 0 && ends.node < g.type_id.size;
  if (fits) {
    ends.attr = g.attr_ptr[ends.node];
    ends.floats = g.float_ptr[ends.node];
    ends.output = g.output_ptr[ends.node];
    fits = ends.output >= 0 && ends.output < g.first_value.size;
  }
  if (!fits) return is_well(Ended::WRONG), nullptr;
  ends.value = g.first_value[ends.output];
  Ref all = make_array<int32_t>(before.size + phase.graph.n_nodes(), pending);
  Ref found = make_array<int32_t>(phase.graph.out_node.size, returned);
  if (!all || !found || !run([&] { return append(g, phase, floats, ends); })) return nullptr;
  if (!run([&] { return find_returned(g, phase, ends.node, returned); })) return nullptr;
  for (ptrdiff_t k = 0; k < pending.size; k++)
    pending[k] = k < before.size ? before[k] : ends.node + (int32_t)(k - before.size);
  return Py_BuildValue("iiNN", ends.output, ends.value, all.release(), found.release());
}

}  // namespace autobatch
