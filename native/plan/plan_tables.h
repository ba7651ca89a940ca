// The tables of a plan: its tiles and the calls of each stage. `autobatch.backends.tables.PlanTables` documents them.

#pragma once

#include "plan/calls.h"

namespace autobatch {

class PlanTables {
 public:
  // Makes the tables for a number of threads; needs no interpreter lock. Returns a problem of the plan, or NO_MEMORY.
  Problem make(const PlanArrays& plan, const CellSizes& sizes, int32_t n_threads);
  // Makes the parts of a `PlanTables` in Python, in order, with the addresses of the arrays of `plan`; null with an
  // error if memory runs out.
  Ref to_python(const PlanArrays& plan) const;

 private:
  Tiles tiles_;
  CallList lists_[3];  // by `Stage`
  Vec<uint8_t> is_serial_;
};

}  // namespace autobatch
