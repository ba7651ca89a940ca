// Pass "fold": a plain port that reads a sum reads its terms instead, as several edges whose values it adds up.
//
// The summing node and its batches are then unnecessary: a reader waits for the terms themselves. A node is removed if
// all of these conditions hold:
//
// - Each of its outputs that is read is the sum of a variadic port with at least two values. A sum of no values is
//   zeros, which no edge carries; a sum of one value is left to the pass "forward".
// - It is not returned: a returned value needs a node that writes it.
// - It is read, and only by plain ports that read nothing else. A variadic port has a row for each of its values, and
//   folding into ports with several edges could grow the graph without bound.
// - Terms of one sum that are made by nodes of one type are all the same output, or rows of it. A batch writes its
//   outputs one after another, so it would otherwise be unclear which write stores and which ones add.
// - Everything it reads is a term of such a sum, so that no node is left unused; and it has no plain ports, so that no
//   sum folds into a node that is removed.
// - The edges created are at most `GROWTH` times the edges removed.
//
// These conditions do not depend on other folds, so a second application finds nothing. A sum that is kept may be a
// term of a folded sum.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

// A sum is kept if folding it would create more than this many times the edges that it removes.
//
// Every edge costs a written value, and its gradient read back: r readers and t terms need r * t edges when folded,
// r + t when kept. Saving a batch is worth some of that: a sum of at most 4 terms is always folded, one of 8 terms if
// it is read up to 8 times, one of hundreds up to 4 times. The number of edges of the whole graph grows at most 4-fold.
constexpr int64_t GROWTH = 4;

struct Folded {
  int64_t sums = 0, made = 0, gone = 0;  // sums folded, edges created and edges removed
};

// Folds sums into their readers; the other nodes stay in order. `ports` comes from a `Survey`. O(N + E + edges made).
bool fold(Draft& draft, const Types& types, Span<const int32_t> ports, Folded& folded);

}  // namespace autobatch
