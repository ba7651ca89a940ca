// Planning by a rule from the inputs, from the outputs, or both; `autobatch.policies.rules.directed` says why.

#pragma once

#include "policies/rules.h"

namespace autobatch {

enum Direction : int { FORWARD = 1, BACKWARD = 2 };  // a set of them

// A rule, and how it is used: Python's `CoreRule`.
struct DirectedRule {
  Rule rule;
  int32_t directions;
  bool compacts;
  Weights weights;
};

// Plans in each direction, and keeps the schedule with the fewest batches, the first among equals; false if memory runs
// out.
bool plan_best(const Dag& dag, const DirectedRule& by, Batches& best);

}  // namespace autobatch
