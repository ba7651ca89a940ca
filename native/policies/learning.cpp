#include "policies/learning.h"

namespace autobatch {
namespace {

// Moves the value of the type that ran at step `first` towards its return: the discounted sum of the rewards before
// step `end`, and then of `ahead`.
void update(const Episode& episode, ValueTable& table, const LearningRules& rules, ptrdiff_t first, ptrdiff_t end,
            double ahead) {
  double total = ahead;
  for (ptrdiff_t t = end - 1; t >= first; t--) total = episode.rewards[t] + rules.discount * total;
  int32_t number = episode.visited[first], type = episode.chosen[first];
  table.values[number][type] += rules.learning_rate * (total - table.values[number][type]);
  table.updates[number][type]++;
}

// Finds the allowed type with the highest value, the lowest type among equals. Without optimism, types that were tried
// come first.
int32_t best_of(const ValueTable& table, int32_t number, Span<const uint8_t> allowed, bool is_optimistic) {
  const double* values = table.values[number];
  const int32_t* updates = table.updates[number];
  int32_t best = -1;
  for (int32_t a = 0; a < allowed.size; a++) {
    if (!allowed[a]) continue;
    bool is_tried = is_optimistic || updates[a] > 0, is_known = best >= 0 && (is_optimistic || updates[best] > 0);
    if (best < 0 || (is_tried && !is_known) || (is_tried && values[a] > values[best])) best = a;
  }
  return best;
}

// Draws one of the allowed types, all with equal probability.
int32_t any_of(Span<const uint8_t> allowed, bitgen_t* random) {
  int32_t n = 0;
  for (uint8_t one : allowed) n += one;
  int32_t left = (int32_t)(random->next_double(random->state) * n);
  for (int32_t a = 0; a < allowed.size; a++)
    if (allowed[a] && left-- == 0) return a;
  return -1;
}

}  // namespace

double reward_of(Reward reward, int32_t n_ready, int32_t frontier, bool is_critical) {
  return reward == Reward::PUBLISHED ? (double)n_ready / frontier - 1 : (double)is_critical - 1;
}

bool Course::start(const Dag& dag) {
  ptrdiff_t n = dag.n_nodes();
  return dag_.copy(dag) && sim_.start(dag_.view()) && chains_.start(sim_) && restricted_.start(sim_) &&
         episode_.visited.resize(n) && episode_.chosen.resize(n) && episode_.rewards.resize(n) &&
         state_.assign(2 * (ptrdiff_t)dag.n_types, 0) && allowed_.resize(dag.n_types);
}

bool Course::run(ValueTable& table, const Machine& machine, const LearningRules& rules, double epsilon,
                 bitgen_t* random, Span<const int32_t> plan) {
  sim_.restart(0);
  chains_.restart(sim_, 0);
  restricted_.restart(sim_, 0);
  ptrdiff_t t = 0;
  while (allow(sim_, chains_, machine.has_mask, allowed_)) {
    if (plan.size && t == plan.size) return false;
    encode(sim_, chains_, n_types(), machine.encoding, state_.data(), table.width());
    int32_t number = table.add(state_.data());
    // The step `n_steps` ago now has all its rewards. If the rules bootstrap, the best value of this state stands for
    // the rewards to come.
    if (t >= rules.n_steps) {
      double ahead =
          rules.bootstraps ? table.values[number][best_of(table, number, allowed_, rules.is_optimistic)] : 0.0;
      update(episode_, table, rules, t - rules.n_steps, t, ahead);
    }
    int32_t type;
    if (plan.size)
      type = plan[t];
    else if (random->next_double(random->state) < epsilon)
      type = any_of(allowed_, random);
    else
      type = best_of(table, number, allowed_, rules.is_optimistic);
    if (type < 0 || type >= n_types() || !sim_.is_ready(type)) return false;
    episode_.visited[t] = number;
    episode_.chosen[t] = type;
    episode_.rewards[t] =
        reward_of(rules.reward, sim_.n_ready(type), restricted_.frontier[type], chains_.is_critical(type)) *
        sim_.dag.cost_of(type);
    Span<const int32_t> batch = sim_.step(type);
    chains_.follow(sim_, type);
    restricted_.unblock(sim_, type, batch);
    t++;
  }
  for (ptrdiff_t first = t > rules.n_steps ? t - rules.n_steps : 0; first < t; first++)
    update(episode_, table, rules, first, t, 0.0);
  return true;
}

}  // namespace autobatch
