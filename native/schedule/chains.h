// Tracks how many batches of each type are still needed, and which types lower that number when they run.
//
// U[n, a] counts the most type-a nodes on a path that starts at node n. M[a], the largest U[n, a] of the ready nodes,
// is a lower bound on the type-a batches of any schedule of the remaining nodes; the bounds of all types add up. Type a
// is critical when every ready node with U[n, a] = M[a] is itself of type a: running a then lowers M[a] by one. Running
// a type that is not critical never lowers the sum.
//
// A type that has run has no ready node left, so each node is looked at only once, when it becomes ready.

#pragma once

#include "schedule/simulator.h"

namespace autobatch {

class Chains {
 public:
  // Counts for a simulation in which nothing has run; false if memory runs out.
  bool start(const Simulator& sim);
  // Resets the counts of stacked DAG `g` after its simulation was.
  void restart(const Simulator& sim, ptrdiff_t g);
  // Updates the counts after a batch of a type ran.
  void follow(const Simulator& sim, int32_t type);

  // Whether running a type lowers the number of batches that are still needed.
  bool is_critical(int32_t type) const { return most[type] > 0 && n_own_most[type] == n_most[type]; }

  Span<const int32_t> ahead() const { return ahead_; }    // [N, T] U
  Span<const int32_t> height() const { return height_; }  // [N] the sum of U over the types

  Vec<int32_t> most;          // [G*T] M
  Vec<int32_t> n_most;        // [G*T] ready nodes with U = M
  Vec<int32_t> n_own_most;    // [G*T] those of them that are of type a
  Vec<int64_t> ready_height;  // [G*T] over the type's ready nodes, the sum of U over all types

 private:
  void look_ahead(const Simulator& sim);
  void forget(int32_t type);
  void take_in(const Simulator& sim, int32_t first);

  int32_t n_types_ = 0;
  Vec<int32_t> ahead_, height_;
  Vec<int32_t> longest_;    // [G*T, T] the largest U of a type's ready nodes, for each type; -1 where none is ready
  Vec<int32_t> n_longest_;  // [G*T, T] how many of them have it
  Vec<int32_t> seen_;       // [G*T] the simulator's tail up to which ready nodes are counted
};

}  // namespace autobatch
