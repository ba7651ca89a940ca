// Tracks which nodes of each type would be ready if there were no other types.
//
// G_a has only the type-a nodes of a DAG, with an edge between two of them if a path connects them without other type-a
// nodes. Its frontier is the set of unrun type-a nodes that no other unrun type-a node precedes. The ratio of type a's
// ready nodes to that frontier is 1 exactly when waiting for more of them gains nothing (ED-Batch, arXiv:2302.03851,
// section 2.3).
//
// Each count of blocked edges falls to zero once, so a whole schedule costs O(T * E).

#pragma once

#include "schedule/simulator.h"

namespace autobatch {

class Restricted {
 public:
  // Sets up the counts for a simulation in which nothing has run; false if memory runs out.
  bool start(const Simulator& sim);
  // Resets the counts of stacked DAG `g`.
  void restart(const Simulator& sim, ptrdiff_t g);
  // Updates the frontiers after a batch of a type ran.
  void unblock(const Simulator& sim, int32_t type, Span<const int32_t> batch);

  // Returns [N, T] the number of edges into node n that have an unrun type-a node at or before their source.
  Span<const int32_t> blocked() const { return blocked_; }

  Vec<int32_t> frontier;  // [G*T] the size of the frontier of G_a

 private:
  int32_t n_types_ = 0;
  Vec<int32_t> blocked_;
  Vec<int32_t> stack_;  // [N] nodes that are being unblocked
};

}  // namespace autobatch
