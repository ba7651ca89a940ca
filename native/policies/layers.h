// Searches for the cheapest sequence of types, breadth first: all sequences grow by one step at a time.
//
// A state is the remaining work, an antichain of suffixes; a layer holds the states that sequences of one length lead
// to. A state is dropped if another state of its layer costs no more and leaves only suffixes within those of the
// first. This rule matters most: few states of a layer survive it. A state is also dropped if its cost plus the chain
// bound of its remaining work exceeds a limit. If a layer has more than `width` states, only those with the least such
// sum are kept, and among equals those with the fewest suffixes. As long as this drops no state, no sequence up to the
// limit is missed: the search is a breadth-first heuristic search (Zhou and Hansen 2006, Artificial Intelligence 170).
// Otherwise it is a beam search.

#pragma once

#include "policies/suffixes.h"

namespace autobatch {

struct Outcome {
  Vec<int32_t> sequence;  // the cheapest sequence that was found
  double cost, unseen;    // its cost, or infinity; a lower bound on the cost of all sequences not examined
  int64_t n_states = 1;   // created
  bool gave_up = false;   // too many states; `unseen` is then meaningless
};

// Searches; false if memory runs out, or with an error if interrupted. `cost` holds the cost of a batch of each type,
// which must be positive.
bool search_layers(const Suffixes& suffixes, Span<const double> cost, double limit, int64_t width, int64_t max_states,
                   Unlocked& unlocked, Outcome& outcome);

}  // namespace autobatch
