// Sequences of types: where the nodes of a DAG run in a sequence, and which positions can be dropped.
// `autobatch.policies.sequences` has the definitions and proofs.

#pragma once

#include "schedule/simulator.h"

namespace autobatch {

// A sequence and its index: the next position of each type, stored for every 2^shift-th position.
class Stops {
 public:
  // Indexes a sequence, more sparsely if it is long and has many types, so that the size of the index stays linear;
  // false if memory runs out. With `is_turned`, reverses the sequence first.
  bool index(Span<const int32_t> sequence, bool is_turned, int32_t n_types, int32_t n_nodes);
  // Finds the first position of a type from a position in 0..K on; K if there is none.
  int32_t next(int32_t type, int32_t position) const;
  // Finds the next position with the type of position k; K if there is none.
  int32_t next_same(int32_t k) const {
    int32_t type = sequence[k];
    return type >= 0 && type < n_types_ ? next(type, k + 1) : size();
  }
  int32_t size() const { return (int32_t)sequence.size(); }

  Vec<int32_t> sequence;  // [K]

 private:
  int32_t n_types_ = 0, shift_ = 0;
  Vec<int32_t> first_;  // [(K >> shift) + 2, T] the first position of a type from row << shift on; K if none
};

// Writes the first position at which each node can run, or K; returns whether all nodes can run.
bool fill_early(const Dag& dag, const Stops& stops, Span<int32_t> position);

// Does the same for the reversed DAG, with the stops of the reversed sequence; positions count from the end.
bool fill_mirrored(const Dag& dag, const Stops& turned, Span<int32_t> position);

// Decides from the left which positions to keep, and lists their types. `position` holds the late positions of the
// nodes, and is overwritten. False if memory runs out.
bool keep_from_left(const Dag& dag, const Stops& stops, Span<int32_t> position, Vec<int32_t>& kept);

enum class Compacted { NO_MEMORY, UNFINISHED, DONE };

// Drops positions until none can be dropped, once from the left and once from the right, and writes the cheaper result,
// or the left one if they cost the same. UNFINISHED if the sequence does not run all nodes.
Compacted compact(const Dag& dag, Span<const int32_t> sequence, Vec<int32_t>& shorter);

// Makes the schedule in which each node runs at its position; positions without nodes are dropped. Returns a node whose
// position does not have its type, -1 if there is no such node, or -2 if memory runs out.
int32_t gather_batches(const Dag& dag, Span<const int32_t> sequence, Span<const int32_t> position, Batches& batches);

}  // namespace autobatch
