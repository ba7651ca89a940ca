// The placement of a mini-batch: a row for each node, destinations for each output, and attributes in row order.

#pragma once

#include "plan/destinations.h"
#include "plan/tiles.h"

namespace autobatch {

class Placement {
 public:
  // Reads a `LayoutArrays`, `(tables, slot_width, saved_width, training)`, for types that were already read.
  bool read_layout(PyObject* tuple, const Types& types);
  // Checks that the layout fits a graph whose types were checked; false with an error if it does not.
  bool fits(const TypedGraph& graph, Span<const double> floats) const;
  // Places a scheduled graph. Returns a problem of the schedule or the graph, or NO_MEMORY. Needs no interpreter lock.
  Problem place(const TypedGraph& graph, Span<const double> floats, const BatchSpans& batches);
  // Points `plan` at the arrays that tables are made from; `batches` is the schedule that `place` was given.
  void list_arrays(const BatchSpans& batches, PlanArrays& plan) const;
  // Makes the parts of a `Plan` from `row` to `floats`; null with an error if memory runs out. Hands the vectors over
  // to Python, and points `plan` at the arrays that steps read.
  Ref to_python(PlanArrays& plan);

  int32_t n_types() const { return tables_.n_types(); }
  int32_t n_blocks() const { return tables_.n_blocks(); }
  ptrdiff_t n_slots() const { return widths_.slot.size; }

 private:
  TypeTables tables_;
  Widths widths_;
  bool training_ = false;
  Rows rows_;
  Vec<int64_t> dest_base_, dest_ptr_, wide_;
  Vec<int32_t> narrow_, ints_;
  Vec<double> reals_;
  Vec<bool> adds_;
};

// Reads a schedule of the N nodes of a graph, `(batch_type, batch_ptr, order)`. The arrays must outlive the spans.
bool read_batches(PyObject* tuple, ptrdiff_t n_nodes, int32_t n_types, BatchSpans& batches);

}  // namespace autobatch
