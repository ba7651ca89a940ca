// Q-learning: plays episodes, which schedule a mini-batch from its first batch to its last, and learns from them.
//
// N batches after a choice, the value of that type in that state moves towards the sum of the N rewards since.

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

// What happened: the state before each batch, the type that ran, and the reward.
struct Episode {
  Vec<int32_t> visited, chosen;
  Vec<double> rewards;
};

// The reward of a batch. Only PUBLISHED reads the ready nodes and those at the frontier of the restricted DAG.
double reward_of(Reward reward, int32_t n_ready, int32_t frontier, bool is_critical);

// A step of an episode that was played on a device.
struct LearnedStep {
  int32_t state;  // its number, or -1 - k for fresh state k
  int32_t type, n_ready;
  int32_t against;  // the size of the type's frontier, or whether it was critical, as the reward needs
};

// Learns from an episode that was played before: as a course does by a plan, without bootstrapping.
bool learn_from(Span<const LearnedStep> steps, Table<const int16_t> fresh, ValueTable& table,
                const LearningRules& rules, Episode& episode);

// A mini-batch to learn on.
class Course {
 public:
  // Sets up the simulation; false if memory runs out.
  bool start(const Dag& dag);
  // Schedules the mini-batch once, by `plan` unless that is empty, and learns from it. The table must have the types of
  // the DAG, and room for a state per batch. False if the plan names a type that is not ready.
  bool run(ValueTable& table, const Machine& machine, const LearningRules& rules, double epsilon, bitgen_t* random,
           Span<const int32_t> plan);
  // The last episode, and how many batches it had.
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
