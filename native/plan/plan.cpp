// The functions of this folder that Python calls; `_native.pyi` describes them.

#include "plan/destinations.h"
#include "plan/lifetimes.h"

namespace autobatch {
namespace {

// Sorts the attributes of nodes by block and row.
bool gather_attributes(const TypedGraph& graph, const Rows& rows, Span<const double> floats, Vec<int32_t>& ints,
                       Vec<double>& reals) {
  const Types& types = graph.types;
  Span<const int32_t> attr = graph.graph.attr;
  if (!ints.reserve(attr.size) || !reals.reserve(floats.size)) return false;
  auto copy = [&](ptrdiff_t at, int64_t n_ints, ptrdiff_t start, int64_t n_floats) {
    for (int64_t k = 0; k < n_ints; k++) ints.append(attr[at + k]);
    for (int64_t k = 0; k < n_floats; k++) reals.append(floats[start + k]);
  };
  for (int32_t type = 0; type < types.n_types(); type++) {
    int32_t int_width = types.int_width[type], float_width = types.float_width[type];
    Span<const int32_t> nodes = Span<const int32_t>(rows.node_at).part(rows.type_ptr[type], rows.type_ptr[type + 1]);
    if (int_width || float_width)
      for (int32_t node : nodes) copy(graph.int_starts[node], int_width, graph.float_starts[node], float_width);
    for (int32_t wanted = types.data_ptr[type]; wanted < types.data_ptr[type + 1]; wanted++)
      for (int32_t node : nodes) {
        int64_t at = graph.int_starts[node] + int_width, start = graph.float_starts[node] + float_width;
        for (int32_t number = types.data_ptr[type]; number < wanted; number++) {
          int64_t length = attr[at];
          at += 1 + length * types.data_ints[number];
          start += length * types.data_floats[number];
        }
        int64_t length = attr[at];
        copy(at + 1, length * types.data_ints[wanted], start, length * types.data_floats[wanted]);
      }
  }
  return true;
}

bool read_batches(PyObject* tuple, const TypedGraph& graph, int32_t n_types, BatchSpans& batches) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3)
    return PyErr_SetString(PyExc_TypeError, "batches must be (batch_type, batch_ptr, order)"), false;
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read<int32_t>(parts[0], "batch_type", batches.type_id) || !read<int32_t>(parts[1], "batch_ptr", batches.ptr) ||
      !read<int32_t>(parts[2], "order", batches.order))
    return false;
  ptrdiff_t n = graph.graph.n_nodes();
  if (batches.type_id.size < INT32_MAX && within(batches.type_id, 0, n_types) &&
      batches.ptr.size == batches.type_id.size + 1 && rises(batches.ptr, n) && batches.order.size == n &&
      within(batches.order, 0, n))
    return true;
  PyErr_SetString(PyExc_ValueError, "batches must be a schedule of all nodes");
  return false;
}

template <class T>
Ref adds_array(ptrdiff_t n, Span<uint8_t>& span) {
  npy_intp shape[1] = {n};
  Ref made(PyArray_SimpleNew(1, shape, NPY_BOOL));
  if (made) span = {static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.get()))), n};
  return made;
}

constexpr int64_t MOST_ELEMENTS = INT32_MAX;  // beyond this, destinations need 64 bits

// place_values(words, floats, batches, types, tables, slot_width, saved_width, training): the parts of a plan, in the
// order of `Plan`.
PyObject* place_values(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph graph;
  Span<const double> floats;
  BatchSpans batches;
  TypeTables tables;
  Widths widths;
  int32_t training;
  if (!takes("place_values", n, 8) || !read_int(arguments[7], "training", training) ||
      !read_graph_and_types(arguments[0], arguments[3], graph) || !read<double>(arguments[1], "floats", floats) ||
      !read_tables(arguments[4], graph.types, tables) ||
      !read_batches(arguments[2], graph, tables.n_types(), batches) ||
      !read<int64_t>(arguments[5], "slot_width", widths.slot) ||
      !read<int64_t>(arguments[6], "saved_width", widths.saved))
    return nullptr;
  if (widths.saved.size != tables.n_blocks() || floats.size != graph.sizes.floats)
    return PyErr_SetString(PyExc_ValueError, "saved_width and floats must be as many as there are"), nullptr;
  if (!tables.port_block.size && graph.graph.edge_src.size)
    return PyErr_SetString(PyExc_ValueError, "tables must have the ports that edges lead to, got none"), nullptr;
  Rows rows;
  Vec<int64_t> dest_base, dest_ptr;
  Vec<int32_t> ints;
  Vec<double> reals;
  Problem problem;
  {
    Unlocked unlocked;
    problem = check_types(graph);
    if (!problem) problem = rows.place(graph, batches, tables, widths, training);
    if (!problem && !gather_attributes(graph, rows, floats, ints, reals)) problem = NO_MEMORY;
  }
  if (!set_problem(problem)) return nullptr;
  ptrdiff_t n_dest = graph.graph.edge_src.size + graph.graph.out_node.size;
  bool is_wide = rows.size > MOST_ELEMENTS;
  Span<int32_t> narrow;
  Span<int64_t> wide;
  Span<uint8_t> adds;
  Ref dest = is_wide ? make_array<int64_t>(n_dest, wide) : make_array<int32_t>(n_dest, narrow);
  Ref added = adds_array<uint8_t>(n_dest, adds);
  if (!dest || !added) return nullptr;
  {
    Unlocked unlocked;
    problem =
        is_wide ? list_destinations<int64_t>(graph.graph, rows, tables, widths.slot, dest_base, dest_ptr, wide, adds)
                : list_destinations<int32_t>(graph.graph, rows, tables, widths.slot, dest_base, dest_ptr, narrow, adds);
  }
  if (!set_problem(problem)) return nullptr;
  Vec<int64_t> type_ptr;
  if (!type_ptr.resize(rows.type_ptr.size())) return PyErr_NoMemory();
  for (ptrdiff_t t = 0; t < type_ptr.size(); t++) type_ptr[t] = rows.type_ptr[t];
  Ref parts[] = {to_array<int32_t>(rows.row),
                 to_array<int64_t>(type_ptr),
                 to_array<int32_t>(rows.node_at),
                 to_array<int64_t>(rows.block_rows),
                 to_array<int64_t>(rows.base_ptr),
                 to_array<int64_t>(rows.base),
                 to_array<int64_t>(rows.saved_base),
                 to_array<int64_t>(rows.segments),
                 to_array<int64_t>(rows.segment_base),
                 to_array<int64_t>(dest_base),
                 to_array<int64_t>(dest_ptr),
                 static_cast<Ref&&>(dest),
                 static_cast<Ref&&>(added),
                 to_array<int64_t>(rows.slot_base),
                 to_array<int64_t>(rows.slot_rows),
                 Ref(PyLong_FromLongLong(rows.mirror)),
                 Ref(PyLong_FromLongLong(rows.size)),
                 to_array<int32_t>(ints),
                 to_array<double>(reals)};
  Ref found(PyTuple_New(19));
  for (int i = 0; found && i < 19; i++) {
    if (!parts[i]) return nullptr;
    PyTuple_SET_ITEM(found.get(), i, parts[i].release());
  }
  return found.release();
}

// give_out(first, size, start): the places of areas, and the end of memory; see `lifetimes.h`.
PyObject* give_out_areas(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> first;
  Span<const int64_t> size;
  Vec<int64_t> place;
  int64_t last;
  if (!takes("give_out", n, 3) || !read_long(arguments[2], "start", last) ||
      !read<int32_t>(arguments[0], "first", first) || !read<int64_t>(arguments[1], "size", size))
    return nullptr;
  bool fits = size.size == first.size && first.size < INT32_MAX;
  for (ptrdiff_t k = 0; fits && k < first.size; k++) fits = first[k] >= 0 && first[k] <= k;
  if (!fits) return PyErr_SetString(PyExc_ValueError, "first must be at most k for each of as many areas"), nullptr;
  for (int64_t left = last < 0 ? INT64_MAX : INT64_MAX - last; int64_t one : size)
    if (one > 0 && (left -= one) < 0)
      return PyErr_SetString(PyExc_ValueError, "areas must end within 64 bits, got more"), nullptr;
  if (!give_out(first, size, last, place)) return PyErr_NoMemory();
  return Py_BuildValue("NL", to_array<int64_t>(place).release(), (long long)last);
}

PyMethodDef functions[] = {
    fast("place_values", place_values), fast("give_out", give_out_areas), {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_plan(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
