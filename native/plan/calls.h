// Lists the calls of each stage in order. A call is the number of a step, and the number of a tile of its type.

#pragma once

#include "plan/tiles.h"

namespace autobatch {

// The calls of a stage. The p-th tile that runs has calls[tile_ptr[p]:tile_ptr[p + 1]], and part k has tiles
// ptr[k]:ptr[k + 1]. Part 0 is the prologue, the last part is the epilogue, and the parts between them are the batches
// in the order in which they run. The tiles of the prologue and the epilogue cover all rows of a type.
struct CallList {
  struct Call {
    int64_t step, tile;
  };
  Vec<Call> calls;
  Vec<int64_t> tile_ptr, ptr;
};

enum Stage : int { FORWARD_STAGE = 0, BACKWARD_STAGE = 1, WEIGHT_STAGE = 2 };

// Lists the calls of the forward or backward stage; `counts` is `Tiles::counts`. False if memory runs out.
bool list_calls(const PlanArrays& plan, const CellSizes& sizes, Span<const int64_t> counts, Stage stage,
                int32_t n_threads, CallList& list);

// Lists the calls of the weight stage, for the gradients of parameters. With T types, part t has the compiled steps of
// type t, and part T + t its other steps. False if memory runs out.
bool list_weight_calls(const CellSizes& sizes, Span<const int64_t> counts, int32_t n_threads, CallList& list);

// Finds the batches that add values to others, which only one thread may do. Returns a problem if destinations are out
// of range, or NO_MEMORY.
Problem find_serial(const PlanArrays& plan, Vec<uint8_t>& is_serial);

// Finds the entries of `dest_ptr` for rows start:end of an output of a type, and the end; empty if they are out of
// range.
Span<const int64_t> entries_of(const PlanArrays& plan, int32_t type, int32_t output, int64_t start, int64_t end);

}  // namespace autobatch
