// Buffer reuse in inference: a batch's rows take memory only from their first writer until the batch has run.
//
// Areas are allocated in the order of their first writers. Each takes the smallest gap that fits it (best fit), or else
// the end of the used memory, including a gap before the end if there is one. An area is freed when its batch has run;
// adjacent gaps are merged. All this happens in planning, so the peak is known before anything runs.

#pragma once

#include "graph/words.h"

namespace autobatch {

// Finds the first batch that writes to each batch's rows; the batch itself if none does. False if memory runs out.
bool find_first_writers(const Graph& graph, Span<const int32_t> batch_of, int32_t n_batches, Vec<int32_t>& first);

// Allocates areas from `end` on. The live range of area k is from step first[k], which is at most k, to step k. Writes
// the place of each area, and moves `end` to the end of the used memory. False if memory runs out.
bool give_out(Span<const int32_t> first, Span<const int64_t> size, int64_t& end, Vec<int64_t>& place);

}  // namespace autobatch
