// Lists the calls of each stage in order: a call is the number of a step, and that of a tile among those of its type.

#pragma once

#include "plan/tiles.h"

namespace autobatch {

// The calls of a stage. Of the p-th tile that runs, they are calls[tile_ptr[p]:tile_ptr[p + 1]], and part k has the
// tiles ptr[k]:ptr[k + 1]. Part 0 is the prologue, the next are the batches in the order in which they run, and the
// last is the epilogue. Tiles of the prologue and the epilogue are of all rows of a type.
struct CallList {
  struct Call {
    int64_t step, tile;
  };
  Vec<Call> calls;
  Vec<int64_t> tile_ptr, ptr;
};

enum Stage : int { FORWARD_STAGE = 0, BACKWARD_STAGE = 1, WEIGHT_STAGE = 2 };

// Lists the calls of forward or backward; `counts` is that of the tiles. False if memory runs out.
bool list_calls(const PlanArrays& plan, const CellSizes& sizes, Span<const int64_t> counts, Stage stage,
                int32_t n_threads, CallList& list);

// Lists the calls for the gradients of parameters: of T types, part t has the compiled steps, and part T + t the
// others.
bool list_weight_calls(const CellSizes& sizes, Span<const int64_t> counts, int32_t n_threads, CallList& list);

// Finds the batches that add values to others, which only one thread may do. A problem if destinations are out of
// range.
Problem find_serial(const PlanArrays& plan, Vec<uint8_t>& is_serial);

// Finds the entries in `dest_ptr` of the rows start:end of an output of a type.
Span<const int64_t> entries_of(const PlanArrays& plan, int32_t type, int32_t output, int64_t start, int64_t end);

}  // namespace autobatch
