// Products with a pre-packed matrix, in float32 and in bf16: nearly as fast for few rows as for many.
//
// BLAS libraries pack the matrix in every call, into the order in which they read it. For a few rows, that takes longer
// than the multiplication. Here, the matrix is packed once per run, and register tiles (`tiles.h`) multiply it. Blocks
// of rows and of inner indices keep the data that tiles share in the caches: Goto and van de Geijn 2008
// (doi:10.1145/1356052.1356053).

#pragma once

#include "blas/amx.h"

namespace autobatch {

constexpr int64_t ROWS_AT_ONCE = 48, ROUNDED_AT_ONCE = 96, INNER_AT_ONCE = 512, OUTER_AT_ONCE = 128;

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A float32 matrix in memory, with the strides of its rows and columns in words.
struct Matrix {
  const float* first;
  int64_t row, column;
};

// Returns the number of pairs of inner indices, rounded up to whole AMX registers; zeros pad the last pairs.
inline int64_t padded_pairs(int64_t inner) { return round_up((inner + 1) / 2, AMX_PAIRS); }

// Return sizes in words: of a packed matrix (inner, n), and of the scratch memory of `multiply_packed_bf16` and of
// `add_outer_bf16`.
inline int64_t panel_words(int64_t inner, int64_t n, bool is_bf16) {
  return (is_bf16 ? padded_pairs(inner) : inner) * round_up(n, PANEL_WIDTH);
}
inline int64_t rows_words(int64_t inner) { return ROUNDED_AT_ONCE * padded_pairs(inner); }
inline int64_t outer_words(int64_t m, int64_t n) {
  return OUTER_AT_ONCE * (round_up(n, PANEL_WIDTH) + round_up(m, AMX_ROWS));
}

// Packs a matrix (inner, n) into `panel_words(inner, n, false)` words. Requires AVX-512.
void pack(const Matrix& matrix, int64_t inner, int64_t n, float* panels);

// Rounds a matrix (inner, n) to bf16 and packs it. Rows are packed in pairs, an odd last row with zeros. One of the
// axes must be contiguous or have a length of 1. If `column` is not 1, `turned` must have room for a panel, 64 *
// padded_pairs(inner) words.
void pack_bf16(const Matrix& matrix, int64_t inner, int64_t n, float* panels, uint32_t* turned);

// Multiplies rows (m, inner) by a packed matrix; writes to `out`, or adds to it if `adds`. `a_row` and `out_row` are
// row strides in words.
void multiply_packed(const Size& size, const float* a, int64_t a_row, const float* panels, float* out, int64_t out_row,
                     bool adds);

// Rounds rows to bf16 and multiplies them by a matrix packed by `pack_bf16`; sums are float32. `scratch` must have
// `rows_words(inner)` words: ROUNDED_AT_ONCE rows are rounded at a time, so that they stay in the cache.
void multiply_packed_bf16(const Size& size, const float* a, int64_t a_row, const float* panels, float* out,
                          int64_t out_row, bool adds, uint32_t* scratch);

// Adds x' @ y, both rounded to bf16, to `out`: the gradient of a weight matrix. One instruction sums the products of
// two rows. x is (rows, m), y (rows, n), out (m, n); `scratch` must have `outer_words(m, n)` words.
void add_outer_bf16(int64_t rows, int64_t m, int64_t n, const float* x, int64_t x_row, const float* y, int64_t y_row,
                    float* out, int64_t out_row, uint32_t* scratch);

// Rounds rows to bf16 and writes them as contiguous float32 numbers, on any processor.
void round_rows(const float* source, int64_t row, int64_t n_rows, int64_t width, float* out);

// Multiplies float32 matrices, with the interface of the BLAS routine `sgemm`. alpha must be 1, and beta 0 or 1.
void sgemm(const char* a_flag, const char* b_flag, const int64_t* m, const int64_t* n, const int64_t* inner,
           const float* alpha, const float* a, const int64_t* a_step, const float* b, const int64_t* b_step,
           const float* beta, float* out, const int64_t* out_step);

}  // namespace autobatch
