// The graph that the passes rewrite in turn: at first the caller's graph, then the one that the last pass wrote.

#pragma once

#include "graph/words.h"

namespace autobatch {

struct Draft {
  Graph graph;
  Sizes sizes;
  Span<const double> floats;
  Vec<int32_t> int_starts, float_starts;  // [N+1] where the attributes of each node begin
  Vec<int32_t> words;                     // of a graph written by a pass
  Vec<double> own_floats;
  bool is_too_large = false;  // whether a pass failed because positions do not fit 32 bits
};

// Numbers the nodes that stay, in order: number[node] of them come before `node`. `number` gets N+1 elements.
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

// Begins a graph of the nodes that stay, those with number[node] < number[node + 1], and of this many edges. Writes its
// instances and attributes; the caller writes types, edges and outputs. Returns false if memory runs out, or if
// positions do not fit 32 bits.
bool begin_graph(Draft& draft, Span<const int32_t> number, int64_t n_edges, Draft& next, NewGraph& parts);

// Replaces the draft with the one that a pass wrote.
void replace(Draft& draft, Draft& next);

}  // namespace autobatch
