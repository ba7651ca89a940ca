// Finds, before any pass runs, which passes may change a node: a pass that cannot apply does not run.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

struct Survey {
  Vec<int32_t> ports;        // [outputs] the port that each output passes through, or -1
  bool may_forward = false;  // a node may pass through its only edge
  bool may_drop = false;     // a node is neither read nor returned
  bool may_take = false;     // a sum is not returned, so it may be absorbed or folded
  bool may_widen = false;    // a sum is not variadic
  bool may_share = false;    // enough nodes multiply matrices to look for equal ones
};

// Surveys a graph; returns false if memory runs out.
bool survey(const Graph& graph, const Types& types, Survey& found);

}  // namespace autobatch
