#include "graph/rewrite/shrink.h"

namespace autobatch {
namespace {

enum Fate : uint8_t { DROPPED, KEPT, DISSOLVED };
constexpr int32_t NO_READER = -1, SEVERAL = -2;

// Returns the only edge of a port of a node; -1 if the port has none or several.
int32_t only_edge(const Graph& graph, int32_t node, int32_t port) {
  int32_t e = graph.edge_ptr[node], end = graph.edge_ptr[node + 1], stop = end;
  while (e < stop) {  // a node's edges are sorted by port
    int32_t middle = e + (stop - e) / 2;
    if (graph.edge_in[middle] < port)
      e = middle + 1;
    else
      stop = middle;
  }
  return e == end || graph.edge_in[e] != port || (e + 1 < end && graph.edge_in[e + 1] == port) ? -1 : e;
}

// Marks nodes that reach no output as dropped, and the others as kept; returns the number of dropped ones.
int64_t drop_dead(const Graph& graph, Vec<uint8_t>& fate) {
  for (ptrdiff_t node = 0; node < fate.size(); node++) fate[node] = DROPPED;
  for (int32_t node : graph.out_node) fate[node] = KEPT;
  int64_t n_dropped = 0;
  for (ptrdiff_t node = fate.size() - 1; node >= 0; node--) {
    n_dropped += fate[node] == DROPPED;
    if (fate[node] == DROPPED) continue;
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) fate[graph.edge_src[e]] = KEPT;
  }
  return n_dropped;
}

// Finds the only reader of each node that is read once and not returned; dropped readers do not count.
bool only_readers(const Graph& graph, const Vec<uint8_t>& fate, Vec<int32_t>& reader) {
  if (!reader.assign(fate.size(), NO_READER)) return false;
  for (ptrdiff_t node = 0; node < fate.size(); node++)
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1] && fate[node] != DROPPED; e++) {
      int32_t source = graph.edge_src[e];
      reader[source] = reader[source] == NO_READER ? (int32_t)node : SEVERAL;
    }
  for (int32_t node : graph.out_node) reader[node] = SEVERAL;
  return true;
}

// Marks sums that dissolve into their reader, and updates `n_terms`, the number of values that each node then reads.
//
// An empty sum is kept: without it, its reader might have one term, which only another forward pass would remove.
bool dissolve_sums(const Graph& graph, Span<const int32_t> sum_type, Vec<uint8_t>& fate, Vec<int32_t>& n_terms,
                   Shrunk& shrunk) {
  Vec<int32_t> only_reader;
  if (!only_readers(graph, fate, only_reader)) return false;
  for (ptrdiff_t node = 0; node < fate.size(); node++) {
    int32_t type_id = sum_type[graph.type_id[node]];
    if (type_id < 0 || fate[node] == DROPPED) continue;
    bool takes = false;
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
      int32_t source = graph.edge_src[e];
      if (fate[source] != DISSOLVED) continue;
      n_terms[node] += n_terms[source] - 1;
      takes = true;
    }
    int32_t reader = only_reader[node];
    if (reader >= 0 && sum_type[graph.type_id[reader]] == type_id && n_terms[node] > 0) {
      fate[node] = DISSOLVED;
      shrunk.dissolved++;
    } else {
      shrunk.taking += takes;
      shrunk.widened += graph.type_id[node] != type_id;
    }
  }
  return true;
}

// Writes types and edges, last node first: a reader decides where the terms of the sums that it absorbs go.
void write_nodes(const Graph& graph, Span<const int32_t> sum_type, const Vec<uint8_t>& fate,
                 const Vec<int32_t>& n_terms, const Vec<int32_t>& number, bool sums, Vec<int32_t>& place,
                 NewGraph& result) {
  int32_t end = (int32_t)result.edge_src.size;
  for (ptrdiff_t node = fate.size() - 1; node >= 0; node--) {
    if (fate[node] == DROPPED) continue;
    int32_t type_id = graph.type_id[node], sum = sums ? sum_type[type_id] : -1;
    bool is_widened = sum >= 0 && sum != type_id;
    if (fate[node] == KEPT) {
      result.type_id[number[node]] = sum >= 0 ? sum : type_id;
      result.edge_ptr[number[node] + 1] = end;
      end -= n_terms[node];
      place[node] = end;
    }
    int32_t at = place[node];
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
      int32_t source = graph.edge_src[e];
      if (fate[source] == DISSOLVED) {
        place[source] = at;
        at += n_terms[source];
      } else {
        result.edge_src[at] = number[source];
        result.edge_out[at] = graph.edge_out[e];
        result.edge_in[at] = is_widened ? 0 : graph.edge_in[e];
        at++;
      }
    }
  }
}

// Writes the graph of the kept nodes, with dissolved sums expanded and, if `sums`, sums widened.
bool cut(Draft& draft, Span<const int32_t> sum_type, const Vec<uint8_t>& fate, const Vec<int32_t>& n_terms, bool sums) {
  Draft next;
  NewGraph result;
  Vec<int32_t> number, place;  // new numbers of nodes; where their edges go
  int64_t n_edges = 0;
  for (ptrdiff_t node = 0; node < fate.size(); node++) n_edges += fate[node] == KEPT ? n_terms[node] : 0;
  if (!number_nodes(
          fate.size(), [&](ptrdiff_t node) { return fate[node] == KEPT; }, number) ||
      !place.resize(fate.size()) || !begin_graph(draft, number, n_edges, next, result))
    return false;
  copy_outputs(draft.graph, result, number);
  write_nodes(draft.graph, sum_type, fate, n_terms, number, sums, place, result);
  replace(draft, next);
  return true;
}

}  // namespace

bool forward(Draft& draft, const Types& types, Span<const int32_t> ports, int64_t& n_forwarded) {
  const Graph& from = draft.graph;
  Vec<int32_t> words;
  if (!words.resize((ptrdiff_t)draft.sizes.words())) return false;
  memcpy(words.data(), from.instance_ptr.data - HEADER, (size_t)words.size() * sizeof(int32_t));
  NewGraph graph = parts_of(words.data(), draft.sizes);
  // One step follows a whole chain of pass-through nodes: edges are redirected in the order of their readers, so the
  // edge `origin` of an earlier node has been redirected before.
  auto redirect = [&](int32_t& node, int32_t& out) {
    int32_t port = ports[types.out_ptr[graph.type_id[node]] + (out & OUTPUT)];
    int32_t origin = port < 0 ? -1 : only_edge(from, node, port);
    if (origin < 0) return;
    node = graph.edge_src[origin];
    out = graph.edge_out[origin];
    n_forwarded++;
  };
  for (ptrdiff_t e = 0; e < graph.edge_src.size; e++) redirect(graph.edge_src[e], graph.edge_out[e]);
  for (ptrdiff_t o = 0; o < graph.out_node.size; o++) redirect(graph.out_node[o], graph.out_port[o]);
  if (n_forwarded == 0) return true;
  draft.words = static_cast<Vec<int32_t>&&>(words);
  draft.graph = parts_of<const int32_t>(draft.words.data(), draft.sizes);
  return true;
}

bool shrink(Draft& draft, const Types& types, bool dead, bool sums, Shrunk& shrunk) {
  const Graph& graph = draft.graph;
  Vec<uint8_t> fate;
  Vec<int32_t> n_terms;
  if (!fate.assign(graph.n_nodes(), KEPT) || !n_terms.resize(graph.n_nodes())) return false;
  if (dead && graph.out_node.size) shrunk.dropped = drop_dead(graph, fate);
  for (ptrdiff_t node = 0; node < graph.n_nodes(); node++)
    n_terms[node] = graph.edge_ptr[node + 1] - graph.edge_ptr[node];
  if (sums && !dissolve_sums(graph, types.sum_type, fate, n_terms, shrunk)) return false;
  if (shrunk.dropped + shrunk.widened + shrunk.dissolved == 0) return true;
  return cut(draft, types.sum_type, fate, n_terms, sums);
}

}  // namespace autobatch
