#include "graph/rewrite/fold.h"

namespace autobatch {
namespace {

struct Folding {
  const Graph& graph;
  const Types& types;
  Vec<int32_t> sum_port;  // [outputs] the variadic port that an output sums, or -1
  Vec<uint8_t> folds;     // [N] whether a node may fold
  Vec<int32_t> terms;     // [E] for an edge that reads a sum, the edge of the sum's first term
  Vec<int32_t> counts;    // [E] at the edge of a first term: number of readers of the sum; once chosen, of its terms
};

bool is_plain(const Types& types, ptrdiff_t type_id, int32_t port) {
  return types.port_plain[types.port_ptr[type_id] + port] != 0;
}

// Flags nodes of summing types without plain ports, except returned ones; returns false if memory runs out.
bool find_sums(Folding& folding, Span<const int32_t> ports, bool& any) {
  const Types& types = folding.types;
  const Graph& graph = folding.graph;
  Vec<uint8_t> of_type;
  if (!of_type.resize(types.n_types()) || !folding.sum_port.assign(ports.size, -1)) return false;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    bool has_sum = false, has_plain = false;
    for (int32_t out = types.out_ptr[t]; out < types.out_ptr[t + 1]; out++)
      if (ports[out] >= 0 && types.port_plain.size && !is_plain(types, t, ports[out])) {
        folding.sum_port[out] = ports[out];
        has_sum = true;
      }
    for (int32_t port = types.port_ptr[t]; port < types.port_ptr[t + 1]; port++)
      has_plain |= types.port_plain[port] != 0;
    of_type[t] = has_sum && !has_plain;
    any |= of_type[t];
  }
  if (!any) return true;
  if (!folding.folds.resize(graph.n_nodes())) return false;
  any = false;
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) folding.folds[node] = of_type[graph.type_id[node]];
  for (int32_t node : graph.out_node) folding.folds[node] = 0;
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) any |= folding.folds[node];
  return true;
}

// Counts the readers of each sum at the edge of its first term; unflags nodes with a reader that cannot read terms.
bool count_readers(Folding& folding) {
  const Graph& graph = folding.graph;
  const Types& types = folding.types;
  if (!folding.terms.resize(graph.edge_src.size) || !folding.counts.assign(graph.edge_src.size, 0)) return false;
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) {
    int32_t first = graph.edge_ptr[node], end = graph.edge_ptr[node + 1];
    for (int32_t e = first; e < end; e++) {
      int32_t source = graph.edge_src[e];
      if (!folding.folds[source]) continue;
      bool alone = (e == first || graph.edge_in[e - 1] != graph.edge_in[e]) &&
                   (e + 1 == end || graph.edge_in[e + 1] != graph.edge_in[e]);
      int32_t port = folding.sum_port[types.out_ptr[graph.type_id[source]] + (graph.edge_out[e] & OUTPUT)];
      int32_t term = graph.edge_ptr[source], stop = graph.edge_ptr[source + 1];
      while (term < stop && graph.edge_in[term] < port) term++;
      if (alone && port >= 0 && is_plain(types, graph.type_id[node], graph.edge_in[e]) && term < stop &&
          graph.edge_in[term] == port) {
        folding.terms[e] = term;
        folding.counts[term]++;
      } else {
        folding.folds[source] = 0;
      }
    }
  }
  return true;
}

// Returns whether each source of a node has an output among the terms of a sum with readers; `term_of` is scratch.
bool has_only_terms(const Folding& folding, int32_t node, Vec<int32_t>& term_of) {
  const Graph& graph = folding.graph;
  int32_t first = graph.edge_ptr[node], end = graph.edge_ptr[node + 1];
  bool is_read = false;
  for (int32_t e = first; e < end; e++) {
    if (e == first || graph.edge_in[e] != graph.edge_in[e - 1]) is_read = folding.counts[e] > 0;
    if (is_read) term_of[graph.edge_src[e]] = node;
  }
  for (int32_t e = first; e < end; e++)
    if (term_of[graph.edge_src[e]] != node) return false;
  return true;
}

// Unflags nodes whose terms forbid folding, and counts the folds.
bool choose(Folding& folding, Folded& folded) {
  const Graph& graph = folding.graph;
  Vec<int32_t> term_of;            // by node: the last reader that takes it as a term of a sum in use
  Vec<int32_t> sum_of, output_of;  // by type: the last sum that has a term of it, and the term's output
  ptrdiff_t n_types = folding.types.n_types();
  if (!term_of.assign(graph.n_nodes(), -1) || !sum_of.assign(n_types, -1) || !output_of.assign(n_types, 0))
    return false;
  for (int32_t node = 0; node < graph.n_nodes(); node++) {
    if (!folding.folds[node]) continue;
    int32_t first = graph.edge_ptr[node], end = graph.edge_ptr[node + 1];
    int64_t made = 0, gone = end - first;
    bool fits = true, all_read = true;
    for (int32_t start = first, stop = first; start < end; start = stop) {
      while (stop < end && graph.edge_in[stop] == graph.edge_in[start]) stop++;
      int64_t n_readers = folding.counts[start];
      if (n_readers == 0) {
        all_read = false;
        continue;
      }
      fits &= stop - start > 1;
      made += n_readers * (stop - start);
      gone += n_readers;
      for (int32_t e = start; e < stop; e++) {
        int32_t type_id = graph.type_id[graph.edge_src[e]], output = graph.edge_out[e] & OUTPUT;
        fits &= sum_of[type_id] != start || output_of[type_id] == output;
        sum_of[type_id] = start;
        output_of[type_id] = output;
      }
      folding.counts[start] = stop - start;
    }
    if (fits && made > 0 && made <= GROWTH * gone && (all_read || has_only_terms(folding, node, term_of)))
      folded = {folded.sums + 1, folded.made + made, folded.gone + gone};
    else
      folding.folds[node] = 0;
  }
  return true;
}

// Writes the graph without folded sums; an edge from such a sum becomes an edge from each of its terms.
bool write(Draft& draft, const Folding& folding, const Folded& folded) {
  const Graph& graph = folding.graph;
  Draft next;
  NewGraph result;
  Vec<int32_t> number;
  if (!number_nodes(
          graph.n_nodes(), [&](ptrdiff_t node) { return !folding.folds[node]; }, number) ||
      !begin_graph(draft, number, graph.edge_src.size + folded.made - folded.gone, next, result))
    return false;
  int32_t at = 0;
  auto append = [&](int32_t edge, int32_t port) {
    result.edge_src[at] = number[graph.edge_src[edge]];
    result.edge_out[at] = graph.edge_out[edge];
    result.edge_in[at] = port;
    at++;
  };
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++) {
    if (folding.folds[node]) continue;
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
      if (!folding.folds[graph.edge_src[e]]) {
        append(e, graph.edge_in[e]);
        continue;
      }
      int32_t first = folding.terms[e];
      for (int32_t term = first; term < first + folding.counts[first]; term++) append(term, graph.edge_in[e]);
    }
    result.type_id[number[node]] = graph.type_id[node];
    result.edge_ptr[number[node] + 1] = at;
  }
  copy_outputs(graph, result, number);
  replace(draft, next);
  return true;
}

}  // namespace

bool fold(Draft& draft, const Types& types, Span<const int32_t> ports, Folded& folded) {
  Folding folding{draft.graph, types};
  bool any = false;
  if (!find_sums(folding, ports, any)) return false;
  if (!any) return true;
  if (!count_readers(folding) || !choose(folding, folded)) return false;
  return folded.sums == 0 || write(draft, folding, folded);
}

}  // namespace autobatch
