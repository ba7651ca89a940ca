#include "graph/rewrite/share.h"

namespace autobatch {
namespace {

constexpr ptrdiff_t HEAD = 4;            // words of a record before its edges: node, hash, type, number of edges
constexpr uint32_t FACTOR = 0x9E3779B1;  // 2^32 / golden ratio; odd, so multiplication is invertible
constexpr int SHIFT = 15;                // mixes high bits into low ones, which spread in the next step
constexpr int32_t FREE = -1;

// Returns the hash of data with hash `h` followed by `word`. For the same `word`, no two `h` collide.
uint32_t mixed(uint32_t h, uint32_t word) {
  h = (h ^ word) * FACTOR;
  return h ^ (h >> SHIFT);
}

// Returns the hash of floats, by their bits. The chains are independent, which hides the latency of multiplications.
uint32_t hash_floats(Span<const double> floats) {
  constexpr uint64_t LONG_FACTOR = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
  constexpr ptrdiff_t CHAINS = 4;
  uint64_t chains[CHAINS] = {1, 2, 3, 4}, bits[CHAINS], whole = 0;
  for (ptrdiff_t f = 0; f < floats.size; f += CHAINS) {
    ptrdiff_t left = floats.size - f;
    if (left < CHAINS) memset(bits, 0, sizeof bits);
    memcpy(bits, floats.data + f, (size_t)(left < CHAINS ? left : CHAINS) * sizeof(double));
    for (ptrdiff_t k = 0; k < CHAINS; k++) {
      uint64_t product = (chains[k] ^ bits[k]) * LONG_FACTOR;
      chains[k] = product << 32 | product >> 32;  // because the next product loses differences in high bits
    }
  }
  for (uint64_t chain : chains) whole = (whole ^ chain) * LONG_FACTOR ^ chain >> 32;
  return (uint32_t)(whole >> 32);
}

// The gains and the credit of look-ups, by type, in multiply-adds; `check_work` bounds their sums.
struct Accounts {
  Vec<bool> is_open;          // whether nodes of a type are looked up
  Vec<int64_t> gain, credit;  // savings minus the cost of look-ups; the loss that a type is allowed
};

bool open_accounts(const Graph& graph, const Types& types, Accounts& accounts) {
  ptrdiff_t n_types = types.n_types(), n_nodes = graph.n_nodes();
  if (!accounts.is_open.resize(n_types) || !accounts.gain.assign(n_types, 0) || !accounts.credit.assign(n_types, 0))
    return false;
  for (int32_t type_id : graph.type_id) accounts.credit[type_id] += NODE + types.product_work[type_id];
  int64_t least = CREDIT * (n_nodes > SMALL ? n_nodes : SMALL);
  for (ptrdiff_t t = 0; t < n_types; t++) {
    int64_t credit = accounts.credit[t] / SHARE;
    accounts.credit[t] = credit > least ? credit : least;
    accounts.is_open[t] = types.random[t] == 0;
  }
  return true;
}

// Records of nodes, and a hash table of where each starts. Float attributes are compared in place.
class Records {
 public:
  Records(Span<const double> floats, Span<const int32_t> float_starts) : floats_(floats), float_starts_(float_starts) {}

  // Makes room for these nodes. At most half of the table is used, so every probe ends at a free place.
  bool reserve(ptrdiff_t n_nodes, ptrdiff_t n_words) {
    ptrdiff_t size = 2;
    while (size < 2 * n_nodes) size *= 2;
    mask_ = size - 1;
    return table_.assign(size, FREE) && words_.resize(n_words);
  }
  void begin(int32_t node, int32_t type_id, int32_t n_edges) {
    int32_t* record = words_.data() + start_;
    record[0] = node;
    record[2] = type_id;
    record[3] = n_edges;
    at_ = start_ + HEAD;
    hash_ = mixed(0, (uint32_t)type_id);
  }
  void append(int32_t word) { words_[at_++] = word; }
  void append_mixed(int32_t word) {
    append(word);
    mix((uint32_t)word);
  }
  void mix(uint32_t word) { hash_ = mixed(hash_, word); }
  // Returns the length of the record in words, with the floats of its node.
  ptrdiff_t size() const { return at_ - start_ + FLOAT_WORDS * floats_of(words_[start_]).size; }

  // Returns the node of an equal record; if there is none, keeps this record and returns its node.
  int32_t find_or_keep() {
    int32_t* record = words_.data() + start_;
    Span<const double> floats = floats_of(record[0]);
    if (floats.size) mix(hash_floats(floats));
    record[1] = (int32_t)(hash_ >> 1);
    ptrdiff_t place = hash_ & mask_;
    for (; table_[place] != FREE; place = (place + 1) & mask_)
      if (equals(record, words_.data() + table_[place], floats)) return words_[table_[place]];
    table_[place] = (int32_t)start_;
    start_ = at_;
    return record[0];
  }

 private:
  static constexpr ptrdiff_t FLOAT_WORDS = sizeof(double) / sizeof(int32_t);

  Span<const double> floats_of(int32_t node) const {
    return floats_.part(float_starts_[node], float_starts_[node + 1]);
  }
  // Compares this record, with these floats, to another. The lengths need not be compared: they follow from the type,
  // the number of edges and the lengths of data, which are words of the records themselves.
  bool equals(const int32_t* record, const int32_t* other, Span<const double> floats) const {
    ptrdiff_t size = at_ - start_;
    for (ptrdiff_t k = 1; k < size; k++)
      if (record[k] != other[k]) return false;
    if (floats.size == 0) return true;
    return memcmp(floats.data, floats_of(other[0]).data, (size_t)floats.size * sizeof(double)) == 0;
  }

  Vec<int32_t> words_, table_;
  Span<const double> floats_;
  Span<const int32_t> float_starts_;
  ptrdiff_t start_ = 0, at_ = 0, mask_ = 0;
  uint32_t hash_ = 0;
};

// Finds for each node the first that computes the same, and keeps the accounts; `share.h` states the rule.
bool find_equal(Draft& draft, const Types& types, bool by_rule, Accounts& accounts, Found& found) {
  const Graph& graph = draft.graph;
  ptrdiff_t n_nodes = graph.n_nodes(), n_types = types.n_types();
  int64_t n_words = HEAD * n_nodes + 3 * graph.edge_src.size + graph.attr.size;
  Records records(draft.floats, draft.float_starts);
  Vec<bool> looked_up;
  draft.is_too_large = n_words > INT32_MAX;
  if (draft.is_too_large || !records.reserve(n_nodes, (ptrdiff_t)n_words) || !looked_up.assign(n_nodes, false) ||
      !found.first.resize(n_nodes) || !found.tried.assign(n_types, 0) || !found.equal.assign(n_types, 0) ||
      !open_accounts(graph, types, accounts))
    return false;
  for (int32_t node = 0; node < n_nodes; node++) {
    int32_t type_id = graph.type_id[node], edge = graph.edge_ptr[node], stop = graph.edge_ptr[node + 1];
    int64_t work = types.product_work[type_id];
    found.first[node] = node;
    bool looks = accounts.is_open[type_id];
    if (by_rule && looks && edge < stop) {
      looks = work > 0;
      for (int32_t e = edge; looks && e < stop; e++) looks = looked_up[graph.edge_src[e]];
    }
    if (!looks) continue;
    looked_up[node] = true;
    records.begin(node, type_id, stop - edge);
    for (int32_t e = edge; e < stop; e++) {
      records.append_mixed(found.first[graph.edge_src[e]]);
      records.append(graph.edge_out[e]);
      records.append(graph.edge_in[e]);
      records.mix(((uint32_t)graph.edge_in[e] << 8) + (uint32_t)graph.edge_out[e]);
    }
    for (int32_t a = draft.int_starts[node]; a < draft.int_starts[node + 1]; a++) records.append_mixed(graph.attr[a]);
    int64_t cost = LOOK_UP + WORD * records.size();
    int32_t equal = records.find_or_keep();
    found.tried[type_id]++;
    accounts.gain[type_id] -= cost;
    if (equal != node) {  // without products, a hit pays for itself and for one miss
      found.first[node] = equal;
      found.equal[type_id]++;
      accounts.gain[type_id] += work > 0 ? NODE + work : 2 * cost;
    }
    accounts.is_open[type_id] = accounts.gain[type_id] > -accounts.credit[type_id] || !by_rule;
  }
  return true;
}

// Chooses the types to share: those with products that gain by it, and the types that their equal nodes read; none if
// the products save less than writing a new graph costs.
void choose_types(const Graph& graph, const Types& types, const Accounts& accounts, Found& found) {
  int64_t saved = 0;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    found.chosen[t] = accounts.gain[t] > 0 && types.product_work[t] > 0;
    if (found.chosen[t]) saved += found.equal[t] * (NODE + types.product_work[t]);
  }
  bool pays = saved >= WRITE * graph.n_nodes();
  for (ptrdiff_t t = 0; t < types.n_types(); t++) found.chosen[t] &= pays;
  for (ptrdiff_t node = graph.n_nodes() - 1; node >= 0 && pays; node--)
    if (found.first[node] != node && found.chosen[graph.type_id[node]])
      for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++)
        found.chosen[graph.type_id[graph.edge_src[e]]] = true;
}

}  // namespace

int64_t count_products(const Graph& graph, const Types& types) {
  int64_t n = 0;
  for (int32_t type_id : graph.type_id) n += types.product_work[type_id] > 0;
  return n;
}

bool check_work(const Types& types, ptrdiff_t n_nodes) {
  int64_t most = INT64_MAX / 4 / (n_nodes + 1) - NODE;
  for (int64_t work : types.product_work)
    if (work < 0 || work > most) {
      PyErr_Format(PyExc_ValueError, "product_work must be in 0..%lld for %zd nodes, got %lld", (long long)most,
                   n_nodes, (long long)work);
      return false;
    }
  return true;
}

bool find_shared(Draft& draft, const Types& types, bool by_rule, Found& found) {
  Accounts accounts;
  if (!find_equal(draft, types, by_rule, accounts, found) || !found.chosen.resize(types.n_types())) return false;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) found.chosen[t] = found.equal[t] > 0;
  if (!by_rule) return true;
  choose_types(draft.graph, types, accounts, found);
  for (int32_t node = 0; node < draft.graph.n_nodes(); node++)
    if (!found.chosen[draft.graph.type_id[node]]) found.first[node] = node;
  return true;
}

bool share(Draft& draft, const Types& types, bool by_rule, int64_t& n_shared) {
  const Graph& graph = draft.graph;
  Found found;
  if (!find_shared(draft, types, by_rule, found)) return false;
  int64_t n_edges = 0;
  for (int32_t node = 0; node < graph.n_nodes(); node++) {
    bool stays = found.first[node] == node;
    n_shared += !stays;
    n_edges += stays ? graph.edge_ptr[node + 1] - graph.edge_ptr[node] : 0;
  }
  if (n_shared == 0) return true;
  Draft next;
  NewGraph result;
  Vec<int32_t> place;
  if (!number_nodes(
          graph.n_nodes(), [&](ptrdiff_t node) { return found.first[node] == node; }, place) ||
      !begin_graph(draft, place, n_edges, next, result))
    return false;
  int32_t at = 0;
  for (int32_t node = 0; node < graph.n_nodes(); node++) {
    place[node] = place[found.first[node]];  // final, as `first` is not a later node
    if (found.first[node] != node) continue;
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++, at++) {
      result.edge_src[at] = place[graph.edge_src[e]];
      result.edge_out[at] = graph.edge_out[e];
      result.edge_in[at] = graph.edge_in[e];
    }
    result.type_id[place[node]] = graph.type_id[node];
    result.edge_ptr[place[node] + 1] = at;
  }
  copy_outputs(graph, result, place);
  replace(draft, next);
  return true;
}

}  // namespace autobatch
