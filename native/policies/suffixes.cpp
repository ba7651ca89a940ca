#include "policies/suffixes.h"

namespace autobatch {

bool SuffixFinder::link(const Dag& dag, Span<const uint8_t> kept) {
  int32_t n = dag.n_nodes();
  if (n > INT32_MAX / 4 || dag.n_edges() + n > INT32_MAX) return false;  // positions and levels are counted in 32 bits
  if (!reader_ptr_.assign(n + 2, 0) || !reader_.resize(dag.n_edges() + n) || !kept_type_.assign(n + 1, -1) ||
      !level_.assign(n + 1, 0) || !order_.resize(n + 1))
    return false;
  for (int32_t source : dag.edge_src) reader_ptr_[source + 1]++;
  for (int32_t node = 0; node < n; node++) reader_ptr_[node + 1] += reader_ptr_[node];
  Vec<int32_t> place;
  if (!place.copy(Span<const int32_t>(reader_ptr_).part(0, n))) return false;
  for (int32_t node = 0; node < n; node++)
    for (int32_t source : dag.sources(node)) reader_[place[source]++] = node;
  int32_t end = reader_ptr_[n];
  for (int32_t node = 0; node < n; node++)
    if (dag.edge_ptr[node] == dag.edge_ptr[node + 1]) reader_[end++] = node;
  reader_ptr_[n + 1] = end;
  for (int32_t node = n - 1; node >= 0; node--) {
    for (int32_t r = reader_ptr_[node]; r < reader_ptr_[node + 1]; r++)
      if (level_[reader_[r]] > level_[node]) level_[node] = level_[reader_[r]];
    if (kept[dag.type_id[node]]) {
      kept_type_[node] = dag.type_id[node];
      level_[node]++;
    }
    if (level_[node] > level_[n]) level_[n] = level_[node];
  }
  // Sorts by level, kept nodes first within a level, and else from the last node on: readers come before their sources.
  if (!place.assign(2 * level_[n] + 3, 0)) return false;
  for (int32_t node = 0; node < n; node++) place[2 * level_[node] + (kept_type_[node] < 0) + 1]++;
  for (ptrdiff_t bucket = 1; bucket < place.size(); bucket++) place[bucket] += place[bucket - 1];
  for (int32_t node = n - 1; node >= 0; node--) order_[place[2 * level_[node] + (kept_type_[node] < 0)]++] = node;
  order_[n] = n;
  return true;
}

bool SuffixFinder::prepare() {
  ptrdiff_t n_links = order_.size(), n_kept = 0, n_slots = 16;
  for (ptrdiff_t i = 0; i < n_links; i++) n_kept += kept_type_[i] >= 0;
  while (n_slots < 2 * n_kept) n_slots *= 2;
  n_words_ = compares_ ? (n_kept + 63) / 64 : 0;
  after_.resize(0);
  passed_.resize(0);
  type_id_.resize(0);
  after_ptr_.resize(0);
  before_.resize(0);
  return after_ptr_.push(0) && last_.assign(n_types_, -1) && within_.assign(compares_ ? n_kept * n_words_ : 0, 0) &&
         union_.assign(n_words_, 0) && table_.assign(n_slots, -1) && suffix.assign(n_links, -1) &&
         pass_ptr_.assign(n_links, 0) && pass_end_.assign(n_links, 0) && seen_.assign(n_kept, -1) &&
         here_.resize(n_kept);
}

bool SuffixFinder::find(const Dag& dag, Span<const uint8_t> kept, bool compares, Unlocked& unlocked) {
  n_types_ = dag.n_types;
  compares_ = compares;
  if (!link(dag, kept) || !prepare()) return false;
  int32_t compared = 0, level = 0;
  Span<const int32_t> here;
  for (int32_t visit = 0; visit < order_.size(); visit++) {
    int32_t node = order_[visit], type = kept_type_[node];
    // The suffixes of a level are complete when a node that is not kept, or a node of a higher level, comes. They are
    // compared then, because `keep_largest` reads their rows from here on.
    if (compares && (type < 0 || level_[node] > level)) {
      if (!compare(compared, size(), unlocked)) return false;
      compared = size();
      level = level_[node];
    }
    ptrdiff_t n = meet(node, visit);
    if (compares && n > 1) n = keep_largest(n);
    sort(Span<int32_t>(here_).part(0, n));
    here = Span<const int32_t>(here_).part(0, n);
    if (type < 0) {
      if (!passed_.reserve(n) || passed_.size() + n > INT32_MAX) return false;
      pass_ptr_[node] = (int32_t)passed_.size();
      for (int32_t one : here) passed_.append(one);
      pass_end_[node] = (int32_t)passed_.size();
      continue;
    }
    ptrdiff_t slot = slot_of(type, here);
    if (table_[slot] < 0) {
      table_[slot] = size();
      if (!append(type, here)) return false;
    }
    suffix[node] = table_[slot];
  }
  return first_.copy(here) && within_.resize((compares ? size() : 0) * n_words_) && suffix.resize(dag.n_nodes());
}

// Lists in `here_` the suffixes of a node's readers, or of the first kept nodes after them, and returns their number.
ptrdiff_t SuffixFinder::meet(int32_t node, int32_t visit) {
  ptrdiff_t n = 0;
  auto add = [&](int32_t one) {
    if (seen_[one] == visit) return;
    seen_[one] = visit;
    here_[n++] = one;
  };
  for (int32_t r = reader_ptr_[node]; r < reader_ptr_[node + 1]; r++) {
    int32_t other = reader_[r];
    if (suffix[other] >= 0) {
      add(suffix[other]);
      continue;
    }
    for (int32_t p = pass_ptr_[other]; p < pass_end_[other]; p++) add(passed_[p]);
  }
  return n;
}

// Drops from `here_` the suffixes that are within another, and returns the number kept. All were compared before. Tests
// each suffix against all others or against the union of their rows, whichever is cheaper.
ptrdiff_t SuffixFinder::keep_largest(ptrdiff_t n) {
  ptrdiff_t n_words = (size() + 63) / 64;
  bool by_union = n > n_words;
  if (by_union) {
    for (ptrdiff_t word = 0; word < n_words; word++) union_[word] = 0;
    for (ptrdiff_t i = 0; i < n; i++)
      for (ptrdiff_t word = 0; word < n_words; word++) union_[word] |= row(here_[i])[word];
  }
  for (ptrdiff_t i = 0; i < n;) {
    int32_t one = here_[i];
    bool drops = by_union && (union_[one >> 6] >> (one & 63) & 1);
    for (ptrdiff_t j = 0; !by_union && j < n; j++) drops |= row(here_[j])[one >> 6] >> (one & 63) & 1;
    if (drops)
      here_[i] = here_[--n];
    else
      i++;
  }
  return n;
}

// Finds the slot of the suffix with this type and these followers, or the free slot where it belongs.
ptrdiff_t SuffixFinder::slot_of(int32_t type, Span<const int32_t> followers) const {
  uint64_t key = (uint64_t)type + 1;
  for (int32_t n : followers) key = mix(key, n);
  ptrdiff_t mask = table_.size() - 1, slot = (ptrdiff_t)(key & (uint64_t)mask);
  for (; table_[slot] >= 0; slot = (slot + 1) & mask) {
    int32_t one = table_[slot];
    Span<const int32_t> own = Span<const int32_t>(after_).part(after_ptr_[one], after_ptr_[one + 1]);
    if (type_id_[one] == type && own.size == followers.size &&
        (!own.size || memcmp(own.data, followers.data, (size_t)own.size * sizeof(int32_t)) == 0))
      break;
  }
  return slot;
}

bool SuffixFinder::append(int32_t type, Span<const int32_t> followers) {
  if (!after_.reserve(followers.size) || after_.size() + followers.size > INT32_MAX) return false;
  for (int32_t n : followers) after_.append(n);
  int32_t before = last_[type];
  last_[type] = size();
  return type_id_.push(type) && after_ptr_.push((int32_t)after_.size()) && before_.push(before);
}

// Finds the suffixes that are within each of the suffixes start:end, which are all of one level, the highest so far;
// false with an error if interrupted.
bool SuffixFinder::compare(int32_t start, int32_t end, Unlocked& unlocked) {
  ptrdiff_t n_words = (end + 63) / 64;
  for (int32_t n = start; n < end; n++) {
    uint64_t* own = row(n);
    if (unlocked.is_interrupted((after_ptr_[n + 1] - after_ptr_[n] + 1) * n_words + n)) return false;
    for (int32_t a = after_ptr_[n]; a < after_ptr_[n + 1]; a++) {
      const uint64_t* of_follower = row(after_[a]);
      for (ptrdiff_t word = 0; word < n_words; word++) own[word] |= of_follower[word];
      own[after_[a] >> 6] |= uint64_t(1) << (after_[a] & 63);
    }
    // A suffix m of n's type is within n if each follower of m is one of n's followers or within one: if it is in
    // `union_`. The copy keeps the bits that are set below out of this test. Followers are of lower levels, so their
    // rows are final.
    for (ptrdiff_t word = 0; word < n_words; word++) union_[word] = own[word];
    for (int32_t m = last_[type_id_[n]]; m >= 0; m = before_[m]) {
      bool is_inside = m != n;
      for (int32_t a = after_ptr_[m]; is_inside && a < after_ptr_[m + 1]; a++)
        is_inside = union_[after_[a] >> 6] >> (after_[a] & 63) & 1;
      if (is_inside) own[m >> 6] |= uint64_t(1) << (m & 63);
    }
  }
  return true;
}

bool to_dag(const Suffixes& suffixes, OwnedDag& dag, Vec<int32_t>& place) {
  int32_t n_nodes = 0;
  ptrdiff_t n_edges = 0;
  if (!place.assign(suffixes.size(), -1)) return false;
  // Followers have lower numbers, so one pass from the last suffix on marks all that can be reached, and numbers them.
  for (int32_t n : suffixes.first) place[n] = 0;
  for (int32_t n = suffixes.size() - 1; n >= 0; n--) {
    if (place[n] < 0) continue;
    place[n] = n_nodes++;
    n_edges += suffixes.followers(n).size;
    for (int32_t follower : suffixes.followers(n)) place[follower] = 0;
  }
  dag.n_types = suffixes.n_types;
  if (!dag.type_id.resize(n_nodes) || !dag.edge_ptr.assign(n_nodes + 1, 0) || !dag.edge_src.resize(n_edges))
    return false;
  for (int32_t n = suffixes.size() - 1; n >= 0; n--) {
    if (place[n] < 0) continue;
    dag.type_id[place[n]] = suffixes.type_id[n];
    for (int32_t follower : suffixes.followers(n)) dag.edge_ptr[place[follower] + 1]++;
  }
  for (int32_t node = 0; node < n_nodes; node++) dag.edge_ptr[node + 1] += dag.edge_ptr[node];
  Vec<int32_t> end;
  if (!end.copy(Span<const int32_t>(dag.edge_ptr).part(0, n_nodes))) return false;
  for (int32_t n = suffixes.size() - 1; n >= 0; n--)  // in the order of nodes, so that sources increase
    for (int32_t follower : place[n] >= 0 ? suffixes.followers(n) : Span<const int32_t>())
      dag.edge_src[end[place[follower]]++] = place[n];
  return true;
}

}  // namespace autobatch
