#include "plan/tables.h"

namespace autobatch {
namespace {

bool refuse(const char* what) {
  PyErr_Format(PyExc_ValueError, "tables must be consistent type tables, got %s that do not fit the others", what);
  return false;
}

bool equals(Span<const int32_t> one, Span<const int32_t> other) {
  return one.size == other.size && (!one.size || memcmp(one.data, other.data, (size_t)one.size * 4) == 0);
}

}  // namespace

bool read_tables(PyObject* tuple, const Types& types, TypeTables& tables) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 9) {
    PyErr_Format(PyExc_TypeError, "tables must be TypeTables, got %.80s", Py_TYPE(tuple)->tp_name);
    return false;
  }
  Span<const int32_t>* parts[] = {&tables.out_ptr,     &tables.out_block,  &tables.block_ptr,
                                  &tables.block_width, &tables.block_ints, &tables.block_floats,
                                  &tables.port_ptr,    &tables.port_block, &tables.port_column};
  for (int i = 0; i < 9; i++)
    if (!read<int32_t>(PyTuple_GET_ITEM(tuple, i), "an array of tables", *parts[i])) return false;
  ptrdiff_t n = types.n_types(), n_blocks = tables.block_width.size, n_ports = tables.port_block.size;
  if (tables.block_ptr.size != n + 1 || !rises(tables.block_ptr, n_blocks)) return refuse("block_ptr");
  if (tables.block_ints.size != n_blocks || tables.block_floats.size != n_blocks ||
      !within(tables.block_width, 0, INT32_MAX))
    return refuse("blocks");
  if (!equals(tables.out_ptr, types.out_ptr) || tables.out_block.size != types.pass_port.size) return refuse("out_ptr");
  if (!equals(tables.port_ptr, types.port_ptr) || tables.port_column.size != n_ports ||
      n_ports != types.port_plain.size || !within(tables.port_column, 0, INT32_MAX))
    return refuse("ports");
  for (ptrdiff_t t = 0; t < n; t++) {
    int32_t own = tables.block_ptr[t + 1] - tables.block_ptr[t];
    if (own != 1 + types.group_ptr[t + 1] - types.group_ptr[t]) return refuse("block_ptr");
    if (!within(tables.out_block.part(tables.out_ptr[t], tables.out_ptr[t + 1]), 0, own)) return refuse("out_block");
    if (!within(tables.port_block.part(tables.port_ptr[t], tables.port_ptr[t + 1]), 0, own))
      return refuse("port_block");
  }
  return true;
}

}  // namespace autobatch
