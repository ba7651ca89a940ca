#include "plan/rows.h"

#include "plan/lifetimes.h"

namespace autobatch {
namespace {

constexpr int64_t ALIGNMENT = 16;  // elements: blocks start on a cache line in float32
constexpr int64_t MOST_ELEMENTS = int64_t(1) << 60;
constexpr Problem TOO_LARGE = "values must have fewer elements than can be counted";

int64_t aligned(int64_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// Adds the aligned size of an area to `end`; false if the sum exceeds MOST_ELEMENTS.
bool add(int64_t n_rows, int64_t width, int64_t& end) {
  if (width < 0 || (width && n_rows > (MOST_ELEMENTS - end) / width)) return false;
  end += aligned(n_rows * width);
  return true;
}

// Places aligned areas with these numbers of rows one after the other from `start`, and moves `start` to their end.
template <class T>
Problem follow(Span<const int64_t> n_rows, Span<const T> width, int64_t& start, Vec<int64_t>& base) {
  if (!base.resize(n_rows.size)) return NO_MEMORY;
  for (ptrdiff_t i = 0; i < n_rows.size; i++) {
    base[i] = start;
    if (!add(n_rows[i], width[i], start)) return TOO_LARGE;
  }
  return nullptr;
}

}  // namespace

Problem Rows::place(const TypedGraph& graph, const BatchSpans& batches, const TypeTables& tables, const Widths& widths,
                    bool training) {
  Problem problem = number(graph, batches, tables.n_types());
  if (!problem) problem = count_segments(graph, tables);
  if (problem) return problem;
  if (!count_rows(batches, tables) || !slot_rows.assign(widths.slot.size, 0) || !base.resize(before_.size()) ||
      !origin.resize(before_.size()))
    return NO_MEMORY;
  for (int32_t slot : graph.graph.out_slot) {
    if (slot < 0 || slot >= slot_rows.size()) return "an output has no slot";
    slot_rows[slot]++;
  }
  int64_t end = 0, all_rows = 0;
  for (ptrdiff_t block = 0; block < tables.n_blocks(); block++)  // so that no product below overflows
    if (!add(block_rows[block], tables.block_width[block], all_rows)) return TOO_LARGE;
  // In training, the buffer holds inputs and results; then their gradients, in the same layout; then saved values.
  if (training) {
    Vec<int64_t> block_base;
    problem = follow<int32_t>(block_rows, tables.block_width, end, block_base);
    if (!problem) problem = follow<int64_t>(slot_rows, widths.slot, end, slot_base);
    gradient_offset = end;
    size = 2 * end;
    if (!problem) problem = follow<int64_t>(block_rows, widths.saved, size, saved_base);
    if (problem) return problem;
    for (int32_t k = 0; k < batches.size(); k++)
      for (int64_t at = base_ptr[k]; at < base_ptr[k + 1]; at++) {
        int64_t block = tables.block_ptr[batches.type_id[k]] + at - base_ptr[k];
        base[at] = block_base[block] + before_[at] * tables.block_width[block];
      }
  } else {
    gradient_offset = 0;
    problem = follow<int64_t>(slot_rows, widths.slot, end, slot_base);
    if (problem) return problem;
    if (!saved_base.resize(0) || !place_areas(graph.graph, batches, tables, end)) return NO_MEMORY;
  }
  for (int32_t k = 0; k < batches.size(); k++)
    for (int64_t at = base_ptr[k]; at < base_ptr[k + 1]; at++)
      origin[at] = base[at] - before_[at] * tables.block_width[tables.block_ptr[batches.type_id[k]] + at - base_ptr[k]];
  return nullptr;
}

// Numbers the nodes of each type in schedule order.
Problem Rows::number(const TypedGraph& graph, const BatchSpans& batches, int32_t n_types) {
  Span<const int32_t> type_of = graph.graph.type_id;
  Vec<int32_t> n_placed;
  ptrdiff_t n = type_of.size;
  if (!type_ptr.assign(n_types + 1, 0) || !row.assign(n, -1) || !batch_of.resize(n) || !node_at.resize(n) ||
      !n_placed.assign(n_types, 0))
    return NO_MEMORY;
  for (int32_t type : type_of) type_ptr[type + 1]++;
  for (int32_t type = 0; type < n_types; type++) type_ptr[type + 1] += type_ptr[type];
  for (int32_t k = 0; k < batches.size(); k++) {
    int32_t type = batches.type_id[k];
    for (int32_t i = batches.ptr[k]; i < batches.ptr[k + 1]; i++) {
      int32_t node = batches.order[i];
      if (type_of[node] != type || row[node] >= 0)
        return "the schedule runs a node twice, or in a batch of another type";
      int32_t own = n_placed[type]++;
      row[node] = own;
      batch_of[node] = k;
      node_at[type_ptr[type] + own] = node;
    }
  }
  return nullptr;
}

// Finds the first edge row of each node row in every block of a variadic group, and where each block's segments begin.
Problem Rows::count_segments(const TypedGraph& graph, const TypeTables& tables) {
  Vec<int64_t> lengths;
  if (!segment_base.assign(tables.n_blocks() + 1, 0) || !lengths.assign(tables.n_blocks() + 1, 0)) return NO_MEMORY;
  for (int32_t type = 0; type < tables.n_types(); type++)
    for (int32_t block = tables.block_ptr[type]; block < tables.block_ptr[type + 1]; block++) {
      bool is_group = block > tables.block_ptr[type];
      segment_base[block + 1] = segment_base[block] + (is_group ? type_ptr[type + 1] - type_ptr[type] + 1 : 0);
    }
  if (!segments.assign(segment_base.back(), 0)) return NO_MEMORY;
  for (int32_t type = 0; type < tables.n_types(); type++) {
    int32_t first = tables.block_ptr[type] + 1, n_groups = tables.block_ptr[type + 1] - first;
    int32_t n = n_groups ? type_ptr[type + 1] - type_ptr[type] : 0;
    for (int32_t own = 0; own < n; own++) {
      int32_t node = node_at[type_ptr[type] + own];
      count_groups(graph.graph, node, graph.int_starts[node], graph.types, lengths.data());
      for (int32_t group = 0; group < n_groups; group++) {
        int64_t at = segment_base[first + group] + own;
        if (lengths[group] >= MOST_ROWS) return TOO_LARGE;  // `count_groups` clips to it
        segments[at + 1] = segments[at] + lengths[group];
      }
    }
  }
  return nullptr;
}

bool Rows::count_rows(const BatchSpans& batches, const TypeTables& tables) {
  if (!base_ptr.assign(batches.size() + 1, 0) || !block_rows.assign(tables.n_blocks(), 0)) return false;
  for (int32_t k = 0; k < batches.size(); k++) {
    int32_t type = batches.type_id[k];
    base_ptr[k + 1] = base_ptr[k] + tables.block_ptr[type + 1] - tables.block_ptr[type];
  }
  if (!before_.resize(base_ptr.back()) || !n_rows_.resize(base_ptr.back())) return false;
  for (int32_t k = 0; k < batches.size(); k++) {
    int64_t first = tables.block_ptr[batches.type_id[k]], at = base_ptr[k], start = block_rows[first];
    int64_t end = start + batches.ptr[k + 1] - batches.ptr[k];
    before_[at] = start;
    n_rows_[at] = end - start;
    block_rows[first] = end;
    for (int64_t i = 1; i < base_ptr[k + 1] - at; i++) {
      int64_t own = segment_base[first + i];
      before_[at + i] = segments[own + start];
      block_rows[first + i] = segments[own + end];
      n_rows_[at + i] = segments[own + end] - segments[own + start];
    }
  }
  return true;
}

// Places the blocks of each batch after `start`, one area per batch.
bool Rows::place_areas(const Graph& graph, const BatchSpans& batches, const TypeTables& tables, int64_t start) {
  Vec<int64_t> sizes, area;
  Vec<int32_t> first;
  if (!sizes.resize(batches.size())) return false;
  for (int32_t k = 0; k < batches.size(); k++) {
    int64_t end = 0;
    for (int64_t at = base_ptr[k]; at < base_ptr[k + 1]; at++) {
      base[at] = end;
      end += aligned(n_rows_[at] * tables.block_width[tables.block_ptr[batches.type_id[k]] + at - base_ptr[k]]);
    }
    sizes[k] = end;
  }
  size = start;
  if (!find_first_writers(graph, batch_of, batches.size(), first) || !give_out(first, sizes, size, area)) return false;
  for (int32_t k = 0; k < batches.size(); k++)
    for (int64_t at = base_ptr[k]; at < base_ptr[k + 1]; at++) base[at] += area[k];
  return true;
}

}  // namespace autobatch
