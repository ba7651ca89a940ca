// Passes "forward", "dead" and "sums": copy propagation, dead-node elimination, and merging of sums of sums.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

// Redirects readers of outputs that pass through a port with one edge, and counts the redirected edges and outputs.
// `ports` comes from a `Survey`.
bool forward(Draft& draft, const Types& types, Span<const int32_t> ports, int64_t& n_forwarded);

struct Shrunk {
  int64_t dropped = 0, widened = 0, taking = 0, dissolved = 0;  // nodes dropped; sums widened, absorbing, dissolved
};

// If `dead`, drops the nodes that reach no output, unless there are no outputs. If `sums`, dissolves each sum that only
// one other sum reads, and makes the other sums variadic.
bool shrink(Draft& draft, const Types& types, bool dead, bool sums, Shrunk& shrunk);

}  // namespace autobatch
