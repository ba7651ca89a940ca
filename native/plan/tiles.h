// Tiles: ranges of rows of a batch that go through all steps of their cell together, so that values stay in the cache
// (`autobatch.backends.tables`).
//
// A tile is a row of ints: where its values begin, and how many rows it has in each domain of its type. A domain is the
// nodes of a type, or the edges of one of its variadic groups.

#pragma once

#include "graph/words.h"
#include "support/arrays.h"

namespace autobatch {

// The arrays of a plan and of its T types that tables are made from; `Plan` and `TypeTables` document them. Batch b has
// type batch_type[b] and rows batch_ptr[b]:batch_ptr[b + 1].
struct PlanArrays {
  Span<const int32_t> batch_type, batch_ptr;
  Span<const int64_t> base_ptr, base, saved_base, segments, segment_base, dest_base, dest_ptr;
  Span<const uint8_t> adds;
  const void *dest, *ints, *floats;
  Span<const int64_t> block_rows;
  Span<const int32_t> block_ptr, block_width, block_ints, block_floats, out_ptr, out_block;
  int64_t gradient_offset = 0;

  int32_t n_batches() const { return (int32_t)batch_type.size; }
  int32_t n_types() const { return (int32_t)block_ptr.size - 1; }
  int32_t n_blocks() const { return (int32_t)block_rows.size; }
  int32_t n_rows(int32_t batch) const { return batch_ptr[batch + 1] - batch_ptr[batch]; }
  // Returns the first edge row of each node row, and the end, for the block of a variadic group.
  const int64_t* segments_of(int32_t block) const { return segments.data + segment_base[block]; }
};

// The memory and the number of steps of T compiled types; zero for types without nodes in any plan so far. `CellSizes`
// in Python documents the arrays.
struct CellSizes {
  Span<const int64_t> saved, fields, own, kept, most_rows;
  Table<const int64_t> scratch;  // [stages, blocks]
  Span<const int64_t> steps;     // [3, T, 3]

  bool has_backward() const { return scratch.rows > 1; }
  const int64_t* steps_of(int stage, int32_t type) const {
    return steps.data + ((ptrdiff_t)stage * fields.size + type) * 3;
  }
};

// Reads the arrays of a plan, and checks that they fit each other, so that all loops stay within bounds. The offsets in
// a tile are not checked against the memory that steps access.
bool read_plan_arrays(PyObject* tuple, PlanArrays& plan);
// Reads the sizes of `n_types` types with `n_blocks` blocks, and checks that they fit each other.
bool read_cell_sizes(PyObject* tuple, int32_t n_types, int32_t n_blocks, CellSizes& sizes);
// Returns whether every type that has batches has sizes, with the number of fields of its tiles.
bool fit(const CellSizes& sizes, const PlanArrays& plan);

// The tiles of all types.
struct Tiles {
  Vec<int64_t> words, ptr;                  // words[ptr[t]:ptr[t + 1]] are the tiles of type t, see `PlanTables`
  Vec<int64_t> counts;                      // [T, 2] the number of tiles of batches, and of all rows
  Vec<int64_t> mean_rows;                   // [blocks, 2] mean rows of a tile, of both kinds
  int64_t kept_size = 0, scratch_size = 0;  // elements of persistent scratch, and of scratch that tiles use in turn
};

// Returns the number of rows per tile if `n_rows` rows are cut: at most `most`, and so few that each thread has a tile,
// unless there are too few rows.
int64_t rows_of_tile(int64_t n_rows, int64_t most, int64_t n_threads);
// Returns the number of tiles.
int64_t count_tiles(int64_t n_rows, int64_t most, int64_t n_threads);

// Makes the tiles of all types, one type after the other; false if memory runs out.
bool make_tiles(const PlanArrays& plan, const CellSizes& sizes, int32_t n_threads, Tiles& tiles);

}  // namespace autobatch
