// Tiles of a matrix product in registers: some rows times a panel of columns, in AVX-512 instructions.
//
// A panel holds, for each inner index in turn, 64 neighbouring columns; its words are float32 numbers, or pairs of bf16
// numbers at two inner indices, of which one instruction multiplies and adds both. Six rows by four vectors of 16 keep
// 24 of the 32 registers busy, enough to hide the latency of a sum; the panel needs four more, a row one. Where fewer
// columns are left, 16 rows by one vector are as fast. One or two rows take four or two panels at once, for as many
// sums. Data is prefetched: lines of the result when its tile begins, rows that will be read next while others are
// multiplied.

#pragma once

#include <stdint.h>

namespace autobatch {

constexpr int64_t LANES = 16, VECTORS = 4, TILE_ROWS = 6, TALL_ROWS = 16;
constexpr int64_t PANEL_WIDTH = LANES * VECTORS;

// A matrix in memory: words from one row, and from one inner index, to the next.
struct Grid {
  const float* first;
  int64_t row, inner;
};

// A packed matrix: words from one inner index, and from one panel, to the next.
struct Panels {
  const float* first;
  int64_t inner, panel;
};

// Rows to prefetch: words from row to row, the number of rows, and the words of each.
struct NextRows {
  const float* first = nullptr;
  int64_t row = 0, n_rows = 0, width = 0;
};

struct Size {
  int64_t m, n, inner;
};

// Writes a @ panels to `out`, or adds it; the rows of `out` begin `out_row` words apart. Meanwhile prefetches what will
// be read next, evenly over the time. Only where the processor has AVX-512; n_inner must be positive.
void multiply_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                    const NextRows& rows, const NextRows& columns = {});

// Does the same for words that are pairs of bf16 numbers; sums are float32. Only where the processor has bf16.
void multiply_bf16_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                         const NextRows& rows, const NextRows& columns = {});

// Writes the transpose of 16 x 16 words; steps are in words. Only where the processor has AVX-512.
void turn_words(const uint32_t* source, int64_t source_row, uint32_t* out, int64_t out_row);

}  // namespace autobatch
