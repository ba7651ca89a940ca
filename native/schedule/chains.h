// Tracks how many batches of each type are still needed, and which types lower that number when they run.
//
// U[n, a] is the largest number of type-a nodes on a path that starts at node n. M[a], the largest U[n, a] of the ready
// nodes, is a lower bound on the type-a batches of any schedule of the remaining nodes; the bounds of all types add up.
// Type a is critical if every ready node with U[n, a] = M[a] is itself of type a: running a then lowers M[a] by one.
// Running a type that is not critical never lowers the sum.
//
// A batch runs all ready nodes of its type, so the counts of that type start over, and each node is visited only once,
// when it becomes ready.

#pragma once

#include "schedule/simulator.h"

namespace autobatch {

class Chains {
 public:
  // Sets up the counts for a simulation in which nothing has run; false if memory runs out.
  bool start(const Simulator& sim);
  // Resets the counts of stacked DAG `g`, after its simulation was reset.
  void restart(const Simulator& sim, ptrdiff_t g);
  // Updates the counts after a batch of a type ran.
  void follow(const Simulator& sim, int32_t type);

  // Returns whether running a type lowers the bound on the remaining batches.
  bool is_critical(int32_t type) const { return most[type] > 0 && n_own_most[type] == n_most[type]; }

  Span<const int32_t> ahead() const { return ahead_; }    // [N, T] U
  Span<const int32_t> height() const { return height_; }  // [N] the sum of U over the types

  Vec<int32_t> most;          // [G*T] M
  Vec<int32_t> n_most;        // [G*T] ready nodes with U = M
  Vec<int32_t> n_own_most;    // [G*T] how many of them are of type a
  Vec<int64_t> ready_height;  // [G*T] the sum of `height` over the type's ready nodes

 private:
  void look_ahead(const Simulator& sim);
  void forget(int32_t type);
  void take_in(const Simulator& sim, int32_t first);

  int32_t n_types_ = 0;
  Vec<int32_t> ahead_, height_;
  Vec<int32_t> longest_;    // [G*T, T] the largest U of a type's ready nodes, for each type; -1 where none is ready
  Vec<int32_t> n_longest_;  // [G*T, T] the number of ready nodes with this U
  Vec<int32_t> seen_;       // [G*T] where the nodes of each queue that are not counted yet begin
};

}  // namespace autobatch
