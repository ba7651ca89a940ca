// DAGs: the types and edges of a graph. Decisions about batches depend on nothing else.

#pragma once

#include "support/arrays.h"

namespace autobatch {

struct Dag {
  Span<const int32_t> type_id, edge_ptr, edge_src;  // node n reads edge_src[edge_ptr[n]:edge_ptr[n+1]]
  int32_t n_types = 0;
  Span<const double> costs;  // of a batch, by type; 1 for types beyond its end

  int32_t n_nodes() const { return (int32_t)edge_ptr.size - 1; }
  ptrdiff_t n_edges() const { return edge_src.size; }
  Span<const int32_t> sources(int32_t node) const { return edge_src.part(edge_ptr[node], edge_ptr[node + 1]); }
  double cost_of(int32_t type) const { return type >= 0 && type < costs.size ? costs[type] : 1.0; }
  // Returns the cost of a sequence of types: its length, if the DAG has no costs.
  double cost_of(Span<const int32_t> sequence) const;
};

// Reads the edges of a DAG; sets an error if offsets or sources are out of range.
bool read_edges(PyObject* edge_ptr, PyObject* edge_src, Dag& dag);

// Reads type_id, edge_ptr and edge_src, which it checks against each other.
bool read_typed_edges(PyObject* const* arguments, Dag& dag);

// Reads an `autobatch.graph.dag.Dag`; edges may point backward.
bool read_dag(PyObject* tuple, Dag& dag);

// Returns whether every edge points to a later node, which most loops rely on.
bool points_forward(const Dag& dag);

// Writes the number of edges on the longest path to each node; edges must point forward.
void fill_depths(const Dag& dag, Span<int32_t> depth);

// A DAG that owns its arrays.
struct OwnedDag {
  Vec<int32_t> type_id, edge_ptr, edge_src;
  int32_t n_types = 0;
  Vec<double> costs;

  Dag view() const { return {type_id, edge_ptr, edge_src, n_types, costs}; }
  // Copies a DAG; returns false if memory runs out.
  bool copy(const Dag& dag);
  // Copies a DAG with all edges reversed, where node n becomes N - 1 - n; returns false if memory runs out.
  bool reverse(const Dag& dag);
};

}  // namespace autobatch
