// A small network that scores each ready type from a few features; `autobatch.policies.rules.network` describes both.

#pragma once

#include "schedule/chains.h"
#include "schedule/restricted.h"
#include "support/arrays.h"

namespace autobatch {

constexpr int32_t N_TYPE_FEATURES = 10, N_OVERALL_FEATURES = 5;

// Weights for H hidden units.
struct Network {
  Span<const double> w1, b1, w2, v2, u2, b2, w3;  // [H, F], [H], [H, H], [H, H], [H, G], [H], [H]

  ptrdiff_t n_hidden() const { return w3.size; }
};

// Writes the features of the types of a single DAG, at any point of its simulation, and of the whole DAG.
void describe_types(const Simulator& sim, const Chains& chains, const Restricted& restricted, float* rows,
                    float* overall);

// Scores types by their features; types without unrun nodes have a score of 0. False if memory runs out.
bool score_types(const Network& network, Table<const float> rows, Span<const float> overall, Span<double> scores);

// Schedules a DAG by always running the ready type with the highest score, the lowest type among equals; false if
// memory runs out.
bool plan_by_network(const Dag& dag, const Network& network, Batches& batches);

}  // namespace autobatch
