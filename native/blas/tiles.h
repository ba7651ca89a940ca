// Register tiles of a matrix product: some rows times a panel of columns, in AVX-512 instructions.
//
// A panel holds 64 adjacent columns, one inner index after the other. Its words are float32 numbers, or pairs of bf16
// numbers at two inner indices, which one instruction multiplies and adds. Six rows by four vectors of 16 words take 24
// of the 32 registers for sums, enough to hide the latency of an addition; the panel needs four more, and the row one.
// If fewer than four vectors of columns remain, 16 rows by one vector are as fast. One or two rows take four or two
// panels at once, so that they have enough sums, too. A tile prefetches its lines of the result when it begins, and the
// rows that are read next are prefetched while others are multiplied.

#pragma once

#include <stdint.h>

namespace autobatch {

constexpr int64_t LANES = 16, VECTORS = 4, TILE_ROWS = 6, TALL_ROWS = 16;
constexpr int64_t PANEL_WIDTH = LANES * VECTORS;

// A matrix in memory, with the strides of its rows and inner indices in words.
struct Grid {
  const float* first;
  int64_t row, inner;
};

// A packed matrix, with the strides of its inner indices and panels in words.
struct Panels {
  const float* first;
  int64_t inner, panel;
};

// Rows to prefetch: the row stride in words, the number of rows, and the words per row.
struct NextRows {
  const float* first = nullptr;
  int64_t row = 0, n_rows = 0, width = 0;
};

struct Size {
  int64_t m, n, inner;
};

// Writes a @ panels to `out`, or adds it if `adds`; `out_row` is the row stride of `out` in words. Meanwhile prefetches
// `rows` and `columns` at an even rate. Requires AVX-512; `size.inner` must be positive.
void multiply_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                    const NextRows& rows, const NextRows& columns = {});

// Does the same for words that are pairs of bf16 numbers; sums are float32. Requires AVX512_BF16.
void multiply_bf16_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                         const NextRows& rows, const NextRows& columns = {});

// Writes the transpose of 16 x 16 words; `source_row` and `out_row` are row strides in words. Requires AVX-512.
void turn_words(const uint32_t* source, int64_t source_row, uint32_t* out, int64_t out_row);

}  // namespace autobatch
