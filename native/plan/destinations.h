// Lists the destinations of every node output: the places in its readers' rows to which it is written.

#pragma once

#include "plan/rows.h"

namespace autobatch {

// Lists the places to which each node output is written, and whether it is added there, by (type, output, row). Several
// edges of a plain port are summed: the value that is made first is stored, and the others are added. T is the int type
// of places. Returns a problem of the graph, or NO_MEMORY.
template <class T>
Problem list_destinations(const Graph& graph, const Rows& rows, const TypeTables& tables,
                          Span<const int64_t> slot_width, Vec<int64_t>& dest_base, Vec<int64_t>& dest_ptr, Span<T> dest,
                          Span<uint8_t> adds);

}  // namespace autobatch
