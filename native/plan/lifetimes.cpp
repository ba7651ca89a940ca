#include "plan/lifetimes.h"

namespace autobatch {
namespace {

struct Gap {
  int64_t start, end;
};

// The free gaps between areas, in order of place.
class Gaps {
 public:
  // Makes room for `n` gaps at a time, which `open` does not check.
  bool reserve(ptrdiff_t n) { return gaps_.reserve(n); }
  // Finds the smallest gap that fits an area, the first among equals; -1 if no gap does.
  ptrdiff_t find(int64_t size) const {
    ptrdiff_t best = -1;
    for (ptrdiff_t g = 0; g < gaps_.size(); g++) {
      int64_t room = gaps_[g].end - gaps_[g].start;
      if (room >= size && (best < 0 || room < gaps_[best].end - gaps_[best].start)) best = g;
    }
    return best;
  }
  int64_t take(ptrdiff_t g, int64_t size) {
    int64_t place = gaps_[g].start;
    gaps_[g].start += size;
    if (gaps_[g].start == gaps_[g].end) close(g);
    return place;
  }
  // Removes the gap that ends at `end`, if there is one, and returns the new end of the used memory.
  int64_t trim(int64_t end) { return gaps_.size() && gaps_.back().end == end ? gaps_.pop().start : end; }
  // Adds a gap, and merges it with adjacent gaps.
  void open(int64_t start, int64_t end) {
    ptrdiff_t at = gaps_.size();
    while (at > 0 && gaps_[at - 1].start >= end) at--;
    bool touches = at < gaps_.size() && gaps_[at].start == end;
    if (at > 0 && gaps_[at - 1].end == start) {
      gaps_[at - 1].end = touches ? gaps_[at].end : end;
      if (touches) close(at);
    } else if (touches) {
      gaps_[at].start = start;
    } else {
      gaps_.append({start, end});
      for (ptrdiff_t g = gaps_.size() - 1; g > at; g--) gaps_[g] = gaps_[g - 1];
      gaps_[at] = {start, end};
    }
  }

 private:
  void close(ptrdiff_t at) {
    for (ptrdiff_t g = at; g + 1 < gaps_.size(); g++) gaps_[g] = gaps_[g + 1];
    gaps_.pop();
  }
  Vec<Gap> gaps_;
};

}  // namespace

bool find_first_writers(const Graph& graph, Span<const int32_t> batch_of, int32_t n_batches, Vec<int32_t>& first) {
  if (!first.resize(n_batches)) return false;
  for (int32_t k = 0; k < n_batches; k++) first[k] = k;
  for (ptrdiff_t node = 0; node < batch_of.size; node++) {
    int32_t& writer = first[batch_of[node]];
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
      int32_t k = batch_of[graph.edge_src[e]];
      writer = k < writer ? k : writer;
    }
  }
  return true;
}

bool give_out(Span<const int32_t> first, Span<const int64_t> size, int64_t& end, Vec<int64_t>& place) {
  ptrdiff_t n = first.size;
  Vec<int32_t> next_born, born_at;  // per step, a linked list of the areas whose live range begins there
  Gaps gaps;
  if (!place.assign(n, end) || !next_born.assign(n, -1) || !born_at.assign(n, -1) || !gaps.reserve(n + 1)) return false;
  for (ptrdiff_t k = n - 1; k >= 0; k--) {
    next_born[k] = born_at[first[k]];
    born_at[first[k]] = (int32_t)k;
  }
  for (ptrdiff_t step = 0; step < n; step++) {
    for (int32_t k = born_at[step]; k >= 0; k = next_born[k]) {
      if (size[k] <= 0) continue;
      ptrdiff_t gap = gaps.find(size[k]);
      if (gap >= 0) {
        place[k] = gaps.take(gap, size[k]);
      } else {
        place[k] = gaps.trim(end);
        end = place[k] + size[k];
      }
    }
    // Freed last: while a batch runs, it reads its own area and writes to the areas that begin in this step.
    if (size[step] > 0) gaps.open(place[step], place[step] + size[step]);
  }
  return true;
}

}  // namespace autobatch
