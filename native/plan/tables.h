// The layouts of types, and the widths of their rows; `autobatch.plan.plan.TypeTables` documents the arrays.

#pragma once

#include "graph/types.h"
#include "support/arrays.h"

namespace autobatch {

// A block is one domain of one type: the rows of its nodes, or of the edges of a variadic group.
struct TypeTables {
  Span<const int32_t> out_ptr, out_block, block_ptr, block_width, block_ints, block_floats, port_ptr, port_block,
      port_column;

  int32_t n_types() const { return (int32_t)block_ptr.size - 1; }
  int32_t n_blocks() const { return (int32_t)block_width.size; }
  int32_t n_outputs() const { return (int32_t)out_block.size; }
};

// Reads a `TypeTables`, and checks that its arrays fit each other and the properties of the types.
bool read_tables(PyObject* tuple, const Types& types, TypeTables& tables);

}  // namespace autobatch
