#include "plan/destinations.h"

namespace autobatch {
namespace {

// The output rows of all nodes, and their readers.
//
// Loops visit nodes in graph order where possible, instead of batch by batch: an instance then stays in the cache while
// its nodes are placed, and each batch's rows are still written in order. With a million nodes or more, when the cache
// holds little of a graph, this takes 33% of the time.
class Outputs {
 public:
  bool start(const Graph& graph, const Rows& rows, const TypeTables& tables) {
    int32_t n = tables.n_outputs();
    ptrdiff_t n_readers = graph.edge_src.size + graph.out_node.size;
    if (!base.assign(n + 1, 0) || !edges_.resize(n)) return false;
    for (int32_t type = 0; type < tables.n_types(); type++)
      for (int32_t out = tables.out_ptr[type]; out < tables.out_ptr[type + 1]; out++) {
        int32_t block = tables.block_ptr[type] + tables.out_block[out];
        base[out + 1] = base[out] + rows.block_rows[block];
        if (base[out + 1] >= INT32_MAX) return false;
        edges_[out] = tables.out_block[out] ? rows.segment_base[block] : -1;
      }
    return ptr.assign(base.back() + 1, 0) && place.resize(n_readers) && rank.resize(n_readers);
  }

  // Finds the output row that each reader reads, numbered by (type, output, row), and counts the earlier readers of
  // that row. Returns whether all of these rows exist.
  bool count_readers(const Graph& graph, Span<const int32_t> sources, Span<const int32_t> ports, const Rows& rows,
                     const TypeTables& tables, ptrdiff_t at) {
    for (ptrdiff_t e = 0; e < sources.size; e++) {
      int32_t node = sources[e], number = tables.out_ptr[graph.type_id[node]] + (ports[e] & OUTPUT);
      int64_t own = rows.row[node];
      if (edges_[number] >= 0) {
        const int64_t* segment = rows.segments.data() + edges_[number] + own;
        own = segment[0] + (ports[e] >> OUTPUT_BITS);
        if (own >= segment[1]) return false;
      }
      int64_t k = base[number] + own;
      place[at + e] = (int32_t)k;
      rank[at + e] = (int32_t)ptr[k]++;
    }
    return true;
  }

  // Turns the number of readers of each row in `ptr` into the position of its first entry.
  void add_up() {
    int64_t total = 0;
    for (int64_t& n : Span<int64_t>(ptr)) {
      int64_t own = n;
      n = total;
      total += own;
    }
  }
  int64_t entry(ptrdiff_t reader) const { return ptr[place[reader]] + rank[reader]; }

  Vec<int64_t> base, ptr;    // the number of each output's first row; the first entry of each row
  Vec<int32_t> place, rank;  // per edge, then per returned value: the row that it reads, and its earlier readers

 private:
  Vec<int64_t> edges_;  // where the segments of each output's block begin; -1 for an output with one row per node
};

// Sorts the nodes by type.
bool sort_by_type(Span<const int32_t> type_id, Span<const int32_t> type_ptr, Vec<int32_t>& nodes) {
  Vec<int32_t> free;
  if (!nodes.resize(type_id.size) || !free.copy(type_ptr)) return false;
  for (int32_t node = 0; node < type_id.size; node++) nodes[free[type_id[node]]++] = node;
  return true;
}

// Returns whether node a runs before node b.
bool is_earlier(const Rows& rows, int32_t a, int32_t b) {
  if (rows.batch_of[a] == rows.batch_of[b]) return rows.row[a] < rows.row[b];
  return rows.batch_of[a] < rows.batch_of[b];
}

// Writes the destination of each edge: the place where its reader finds the value. Visits nodes by type, so that
// branches are predictable.
template <class T>
bool write_edges(const Graph& graph, const Rows& rows, const TypeTables& tables, const Outputs& outputs, Span<T> dest,
                 Span<uint8_t> adds) {
  Vec<int32_t> nodes;
  if (!sort_by_type(graph.type_id, rows.type_ptr, nodes)) return false;
  for (int32_t type = 0; type < tables.n_types(); type++) {
    int32_t first = tables.block_ptr[type], first_port = tables.port_ptr[type];
    for (int32_t i = rows.type_ptr[type]; i < rows.type_ptr[type + 1]; i++) {
      int32_t node = nodes[i], before = -1, run = graph.edge_ptr[node];
      int64_t own = rows.row[node], at = rows.base_ptr[rows.batch_of[node]];
      int64_t plain = rows.origin[at] + own * tables.block_width[first];
      for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) {
        int32_t port = first_port + graph.edge_in[e], block = tables.port_block[port];
        int64_t entry = outputs.entry(e);
        bool is_again = port == before;
        before = port;
        if (!is_again) run = e;  // the first edge of the port, later the one that stores
        if (block) {             // the edges of a port of a variadic group take consecutive rows of the node's segment
          int64_t n = rows.segments[rows.segment_base[first + block] + own] + (e - run);
          dest[entry] = (T)(rows.origin[at + block] + n * tables.block_width[first + block] + tables.port_column[port]);
          continue;
        }
        dest[entry] = (T)(plain + tables.port_column[port]);
        // The edges of a plain port are summed. The value that is made first stores, the others add: if this edge's
        // value is made before that of `run`, they swap roles.
        if (!is_again) continue;
        int32_t source = graph.edge_src[e], stored = graph.edge_src[run];
        adds[entry] = source == stored ? graph.edge_out[e] >= graph.edge_out[run] : !is_earlier(rows, source, stored);
        if (!adds[entry]) {
          adds[outputs.entry(run)] = true;
          run = e;
        }
      }
    }
  }
  return true;
}

}  // namespace

template <class T>
Problem list_destinations(const Graph& graph, const Rows& rows, const TypeTables& tables,
                          Span<const int64_t> slot_width, Vec<int64_t>& dest_base, Vec<int64_t>& dest_ptr, Span<T> dest,
                          Span<uint8_t> adds) {
  Outputs outputs;
  Vec<int64_t> n_used;
  ptrdiff_t n_edges = graph.edge_src.size;
  if (!outputs.start(graph, rows, tables) || !n_used.assign(rows.slot_base.size(), 0)) return NO_MEMORY;
  if (!outputs.count_readers(graph, graph.edge_src, graph.edge_out, rows, tables, 0) ||
      !outputs.count_readers(graph, graph.out_node, graph.out_port, rows, tables, n_edges))
    return "a row of an output does not exist";
  outputs.add_up();
  for (uint8_t& one : adds) one = 0;
  if (!write_edges(graph, rows, tables, outputs, dest, adds)) return NO_MEMORY;
  for (ptrdiff_t o = 0; o < graph.out_node.size; o++) {
    int32_t slot = graph.out_slot[o];
    dest[outputs.entry(n_edges + o)] = (T)(rows.slot_base[slot] + n_used[slot]++ * slot_width[slot]);
  }
  dest_base = static_cast<Vec<int64_t>&&>(outputs.base);
  dest_ptr = static_cast<Vec<int64_t>&&>(outputs.ptr);
  return nullptr;
}

template Problem list_destinations<int32_t>(const Graph&, const Rows&, const TypeTables&, Span<const int64_t>,
                                            Vec<int64_t>&, Vec<int64_t>&, Span<int32_t>, Span<uint8_t>);
template Problem list_destinations<int64_t>(const Graph&, const Rows&, const TypeTables&, Span<const int64_t>,
                                            Vec<int64_t>&, Vec<int64_t>&, Span<int64_t>, Span<uint8_t>);

}  // namespace autobatch
