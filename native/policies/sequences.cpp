#include "policies/sequences.h"

namespace autobatch {
namespace {

constexpr int64_t INTS_PER_ITEM = 2;  // the largest size of an index, per node and position, approximately

int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// Sorts nodes stably by position, from -1 to K: position k has the nodes order[ptr[k]:ptr[k+1]].
bool bucket(Span<const int32_t> position, int32_t n_positions, Vec<int32_t>& ptr, Vec<int32_t>& order) {
  if (!ptr.assign(n_positions + 2, 0) || !order.resize(position.size)) return false;
  for (int32_t place : position) ptr[place + 1]++;
  int32_t end = 0;
  for (int32_t place = 0; place < n_positions + 2; place++) {
    int32_t n = ptr[place];
    ptr[place] = end;
    end += n;
  }
  for (int32_t node = 0; node < (int32_t)position.size; node++) order[ptr[position[node] + 1]++] = node;
  return true;  // each entry has moved to the end of its bucket, where the next one begins
}

// Maps each dropped position to the next one of its type: a union-find forest with path halving.
class NextKept {
 public:
  bool start(int32_t n_positions) {
    if (!next_.resize(n_positions + 1)) return false;
    for (int32_t k = 0; k <= n_positions; k++) next_[k] = k;
    return true;
  }
  void drop(int32_t k, int32_t next) { next_[k] = next; }
  // Finds the first kept or undecided position of k's type from `k` on, and shortens the path to it.
  int32_t find(int32_t k) {
    while (next_[k] != k) {
      next_[k] = next_[next_[k]];
      k = next_[k];
    }
    return k;
  }

 private:
  Vec<int32_t> next_;
};

// Mirrors `keep_from_left`: decides from the right. `turned` are the stops of the reversed sequence, and `early` holds
// the early positions. Positions count from the end; the position of a node is pushed to its sources.
bool keep_from_right(const Dag& dag, const Stops& turned, Span<const int32_t> early, Vec<int32_t>& kept) {
  int32_t size = turned.size();
  Vec<int32_t> ptr, order, ready;
  NextKept next_kept;
  if (!bucket(early, size, ptr, order) || !ready.assign(dag.n_nodes(), 0) || !next_kept.start(size) ||
      !kept.reserve(size))
    return false;
  for (int32_t k = 0; k < size; k++) {
    bool is_needed = false;
    for (int32_t i = ptr[size - 1 - k]; i < ptr[size - k]; i++) {
      int32_t node = order[i], place = next_kept.find(turned.next(dag.type_id[node], ready[node]));
      is_needed |= place == k;
      for (int32_t source : dag.sources(node)) ready[source] = larger(ready[source], place + 1);
    }
    if (is_needed)
      kept.append(turned.sequence[k]);
    else
      next_kept.drop(k, turned.next_same(k));
  }
  turn<int32_t>(kept);
  return true;
}

}  // namespace

bool keep_from_left(const Dag& dag, const Stops& stops, Span<int32_t> position, Vec<int32_t>& kept) {
  int32_t size = stops.size();
  Vec<int32_t> ptr, order;
  NextKept next_kept;
  kept.resize(0);
  if (!bucket(position, size, ptr, order) || !next_kept.start(size) || !kept.reserve(size)) return false;
  // Nodes with late position k run at the first position of their type after their sources that is kept or undecided.
  // If this is k for any of them, k is needed. `autobatch.policies.sequences` has the proof.
  for (int32_t k = 0; k < size; k++) {
    bool is_needed = false;
    for (int32_t i = ptr[k]; i < ptr[k + 1]; i++) {
      int32_t node = order[i], ready = 0;
      for (int32_t source : dag.sources(node)) ready = larger(ready, position[source] + 1);
      position[node] = next_kept.find(stops.next(dag.type_id[node], ready));
      is_needed |= position[node] == k;
    }
    if (is_needed)
      kept.append(stops.sequence[k]);
    else
      next_kept.drop(k, stops.next_same(k));
  }
  return true;
}

bool Stops::index(Span<const int32_t> given, bool is_turned, int32_t n_types, int32_t n_nodes) {
  if (!sequence.copy(given)) return false;
  int32_t n = size();
  for (int32_t k = 0; is_turned && k < n; k++) sequence[k] = given[n - 1 - k];
  n_types_ = n_types;
  shift_ = 0;
  // Doubles the distance of rows until the index is small enough.
  while ((int64_t)(n >> shift_) * n_types > INTS_PER_ITEM * ((int64_t)n_nodes + n)) shift_++;
  int32_t rows = (n >> shift_) + 2;
  if (!first_.assign((ptrdiff_t)rows * n_types, n)) return false;
  for (int32_t row = rows - 2; row >= 0; row--) {
    int32_t* own = first_.data() + (ptrdiff_t)row * n_types;
    for (int32_t type = 0; type < n_types; type++) own[type] = own[n_types + type];
    int64_t end = (int64_t)(row + 1) << shift_;
    for (int32_t k = (int32_t)(end < n ? end : n) - 1; k >= row << shift_; k--)
      if (sequence[k] >= 0 && sequence[k] < n_types) own[sequence[k]] = k;
  }
  return true;
}

int32_t Stops::next(int32_t type, int32_t position) const {
  // Scans up to the next row of the index, and then reads the row.
  int32_t row = (int32_t)(((int64_t)position + (1 << shift_) - 1) >> shift_);
  int64_t end = (int64_t)row << shift_;
  for (int32_t near = position; near < end && near < size(); near++)
    if (sequence[near] == type) return near;
  return first_[(ptrdiff_t)row * n_types_ + type];
}

bool fill_early(const Dag& dag, const Stops& stops, Span<int32_t> position) {
  int32_t last = stops.size();
  bool is_finished = true;
  for (int32_t node = 0; node < dag.n_nodes(); node++) {
    int32_t ready = 0;
    for (int32_t source : dag.sources(node)) ready = larger(ready, position[source] + 1);
    position[node] = stops.next(dag.type_id[node], ready < last ? ready : last);
    is_finished &= position[node] < last;
  }
  return is_finished;
}

bool fill_mirrored(const Dag& dag, const Stops& turned, Span<int32_t> position) {
  int32_t last = turned.size();
  bool is_finished = true;
  for (int32_t& ready : position) ready = 0;  // until a node is visited, the position from which it is ready
  for (int32_t node = dag.n_nodes() - 1; node >= 0; node--) {
    int32_t place = turned.next(dag.type_id[node], position[node]);
    position[node] = place;
    is_finished &= place < last;
    int32_t ready = place < last ? place + 1 : last;
    for (int32_t source : dag.sources(node)) position[source] = larger(position[source], ready);
  }
  return is_finished;
}

Compacted compact(const Dag& dag, Span<const int32_t> sequence, Vec<int32_t>& shorter) {
  Stops forward, turned;
  Vec<int32_t> early, late, right;
  int32_t n = dag.n_nodes(), last = (int32_t)sequence.size - 1;
  if (!forward.index(sequence, false, dag.n_types, n) || !turned.index(sequence, true, dag.n_types, n) ||
      !early.resize(n) || !late.resize(n))
    return Compacted::NO_MEMORY;
  if (!fill_early(dag, forward, early)) return Compacted::UNFINISHED;
  fill_mirrored(dag, turned, late);
  for (int32_t& position : Span<int32_t>(late)) position = last - position;
  if (!keep_from_left(dag, forward, late, shorter) || !keep_from_right(dag, turned, early, right))
    return Compacted::NO_MEMORY;
  return dag.cost_of(shorter) <= dag.cost_of(right) || shorter.copy(right) ? Compacted::DONE : Compacted::NO_MEMORY;
}

int32_t gather_batches(const Dag& dag, Span<const int32_t> sequence, Span<const int32_t> position, Batches& batches) {
  for (int32_t node = 0; node < dag.n_nodes(); node++) {
    int32_t place = position[node];
    if (place < 0 || place >= sequence.size || sequence[place] != dag.type_id[node]) return node;
  }
  Vec<int32_t> ptr;
  batches.batch_type.resize(0);
  batches.batch_ptr.resize(0);
  if (!bucket(position, (int32_t)sequence.size, ptr, batches.order) || !batches.batch_ptr.push(0)) return -2;
  for (int32_t place = 0; place < sequence.size; place++) {
    if (ptr[place] == ptr[place + 1]) continue;
    if (!batches.batch_type.push(sequence[place]) || !batches.batch_ptr.push(ptr[place + 1])) return -2;
  }
  return -1;
}

}  // namespace autobatch
