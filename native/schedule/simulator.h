// Simulates schedules: running a type runs all its ready nodes as one batch. Only this file implements that rule.
//
// Each node becomes ready once, and a batch takes all ready nodes of its type, so the ready nodes of a type form a
// queue. The queues of all types share one array of N nodes, with a segment per type. In the end, the segment of a type
// lists its nodes in the order in which they ran.
//
// Several DAGs can be simulated as one: each of G stacked DAGs of T types has its own range of nodes, and type t of DAG
// g has number g*T+t.

#pragma once

#include "graph/dag.h"
#include "support/vec.h"

namespace autobatch {

// A schedule: batch k runs order[batch_ptr[k]:batch_ptr[k+1]], all nodes of type batch_type[k].
struct Batches {
  Vec<int32_t> batch_type, batch_ptr, order;

  // Turns a schedule of the reversed DAG into one of the DAG, by reading it from its end.
  void mirror();
};

class Simulator {
 public:
  // Sets up a simulation in which nothing has run; false if memory runs out. `node_ptr` has the range of nodes of each
  // stacked DAG, or is empty for a single one.
  bool start(const Dag& dag, Span<const int32_t> node_ptr = {});
  // Resets stacked DAG `g` to the state in which nothing has run.
  void restart(ptrdiff_t g);
  // Runs all ready nodes of a type as one batch, and returns them.
  Span<const int32_t> step(int32_t type);
  // Copies the batches of a single DAG so far; false if memory runs out.
  bool finish(Batches& batches) const;

  bool is_ready(int32_t type) const { return head[type] < tail[type]; }
  int32_t n_ready(int32_t type) const { return tail[type] - head[type]; }
  int32_t n_unrun(int32_t type) const { return segment[type + 1] - head[type]; }
  int32_t n_types() const { return (int32_t)head.size() / (int32_t)n_batches.size(); }  // of each DAG
  Span<const int32_t> readers(int32_t node) const {
    return Span<const int32_t>(reader_).part(reader_ptr_[node], reader_ptr_[node + 1]);
  }

  Span<const int32_t> reader_ptr() const { return reader_ptr_; }
  Span<const int32_t> all_readers() const { return reader_; }

  Dag dag;
  Vec<int32_t> queue;       // [N] a segment per type: nodes that ran, then ready nodes, then room for the rest
  Vec<int32_t> segment;     // [G*T+1] type t has queue[segment[t]:segment[t+1]]
  Vec<int32_t> head, tail;  // [G*T] where the ready nodes of each type begin and end
  Vec<int32_t> node_ptr;    // [G+1] DAG g has nodes node_ptr[g]:node_ptr[g+1], and its batches lie in the same range
  Vec<int32_t> order;       // [N] nodes in the order in which they ran
  Vec<int32_t> batch_type, batch_end;  // [N] the type of each batch so far, and where it ends in `order`
  Vec<int32_t> n_batches;              // [G]

 private:
  bool find_readers();

  Vec<int32_t> reader_ptr_, reader_;  // the nodes that read node n: reader_[reader_ptr_[n]:reader_ptr_[n+1]]
  Vec<int32_t> waiting_;              // [N] edges from nodes that have not run
};

}  // namespace autobatch
