#include "schedule/chains.h"

namespace autobatch {

bool Chains::start(const Simulator& sim) {
  n_types_ = sim.n_types();
  ptrdiff_t n_all = sim.dag.n_types, n = sim.dag.n_nodes();
  if (!ahead_.assign(n * n_types_, 0) || !height_.resize(n) || !longest_.resize(n_all * n_types_) ||
      !n_longest_.resize(n_all * n_types_) || !seen_.resize(n_all) || !most.resize(n_all) || !n_most.resize(n_all) ||
      !n_own_most.resize(n_all) || !ready_height.resize(n_all))
    return false;
  look_ahead(sim);
  for (ptrdiff_t g = 0; g < sim.n_batches.size(); g++) restart(sim, g);
  return true;
}

void Chains::look_ahead(const Simulator& sim) {
  for (ptrdiff_t g = 0; g < sim.n_batches.size(); g++)
    // Edges point forward, so from the last node on, all readers have passed their U on before a node is visited.
    for (int32_t node = sim.node_ptr[g + 1] - 1; node >= sim.node_ptr[g]; node--) {
      int32_t* __restrict own = ahead_.data() + (ptrdiff_t)node * n_types_, sum = 0;
      own[sim.dag.type_id[node] - (int32_t)g * n_types_]++;
      for (int32_t a = 0; a < n_types_; a++) sum += own[a];
      height_[node] = sum;
      for (int32_t source : sim.dag.sources(node)) {
        int32_t* __restrict of_source = ahead_.data() + (ptrdiff_t)source * n_types_;
        for (int32_t a = 0; a < n_types_; a++) of_source[a] = of_source[a] > own[a] ? of_source[a] : own[a];
      }
    }
}

void Chains::restart(const Simulator& sim, ptrdiff_t g) {
  int32_t first = (int32_t)g * n_types_;
  for (int32_t type = first; type < first + n_types_; type++) {
    forget(type);
    seen_[type] = sim.segment[type];
  }
  take_in(sim, first);
}

void Chains::follow(const Simulator& sim, int32_t type) {
  forget(type);
  take_in(sim, type - type % n_types_);
}

void Chains::forget(int32_t type) {
  for (ptrdiff_t a = 0; a < n_types_; a++) {
    longest_[(ptrdiff_t)type * n_types_ + a] = -1;
    n_longest_[(ptrdiff_t)type * n_types_ + a] = 0;
  }
  ready_height[type] = 0;
}

void Chains::take_in(const Simulator& sim, int32_t first) {
  for (int32_t type = first; type < first + n_types_; type++) {
    int32_t *longest = longest_.data() + (ptrdiff_t)type * n_types_,
            *n_longest = n_longest_.data() + (ptrdiff_t)type * n_types_;
    for (int32_t i = seen_[type]; i < sim.tail[type]; i++) {
      int32_t node = sim.queue[i];
      const int32_t* ahead = ahead_.data() + (ptrdiff_t)node * n_types_;
      ready_height[type] += height_[node];
      for (int32_t a = 0; a < n_types_; a++) {
        if (ahead[a] > longest[a]) {
          longest[a] = ahead[a];
          n_longest[a] = 1;
        } else if (ahead[a] == longest[a]) {
          n_longest[a]++;
        }
      }
    }
    seen_[type] = sim.tail[type];
  }
  for (int32_t a = 0; a < n_types_; a++) {
    int32_t largest = 0, n = 0;
    for (int32_t type = first; type < first + n_types_; type++) {
      ptrdiff_t at = (ptrdiff_t)type * n_types_ + a;
      if (longest_[at] > largest) {
        largest = longest_[at];
        n = n_longest_[at];
      } else if (longest_[at] == largest) {
        n += n_longest_[at];
      }
    }
    ptrdiff_t own = (ptrdiff_t)(first + a) * n_types_ + a;
    most[first + a] = largest;
    n_most[first + a] = n;
    n_own_most[first + a] = longest_[own] == largest ? n_longest_[own] : 0;
  }
}

}  // namespace autobatch
