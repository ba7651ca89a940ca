// Values that several nodes of a batch add to one place, on a device: each is left in a place of its own, and when the
// batch is done they are added up in the order of the nodes. `autobatch.backends.cuda.sums` describes the arrays.

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

// Finds the sums of a plan with these destinations and widths of outputs; places of their own begin at `first`.
// Returns a problem of the destinations, or NO_MEMORY.
Problem find_sums(const PlanArrays& plan, Span<const int64_t> dest, Span<const int64_t> width, int64_t first,
                  Sums& sums);

}  // namespace autobatch
