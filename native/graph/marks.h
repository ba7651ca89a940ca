// Marking the nodes and outputs that a loss depends on: `autobatch.graph.marks`.

#pragma once

#include "graph/flows.h"
#include "graph/words.h"

namespace autobatch {

enum class Marked { WHOLE, PART, WRONG };

// Marks the wanted outputs and then, last node first, all outputs that gradients flow to. In `marks`, column 0 stands
// for the node, the others for its outputs. WHOLE if all nodes are marked; WRONG if something named does not exist.
Marked mark_all(const Graph& graph, const Flows& flows, Span<const uint8_t> wanted, const Table<uint8_t>& marks);

}  // namespace autobatch
