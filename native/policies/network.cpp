#include "policies/network.h"

namespace autobatch {
namespace {

enum TypeFeature : int { UNRUN, READY, CRITICAL, READY_SHARE, OWN_SHARE, HEIGHT, CHAIN, RATIO, OF_READY, OF_UNRUN };
enum OverallFeature : int { LEFT, ALL_READY, READY_TYPES, CRITICAL_TYPES, INVERSE_TYPES };

// Scores the types of a DAG: w3 . relu(W2 h + V2 mean(h) + U2 overall + b2) with h = relu(W1 row + b1). The terms of
// V2, U2 and b2 are the same for all types, so they are computed once, in `shared_`.
class Scorer {
 public:
  bool start(const Network& network, int32_t n_types) {
    network_ = network;
    n_types_ = n_types;
    ptrdiff_t n = network.n_hidden();
    return rows.resize((ptrdiff_t)n_types * N_TYPE_FEATURES) && scores.resize(n_types) && hidden_.resize(n_types * n) &&
           mean_.resize(n) && shared_.resize(n);
  }
  // Writes the scores of all types, from the features in `rows` and `overall`; 0 for types without unrun nodes.
  void score() {
    ptrdiff_t n = network_.n_hidden();
    int32_t n_unrun = 0;
    for (ptrdiff_t h = 0; h < n; h++) mean_[h] = 0;
    for (int32_t a = 0; a < n_types_; a++) {
      const float* row = rows.data() + (ptrdiff_t)a * N_TYPE_FEATURES;
      if (row[UNRUN] == 0) continue;
      n_unrun++;
      for (ptrdiff_t h = 0; h < n; h++) {
        double total = network_.b1[h];
        for (int32_t f = 0; f < N_TYPE_FEATURES; f++) total += network_.w1[h * N_TYPE_FEATURES + f] * row[f];
        hidden_[a * n + h] = total > 0 ? total : 0.0;
        mean_[h] += hidden_[a * n + h];
      }
    }
    for (ptrdiff_t h = 0; h < n; h++) {
      shared_[h] = network_.b2[h];
      for (int32_t f = 0; f < N_OVERALL_FEATURES; f++)
        shared_[h] += network_.u2[h * N_OVERALL_FEATURES + f] * overall[f];
      for (ptrdiff_t other = 0; other < n; other++)
        shared_[h] += network_.v2[h * n + other] * mean_[other] / (n_unrun > 1 ? n_unrun : 1);
    }
    for (int32_t a = 0; a < n_types_; a++) {
      scores[a] = 0;
      if (rows[(ptrdiff_t)a * N_TYPE_FEATURES + UNRUN] == 0) continue;
      for (ptrdiff_t h = 0; h < n; h++) {
        double total = shared_[h];
        for (ptrdiff_t other = 0; other < n; other++) total += network_.w2[h * n + other] * hidden_[a * n + other];
        scores[a] += network_.w3[h] * (total > 0 ? total : 0.0);
      }
    }
  }

  Vec<float> rows;  // [T, F]
  float overall[N_OVERALL_FEATURES];
  Vec<double> scores;  // [T]

 private:
  Network network_;
  int32_t n_types_ = 0;
  Vec<double> hidden_, mean_, shared_;  // [T, H], [H], [H]
};

}  // namespace

void describe_types(const Simulator& sim, const Chains& chains, const Restricted& restricted, float* rows,
                    float* overall) {
  int32_t n_types = sim.dag.n_types, n_unrun_types = 0, n_ready_types = 0, n_critical = 0;
  int64_t all_ready = 0, all_unrun = 0, all_chains = 0;
  double highest = 0;
  for (ptrdiff_t i = 0; i < (ptrdiff_t)n_types * N_TYPE_FEATURES; i++) rows[i] = 0;
  for (int32_t f = 0; f < N_OVERALL_FEATURES; f++) overall[f] = 0;
  for (int32_t a = 0; a < n_types; a++) {
    all_ready += sim.n_ready(a);
    all_unrun += sim.n_unrun(a);
    all_chains += chains.most[a];
    if (!sim.is_ready(a)) continue;
    double mean = (double)chains.ready_height[a] / sim.n_ready(a);
    highest = mean > highest ? mean : highest;
  }
  if (!all_ready) return;
  for (int32_t a = 0; a < n_types; a++) {
    float* row = rows + (ptrdiff_t)a * N_TYPE_FEATURES;
    double n_ready = sim.n_ready(a), n_unrun = sim.n_unrun(a);
    if (n_unrun == 0) continue;
    n_unrun_types++;
    row[UNRUN] = 1;
    row[CHAIN] = (float)((double)chains.most[a] / (double)all_chains);
    row[OF_UNRUN] = (float)(n_unrun / (double)all_unrun);
    if (n_ready == 0) continue;
    n_ready_types++;
    n_critical += chains.is_critical(a);
    row[READY] = 1;
    row[CRITICAL] = chains.is_critical(a);
    row[READY_SHARE] = (float)(n_ready / n_unrun);
    row[OWN_SHARE] = (float)((double)chains.n_own_most[a] / chains.n_most[a]);
    row[HEIGHT] = (float)((double)chains.ready_height[a] / (n_ready * highest));
    row[RATIO] = (float)(n_ready / restricted.frontier[a]);
    row[OF_READY] = (float)(n_ready / (double)all_ready);
  }
  overall[LEFT] = (float)((double)all_unrun / sim.dag.n_nodes());
  overall[ALL_READY] = (float)((double)all_ready / (double)all_unrun);
  overall[READY_TYPES] = (float)((double)n_ready_types / n_unrun_types);
  overall[CRITICAL_TYPES] = (float)((double)n_critical / n_ready_types);
  overall[INVERSE_TYPES] = (float)(1.0 / n_unrun_types);
}

bool score_types(const Network& network, Table<const float> rows, Span<const float> overall, Span<double> scores) {
  Scorer scorer;
  if (!scorer.start(network, (int32_t)rows.rows)) return false;
  for (ptrdiff_t i = 0; i < scorer.rows.size(); i++) scorer.rows[i] = rows.data[i];
  for (int32_t f = 0; f < N_OVERALL_FEATURES; f++) scorer.overall[f] = overall[f];
  scorer.score();
  for (ptrdiff_t a = 0; a < scores.size; a++) scores[a] = scorer.scores[a];
  return true;
}

bool plan_by_network(const Dag& dag, const Network& network, Batches& batches) {
  Simulator sim;
  Chains chains;
  Restricted restricted;
  Scorer scorer;
  if (!sim.start(dag) || !chains.start(sim) || !restricted.start(sim) || !scorer.start(network, dag.n_types))
    return false;
  for (;;) {
    describe_types(sim, chains, restricted, scorer.rows.data(), scorer.overall);
    scorer.score();
    int32_t best = -1;
    for (int32_t a = 0; a < dag.n_types; a++)
      if (sim.is_ready(a) && (best < 0 || scorer.scores[a] > scorer.scores[best])) best = a;
    if (best < 0) return sim.finish(batches);
    restricted.unblock(sim, best, sim.step(best));
    chains.follow(sim, best);
  }
}

}  // namespace autobatch
