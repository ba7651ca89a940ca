// Products with a matrix that was packed before: nearly as fast for few rows as for many, in float32 and in bf16.
//
// In every call, libraries pack the matrix into the order in which they read it. For a few rows that takes longer than
// the multiplication. Here the matrix is packed once per run; the product itself is register tiles (`tiles.h`). Blocks
// of rows and of inner indices keep the data that tiles share in the caches: Goto and van de Geijn 2008
// (doi:10.1145/1356052.1356053).

#pragma once

#include "blas/amx.h"

namespace autobatch {

constexpr int64_t ROWS_AT_ONCE = 48, ROUNDED_AT_ONCE = 96, INNER_AT_ONCE = 512, OUTER_AT_ONCE = 128;

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A float32 matrix in memory: words from one row, and from one column, to the next.
struct Matrix {
  const float* first;
  int64_t row, column;
};

// Counts the pairs of inner indices, in multiples of those in a register of AMX; beyond the given ones are zeros.
inline int64_t padded_pairs(int64_t inner) { return round_up((inner + 1) / 2, AMX_PAIRS); }

// The words of a packed matrix (inner, n); and of the scratch memory that products need, as documented there.
inline int64_t panel_words(int64_t inner, int64_t n, bool is_bf16) {
  return (is_bf16 ? padded_pairs(inner) : inner) * round_up(n, PANEL_WIDTH);
}
inline int64_t rows_words(int64_t inner) { return ROUNDED_AT_ONCE * padded_pairs(inner); }
inline int64_t outer_words(int64_t m, int64_t n) {
  return OUTER_AT_ONCE * (round_up(n, PANEL_WIDTH) + round_up(m, AMX_ROWS));
}

// Packs a matrix (inner, n) into `panel_words(inner, n, false)` words. Only where the processor has AVX-512.
void pack(const Matrix& matrix, int64_t inner, int64_t n, float* panels);

// Rounds a matrix (inner, n) to bf16 and packs it. Rows are paired; an odd last one with zeros. Either axis must be
// contiguous, if it is longer than one. `turned` has room for 64 * padded_pairs(inner) words if columns are contiguous.
void pack_bf16(const Matrix& matrix, int64_t inner, int64_t n, float* panels, uint32_t* turned);

// Multiplies rows (m, inner), `a_row` words apart, by a packed matrix; writes to `out` or adds to it.
void multiply_packed(const Size& size, const float* a, int64_t a_row, const float* panels, float* out, int64_t out_row,
                     bool adds);

// Rounds rows and multiplies them by a matrix packed by `pack_bf16`; sums are float32. `scratch` has
// `rows_words(inner)` words, for some dozens of rounded rows, which stay in the cache.
void multiply_packed_bf16(const Size& size, const float* a, int64_t a_row, const float* panels, float* out,
                          int64_t out_row, bool adds, uint32_t* scratch);

// Adds x' @ y, both rounded to bf16, to `out`: the gradient of a matrix. Products are summed in pairs of rows. x is
// (rows, m), y (rows, n), out (m, n); `scratch` has `outer_words(m, n)` words.
void add_outer_bf16(int64_t rows, int64_t m, int64_t n, const float* x, int64_t x_row, const float* y, int64_t y_row,
                    float* out, int64_t out_row, uint32_t* scratch);

// Rounds rows to bf16 and writes them as contiguous float32 numbers, on any processor.
void round_rows(const float* source, int64_t row, int64_t n_rows, int64_t width, float* out);

// Multiplies float32 matrices as the BLAS routine `sgemm` does, with alpha = 1 and beta = 0 or 1.
void sgemm(const char* a_flag, const char* b_flag, const int64_t* m, const int64_t* n, const int64_t* inner,
           const float* alpha, const float* a, const int64_t* a_step, const float* b, const int64_t* b_step,
           const float* beta, float* out, const int64_t* out_step);

}  // namespace autobatch
