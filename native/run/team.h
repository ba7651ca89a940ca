// The calls of a stage, made by one thread, or by several that share the tiles of each batch.

#pragma once

#include "run/steps.h"
#include "support/vec.h"

namespace autobatch {

// A bound step: its function, 0 if Python runs it, and the addresses that the function takes.
struct BoundStep {
  int64_t function, memory, descriptor;
};

struct Call {
  int64_t step, tile;
};

// See `CallList` in autobatch/backends/tiles.py.
struct CallSpans {
  Span<const Call> calls;
  Span<const int64_t> tile_ptr, ptr;
  Span<const uint8_t> is_serial;
};

// Makes the calls from `at` on; returns the first call of a step without a function, or `end`.
int64_t call_steps(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end);

// Threads that share the tiles of some parts of a list of calls. The leader opens a sweep and works through all parts;
// others join when they come, and take tiles that nobody has taken yet. The leader waits for nobody who has not begun a
// tile, so where another process has their cores it does the work alone; for a tile that is begun it waits, however
// long the core is somebody else's.
class Sweep {
 public:
  // Opens a sweep over parts first:last; returns its number, or -1 if memory runs out. None may be open.
  int64_t open(int64_t first, int64_t last);
  // Closes the sweep, and waits until nobody is inside.
  void close();
  // Goes in, unless the sweep of this number is over; whoever did works, and leaves.
  bool enter(int64_t number);
  void leave();
  // Takes tiles of one part after the other; a part begins when the one before is done, or never if all is over.
  void work(Span<const BoundStep> steps, const CallSpans& list, bool leads);

  bool is_open() { return n_sweeps_ != n_closed_; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

 private:
  // Counts the tiles of a part. It is as long as two lines of the cache, so that no two parts share one.
  struct Part {
    int64_t taken, done, unused[14];
  };

  // The number of the sweep, how many threads are inside besides the leader, and whether it is open. A thread that
  // wakes up late finds it closed, or the number of another sweep, and touches nothing.
  int64_t gate_ = 0;
  int64_t n_sweeps_ = 0, n_closed_ = 0, first_ = 0, last_ = 0;
  Vec<Part> parts_;
};

}  // namespace autobatch
