// Marking the nodes and outputs that a loss depends on: `autobatch.graph.marks`.

#pragma once

#include "graph/flows.h"
#include "graph/words.h"

namespace autobatch {

enum class Marked { WHOLE, PART, WRONG };

// Marks the wanted outputs and then, from the last node to the first, all outputs that gradients flow to. Column 0 of
// `marks` is for the node, the others are for its outputs. Returns WHOLE if all nodes are marked, and WRONG if a slot,
// an output or a port does not exist.
Marked mark_all(const Graph& graph, const Flows& flows, Span<const uint8_t> wanted, const Table<uint8_t>& marks);

}  // namespace autobatch
