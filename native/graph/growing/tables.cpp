#include "graph/growing/tables.h"

#include "graph/graph.h"

namespace autobatch {

bool read_values(PyObject* values, Growing& growing) {
  Growing& g = growing;
  Span<int32_t>* rows[] = {&g.made_by, &g.word, &g.in_use, &g.readers, &g.run,
                           &g.slot,    &g.row,  &g.kept,   &g.mark,    &g.number};
  return read_rows<int32_t>(values, "values", 10, rows);
}

namespace {

// The memory range of an array.
struct Block {
  uintptr_t first, stop;

  bool meets(const Block& other) const { return first < other.stop && other.first < stop; }
};

Block block_of(PyObject* object) {
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  uintptr_t first = (uintptr_t)PyArray_DATA(array);
  return {first, first + (size_t)PyArray_NBYTES(array)};
}

constexpr int N_TABLES = 6;

// Returns whether an object is an array that shares memory with a table.
bool is_shared(const Block* tables, PyObject* object) {
  bool found = false;
  if (PyArray_Check(object))
    for (int k = 0; k < N_TABLES; k++) found |= tables[k].meets(block_of(object));
  return found;
}

// Returns whether an argument, or an array in a tuple, shares memory with a table.
bool is_any_shared(const Block* tables, PyObject* argument) {
  bool found = is_shared(tables, argument);
  for (Py_ssize_t k = 0; PyTuple_Check(argument) && k < PyTuple_GET_SIZE(argument); k++)
    found = found || is_shared(tables, PyTuple_GET_ITEM(argument, k));
  return found;
}

}  // namespace

bool read_growing(PyObject* const* arguments, Py_ssize_t n, Growing& growing) {
  Growing& g = growing;
  PyObject *nodes = arguments[0], *values = arguments[1];
  if (!PyTuple_Check(nodes) || PyTuple_GET_SIZE(nodes) != 5) {
    PyErr_Format(PyExc_TypeError, "nodes must be a tuple of 5 arrays, got %.80s", Py_TYPE(nodes)->tp_name);
    return false;
  }
  PyObject* tables[N_TABLES] = {values};
  for (int k = 1; k < N_TABLES; k++) tables[k] = PyTuple_GET_ITEM(nodes, k - 1);
  Span<int32_t>* table[] = {&g.type_id, &g.state, &g.owner, &g.edge_ptr, &g.attr_ptr, &g.float_ptr, &g.output_ptr};
  Span<int32_t>* edges[] = {&g.source, &g.output, &g.port};
  if (!read_values(values, g) || !read_rows<int32_t>(tables[1], "table", 7, table) ||
      !read_mutable<int32_t>(tables[2], "first_value", g.first_value) ||
      !read_rows<int32_t>(tables[3], "edges", 3, edges) || !read_mutable<int32_t>(tables[4], "attr", g.attr) ||
      !read_mutable<double>(tables[5], "floats", g.floats))
    return false;
  Block blocks[N_TABLES];
  bool shares = false;
  for (int k = 0; k < N_TABLES; k++) {
    blocks[k] = block_of(tables[k]);
    for (int other = 0; other < k; other++) shares |= blocks[k].meets(blocks[other]);
  }
  for (Py_ssize_t k = 2; k < n; k++) shares = shares || is_any_shared(blocks, arguments[k]);
  if (shares) PyErr_SetString(PyExc_ValueError, "nodes and values must have memory of their own, got shared memory");
  return !shares;
}

bool is_well(Ended ended) {
  if (ended == Ended::NO_MEMORY) PyErr_NoMemory();
  if (ended == Ended::WRONG)
    PyErr_SetString(PyExc_ValueError,
                    "tables of nodes and values must be consistent with each other and with the arguments");
  return ended == Ended::WELL;
}

namespace {

Ended mark_in_use(const Growing& g, Span<const int32_t> of, int32_t in_use) {
  for (int32_t node : of) {
    Range own;
    if (!g.values_of(node, own)) return Ended::WRONG;
    for (int32_t v = own.first; v < own.stop; v++) g.in_use[v] = in_use;
  }
  return Ended::WELL;
}

// Drops the pending nodes of the instance at `place`, which no other instance reads; `left` gets the other nodes.
Ended drop(const Growing& g, Span<const int32_t> pending, int32_t place, Vec<int32_t>& left) {
  if (!left.reserve(pending.size)) return Ended::NO_MEMORY;
  for (int32_t node : pending) {
    Range reads;
    if (!g.has_node(node) || !g.edges_of(node, reads)) return Ended::WRONG;
    if (g.owner[node] != place) {
      left.append(node);
      continue;
    }
    g.state[node] = DONE;
    for (int32_t e = reads.first; e < reads.stop; e++) {
      int32_t v = g.value_of(g.source[e], g.output[e]);
      if (v < 0) return Ended::WRONG;
      g.add_readers(v, -1);
    }
  }
  return Ended::WELL;
}

}  // namespace

// set_in_use(nodes, values, kept, gone): sets the flag of all values of `kept`, after clearing that of `gone`.
PyObject* set_in_use(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Span<const int32_t> kept, gone;
  if (!takes("set_in_use", n, 4) || !read_growing(arguments, n, g) || !read<int32_t>(arguments[2], "kept", kept) ||
      !read<int32_t>(arguments[3], "gone", gone))
    return nullptr;
  Ended ended = mark_in_use(g, gone, 0);
  if (ended == Ended::WELL) ended = mark_in_use(g, kept, 1);
  if (!is_well(ended)) return nullptr;
  Py_RETURN_NONE;
}

// count_readers(nodes, values, of, n): adds n to the number of readers of each of these values.
PyObject* count_readers(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Span<const int32_t> of;
  int32_t more;
  if (!takes("count_readers", n, 4) || !read_growing(arguments, n, g) || !read<int32_t>(arguments[2], "of", of) ||
      !read_int(arguments[3], "n", more))
    return nullptr;
  for (int32_t v : of)
    if (!g.has_value(v)) return is_well(Ended::WRONG), nullptr;
  for (int32_t v : of) g.add_readers(v, more);
  Py_RETURN_NONE;
}

// drop_pending(nodes, values, pending, place): drops the pending nodes of the instance at a place; returns the others.
PyObject* drop_pending(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Span<const int32_t> pending;
  int32_t place;
  Vec<int32_t> left;
  if (!takes("drop_pending", n, 4) || !read_growing(arguments, n, g) ||
      !read<int32_t>(arguments[2], "pending", pending) || !read_int(arguments[3], "place", place) ||
      !run([&] { return drop(g, pending, place, left); }))
    return nullptr;
  return to_array<int32_t>(left).release();
}

// nodes_of(owner, is_of): returns the nodes whose owner is flagged in `is_of`, which has one flag for each instance.
PyObject* nodes_of(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> owner;
  Span<const uint8_t> is_of;
  Vec<int32_t> found;
  if (!takes("nodes_of", n, 2) || !read<int32_t>(arguments[0], "owner", owner) ||
      !read_flags(arguments[1], "is_of", is_of))
    return nullptr;
  for (ptrdiff_t node = 0; node < owner.size; node++)
    if (owner[node] >= 0 && owner[node] < is_of.size && is_of[owner[node]] && !found.push((int32_t)node))
      return PyErr_NoMemory();
  return to_array<int32_t>(found).release();
}

// add_work(type_id, owner, nodes, product_work, each, by_owner): adds the work of some nodes to that of their owners,
// if `by_owner` has a number for each instance, not None; returns the sum. A node takes `each` besides its products.
PyObject* add_work(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> type_id, owner, nodes;
  Span<const int64_t> product_work;
  Span<double> by_owner;
  bool is_split = n == 6 && arguments[5] != Py_None;
  if (!takes("add_work", n, 6) || !read<int32_t>(arguments[0], "type_id", type_id) ||
      !read<int32_t>(arguments[1], "owner", owner) || !read<int32_t>(arguments[2], "nodes", nodes) ||
      !read<int64_t>(arguments[3], "product_work", product_work) ||
      (is_split && !read_mutable<double>(arguments[5], "by_owner", by_owner)))
    return nullptr;
  double each = PyFloat_AsDouble(arguments[4]), total = 0;
  if (each == -1 && PyErr_Occurred()) return nullptr;
  for (int32_t node : nodes) {
    if (node < 0 || node >= type_id.size || node >= owner.size) return is_well(Ended::WRONG), nullptr;
    int32_t kind = type_id[node], place = owner[node];
    if (kind < 0 || kind >= product_work.size || (is_split && (place < 0 || place >= by_owner.size)))
      return is_well(Ended::WRONG), nullptr;
    double work = each + (double)product_work[kind];
    total += work;
    if (is_split) by_owner[place] += work;
  }
  return PyFloat_FromDouble(total);
}

}  // namespace autobatch
