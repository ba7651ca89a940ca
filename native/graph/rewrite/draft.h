// The graph that passes rewrite, one after the other: first the caller's, then one that a pass has written.

#pragma once

#include "graph/words.h"

namespace autobatch {

struct Draft {
  Graph graph;
  Sizes sizes;
  Span<const double> floats;
  Vec<int32_t> int_starts, float_starts;  // [N+1] where the attributes of each node begin
  Vec<int32_t> words;                     // of a graph that a pass has written
  Vec<double> own_floats;
  bool is_too_large = false;  // whether a pass has failed because positions do not fit 32 bits
};

// Numbers the nodes that stay, in order: [N+1], number[node] of them come before a node.
template <class Stays>
bool number_nodes(ptrdiff_t n_nodes, Stays stays, Vec<int32_t>& number) {
  if (!number.resize(n_nodes + 1)) return false;
  int32_t n = 0;
  for (ptrdiff_t node = 0; node < n_nodes; node++) {
    number[node] = n;
    n += stays(node) ? 1 : 0;
  }
  number[n_nodes] = n;
  return true;
}

// Begins the graph of the nodes at which `number` rises, with this many edges: its instances and attributes are
// written; types, edges and outputs are not.
bool begin_graph(Draft& draft, Span<const int32_t> number, int64_t n_edges, Draft& next, NewGraph& parts);

// Replaces the draft by the graph that was written.
void replace(Draft& draft, Draft& next);

}  // namespace autobatch
