// Sketches of growing graphs: the pending nodes that some values depend on, and the graph of their types and edges.

#include "graph/graph.h"
#include "graph/growing/tables.h"

namespace autobatch {
namespace {

// The pending nodes that wanted values depend on, in order, and the number of each node in the sketch or NOWHERE.
struct Sketch {
  Vec<int32_t> nodes, number;
  int64_t n_edges = 0;
};

// Finds the needed nodes, walking back from the wanted values.
Ended find_needed(const Growing& g, Span<const int32_t> wanted, Span<const int32_t> pending, Sketch& sketch) {
  Vec<int32_t> stack;
  if (!sketch.number.assign(g.type_id.size, NOWHERE)) return Ended::NO_MEMORY;
  int64_t n_needed = 0;
  auto meet = [&](int32_t node) {  // pushes each node once
    if (sketch.number[node] != NOWHERE) return true;
    sketch.number[node] = 0;  // until `pending` gives the order
    n_needed++;
    return stack.push(node);
  };
  for (int32_t v : wanted) {
    if (!g.has_value(v) || !g.has_node(g.made_by[v])) return Ended::WRONG;
    if (g.state[g.made_by[v]] == PENDING && !meet(g.made_by[v])) return Ended::NO_MEMORY;
    while (stack.size()) {
      Range reads;
      if (!g.edges_of(stack.pop(), reads)) return Ended::WRONG;
      for (int32_t e = reads.first; e < reads.stop; e++) {
        if (!g.has_node(g.source[e])) return Ended::WRONG;
        if (g.state[g.source[e]] != PENDING) continue;
        sketch.n_edges++;
        if (!meet(g.source[e])) return Ended::NO_MEMORY;
      }
    }
  }
  for (int32_t node : pending) {
    if (!g.has_node(node)) return Ended::WRONG;
    if (sketch.number[node] == NOWHERE) continue;
    sketch.number[node] = (int32_t)sketch.nodes.size();
    if (!sketch.nodes.push(node)) return Ended::NO_MEMORY;
  }
  return sketch.nodes.size() == n_needed ? Ended::WELL : Ended::WRONG;  // each needed node is in `pending` once
}

// Writes the graph of the types and edges of a sketch.
void write_sketch(const Growing& g, const Sketch& sketch, NewGraph& graph) {
  int32_t at = 0;
  graph.instance_ptr[1] = (int32_t)sketch.nodes.size();
  graph.output_ptr[1] = 0;
  for (ptrdiff_t n = 0; n < sketch.nodes.size(); n++) {
    int32_t node = sketch.nodes[n];
    graph.type_id[n] = g.type_id[node];
    for (int32_t e = g.edge_ptr[node]; e < g.edge_ptr[node + 1]; e++) {
      int32_t read = sketch.number[g.source[e]];
      if (read == NOWHERE) continue;
      if (at == graph.edge_src.size) return;  // never, unless another thread changes the tables
      graph.edge_src[at] = read;
      graph.edge_out[at] = 0;
      graph.edge_in[at] = g.port[e];
      at++;
    }
    graph.edge_ptr[n + 1] = at;
  }
}

}  // namespace

// sketch_pending(nodes, values, wanted, pending): returns the pending nodes that wanted values depend on, and the graph
// of their types and edges.
PyObject* sketch_pending(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Span<const int32_t> wanted, pending;
  Sketch sketch;
  NewGraph graph;
  if (!takes("sketch_pending", n, 4) || !read_growing(arguments, n, g) ||
      !read<int32_t>(arguments[2], "wanted", wanted) || !read<int32_t>(arguments[3], "pending", pending) ||
      !run([&] { return find_needed(g, wanted, pending, sketch); }))
    return nullptr;
  Ref nodes = to_array<int32_t>(sketch.nodes);
  Ref words = make_words({1, sketch.nodes.size(), sketch.n_edges}, graph);
  if (!nodes || !words) return nullptr;
  write_sketch(g, sketch, graph);
  return Py_BuildValue("NN", nodes.release(), words.release());
}

}  // namespace autobatch
