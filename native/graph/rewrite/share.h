// Passes "share" and "share_products": common-subexpression elimination for nodes. Of the nodes with equal type,
// attributes and inputs, only the first is kept.
//
// Each node is written as a record, with its sources replaced by the first nodes equal to them, so that equal nodes
// over equal inputs have equal records. A hash table finds earlier records with the same hash, which are then compared
// word by word. Float attributes are compared as bits: NaN equals itself, and 0.0 is not -0.0. A node whose cell draws
// random numbers is equal to no other, because its numbers depend on its instance and its place there.
//
// By the rule, nodes that multiply matrices are shared, and so are the nodes that equal ones read. A node is looked up
// only if it reads no node, or if it multiplies matrices and all nodes that it reads were looked up. A type is given up
// when its look-ups cost too much more than its equal nodes save. As a result, chains of calls are followed until they
// differ, and little is looked up where nothing repeats.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

// With fewer nodes that multiply matrices, sharing would not pay for the look-ups.
constexpr int64_t FEW = 32;

// Costs in multiply-adds of products; a core does 50 in a nanosecond.
//
// A look-up costs LOOK_UP, plus WORD per word of the record: 20 to 40 ns in all. NODE is the cost of a node besides
// its products, half of it for scheduling and placement. WRITE is the cost per node of writing a new graph, and of
// gathering operands that are no longer contiguous.
constexpr int64_t LOOK_UP = 2048, WORD = 64, NODE = 8192, WRITE = 1024;

// The loss by look-ups that a type is allowed, because later nodes have more candidates to equal: 1 / SHARE of the cost
// of its nodes or, if that is more, CREDIT for each node of the graph, counting at least SMALL nodes.
constexpr int64_t SHARE = 128, CREDIT = LOOK_UP / 16, SMALL = 1024;

// The results of look-ups.
struct Found {
  Vec<int32_t> first;         // [N] the first equal node, most often itself
  Vec<int64_t> tried, equal;  // [T] nodes looked up, and how many of them equal an earlier one
  Vec<bool> chosen;           // [T] whether the equal ones are shared
};

// Counts the nodes that multiply matrices.
int64_t count_products(const Graph& graph, const Types& types);

// Returns whether the gains of this many nodes fit 64 bits; if not, sets a ValueError.
bool check_work(const Types& types, ptrdiff_t n_nodes);

// Finds the nodes that stay when equal nodes are shared: for all types or, by the rule, for those where it pays.
// O(words of the graph) expected, and as much memory.
bool find_shared(Draft& draft, const Types& types, bool by_rule, Found& found);

// Keeps the first of equal nodes, redirects readers and outputs of the others to it, and counts the others.
bool share(Draft& draft, const Types& types, bool by_rule, int64_t& n_shared);

}  // namespace autobatch
