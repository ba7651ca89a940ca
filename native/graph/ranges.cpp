// Finding int attributes, such as word ids, that are out of range.

#include "graph/graph.h"
#include "graph/words.h"

namespace autobatch {
namespace {

struct OutOfRange {
  int64_t node, range, value, size;
};

// Finds the first out-of-range attribute of a node; false if there is none.
bool find_in_node(const TypedGraph& read, int32_t node, Vec<int64_t>& lengths, OutOfRange& found) {
  const Types& types = read.types;
  int32_t type_id = read.graph.type_id[node], first = types.data_ptr[type_id];
  ptrdiff_t own = read.int_starts[node], at = own;
  bool is_counted = false;
  for (int32_t number = -1; number < types.data_ptr[type_id + 1] - first; number++) {  // -1: the node's own ints
    int64_t n_rows = 1, width = types.int_width[type_id];
    if (number >= 0) {
      n_rows = read.graph.attr[at++];
      width = types.data_ints[first + number];
    }
    for (int32_t r = types.range_ptr[type_id]; r < types.range_ptr[type_id + 1]; r++) {
      if (types.range_data[r] != number) continue;
      int64_t size = types.range_size[r];
      bool is_of_rows = size < 0;  // -1 - g: the limit is the number of rows of group g
      if (is_of_rows && !is_counted) count_groups(read.graph, node, own, types, lengths.data()), is_counted = true;
      if (is_of_rows) size = lengths[-1 - (ptrdiff_t)size];
      for (int64_t row = 0; row < n_rows; row++) {
        int64_t value = read.graph.attr[at + (ptrdiff_t)(row * width) + types.range_column[r]];
        if (value >= 0 && value < size) continue;
        if (value == types.range_ignore[r] && !is_of_rows) continue;
        found = {node, r, value, size};
        return true;
      }
    }
    at += (ptrdiff_t)(n_rows * width);
  }
  return false;
}

// Appends the first out-of-range attribute of each instance; false if memory runs out.
bool find_all(const TypedGraph& read, Vec<int64_t>& rows) {
  const Graph& graph = read.graph;
  Vec<int64_t> lengths;
  if (!lengths.resize(read.types.n_groups())) return false;
  OutOfRange found;
  for (ptrdiff_t i = 0; i < graph.n_instances(); i++) {
    for (int32_t node = graph.instance_ptr[i]; node < graph.instance_ptr[i + 1]; node++) {
      int32_t type_id = graph.type_id[node];
      if (read.types.range_ptr[type_id] == read.types.range_ptr[type_id + 1]) continue;
      if (!find_in_node(read, node, lengths, found)) continue;
      if (!rows.reserve(4)) return false;
      rows.append(found.node), rows.append(found.range), rows.append(found.value), rows.append(found.size);
      break;
    }
  }
  return true;
}

}  // namespace

// first_out_of_range(words, types): returns the first out-of-range int of each instance: node, range, value and size.
PyObject* first_out_of_range(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph read;
  if (!takes("first_out_of_range", n, 2) || !read_graph_and_types(arguments[0], arguments[1], read, Sources::EARLIER))
    return nullptr;
  Vec<int64_t> rows;
  Problem problem;
  {
    Unlocked unlocked;
    // A negative size means the number of rows of a group, which is counted over the edges of ports; so check these.
    bool counts_edges = !within(read.types.range_size, 0, int64_t{1} << 31);
    problem = counts_edges ? check_types(read) : find_starts(read);
    if (!problem && !find_all(read, rows)) problem = NO_MEMORY;
  }
  if (!set_problem(problem)) return nullptr;
  Table<int64_t> table;
  Ref made = make_table<int64_t>(rows.size() / 4, 4, table);
  if (made && rows.size()) memcpy(table.data, rows.data(), (size_t)rows.size() * sizeof(int64_t));
  return made.release();
}

}  // namespace autobatch
