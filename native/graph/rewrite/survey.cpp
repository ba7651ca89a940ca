#include "graph/rewrite/survey.h"

#include "graph/rewrite/share.h"

namespace autobatch {
namespace {

enum Use : uint8_t { UNUSED, READ, ASKED_FOR };
// The kinds of a type: its nodes multiply matrices; are sums or pass a value through; are sums of fixed arity.
enum Kind : uint8_t { MULTIPLIES = 1, SUMS = 2, WIDENS = 4 };

// Finds the port that each output passes through; a variadic sum passes a single value through.
bool find_ports(const Types& types, Vec<int32_t>& ports) {
  if (!ports.resize(types.pass_port.size)) return false;
  copy_shifted(ports, 0, types.pass_port, 0);
  for (ptrdiff_t t = 0; t < types.n_types(); t++)
    if (types.sum_type[t] == t) ports[types.out_ptr[t]] = 0;
  return true;
}

// Finds the kinds of each type.
bool find_kinds(const Types& types, const Vec<int32_t>& ports, Vec<uint8_t>& kinds) {
  if (!kinds.resize(types.n_types())) return false;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    bool sums = types.sum_type[t] >= 0;
    kinds[t] = (types.product_work[t] > 0 ? MULTIPLIES : 0) | (sums && types.sum_type[t] != t ? WIDENS : 0);
    for (int32_t out = types.out_ptr[t]; out < types.out_ptr[t + 1]; out++) sums |= ports[out] >= 0;
    kinds[t] |= sums ? SUMS : 0;
  }
  return true;
}

// Returns whether any port of a node has exactly one edge.
bool has_single(const Graph& graph, ptrdiff_t node) {
  int32_t first = graph.edge_ptr[node], end = graph.edge_ptr[node + 1];
  for (int32_t e = first; e < end; e++)
    if ((e == first || graph.edge_in[e - 1] != graph.edge_in[e]) &&
        (e + 1 == end || graph.edge_in[e + 1] != graph.edge_in[e]))
      return true;
  return false;
}

}  // namespace

bool survey(const Graph& graph, const Types& types, Survey& found) {
  Vec<uint8_t> used, kinds;
  if (!used.assign(graph.n_nodes(), UNUSED) || !find_ports(types, found.ports) ||
      !find_kinds(types, found.ports, kinds))
    return false;
  for (int32_t source : graph.edge_src) used[source] = READ;
  for (int32_t node : graph.out_node) used[node] = ASKED_FOR;
  int64_t n_multiplying = 0;
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) {
    uint8_t kind = kinds[graph.type_id[node]];
    n_multiplying += kind & MULTIPLIES;
    found.may_drop |= used[node] == UNUSED;
    if (!(kind & SUMS)) continue;
    found.may_take |= used[node] != ASKED_FOR;
    found.may_widen |= (kind & WIDENS) != 0;
    found.may_forward = found.may_forward || has_single(graph, node);
  }
  found.may_share = n_multiplying >= FEW;
  return true;
}

}  // namespace autobatch
