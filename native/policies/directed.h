// Plans by a rule from the inputs, from the outputs, or both; `autobatch.policies.rules.directed` explains why.

#pragma once

#include "policies/rules.h"

namespace autobatch {

enum Direction : int { FORWARD = 1, BACKWARD = 2 };  // flags; both may be set

// A rule, and how to apply it: a Python `CoreRule`.
struct DirectedRule {
  Rule rule;
  int32_t directions;
  bool compacts;
  Weights weights;
};

// Plans in each of the directions, and keeps the cheapest schedule, or the first one if costs are equal; false if
// memory runs out.
bool plan_best(const Dag& dag, const DirectedRule& by, Batches& best);

}  // namespace autobatch
