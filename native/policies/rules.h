// Rules that choose the type to run next: depth, DyNet's agenda, ED-Batch's ratio, critical types, and a weighted
// score. `autobatch.policies.rules` documents them.

#pragma once

#include "schedule/chains.h"
#include "schedule/restricted.h"
#include "schedule/simulator.h"

namespace autobatch {

enum class Rule : int { DEPTH = 0, AGENDA = 1, SUFFICIENT = 2, CRITICAL = 3, SCORE = 4 };

// The weights of the terms of a score.
struct Weights {
  double critical, ready, own, height;
};

// Schedules a DAG by a rule; false if memory runs out.
bool plan_by_rule(const Dag& dag, Rule rule, const Weights& weights, Batches& batches);

// Finds the ready type of highest score among types first..end-1, the lowest among equals; -1 if none is ready.
int32_t highest_score(const Simulator& sim, const Chains& chains, int32_t first, int32_t end, const Weights& weights);

}  // namespace autobatch
