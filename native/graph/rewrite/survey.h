// Looks, before any pass has run, for nodes that passes may change: a pass that cannot apply does not run.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

struct Survey {
  Vec<int32_t> ports;        // [outputs] the port that each output passes through, or -1
  bool may_forward = false;  // there is a node that may pass through its only edge
  bool may_drop = false;     // ... a node that is neither read nor returned
  bool may_take = false;     // ... a sum that is not returned, and may be absorbed or folded
  bool may_widen = false;    // ... a sum that is not the variadic one
  bool may_share = false;    // there are enough nodes that multiply matrices to look for equal ones
};

// False where there is no memory.
bool survey(const Graph& graph, const Types& types, Survey& found);

}  // namespace autobatch
