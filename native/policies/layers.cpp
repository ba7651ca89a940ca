#include "policies/layers.h"

namespace autobatch {
namespace {

// Costs with a smaller relative difference count as equal, because a sum of floats depends on its order.
constexpr double TOLERANCE = 1e-9, INFINITE = Py_HUGE_VAL;

int32_t count_ones(uint64_t bits) {
  bits -= bits >> 1 & 0x5555555555555555u;
  bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
  return (int32_t)(((bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u >> 56);
}

double smaller(double a, double b) { return a < b ? a : b; }

// The states of a layer. The remaining work of state s is the antichain left[ptr[s]:ptr[s+1]].
struct Layer {
  Vec<int64_t> ptr;
  Vec<int32_t> left;
  Vec<double> paid, total;       // the cost so far; the same plus the chain bound of the remaining work
  Vec<int32_t> parent, type_id;  // the state before, in the previous layer; the type that ran last

  ptrdiff_t size() const { return paid.size(); }
  Span<const int32_t> state(int64_t s) const { return Span<const int32_t>(left).part(ptr[s], ptr[s + 1]); }
};

// A trie of antichains, each read from its last suffix to its first.
struct Trie {
  Vec<int32_t> suffix, child, sibling;
  Vec<double> paid;  // the least cost so far of a state with this antichain, or infinity
  Vec<int32_t> stack;

  bool start(int64_t room) {
    if (room >= INT32_MAX) return false;
    suffix.resize(0), child.resize(0), sibling.resize(0), paid.resize(0);
    return suffix.reserve(room) && child.reserve(room) && sibling.reserve(room) && paid.reserve(room) &&
           stack.resize(room) && (add(-1, -1), true);
  }
  int32_t add(int32_t n, int32_t next) {
    suffix.append(n), child.append(-1), sibling.append(next), paid.append(INFINITE);
    return (int32_t)suffix.size() - 1;
  }
  void enter(Span<const int32_t> state, double cost) {
    int32_t node = 0;
    for (ptrdiff_t i = state.size - 1; i >= 0; i--) {
      int32_t below = child[node];
      while (below >= 0 && suffix[below] != state[i]) below = sibling[below];
      if (below < 0) {
        below = add(state[i], child[node]);
        child[node] = below;
      }
      node = below;
    }
    paid[node] = smaller(paid[node], cost);
  }
  // Returns whether the trie has a state that costs no more and has only suffixes that are marked in `row` left.
  bool is_worse(const uint64_t* row, double cost) {
    stack[0] = 0;
    for (ptrdiff_t top = 1; top > 0;) {
      int32_t node = stack[--top];
      if (paid[node] <= cost) return true;
      for (node = child[node]; node >= 0; node = sibling[node])
        if (row[suffix[node] >> 6] >> (suffix[node] & 63) & 1) stack[top++] = node;
    }
    return false;
  }
};

class Search {
 public:
  Search(const Suffixes& suffixes, Span<const double> cost, Unlocked& unlocked)
      : suffixes_(suffixes), cost_(cost), unlocked_(unlocked) {}
  bool run(double limit, int64_t width, int64_t max_states, Outcome& outcome);

 private:
  bool count_chains();
  double rest(Span<const int32_t> left) const;
  bool begin(Layer& layer) const;
  ptrdiff_t run_type(Span<const int32_t> left, int32_t type);
  ptrdiff_t insert(int32_t added, ptrdiff_t n_stay, ptrdiff_t n);
  void find_types(Span<const int32_t> state);
  ptrdiff_t slot_of(const Layer& layer, Span<const int32_t> state) const;
  bool expand(const Layer& layer, double limit, Layer& children, double& beyond);
  bool select(const Layer& layer, int64_t width, Vec<int64_t>& stay, double& dropped);
  static bool take(const Layer& layer, Span<const int64_t> stay, Layer& taken);

  const Suffixes& suffixes_;
  Span<const double> cost_;
  Unlocked& unlocked_;
  Vec<int32_t> ahead_;  // [S, T] the largest number of suffixes of a type on a path from each suffix on
  double slack_ = 0;
  Vec<int32_t> result_, table_;
  Vec<uint8_t> may_run_;
};

bool Search::count_chains() {
  ptrdiff_t n_types = cost_.size;
  if (!ahead_.assign(suffixes_.size() * n_types, 0)) return false;
  for (int32_t n = 0; n < suffixes_.size(); n++) {
    int32_t* own = ahead_.data() + n * n_types;
    for (int32_t follower : suffixes_.followers(n)) {
      const int32_t* other = ahead_.data() + follower * n_types;
      for (ptrdiff_t type = 0; type < n_types; type++) own[type] = own[type] > other[type] ? own[type] : other[type];
    }
    own[suffixes_.type_id[n]]++;
  }
  return true;
}

// Returns the chain bound of the remaining work, a lower bound on its cost: a type needs a batch for each of its
// suffixes on one path.
double Search::rest(Span<const int32_t> left) const {
  double total = 0;
  for (ptrdiff_t type = 0; type < cost_.size; type++) {
    int32_t most = 0;
    for (int32_t n : left) {
      int32_t length = ahead_[n * cost_.size + type];
      most = length > most ? length : most;
    }
    total += most * cost_[type];
  }
  return total;
}

bool Search::begin(Layer& layer) const {
  return layer.ptr.push(0) && layer.ptr.push(suffixes_.first.size) && layer.left.copy(suffixes_.first) &&
         layer.paid.push(0) && layer.total.push(rest(suffixes_.first)) && layer.parent.push(-1) &&
         layer.type_id.push(-1);
}

// Runs one type. Lists the remaining suffixes in `result_`, in order, and returns their number. A follower is left out
// if it is within another remaining suffix. The reverse cannot happen: a suffix that stays and is within a follower
// would also be within the suffix that ran, but the state is an antichain.
ptrdiff_t Search::run_type(Span<const int32_t> left, int32_t type) {
  ptrdiff_t n = 0;
  for (int32_t one : left)
    if (suffixes_.type_id[one] != type) result_[n++] = one;
  ptrdiff_t n_stay = n;
  for (int32_t one : left)
    if (suffixes_.type_id[one] == type)
      for (int32_t follower : suffixes_.followers(one)) n = insert(follower, n_stay, n);
  sort(Span<int32_t>(result_).part(0, n));
  return n;
}

// Adds a suffix to the antichain of the first `n` suffixes of `result_`, and returns the new length. The first `n_stay`
// of them are known not to be within it.
ptrdiff_t Search::insert(int32_t added, ptrdiff_t n_stay, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i++)
    if (result_[i] == added || suffixes_.is_within(added, result_[i])) return n;
  for (ptrdiff_t i = n_stay; i < n;) {
    if (suffixes_.is_within(result_[i], added))
      result_[i] = result_[--n];
    else
      i++;
  }
  result_[n] = added;
  return n + 1;
}

// Marks the types worth running: all ready types, or a single ready type if no ready suffix of another type leads to
// it. Running such a type now is optimal: in a cheapest sequence, its next batch can be moved to the front.
void Search::find_types(Span<const int32_t> state) {
  for (uint8_t& one : Span<uint8_t>(may_run_)) one = 0;
  for (int32_t n : state) may_run_[suffixes_.type_id[n]] = 1;
  for (ptrdiff_t type = 0; type < cost_.size; type++) {
    bool is_alone = may_run_[type];
    for (ptrdiff_t i = 0; is_alone && i < state.size; i++)
      is_alone = suffixes_.type_id[state[i]] == type || ahead_[state[i] * cost_.size + type] == 0;
    if (!is_alone) continue;
    for (uint8_t& one : Span<uint8_t>(may_run_)) one = 0;
    may_run_[type] = 1;
    return;
  }
}

// Finds the slot of the state with this antichain, or the free slot where it belongs.
ptrdiff_t Search::slot_of(const Layer& layer, Span<const int32_t> state) const {
  uint64_t key = (uint64_t)state.size + 1;
  for (int32_t n : state) key = mix(key, n);
  ptrdiff_t mask = table_.size() - 1, slot = (ptrdiff_t)(key & (uint64_t)mask);
  for (; table_[slot] >= 0; slot = (slot + 1) & mask) {
    Span<const int32_t> other = layer.state(table_[slot]);
    if (other.size == state.size && (!state.size || memcmp(other.data, state.data, (size_t)state.size * 4) == 0)) break;
  }
  return slot;
}

// Runs every type worth running in every state of a layer. Makes the distinct children whose bound is within the limit,
// and finds the least bound `beyond` it.
bool Search::expand(const Layer& layer, double limit, Layer& children, double& beyond) {
  ptrdiff_t most = layer.size() * cost_.size, n_slots = 16;
  while (n_slots < 2 * most) n_slots *= 2;
  if (!table_.assign(n_slots, -1) || !children.ptr.push(0)) return false;
  beyond = INFINITE;
  for (ptrdiff_t s = 0; s < layer.size(); s++) {
    if (unlocked_.is_interrupted((layer.state(s).size + 1) * (cost_.size + 1))) return false;
    find_types(layer.state(s));
    for (int32_t type = 0; type < cost_.size; type++) {
      if (!may_run_[type]) continue;
      Span<const int32_t> next = Span<const int32_t>(result_).part(0, run_type(layer.state(s), type));
      ptrdiff_t slot = slot_of(children, next);
      int32_t c = table_[slot];
      double now = layer.paid[s] + cost_[type];
      if (c < 0) {
        double estimate = now + rest(next);
        if (estimate > limit + slack_) {
          beyond = smaller(beyond, estimate);
          continue;
        }
        if (children.size() >= INT32_MAX || !children.left.reserve(next.size)) return false;
        table_[slot] = (int32_t)children.size();
        for (int32_t n : next) children.left.append(n);
        if (!children.ptr.push(children.left.size()) || !children.paid.push(now) || !children.total.push(estimate) ||
            !children.parent.push((int32_t)s) || !children.type_id.push(type))
          return false;
      } else if (now < children.paid[c]) {
        children.total[c] += now - children.paid[c];
        children.paid[c] = now;
        children.parent[c] = (int32_t)s;
        children.type_id[c] = type;
      }
    }
  }
  return true;
}

// Sorts states by their total, then by the number of suffixes left, then by their number.
bool rank(Span<const double> total, Span<const int32_t> n_left, Vec<int64_t>& order) {
  auto is_before = [&](int64_t a, int64_t b) {
    if (total[a] != total[b]) return total[a] < total[b];
    return n_left[a] != n_left[b] ? n_left[a] < n_left[b] : a < b;
  };
  if (!order.resize(total.size)) return false;
  for (ptrdiff_t i = 0; i < total.size; i++) order[i] = i;
  sort(Span<int64_t>(order), is_before);
  return true;
}

// Chooses the states to keep, best first, and finds the least bound that is dropped because of the width.
bool Search::select(const Layer& layer, int64_t width, Vec<int64_t>& stay, double& dropped) {
  ptrdiff_t n = layer.size(), n_words = suffixes_.n_words;
  Vec<uint64_t> rows;
  Vec<int32_t> n_left;
  Vec<int64_t> order;
  Trie trie;
  dropped = INFINITE;
  if (!rows.assign(n * n_words, 0) || !n_left.assign(n, 0) || !trie.start(layer.ptr[n] + 1)) return false;
  for (ptrdiff_t s = 0; s < n; s++) {
    if (unlocked_.is_interrupted((layer.state(s).size + 1) * n_words)) return false;
    uint64_t* row = rows.data() + s * n_words;
    for (int32_t one : layer.state(s)) {
      for (ptrdiff_t word = 0; word < n_words; word++) row[word] |= suffixes_.row(one)[word];
      row[one >> 6] |= uint64_t(1) << (one & 63);
    }
    for (ptrdiff_t word = 0; word < n_words; word++) n_left[s] += count_ones(row[word]);
  }
  if (!rank(layer.total, n_left, order)) return false;
  for (ptrdiff_t i = 0; i < n; i++) {
    int64_t s = order[i];
    if (unlocked_.is_interrupted(stay.size() + 1)) return false;  // about as many as the trie has branches
    if (trie.is_worse(rows.data() + s * n_words, layer.paid[s])) continue;
    if (stay.size() == width) {
      dropped = layer.total[s];
      return true;
    }
    trie.enter(layer.state(s), layer.paid[s]);
    if (!stay.push(s)) return false;
  }
  return true;
}

bool Search::take(const Layer& layer, Span<const int64_t> stay, Layer& taken) {
  if (!taken.ptr.push(0)) return false;
  for (int64_t s : stay) {
    Span<const int32_t> state = layer.state(s);
    if (!taken.left.reserve(state.size)) return false;
    for (int32_t n : state) taken.left.append(n);
    if (!taken.ptr.push(taken.left.size()) || !taken.paid.push(layer.paid[s]) || !taken.total.push(layer.total[s]) ||
        !taken.parent.push(layer.parent[s]) || !taken.type_id.push(layer.type_id[s]))
      return false;
  }
  return true;
}

bool Search::run(double limit, int64_t width, int64_t max_states, Outcome& outcome) {
  Layer layer;
  Vec<int32_t> parents, type_ids;  // of all states that were kept
  if (!count_chains() || !result_.resize(suffixes_.size() + 1) || !may_run_.resize(cost_.size) || !begin(layer))
    return false;
  slack_ = TOLERANCE * rest(suffixes_.first);
  if (!parents.push(-1) || !type_ids.push(-1)) return false;
  outcome.cost = outcome.unseen = INFINITE;
  int64_t offset = 0, best_at = -1;
  while (layer.size()) {
    for (ptrdiff_t s = 0; s < layer.size(); s++)
      if (layer.ptr[s] == layer.ptr[s + 1] && layer.paid[s] < outcome.cost) {
        outcome.cost = layer.paid[s];
        best_at = offset + s;
      }
    Layer children, next;
    Vec<int64_t> stay;
    double beyond, dropped;
    // `expand` adds one slack_, so only sequences that are cheaper by at least a slack_ are still searched.
    if (!expand(layer, smaller(limit, outcome.cost - 2 * slack_), children, beyond)) return false;
    outcome.n_states += children.size();
    outcome.unseen = smaller(outcome.unseen, beyond);
    if (outcome.n_states > max_states) {
      outcome.cost = INFINITE;
      outcome.unseen = -INFINITE;
      outcome.gave_up = true;
      return true;
    }
    if (!select(children, width, stay, dropped) || !take(children, stay, next)) return false;
    outcome.unseen = smaller(outcome.unseen, dropped);
    if (parents.size() + next.size() >= INT32_MAX) return false;
    // `parent` is a place in the layer; `parents` holds numbers among all states that were kept.
    for (ptrdiff_t s = 0; s < next.size(); s++)
      if (!parents.push(next.parent[s] + (int32_t)offset) || !type_ids.push(next.type_id[s])) return false;
    offset += layer.size();
    layer.ptr = static_cast<Vec<int64_t>&&>(next.ptr);
    layer.left = static_cast<Vec<int32_t>&&>(next.left);
    layer.paid = static_cast<Vec<double>&&>(next.paid);
    layer.total = static_cast<Vec<double>&&>(next.total);
    layer.parent = static_cast<Vec<int32_t>&&>(next.parent);
    layer.type_id = static_cast<Vec<int32_t>&&>(next.type_id);
  }
  for (int64_t at = best_at; at > 0; at = parents[at])  // state 0 is the beginning
    if (!outcome.sequence.push(type_ids[at])) return false;
  turn<int32_t>(outcome.sequence);
  return true;
}

}  // namespace

bool search_layers(const Suffixes& suffixes, Span<const double> cost, double limit, int64_t width, int64_t max_states,
                   Unlocked& unlocked, Outcome& outcome) {
  return Search(suffixes, cost, unlocked).run(limit, width, max_states, outcome);
}

}  // namespace autobatch
