#include "policies/local_search.h"

namespace autobatch {
namespace {

constexpr int32_t PERCENT_INSERTED = 90;  // percent of steps; of the rest, half move an entry, and half swap two
constexpr int32_t MOST_INSERTED = 8, INSERT_REACH = 10, SHIFT_REACH = 8;

}  // namespace

bool LocalSearch::start(const Dag& dag, Span<const int32_t> sequence, int64_t seed) {
  dag_ = dag;
  draws_ = Draws(seed);
  return current.copy(sequence) && backward_.reverse(dag) && position_.resize(dag.n_nodes());
}

bool LocalSearch::run(int64_t n_steps, double enough, Unlocked& unlocked) {
  int64_t work = 4 * (dag_.n_nodes() + dag_.n_edges());  // approximately that of a step
  for (int64_t i = 0; i < n_steps && current.size() && dag_.cost_of(current) > enough; i++) {
    if (unlocked.is_interrupted(work + current.size()) || !disturb()) return false;
    bool is_from_left = draws_.next(2) == 0;
    if (!is_from_left) turn<int32_t>(other_);
    if (!compact_once(is_from_left)) return false;
  }
  return true;
}

// Compacts `other_` from the left, and keeps the result if it does not cost more. To compact from the right, the caller
// has reversed the sequence, and the DAG is reversed here.
bool LocalSearch::compact_once(bool is_from_left) {
  Dag dag = is_from_left ? dag_ : backward_.view();
  Stops stops;
  if (!stops.index(other_, true, dag.n_types, dag.n_nodes())) return false;
  if (!fill_mirrored(dag, stops, position_)) return true;  // the sequence does not finish the DAG: no change
  for (int32_t& place : Span<int32_t>(position_)) place = (int32_t)other_.size() - 1 - place;
  if (!stops.index(other_, false, dag.n_types, dag.n_nodes()) || !keep_from_left(dag, stops, position_, kept_))
    return false;
  if (dag_.cost_of(kept_) > dag_.cost_of(current)) return true;
  if (!is_from_left) turn<int32_t>(kept_);
  return current.copy(kept_);
}

bool LocalSearch::disturb() {
  if (draws_.next(100) < PERCENT_INSERTED) return insert_some();
  if (!other_.copy(current)) return false;
  move_one();
  return true;
}

void LocalSearch::move_one() {
  int32_t last = (int32_t)current.size() - 1, first = draws_.next(current.size());
  int32_t second = first + 1 + draws_.next(SHIFT_REACH);
  second = second < last ? second : last;
  int32_t what = draws_.next(4);
  if (what < 2) {
    other_[first] = current[second];
    other_[second] = current[first];
  } else if (what == 2) {
    for (int32_t k = first; k < second; k++) other_[k] = current[k + 1];
    other_[second] = current[first];
  } else {
    for (int32_t k = first; k < second; k++) other_[k + 1] = current[k];
    other_[first] = current[second];
  }
}

// Inserts one to eight random types near a random place; each number is half as likely as the previous one.
bool LocalSearch::insert_some() {
  int32_t count = 1, before = (int32_t)current.size();
  while (count < MOST_INSERTED && draws_.next(2) == 0) count++;
  if (!other_.copy(current) || !other_.resize(before + count)) return false;
  int32_t base = draws_.next(before + 1);
  for (int32_t size = before; size < before + count; size++) {
    int32_t place = base - INSERT_REACH + draws_.next(2 * INSERT_REACH + 1);
    place = place < 0 ? 0 : place > size ? size : place;
    for (int32_t k = size; k > place; k--) other_[k] = other_[k - 1];
    other_[place] = draws_.next(dag_.n_types);
  }
  return true;
}

}  // namespace autobatch
