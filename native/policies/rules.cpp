#include "policies/rules.h"

namespace autobatch {
namespace {

constexpr double ROUNDING = 1e-9;  // scores this close count as equal; the order of a sum can change them so much

// Sorts nodes stably by key, with a counting sort.
bool sort_stably(Span<const int32_t> key, Span<const int32_t> nodes, Vec<int32_t>& sorted) {
  int32_t largest = -1;
  for (int32_t value : key) largest = value > largest ? value : largest;
  Vec<int32_t> place;
  if (!place.assign((ptrdiff_t)largest + 2, 0) || !sorted.resize(nodes.size)) return false;
  for (int32_t value : key) place[value + 1]++;
  for (int32_t value = 0; value <= largest; value++) place[value + 1] += place[value];
  for (int32_t node : nodes) sorted[place[key[node]]++] = node;
  return true;
}

// Makes a batch of all nodes of one type at one depth. Sorts by type, then stably by depth, so that these nodes are
// adjacent and batches are in the order of depth.
bool plan_by_depth(const Dag& dag, Batches& batches) {
  Vec<int32_t> depth, all, by_type;
  int32_t n = dag.n_nodes();
  if (!depth.resize(n) || !all.resize(n)) return false;
  fill_depths(dag, depth);
  for (int32_t node = 0; node < n; node++) all[node] = node;
  if (!sort_stably(dag.type_id, all, by_type) || !sort_stably(depth, by_type, batches.order)) return false;
  batches.batch_type.resize(0);
  batches.batch_ptr.resize(0);
  for (int32_t i = 0; i < n; i++) {
    int32_t node = batches.order[i], before = i ? batches.order[i - 1] : -1;
    if (i && dag.type_id[node] == dag.type_id[before] && depth[node] == depth[before]) continue;
    if (!batches.batch_type.push(dag.type_id[node]) || !batches.batch_ptr.push(i)) return false;
  }
  return batches.batch_ptr.push(n);
}

// Returns whether the fraction a / b is less than c / d, for a, c >= 0 and b, d > 0. Compares quotients, then
// remainders, because a * d may overflow; b and d are counts of nodes, so products of remainders fit.
bool is_less(int64_t a, int64_t b, int64_t c, int64_t d) {
  if (a / b != c / d) return a / b < c / d;
  return (a % b) * d < (c % d) * b;
}

// Always runs the ready type whose unrun nodes have the smallest mean depth; `total` is the sum of their depths.
bool plan_by_agenda(const Dag& dag, Batches& batches) {
  Simulator sim;
  Vec<int32_t> depth;
  Vec<int64_t> total;
  if (!sim.start(dag) || !depth.resize(dag.n_nodes()) || !total.assign(dag.n_types, 0)) return false;
  fill_depths(dag, depth);
  for (int32_t node = 0; node < dag.n_nodes(); node++) total[dag.type_id[node]] += depth[node];
  for (;;) {
    int32_t best = -1;
    for (int32_t a = 0; a < dag.n_types; a++)
      if (sim.is_ready(a) && (best < 0 || is_less(total[a], sim.n_unrun(a), total[best], sim.n_unrun(best)))) best = a;
    if (best < 0) return sim.finish(batches);
    for (int32_t node : sim.step(best)) total[best] -= depth[node];
  }
}

// Returns whether the ratio of ready nodes to the frontier is less for type a than for type b.
bool is_less(const Simulator& sim, const Restricted& restricted, int32_t a, int32_t b) {
  return (int64_t)sim.n_ready(a) * restricted.frontier[b] < (int64_t)sim.n_ready(b) * restricted.frontier[a];
}

bool plan_by_ratio(const Dag& dag, bool prefers_critical, Batches& batches) {
  Simulator sim;
  Restricted restricted;
  Chains chains;
  if (!sim.start(dag) || !restricted.start(sim) || (prefers_critical && !chains.start(sim))) return false;
  for (;;) {
    int32_t best = -1;
    bool found = false;
    for (int32_t a = 0; a < dag.n_types; a++) {
      if (!sim.is_ready(a)) continue;
      bool critical = prefers_critical && chains.is_critical(a);
      if (best < 0 || (critical && !found) || (critical == found && is_less(sim, restricted, best, a))) {
        best = a;
        found = critical;
      }
    }
    if (best < 0) return sim.finish(batches);
    restricted.unblock(sim, best, sim.step(best));
    if (prefers_critical) chains.follow(sim, best);
  }
}

bool plan_by_score(const Dag& dag, const Weights& weights, Batches& batches) {
  Simulator sim;
  Chains chains;
  if (!sim.start(dag) || !chains.start(sim)) return false;
  for (;;) {
    int32_t best = highest_score(sim, chains, 0, dag.n_types, weights);
    if (best < 0) return sim.finish(batches);
    sim.step(best);
    chains.follow(sim, best);
  }
}

}  // namespace

int32_t highest_score(const Simulator& sim, const Chains& chains, int32_t first, int32_t end, const Weights& weights) {
  double highest = 0;
  for (int32_t a = first; a < end; a++) {
    if (!sim.is_ready(a)) continue;
    double mean = (double)chains.ready_height[a] / sim.n_ready(a);
    highest = mean > highest ? mean : highest;
  }
  int32_t best = -1;
  double best_score = 0;
  for (int32_t a = first; a < end; a++) {
    if (!sim.is_ready(a)) continue;
    double n_ready = sim.n_ready(a);
    double score = weights.critical * (chains.n_own_most[a] == chains.n_most[a]) +
                   weights.ready * n_ready / sim.n_unrun(a) +
                   weights.own * ((double)chains.n_own_most[a] / chains.n_most[a]) +
                   weights.height * (double)chains.ready_height[a] / (n_ready * highest);
    if (best >= 0 && !(score > best_score + ROUNDING)) continue;
    best = a;
    best_score = score;
  }
  return best;
}

bool plan_by_rule(const Dag& dag, Rule rule, const Weights& weights, Batches& batches) {
  switch (rule) {
    case Rule::DEPTH:
      return plan_by_depth(dag, batches);
    case Rule::AGENDA:
      return plan_by_agenda(dag, batches);
    case Rule::SUFFICIENT:
      return plan_by_ratio(dag, false, batches);
    case Rule::CRITICAL:
      return plan_by_ratio(dag, true, batches);
    case Rule::SCORE:
      return plan_by_score(dag, weights, batches);
  }
  return false;
}

}  // namespace autobatch
