// Properties of node types; `autobatch.ir.type_arrays.TypeArrays` describes the arrays.

#pragma once

#include "support/arrays.h"

namespace autobatch {

struct Types {
  Span<const int32_t> int_width, float_width, data_ptr, data_group, data_ints, data_floats, out_ptr, pass_port,
      port_ptr, port_plain, port_group, group_ptr, part_ptr, part_group, part_times, part_of;
  Span<const int64_t> part_cut;  // [parts, 4]
  Span<const int32_t> sum_type, range_ptr, range_data, range_column, range_size, range_ignore, random;
  Span<const int64_t> product_work;

  ptrdiff_t n_types() const { return int_width.size; }
  ptrdiff_t n_groups() const { return group_ptr[n_types()]; }  // in all types
};

// Reads a `TypeArrays`, and checks that its arrays fit each other, so that loops stay within bounds.
bool read_types(PyObject* tuple, Types& types);

}  // namespace autobatch
