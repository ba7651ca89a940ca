#include "graph/rewrite/survey.h"

#include "graph/rewrite/share.h"

namespace autobatch {
namespace {

enum Use : uint8_t { UNUSED, READ, ASKED_FOR };

// Finds the port that each output passes through; a variadic sum of a single value passes that through.
bool find_ports(const Types& types, Vec<int32_t>& ports) {
  if (!ports.resize(types.pass_port.size)) return false;
  copy_shifted(ports, 0, types.pass_port, 0);
  for (ptrdiff_t t = 0; t < types.n_types(); t++)
    if (types.sum_type[t] == t) ports[types.out_ptr[t]] = 0;
  return true;
}

// Flags the types of which an output is a sum, or passes a value through.
bool find_sums(const Types& types, const Vec<int32_t>& ports, Vec<uint8_t>& sums) {
  if (!sums.resize(types.n_types())) return false;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    sums[t] = types.sum_type[t] >= 0;
    for (int32_t out = types.out_ptr[t]; out < types.out_ptr[t + 1]; out++) sums[t] |= ports[out] >= 0;
  }
  return true;
}

// Whether a port has one edge, among those that a node reads.
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
  Vec<uint8_t> used, sums;
  if (!used.assign(graph.n_nodes(), UNUSED) || !find_ports(types, found.ports) || !find_sums(types, found.ports, sums))
    return false;
  for (int32_t source : graph.edge_src) used[source] = READ;
  for (int32_t node : graph.out_node) used[node] = ASKED_FOR;
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) {
    int32_t type_id = graph.type_id[node];
    found.may_drop |= used[node] == UNUSED;
    if (!sums[type_id]) continue;
    found.may_take |= used[node] != ASKED_FOR;
    found.may_widen |= types.sum_type[type_id] >= 0 && types.sum_type[type_id] != type_id;
    found.may_forward = found.may_forward || has_single(graph, node);
  }
  found.may_share = count_products(graph, types) >= FEW;
  return true;
}

}  // namespace autobatch
