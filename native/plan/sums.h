// Sums of values that several nodes of a batch add to one place, on a device. Each node writes its value to a place of
// its own; after the batch, these are added up in the order of the nodes, so that equal runs are bit-identical.
// `autobatch.backends.cuda.sums` documents the arrays.

#pragma once

#include "plan/calls.h"

namespace autobatch {

struct Sums {
  struct Sum {
    int64_t place, size, first, end;
  };
  Vec<int64_t> to, parts, ptr;
  Vec<Sum> table;
  int64_t size = 0;
};

// Finds the sums of a plan with these destinations and widths of outputs; the values' own places begin at `first`.
// Returns a problem of the destinations, or NO_MEMORY.
Problem find_sums(const PlanArrays& plan, Span<const int64_t> dest, Span<const int64_t> width, int64_t first,
                  Sums& sums);

}  // namespace autobatch
