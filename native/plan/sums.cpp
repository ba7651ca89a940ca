#include "plan/sums.h"

namespace autobatch {
namespace {

// A value that is first written to a place of its own, and later added to `place`.
struct Added {
  int64_t place, width, own;
  ptrdiff_t number;

  // Compares places, then the order of the nodes, which an unstable sort would not keep.
  bool is_before(const Added& other) const {
    return place != other.place ? place < other.place : number < other.number;
  }
};

}  // namespace

Problem find_sums(const PlanArrays& plan, Span<const int64_t> dest, Span<const int64_t> width, int64_t first,
                  Sums& sums) {
  constexpr Problem OUT_OF_RANGE = "destinations of the plan are out of range";
  Vec<int64_t> n_done;
  Vec<Added> found;
  if (!sums.to.copy(dest) || !sums.ptr.assign((ptrdiff_t)plan.n_batches() + 1, 0) || !n_done.assign(plan.n_types(), 0))
    return NO_MEMORY;
  for (int32_t batch = 0; batch < plan.n_batches(); batch++) {
    int32_t type = plan.batch_type[batch];
    int64_t start = n_done[type], end = n_done[type] += plan.n_rows(batch), behind = 0;
    // Every batch uses the same places from `first` on, which are free again when its sums are added up.
    found.resize(0);
    for (int32_t output = plan.out_ptr[type]; output < plan.out_ptr[type + 1]; output++) {
      Span<const int64_t> entries = entries_of(plan, type, output, start, end);
      if (!entries.size) return OUT_OF_RANGE;
      int64_t last = entries[entries.size - 1];
      if (entries[0] < 0 || last > plan.adds.size) return OUT_OF_RANGE;
      for (int64_t entry = entries[0]; entry < last; entry++) {
        if (!plan.adds[entry]) continue;
        if (!found.push({dest[entry], width[output], first + behind, found.size()})) return NO_MEMORY;
        sums.to[entry] = first + behind;
        behind += width[output];
      }
    }
    sums.size = behind > sums.size ? behind : sums.size;
    sort(Span<Added>(found), [](const Added& a, const Added& b) { return a.is_before(b); });
    for (ptrdiff_t i = 0; i < found.size(); i++) {
      const Added& one = found[i];
      ptrdiff_t at = sums.parts.size();
      if ((i == 0 || one.place != found[i - 1].place) && !sums.table.push({one.place, one.width, at, at}))
        return NO_MEMORY;
      if (!sums.parts.push(one.own)) return NO_MEMORY;
      sums.table.back().end = at + 1;
    }
    sums.ptr[batch + 1] = sums.table.size();
  }
  return nullptr;
}

}  // namespace autobatch
