// The encoding of a graph as one int32 array; `autobatch.graph.words` draws the layout.

#pragma once

#include "graph/types.h"
#include "support/arrays.h"

namespace autobatch {

constexpr ptrdiff_t HEADER = 6;
constexpr int32_t OUTPUT_BITS = 8, OUTPUT = (1 << OUTPUT_BITS) - 1;
constexpr int64_t MOST_ROWS = int64_t{1} << 31;  // more rows than a word can name

// The sizes of a graph, as in its header.
struct Sizes {
  int64_t instances = 0, nodes = 0, edges = 0, attr = 0, outputs = 0, floats = 0;

  int64_t words() const { return HEADER + 2 * (instances + 1) + 2 * nodes + 1 + 3 * edges + attr + 3 * outputs; }
};

// Views of the parts of a graph's words, by name. T is const if they are only read.
template <class T>
struct Parts {
  Span<T> instance_ptr, output_ptr, type_id, edge_ptr, edge_src, edge_out, edge_in, attr, out_node, out_port, out_slot;

  ptrdiff_t n_instances() const { return instance_ptr.size - 1; }
  ptrdiff_t n_nodes() const { return type_id.size; }
};
using Graph = Parts<const int32_t>;
using NewGraph = Parts<int32_t>;

// Splits the words of a graph of these sizes into views of its parts.
template <class T>
Parts<T> parts_of(T* words, const Sizes& sizes) {
  T* at = words + HEADER;
  auto take = [&at](int64_t size) {
    Span<T> span{at, (ptrdiff_t)size};
    at += size;
    return span;
  };
  Parts<T> parts;
  parts.instance_ptr = take(sizes.instances + 1);
  parts.output_ptr = take(sizes.instances + 1);
  parts.type_id = take(sizes.nodes);
  parts.edge_ptr = take(sizes.nodes + 1);
  parts.edge_src = take(sizes.edges);
  parts.edge_out = take(sizes.edges);
  parts.edge_in = take(sizes.edges);
  parts.attr = take(sizes.attr);
  parts.out_node = take(sizes.outputs);
  parts.out_port = take(sizes.outputs);
  parts.out_slot = take(sizes.outputs);
  return parts;
}

// Reads the sizes from a header; returns false without an error if the words cannot hold such a graph.
bool sizes_of(Span<const int32_t> words, Sizes& sizes);

// The nodes that edges and outputs may name.
enum class Sources { OWN, EARLIER };  // nodes of the graph; or also, by negative numbers, of earlier phases

// Views a graph; sets a ValueError if offsets or node numbers are out of range. Checks nothing against the types.
bool view_graph(Span<const int32_t> words, Graph& graph, Sizes& sizes, Sources sources = Sources::OWN);

// A message about an invalid graph, or null. It becomes an error later, when the interpreter lock is held.
using Problem = const char*;
extern const Problem NO_MEMORY;

// Sets the error for a problem; returns true if there is no problem.
bool set_problem(Problem problem);

// A graph as read from Python, with its types.
struct TypedGraph {
  Graph graph;
  Sizes sizes;
  Types types;
  Vec<int32_t> int_starts, float_starts;  // [N+1] where the attributes of each node begin
};
// Checks that the types of all nodes exist. Needs no interpreter lock.
Problem check_type_ids(const TypedGraph& read);

// Reads a graph and checks its type ids.
bool read_graph_and_types(PyObject* words, PyObject* types, TypedGraph& read, Sources sources = Sources::OWN);

// Finds where the attributes of each node begin, and checks their number; checks nothing else against the types.
Problem find_starts(TypedGraph& read);

// Checks that edges point forward, and outputs, ports and the number of attributes against the types; finds where the
// attributes begin. Needs no interpreter lock.
Problem check_types(TypedGraph& read);

// Reads a graph with all checks.
bool read_typed_graph(PyObject* words, PyObject* types, TypedGraph& read, Sources sources = Sources::OWN);

// Finds where the attributes of nodes of these types begin; the types must exist. Returns a problem if the number of
// attributes does not match the types; a negative `n_floats` allows any number of floats.
Problem find_starts(Span<const int32_t> type_ids, Span<const int32_t> attr, int64_t n_floats, const Types& types,
                    Vec<int32_t>& int_starts, Vec<int32_t>& float_starts);

// Writes the header of a graph of these sizes, and the 0 that starts each array of offsets; the rest is uninitialized.
NewGraph begin_words(int32_t* words, const Sizes& sizes);

// Makes the words of a graph of these sizes, as `begin_words` leaves them. If positions do not fit 32 bits, sets an
// OverflowError, because GraphError is defined in Python.
Ref make_words(const Sizes& sizes, NewGraph& graph);

// Finds the length of each variadic group of a node, whose int attributes begin at `at`.
void count_groups(const Graph& graph, ptrdiff_t node, ptrdiff_t at, const Types& types, int64_t* lengths);

// Counts the elements of `x[start:stop:step]` in Python, where x has n elements.
int64_t slice_length(int64_t n, int64_t start, int64_t stop, int64_t step);

// Writes `source + shift` to `target` from position `at` on.
inline void copy_shifted(Span<int32_t> target, ptrdiff_t at, Span<const int32_t> source, int32_t shift) {
  for (ptrdiff_t k = 0; k < source.size; k++) target[at + k] = source[k] + shift;
}

// Copies the returned outputs of a graph into one where `node` has become `number[node]`.
void copy_outputs(const Graph& graph, NewGraph& result, Span<const int32_t> number);

// Copies the attributes of the kept nodes, those with number[node] < number[node + 1]. `starts` has the position of the
// first attribute of each node, and `values.size` at its end.
template <class T>
void copy_attributes(Span<const T> values, Span<T> result, Span<const int32_t> starts, Span<const int32_t> number) {
  if (values.size == result.size) {
    if (values.size) memcpy(result.data, values.data, (size_t)values.size * sizeof(T));
    return;
  }
  ptrdiff_t target = 0;
  for (ptrdiff_t node = 0; node + 1 < starts.size; node++)
    if (number[node] < number[node + 1])
      for (int32_t source = starts[node]; source < starts[node + 1]; source++) result[target++] = values[source];
}

}  // namespace autobatch
