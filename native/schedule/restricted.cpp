#include "schedule/restricted.h"

namespace autobatch {

bool Restricted::start(const Simulator& sim) {
  n_types_ = sim.n_types();
  ptrdiff_t n = sim.dag.n_nodes();
  if (!blocked_.resize(n * n_types_) || !frontier.resize(sim.dag.n_types) || !stack_.resize(n + 1)) return false;
  for (ptrdiff_t g = 0; g < sim.n_batches.size(); g++) restart(sim, g);
  return true;
}

void Restricted::restart(const Simulator& sim, ptrdiff_t g) {
  int32_t first = (int32_t)g * n_types_;
  for (int32_t type = first; type < first + n_types_; type++) frontier[type] = 0;
  for (int32_t node = sim.node_ptr[g]; node < sim.node_ptr[g + 1]; node++) {
    int32_t* own = blocked_.data() + (ptrdiff_t)node * n_types_;
    for (int32_t a = 0; a < n_types_; a++) own[a] = 0;
    for (int32_t source : sim.dag.sources(node)) {
      const int32_t* of_source = blocked_.data() + (ptrdiff_t)source * n_types_;
      for (int32_t a = 0; a < n_types_; a++) own[a] += of_source[a] > 0 || sim.dag.type_id[source] == first + a;
    }
    frontier[sim.dag.type_id[node]] += own[sim.dag.type_id[node] - first] == 0;
  }
}

void Restricted::unblock(const Simulator& sim, int32_t type, Span<const int32_t> batch) {
  int32_t own = type % n_types_;
  for (int32_t done : batch) {
    frontier[type]--;
    stack_[0] = done;
    for (ptrdiff_t size = 1; size;) {
      int32_t node = stack_[--size];
      for (int32_t reader : sim.readers(node)) {
        if (--blocked_[(ptrdiff_t)reader * n_types_ + own]) continue;
        // An unblocked node of the same type joins the frontier and blocks its readers until it runs. Other nodes no
        // longer block their readers.
        if (sim.dag.type_id[reader] == type)
          frontier[type]++;
        else
          stack_[size++] = reader;
      }
    }
  }
}

}  // namespace autobatch
