#include "graph/words.h"

namespace autobatch {
namespace {

bool refuse(const char* what) { return set_problem(what); }

int64_t clipped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

constexpr Problem ATTRIBUTES = "nodes have other attributes than their types";

// Checks that edges point forward, and that edges and returned values name outputs and ports that the types have.
Problem fits_types(const Graph& graph, const Types& types) {
  Vec<int32_t> n_outputs;
  if (!n_outputs.resize(types.n_types())) return NO_MEMORY;
  for (ptrdiff_t t = 0; t < types.n_types(); t++) n_outputs[t] = types.out_ptr[t + 1] - types.out_ptr[t];
  bool outside = false, backward = false, has_ports = types.port_plain.size > 0;
  for (int32_t node = 0; node < graph.n_nodes(); node++) {
    int32_t type_id = graph.type_id[node];
    int32_t n_ports = has_ports ? types.port_ptr[type_id + 1] - types.port_ptr[type_id] : INT32_MAX;
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
      int32_t source = graph.edge_src[e];
      backward |= source >= node;
      outside |= graph.edge_in[e] >= n_ports;
      if (source >= 0) outside |= (graph.edge_out[e] & OUTPUT) >= n_outputs[graph.type_id[source]];
    }
  }
  for (ptrdiff_t o = 0; o < graph.out_node.size; o++)
    if (graph.out_node[o] >= 0) outside |= (graph.out_port[o] & OUTPUT) >= n_outputs[graph.type_id[graph.out_node[o]]];
  if (backward) return "an edge points backwards";
  return outside ? "an edge names an output or a port that its type does not have" : nullptr;
}

}  // namespace

const Problem NO_MEMORY = "there is no memory";

bool set_problem(Problem problem) {
  if (problem == NO_MEMORY)
    PyErr_NoMemory();
  else if (problem)
    PyErr_Format(PyExc_ValueError, "words must encode a graph, got ones in which %s", problem);
  return !problem;
}

bool sizes_of(Span<const int32_t> words, Sizes& sizes) {
  if (words.size < HEADER) return false;
  for (ptrdiff_t k = 0; k < HEADER; k++)
    if (words[k] < 0) return false;
  sizes = {words[0], words[1], words[2], words[3], words[4], words[5]};
  return sizes.words() <= words.size;
}

bool view_graph(Span<const int32_t> words, Graph& graph, Sizes& sizes, Sources sources) {
  if (!sizes_of(words, sizes) || sizes.words() != words.size) return refuse("the sizes are not those of the array");
  graph = parts_of(words.data, sizes);
  int64_t n = sizes.nodes, low = sources == Sources::OWN ? 0 : INT32_MIN;
  if (!rises(graph.instance_ptr, n) || !rises(graph.output_ptr, sizes.outputs))
    return refuse("instances are not in order");
  if (!rises(graph.edge_ptr, sizes.edges)) return refuse("the edges of nodes are not in order");
  if (!within(graph.type_id, 0, INT32_MAX)) return refuse("a type is negative");
  if (!within(graph.edge_src, low, n) || !within(graph.out_node, low, n)) return refuse("a node does not exist");
  int64_t any = int64_t{1} << 31;
  if (!within(graph.edge_out, 0, any) || !within(graph.edge_in, 0, any) || !within(graph.out_port, 0, any))
    return refuse("an output or a port is negative");
  return true;
}

Problem check_type_ids(const TypedGraph& read) {
  return within(read.graph.type_id, 0, read.types.n_types()) ? nullptr : "a type does not exist";
}

bool read_graph_and_types(PyObject* words, PyObject* types, TypedGraph& found, Sources sources) {
  Span<const int32_t> ints;
  if (!read<int32_t>(words, "words", ints) || !read_types(types, found.types)) return false;
  if (!view_graph(ints, found.graph, found.sizes, sources)) return false;
  return set_problem(check_type_ids(found));
}

Problem find_starts(Span<const int32_t> type_ids, Span<const int32_t> attr, int64_t n_floats, const Types& types,
                    Vec<int32_t>& int_starts, Vec<int32_t>& float_starts) {
  ptrdiff_t n = type_ids.size;
  if (!int_starts.resize(n + 1) || !float_starts.resize(n + 1)) return NO_MEMORY;
  int64_t a = 0, f = 0, n_attr = attr.size, most_floats = n_floats < 0 ? INT32_MAX : n_floats;
  int_starts[0] = float_starts[0] = 0;
  for (ptrdiff_t node = 0; node < n; node++) {
    int32_t type_id = type_ids[node];
    a += types.int_width[type_id];
    f += types.float_width[type_id];
    for (int32_t number = types.data_ptr[type_id]; number < types.data_ptr[type_id + 1]; number++) {
      // Both sums are checked before each product of two int32 is added, so they cannot overflow.
      int64_t length = a < n_attr ? attr[a] : -1;
      if (length < 0 || f > most_floats) return ATTRIBUTES;
      a += 1 + length * types.data_ints[number];
      f += length * types.data_floats[number];
    }
    if (a > n_attr || f > most_floats) return ATTRIBUTES;
    int_starts[node + 1] = (int32_t)a;
    float_starts[node + 1] = (int32_t)f;
  }
  return a == n_attr && (f == n_floats || n_floats < 0) ? nullptr : ATTRIBUTES;
}

Problem find_starts(TypedGraph& read) {
  return find_starts(read.graph.type_id, read.graph.attr, read.sizes.floats, read.types, read.int_starts,
                     read.float_starts);
}

Problem check_types(TypedGraph& read) {
  Problem problem = fits_types(read.graph, read.types);
  return problem ? problem : find_starts(read);
}

bool read_typed_graph(PyObject* words, PyObject* types, TypedGraph& found, Sources sources) {
  return read_graph_and_types(words, types, found, sources) && set_problem(check_types(found));
}

NewGraph begin_words(int32_t* words, const Sizes& sizes) {
  const int64_t header[HEADER] = {sizes.instances, sizes.nodes, sizes.edges, sizes.attr, sizes.outputs, sizes.floats};
  for (ptrdiff_t k = 0; k < HEADER; k++) words[k] = (int32_t)header[k];
  NewGraph graph = parts_of(words, sizes);
  graph.instance_ptr[0] = graph.output_ptr[0] = graph.edge_ptr[0] = 0;
  return graph;
}

Ref make_words(const Sizes& sizes, NewGraph& graph) {
  if (sizes.words() > INT32_MAX || sizes.floats > INT32_MAX) {
    PyErr_Format(PyExc_OverflowError, "a graph of %lld words and %lld floats is too large: positions are int32",
                 (long long)sizes.words(), (long long)sizes.floats);
    return Ref();
  }
  Span<int32_t> words;
  Ref made = make_array<int32_t>((ptrdiff_t)sizes.words(), words);
  if (!made) return made;
  graph = begin_words(words.data, sizes);
  return made;
}

int64_t slice_length(int64_t n, int64_t start, int64_t stop, int64_t step) {
  int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  int64_t first = clipped(start < 0 ? start + n : start, low, high),
          last = clipped(stop < 0 ? stop + n : stop, low, high);
  // INT64_MIN cannot be negated; a stride that is smaller by one is as good, because both exceed any span.
  int64_t span = step > 0 ? last - first : first - last, stride = step > 0 ? step : -(step + (step == INT64_MIN));
  return span > 0 ? (span - 1) / stride + 1 : 0;
}

void count_groups(const Graph& graph, ptrdiff_t node, ptrdiff_t at, const Types& types, int64_t* lengths) {
  int32_t type_id = graph.type_id[node];
  for (int32_t group = 0; group < types.group_ptr[type_id + 1] - types.group_ptr[type_id]; group++) lengths[group] = 0;
  bool has_ports = types.port_group.size > 0;
  for (int32_t e = graph.edge_ptr[node]; has_ports && e < graph.edge_ptr[node + 1]; e++) {
    int32_t group = types.port_group[types.port_ptr[type_id] + graph.edge_in[e]];
    if (group >= 0) lengths[group]++;
  }
  at += types.int_width[type_id];
  for (int32_t number = types.data_ptr[type_id]; number < types.data_ptr[type_id + 1]; number++) {
    int64_t n = graph.attr[at];
    lengths[types.data_group[number]] = n;
    at += 1 + n * types.data_ints[number];
  }
  for (int32_t part = types.part_ptr[type_id]; part < types.part_ptr[type_id + 1]; part++) {
    const int64_t* cut = types.part_cut.data + 4 * part;
    int64_t n = clipped(types.part_of[part] >= 0 ? lengths[types.part_of[part]] : cut[0], 0, MOST_ROWS);
    int64_t count = slice_length(n, cut[1], cut[2], cut[3]);
    if (types.part_times[part] >= 0) count *= lengths[types.part_times[part]];
    int64_t& length = lengths[types.part_group[part]];
    length = clipped(length + count, 0, MOST_ROWS);  // so that the next product fits int64
  }
}

void copy_outputs(const Graph& graph, NewGraph& result, Span<const int32_t> number) {
  for (ptrdiff_t o = 0; o < graph.out_node.size; o++) result.out_node[o] = number[graph.out_node[o]];
  copy_shifted(result.output_ptr, 0, graph.output_ptr, 0);
  copy_shifted(result.out_port, 0, graph.out_port, 0);
  copy_shifted(result.out_slot, 0, graph.out_slot, 0);
}

}  // namespace autobatch
