// Passes "share" and "share_products": common-subexpression elimination for nodes. Of those with equal type, attributes
// and inputs, the first is kept.
//
// Each node is written as a record, with its sources replaced by the first nodes equal to them, so that equal nodes
// over equal inputs have equal records. A hash table finds earlier records with the same hash, which are then compared
// word by word. Float attributes are compared as bits: NaN equals itself, and 0.0 is not -0.0. A node whose cell draws
// random numbers equals no other, because its numbers depend on its instance and its place there.
//
// By the rule, nodes whose cells multiply matrices are shared if they read only data or shared nodes. A node is looked
// up only if it reads data or nodes that were looked up. Its type is given up when its look-ups have cost more than its
// equal nodes save. So a chain of calls is followed until chains differ, and where nothing repeats, little is looked
// up. Nodes that multiply nothing are shared for those that read them.

#pragma once

#include "graph/rewrite/draft.h"

namespace autobatch {

// With fewer nodes that multiply matrices, equal nodes are not looked for: sharing would not pay for the look-ups.
constexpr int64_t FEW = 32;

// Costs in multiply-adds of products, of which a core does 50 in a nanosecond.
//
// LOOK_UP is for a node that is looked up, and WORD for each word of its record: 20 to 40 ns in all. NODE is what a
// node costs beside its products: half of it to schedule and place it. WRITE is for each node of a graph that is
// written anew, and whose operands are gathered where they no longer lie side by side.
constexpr int64_t LOOK_UP = 2048, WORD = 64, NODE = 8192, WRITE = 1024;

// What a type may lose by being looked up, since later nodes have more to equal: 1 / SHARE of what its nodes cost, or
// CREDIT per node of the graph or of a small one if that is more.
constexpr int64_t SHARE = 128, CREDIT = LOOK_UP / 16, SMALL = 1024;

// What looking nodes up gave.
struct Found {
  Vec<int32_t> first;         // [N] the node that stays in place of each; most often itself
  Vec<int64_t> tried, equal;  // [T] nodes that were looked up, and those of them that equal an earlier one
  Vec<bool> chosen;           // [T] whether these are shared
};

// Counts the nodes that multiply matrices.
int64_t count_products(const Graph& graph, const Types& types);

// Whether the gains of so many nodes fit 64 bits; a ValueError if not.
bool check_work(const Types& types, ptrdiff_t n_nodes);

// Finds the nodes that stay when equal ones are shared, of all types or, by the rule, of those that are worth it.
// O(words of the graph) expected, and as much memory.
bool find_shared(Draft& draft, const Types& types, bool by_rule, Found& found);

// Keeps the first of equal nodes, and redirects readers and outputs of the others to it; counts those.
bool share(Draft& draft, const Types& types, bool by_rule, int64_t& n_shared);

}  // namespace autobatch
