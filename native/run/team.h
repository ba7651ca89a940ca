// Makes the calls of a stage, with one thread, or with several that share the tiles of each batch.

#pragma once

#include "run/steps.h"
#include "support/fork.h"
#include "support/vec.h"

namespace autobatch {

// A step with its addresses: the function, or 0 if Python runs the step, and the memory and descriptor that it takes.
struct BoundStep {
  int64_t function, memory, descriptor;
};

struct Call {
  int64_t step, tile;
};

// See `CallList` in autobatch/backends/tables.py.
struct CallSpans {
  Span<const Call> calls;
  Span<const int64_t> tile_ptr, ptr;
  Span<const uint8_t> is_serial;
};

// Makes the calls at:end, up to the first call of a step without a function; returns the number of that call, or `end`.
int64_t call_steps(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end);

// A run over some parts of a list of calls by several threads. The leader opens a sweep and works through all parts;
// helpers join when they wake up, and take tiles that no thread has taken yet. The leader does not wait for helpers to
// wake up: while other processes occupy their cores, it does all the work alone. It does wait for helpers that are
// inside: for the tiles that they have taken, and in the end until they have left, even if they lose their core.
class Sweep {
 public:
  // Opens a sweep over parts first:last; returns its number, or -1 if memory runs out. No sweep may be open.
  int64_t open(int64_t first, int64_t last);
  // Closes the sweep, and waits until no helper is inside.
  void close();
  // Enters the sweep with this number; false if it is over. A helper that has entered must leave.
  bool enter(int64_t number);
  void leave();
  // Runs tiles of one part after the other; a part begins when the previous one is done. Returns early if the sweep is
  // closed.
  void work(Span<const BoundStep> steps, const CallSpans& list, bool leads);

  bool is_open() const { return open_.is_set(); }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

 private:
  // Counts the tiles of a part. A part takes two cache lines, so that the counters of two parts never share a line.
  struct Part {
    int64_t taken, done, unused[14];
  };

  // The number of the sweep, the number of helpers inside, and whether it is open, in one atomic word. A helper that
  // wakes up late finds the sweep closed, or another number, and touches nothing.
  int64_t gate_ = 0;
  int64_t n_sweeps_ = 0, first_ = 0, last_ = 0;
  Mark open_;
  Vec<Part> parts_;
};

}  // namespace autobatch
