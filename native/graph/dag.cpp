// Loops over types and edges only, for `autobatch.graph.dag`.

#include "graph/dag.h"

#include "graph/graph.h"
#include "graph/words.h"

namespace autobatch {
namespace {

// Writes the edges of the reversed DAG, where node n becomes `last` - n and the sources of each node ascend. `ends` is
// scratch with an element for each node. It is a counting sort.
void write_reverse(const Dag& dag, Span<int32_t> edge_ptr, Span<int32_t> edge_src, Span<int32_t> ends) {
  int32_t last = dag.n_nodes() - 1;
  for (int32_t& count : ends) count = 0;
  for (int32_t source : dag.edge_src) ends[last - source]++;
  edge_ptr[0] = 0;
  for (int32_t node = 0; node <= last; node++) ends[node] = edge_ptr[node + 1] = edge_ptr[node] + ends[node];
  for (int32_t node = 0; node <= last; node++)
    for (int32_t e = dag.edge_ptr[node]; e < dag.edge_ptr[node + 1]; e++)
      edge_src[--ends[last - dag.edge_src[e]]] = last - node;  // mirrored readers descend, so fill from the end
}

// Sets the first row to the element-wise maximum of both.
void raise(int32_t* __restrict row, const int32_t* __restrict other, ptrdiff_t n) {
  for (ptrdiff_t k = 0; k < n; k++) row[k] = row[k] > other[k] ? row[k] : other[k];
}

}  // namespace

bool read_edges(PyObject* edge_ptr, PyObject* edge_src, Dag& dag) {
  if (!read<int32_t>(edge_ptr, "edge_ptr", dag.edge_ptr) || !read<int32_t>(edge_src, "edge_src", dag.edge_src))
    return false;
  if (!dag.edge_ptr.size || dag.edge_ptr.size > INT32_MAX || !rises(dag.edge_ptr, dag.edge_src.size)) {
    PyErr_Format(PyExc_ValueError,
                 "edge_ptr must rise from 0 to the number of edges, %zd, got an array of %zd that does not",
                 dag.edge_src.size, dag.edge_ptr.size);
    return false;
  }
  if (!within(dag.edge_src, 0, dag.n_nodes())) {
    PyErr_Format(PyExc_ValueError, "edge_src must lie in 0..%d, got another node", dag.n_nodes() - 1);
    return false;
  }
  return true;
}

bool read_typed_edges(PyObject* const* arguments, Dag& dag) {
  if (!read<int32_t>(arguments[0], "type_id", dag.type_id) || !read_edges(arguments[1], arguments[2], dag))
    return false;
  if (dag.type_id.size == dag.n_nodes()) return true;
  PyErr_Format(PyExc_ValueError, "type_id must have an element for each of %d nodes, got %zd", dag.n_nodes(),
               dag.type_id.size);
  return false;
}

bool read_dag(PyObject* tuple, Dag& dag) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 5) {
    Ref refused(PyObject_GetAttrString(tuple, "_dag_"));  // a Graph raises a GraphError here
    if (!refused && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Format(PyExc_TypeError, "dag must be a Dag, got %.80s", Py_TYPE(tuple)->tp_name);
    return false;
  }
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_int(parts[3], "n_types", dag.n_types) || !read_typed_edges(parts, dag)) return false;
  if (dag.n_types < 0 || dag.n_types == INT32_MAX || !within(dag.type_id, 0, dag.n_types))
    return PyErr_Format(PyExc_ValueError, "type_id must lie in 0..n_types - 1, got other ids for n_types=%d",
                        dag.n_types),
           false;
  if (parts[4] == Py_None) return true;
  if (!read<double>(parts[4], "costs", dag.costs)) return false;
  bool fits = dag.costs.size <= dag.n_types;
  for (double cost : dag.costs) fits &= cost > 0 && cost - cost == 0;  // inf - inf is NaN
  if (!fits) PyErr_SetString(PyExc_ValueError, "costs must be positive finite numbers, at most one for each type");
  return fits;
}

double Dag::cost_of(Span<const int32_t> sequence) const {
  if (!costs.size) return (double)sequence.size;
  double total = 0;
  for (int32_t type : sequence) total += cost_of(type);
  return total;
}

bool points_forward(const Dag& dag) {
  bool is_backward = false;
  for (int32_t node = 0; node < dag.n_nodes(); node++)
    for (int32_t source : dag.sources(node)) is_backward |= source >= node;
  return !is_backward;
}

void fill_depths(const Dag& dag, Span<int32_t> depth) {
  for (int32_t& of_node : depth) of_node = 0;
  for (int32_t node = 0; node < dag.n_nodes(); node++)
    for (int32_t source : dag.sources(node))
      if (depth[source] >= depth[node]) depth[node] = depth[source] + 1;
}

bool OwnedDag::copy(const Dag& dag) {
  n_types = dag.n_types;
  return type_id.copy(dag.type_id) && edge_ptr.copy(dag.edge_ptr) && edge_src.copy(dag.edge_src) &&
         costs.copy(dag.costs);
}

bool OwnedDag::reverse(const Dag& dag) {
  Vec<int32_t> ends;
  ptrdiff_t n = dag.n_nodes();
  n_types = dag.n_types;
  if (!type_id.resize(n) || !edge_ptr.resize(n + 1) || !edge_src.resize(dag.n_edges()) || !ends.resize(n) ||
      !costs.copy(dag.costs))
    return false;
  for (ptrdiff_t node = 0; node < n; node++) type_id[node] = dag.type_id[n - 1 - node];
  write_reverse(dag, edge_ptr, edge_src, ends);
  return true;
}

// reverse_dag(type_id, edge_ptr, edge_src): returns the same arrays for the DAG with all edges reversed.
PyObject* reverse_dag(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  if (!takes("reverse_dag", n, 3) || !read_typed_edges(arguments, dag)) return nullptr;
  Span<int32_t> type_id, edge_ptr, edge_src;
  Vec<int32_t> ends;
  Ref made_type_id = make_array<int32_t>(dag.type_id.size, type_id);
  Ref made_edge_ptr = make_array<int32_t>(dag.edge_ptr.size, edge_ptr);
  Ref made_edge_src = make_array<int32_t>(dag.edge_src.size, edge_src);
  if (!made_type_id || !made_edge_ptr || !made_edge_src) return nullptr;
  if (!ends.resize(dag.n_nodes())) return PyErr_NoMemory();
  {
    Unlocked unlocked;
    for (ptrdiff_t node = 0; node < type_id.size; node++) type_id[node] = dag.type_id[type_id.size - 1 - node];
    write_reverse(dag, edge_ptr, edge_src, ends);
  }
  return Py_BuildValue("NNN", made_type_id.release(), made_edge_ptr.release(), made_edge_src.release());
}

// find_depths(edge_ptr, edge_src): counts the edges on the longest path to each node.
PyObject* find_depths(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  if (!takes("find_depths", n, 2) || !read_edges(arguments[0], arguments[1], dag)) return nullptr;
  Span<int32_t> depth;
  Ref made = make_array<int32_t>(dag.n_nodes(), depth);
  if (!made) return nullptr;
  Unlocked unlocked;
  fill_depths(dag, depth);
  return made.release();
}

// count_chains(type_id, edge_ptr, edge_src, n_types): counts, by node and type, the most such nodes on a path from the
// node.
PyObject* count_chains(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  int32_t n_types;
  if (!takes("count_chains", n, 4) || !read_int(arguments[3], "n_types", n_types) || !read_typed_edges(arguments, dag))
    return nullptr;
  if (n_types < 0 || !within(dag.type_id, 0, n_types)) {
    PyErr_Format(PyExc_ValueError, "type_id must lie in 0..n_types - 1, got other ids for n_types=%d", n_types);
    return nullptr;
  }
  Table<int32_t> ahead;
  Ref made = make_table<int32_t>(dag.n_nodes(), n_types, ahead);
  if (!made) return nullptr;
  Unlocked unlocked;
  for (ptrdiff_t k = 0; k < ahead.rows * ahead.columns; k++) ahead.data[k] = 0;
  // If edges point forward, the row of a node is final once all later nodes have been visited.
  for (int32_t node = dag.n_nodes() - 1; node >= 0; node--) {
    int32_t* own = ahead[node];
    own[dag.type_id[node]]++;
    for (int32_t e = dag.edge_ptr[node]; e < dag.edge_ptr[node + 1]; e++) {
      if (dag.edge_src[e] != node) raise(ahead[dag.edge_src[e]], own, n_types);
    }
  }
  return made.release();
}

}  // namespace autobatch
