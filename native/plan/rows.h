// Numbers the rows of each type, and places the rows of each batch in the buffer.
//
// Rows of a type are in schedule order, so a batch is a contiguous range of rows and its inputs are read without a
// gather. In training the rows of a type are one block: backward reads them again, and weight gradients read all of
// them at once. In inference a batch's rows live from their first writer until the batch has run; then their memory is
// reused (`lifetimes.h`).

#pragma once

#include "graph/words.h"
#include "plan/tables.h"
#include "schedule/simulator.h"

namespace autobatch {

// The K batches of a schedule.
struct BatchSpans {
  Span<const int32_t> type_id, ptr, order;

  int32_t size() const { return (int32_t)type_id.size; }
};

// Elements per row of each slot of the results, and of the saved values of each block.
struct Widths {
  Span<const int64_t> slot, saved;
};

// The row of each node, and the places of the rows of batches and types. `Plan` documents the fields that it keeps.
class Rows {
 public:
  // Numbers nodes and places rows. Returns a problem of the schedule or the graph, or NO_MEMORY.
  Problem place(const TypedGraph& graph, const BatchSpans& batches, const TypeTables& tables, const Widths& widths,
                bool training);

  Vec<int32_t> type_ptr, row, node_at;
  Vec<int32_t> batch_of;      // [N]
  Vec<int64_t> segments;      // the first edge row of each node row, for all variadic group blocks in turn
  Vec<int64_t> segment_base;  // [blocks+1] where each block's segments begin
  Vec<int64_t> block_rows, base_ptr, base;
  Vec<int64_t> origin;  // like `base`, but for row 0 of the block: row r is at origin + r * width
  Vec<int64_t> slot_base, slot_rows, saved_base;
  int64_t gradient_offset = 0, size = 0;

 private:
  Problem number(const TypedGraph& graph, const BatchSpans& batches, int32_t n_types);
  Problem count_segments(const TypedGraph& graph, const TypeTables& tables);
  bool count_rows(const BatchSpans& batches, const TypeTables& tables);
  bool place_areas(const Graph& graph, const BatchSpans& batches, const TypeTables& tables, int64_t start);

  Vec<int64_t> before_, n_rows_;  // per block of each batch: its rows in earlier batches, and in this batch
};

}  // namespace autobatch
