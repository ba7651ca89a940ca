#include "plan/placement.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_NARROW = INT32_MAX;  // beyond this, destinations need 64 bits

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
        // Skips the lists before the wanted one: in `attr` each is its length and then its ints; floats have no length.
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

}  // namespace

bool Placement::read_layout(PyObject* tuple, const Types& types) {
  int32_t training;
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4) return refuse_type("layout", "a LayoutArrays", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_int(parts[3], "training", training) || !read_tables(parts[0], types, tables_) ||
      !read<int64_t>(parts[1], "slot_width", widths_.slot) || !read<int64_t>(parts[2], "saved_width", widths_.saved))
    return false;
  training_ = training != 0;
  if (widths_.saved.size == tables_.n_blocks()) return true;
  return PyErr_Format(PyExc_ValueError, "saved_width must have an element per block of tables (%zd), got %zd",
                      (ptrdiff_t)tables_.n_blocks(), widths_.saved.size),
         false;
}

bool Placement::fits(const TypedGraph& graph, Span<const double> floats) const {
  if (floats.size != graph.sizes.floats)
    return PyErr_Format(PyExc_ValueError, "floats must be as many as words say, %zd, got %zd",
                        (ptrdiff_t)graph.sizes.floats, floats.size),
           false;
  if (tables_.port_block.size || !graph.graph.edge_src.size) return true;
  return PyErr_SetString(PyExc_ValueError, "tables must have the ports that edges lead to, got none"), false;
}

Problem Placement::place(const TypedGraph& graph, Span<const double> floats, const BatchSpans& batches) {
  if (Problem problem = rows_.place(graph, batches, tables_, widths_, training_)) return problem;
  ptrdiff_t n_dest = graph.graph.edge_src.size + graph.graph.out_node.size;
  bool is_wide = rows_.size > MOST_NARROW;
  if (!gather_attributes(graph, rows_, floats, ints_, reals_) || !adds_.assign(n_dest, false) ||
      !(is_wide ? wide_.resize(n_dest) : narrow_.resize(n_dest)))
    return NO_MEMORY;
  Span<uint8_t> adds{reinterpret_cast<uint8_t*>(adds_.data()), n_dest};
  return is_wide
             ? list_destinations<int64_t>(graph.graph, rows_, tables_, widths_.slot, dest_base_, dest_ptr_, wide_, adds)
             : list_destinations<int32_t>(graph.graph, rows_, tables_, widths_.slot, dest_base_, dest_ptr_, narrow_,
                                          adds);
}

void Placement::list_arrays(const BatchSpans& batches, PlanArrays& plan) const {
  plan.batch_type = batches.type_id;
  plan.batch_ptr = batches.ptr;
  plan.base_ptr = rows_.base_ptr;
  plan.base = rows_.base;
  plan.saved_base = rows_.saved_base;
  plan.segments = rows_.segments;
  plan.segment_base = rows_.segment_base;
  plan.dest_base = dest_base_;
  plan.dest_ptr = dest_ptr_;
  plan.adds = {reinterpret_cast<const uint8_t*>(adds_.data()), adds_.size()};
  plan.block_rows = rows_.block_rows;
  plan.block_ptr = tables_.block_ptr;
  plan.block_width = tables_.block_width;
  plan.block_ints = tables_.block_ints;
  plan.block_floats = tables_.block_floats;
  plan.out_ptr = tables_.out_ptr;
  plan.out_block = tables_.out_block;
  plan.gradient_offset = rows_.gradient_offset;
}

Ref Placement::to_python(PlanArrays& plan) {
  Vec<int64_t> type_ptr;
  if (!type_ptr.resize(rows_.type_ptr.size())) return PyErr_NoMemory(), Ref();
  for (ptrdiff_t t = 0; t < type_ptr.size(); t++) type_ptr[t] = rows_.type_ptr[t];
  Ref parts[] = {adopt(rows_.row),
                 adopt(type_ptr),
                 adopt(rows_.node_at),
                 adopt(rows_.block_rows),
                 adopt(rows_.base_ptr),
                 adopt(rows_.base),
                 adopt(rows_.saved_base),
                 adopt(rows_.segments),
                 adopt(rows_.segment_base),
                 adopt(dest_base_),
                 adopt(dest_ptr_),
                 rows_.size > MOST_NARROW ? adopt(wide_) : adopt(narrow_),
                 adopt(adds_),
                 adopt(rows_.slot_base),
                 adopt(rows_.slot_rows),
                 Ref(PyLong_FromLongLong(rows_.gradient_offset)),
                 Ref(PyLong_FromLongLong(rows_.size)),
                 adopt(ints_),
                 adopt(reals_)};
  constexpr Py_ssize_t N_PARTS = sizeof(parts) / sizeof(*parts);
  Ref found(PyTuple_New(N_PARTS));
  for (Py_ssize_t i = 0; found && i < N_PARTS; i++) {
    if (!parts[i]) return Ref();
    PyTuple_SET_ITEM(found.get(), i, parts[i].release());
  }
  if (!found) return found;
  auto data = [&](Py_ssize_t part) {
    return PyArray_DATA(reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(found.get(), part)));
  };
  // Tables store the addresses of these arrays, which must be those of the Python arrays: `adopt` copies small vectors.
  enum { BLOCK_ROWS = 3, SEGMENTS = 7, SEGMENT_BASE, DEST_PTR = 10, DEST, ADDS, INTS = 17, FLOATS };
  plan.block_rows.data = static_cast<const int64_t*>(data(BLOCK_ROWS));
  plan.segments.data = static_cast<const int64_t*>(data(SEGMENTS));
  plan.segment_base.data = static_cast<const int64_t*>(data(SEGMENT_BASE));
  plan.dest_ptr.data = static_cast<const int64_t*>(data(DEST_PTR));
  plan.dest = data(DEST);
  plan.adds.data = static_cast<const uint8_t*>(data(ADDS));
  plan.ints = data(INTS);
  plan.floats = data(FLOATS);
  return found;
}

bool read_batches(PyObject* tuple, ptrdiff_t n, int32_t n_types, BatchSpans& batches) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3)
    return refuse_type("batches", "(batch_type, batch_ptr, order)", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read<int32_t>(parts[0], "batch_type", batches.type_id) || !read<int32_t>(parts[1], "batch_ptr", batches.ptr) ||
      !read<int32_t>(parts[2], "order", batches.order))
    return false;
  if (batches.type_id.size < INT32_MAX && within(batches.type_id, 0, n_types) &&
      batches.ptr.size == batches.type_id.size + 1 && rises(batches.ptr, n) && batches.order.size == n &&
      within(batches.order, 0, n))
    return true;
  PyErr_Format(PyExc_ValueError,
               "batches must be a schedule of all %zd nodes, got %zd batches, %zd offsets and %zd nodes", n,
               batches.type_id.size, batches.ptr.size, batches.order.size);
  return false;
}

}  // namespace autobatch
