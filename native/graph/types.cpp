#include "graph/types.h"

namespace autobatch {
namespace {

constexpr Py_ssize_t N_FIELDS = 25;
constexpr int32_t MOST_GROUPS = 1 << 24;  // in all types: loops allocate a length for each

bool refuse(const char* what) {
  PyErr_Format(PyExc_ValueError, "types must be consistent type arrays, got %s that do not fit the others", what);
  return false;
}

// Returns whether an array holds the offsets of n types into `n_parts` parts.
bool is_ptr(Span<const int32_t> ptr, ptrdiff_t n, ptrdiff_t n_parts) {
  return ptr.size == n + 1 && rises(ptr, n_parts);
}

// Returns whether the parts of each type name groups of that type; -1 is allowed if `least` is -1.
bool name_groups(Span<const int32_t> groups, Span<const int32_t> ptr, Span<const int32_t> group_ptr, int32_t least) {
  for (ptrdiff_t t = 0; t + 1 < ptr.size; t++)
    if (!within(groups.part(ptr[t], ptr[t + 1]), least, group_ptr[t + 1] - group_ptr[t])) return false;
  return true;
}

// Returns whether each sum type is its own sum, has a port if ports are known, and has as many outputs and attributes
// as the types that it replaces.
bool fit_sums(const Types& types) {
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    int32_t sum = types.sum_type[t];
    if (sum < 0) continue;
    if (types.out_ptr[sum] == types.out_ptr[sum + 1] || types.sum_type[sum] != sum) return false;
    if (types.port_plain.size && types.port_ptr[sum] == types.port_ptr[sum + 1]) return false;
    if (types.out_ptr[sum + 1] - types.out_ptr[sum] != types.out_ptr[t + 1] - types.out_ptr[t]) return false;
    if (types.int_width[sum] != types.int_width[t] || types.float_width[sum] != types.float_width[t]) return false;
  }
  return true;
}

// Returns whether outputs pass through ports that their types have, if ports are known.
bool pass_ports(const Types& types) {
  for (ptrdiff_t t = 0; t < types.n_types(); t++) {
    int32_t n_ports = types.port_plain.size ? types.port_ptr[t + 1] - types.port_ptr[t] : INT32_MAX;
    if (!within(types.pass_port.part(types.out_ptr[t], types.out_ptr[t + 1]), -1, n_ports)) return false;
  }
  return true;
}

// Checks offsets before the arrays that are read through them.
bool check(const Types& types) {
  ptrdiff_t n = types.n_types(), n_data = types.data_group.size, n_parts = types.part_group.size;
  ptrdiff_t n_ranges = types.range_size.size;
  if (types.float_width.size != n || types.random.size != n || types.product_work.size != n) return refuse("widths");
  if (!within(types.int_width, 0, INT32_MAX) || !within(types.float_width, 0, INT32_MAX)) return refuse("widths");
  if (types.group_ptr.size != n + 1 || types.group_ptr[n] > MOST_GROUPS ||
      !is_ptr(types.group_ptr, n, types.group_ptr[n]))
    return refuse("group_ptr");
  if (types.data_ints.size != n_data || types.data_floats.size != n_data || !within(types.data_ints, 0, INT32_MAX) ||
      !within(types.data_floats, 0, INT32_MAX) || !is_ptr(types.data_ptr, n, n_data) ||
      !name_groups(types.data_group, types.data_ptr, types.group_ptr, 0))
    return refuse("data");
  if (!is_ptr(types.out_ptr, n, types.pass_port.size)) return refuse("out_ptr");
  if (types.port_group.size != types.port_plain.size || !is_ptr(types.port_ptr, n, types.port_plain.size) ||
      !name_groups(types.port_group, types.port_ptr, types.group_ptr, -1))
    return refuse("ports");
  if (types.sum_type.size != n || !within(types.sum_type, -1, n) || !fit_sums(types)) return refuse("sum_type");
  if (!pass_ports(types)) return refuse("pass_port");
  if (types.part_times.size != n_parts || types.part_of.size != n_parts || types.part_cut.size != 4 * n_parts ||
      !is_ptr(types.part_ptr, n, n_parts) || !name_groups(types.part_group, types.part_ptr, types.group_ptr, 0) ||
      !name_groups(types.part_times, types.part_ptr, types.group_ptr, -1) ||
      !name_groups(types.part_of, types.part_ptr, types.group_ptr, -1))
    return refuse("parts");
  for (ptrdiff_t part = 0; part < n_parts; part++)
    if (types.part_cut[4 * part + 3] == 0) return refuse("part_cut");
  if (types.range_data.size != n_ranges || types.range_column.size != n_ranges || types.range_ignore.size != n_ranges ||
      !is_ptr(types.range_ptr, n, n_ranges))
    return refuse("ranges");
  for (ptrdiff_t t = 0; t < n; t++) {
    int32_t n_groups = types.group_ptr[t + 1] - types.group_ptr[t], first = types.data_ptr[t];
    for (ptrdiff_t r = types.range_ptr[t]; r < types.range_ptr[t + 1]; r++) {
      int32_t data = types.range_data[r], column = types.range_column[r];
      if (data < -1 || data >= types.data_ptr[t + 1] - first || types.range_size[r] < -n_groups)
        return refuse("ranges");
      if (column < 0 || column >= (data < 0 ? types.int_width[t] : types.data_ints[first + data]))
        return refuse("range_column");
    }
  }
  return true;
}

}  // namespace

bool read_types(PyObject* tuple, Types& types) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != N_FIELDS) {
    PyErr_Format(PyExc_TypeError, "types must be type arrays, got %.80s", Py_TYPE(tuple)->tp_name);
    return false;
  }
  Span<const int32_t>* first[] = {&types.int_width, &types.float_width, &types.data_ptr,   &types.data_group,
                                  &types.data_ints, &types.data_floats, &types.out_ptr,    &types.pass_port,
                                  &types.port_ptr,  &types.port_plain,  &types.port_group, &types.group_ptr,
                                  &types.part_ptr,  &types.part_group,  &types.part_times, &types.part_of};
  Span<const int32_t>* last[] = {&types.sum_type,   &types.range_ptr,    &types.range_data, &types.range_column,
                                 &types.range_size, &types.range_ignore, &types.random};
  Py_ssize_t at = 0;
  for (Span<const int32_t>* span : first)
    if (!read<int32_t>(PyTuple_GET_ITEM(tuple, at++), "an array of types", *span)) return false;
  PyObject* cut = PyTuple_GET_ITEM(tuple, at++);
  if (!check_array(cut, "part_cut", NPY_INT64, "int64", 2)) return false;
  PyArrayObject* cuts = reinterpret_cast<PyArrayObject*>(cut);
  types.part_cut = {static_cast<const int64_t*>(PyArray_DATA(cuts)), PyArray_SIZE(cuts)};
  for (Span<const int32_t>* span : last)
    if (!read<int32_t>(PyTuple_GET_ITEM(tuple, at++), "an array of types", *span)) return false;
  return read<int64_t>(PyTuple_GET_ITEM(tuple, at), "product_work", types.product_work) && check(types);
}

}  // namespace autobatch
