// Q-learning: plays episodes, which schedule a mini-batch from its first batch to its last, and learns from them.
//
// The value of a type in a state is updated N batches after it was chosen: it moves towards the sum of the N rewards
// since.

#pragma once

#include <numpy/random/bitgen.h>

#include "policies/machine.h"

namespace autobatch {

enum class Reward : int { PUBLISHED = 0, CRITICAL = 1 };

// How to learn; `autobatch.policies.fsm.qlearning.QLearning` describes the settings.
struct LearningRules {
  double learning_rate, discount;
  int32_t n_steps;
  Reward reward;
  bool bootstraps, is_optimistic;
};

// The record of an episode: per batch, the state before it, the type that ran, and the reward.
struct Episode {
  Vec<int32_t> visited, chosen;
  Vec<double> rewards;
};

// Returns the reward of a batch that costs 1. PUBLISHED depends on the ready nodes and the frontier of the restricted
// DAG, CRITICAL only on `is_critical`.
double reward_of(Reward reward, int32_t n_ready, int32_t frontier, bool is_critical);

// A mini-batch to learn on.
class Course {
 public:
  // Sets up the simulation; false if memory runs out.
  bool start(const Dag& dag);
  // Schedules the mini-batch once, by `plan` unless that is empty, and learns from it. The table must have the types of
  // the DAG, and room for a state per batch. False if the plan ends early or names a type that is not ready.
  bool run(ValueTable& table, const Machine& machine, const LearningRules& rules, double epsilon, bitgen_t* random,
           Span<const int32_t> plan);
  // Returns the last episode, of which only the first `n_batches()` entries are valid.
  const Episode& episode() const { return episode_; }
  int32_t n_batches() const { return sim_.n_batches[0]; }
  int32_t n_nodes() const { return sim_.dag.n_nodes(); }
  int32_t n_types() const { return sim_.dag.n_types; }

 private:
  OwnedDag dag_;
  Simulator sim_;
  Chains chains_;
  Restricted restricted_;
  Episode episode_;
  Vec<int16_t> state_;
  Vec<uint8_t> allowed_;
};

}  // namespace autobatch
