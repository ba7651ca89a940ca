// The native product of float32 matrices, behind the Fortran interface that all BLAS libraries have.

#include <stdlib.h>

#include "blas/packed.h"

namespace autobatch {
namespace {

constexpr int64_t LYING_ROWS = 256;       // up to this many rows of the result, `a` may be read unpacked
constexpr int64_t BLOCK_WORDS = 1 << 17;  // the largest block of `a` that is packed at once
constexpr int64_t LINE = 64;              // bytes of a cache line; an unaligned vector of 64 bytes spans two lines
constexpr int64_t SPARE_WORDS = OUTER_AT_ONCE * PANEL_WIDTH;

// Rounds an address up to the start of a cache line.
float* align(float* words) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(words) + LINE - 1) / LINE * LINE);
}

}  // namespace

// In row-major terms (BLAS is column-major), out (n, m) is b (n, inner) @ a (inner, m). For a weight gradient, `inner`
// is the number of rows of a type, which is large: while one block of rows is multiplied, the next is prefetched.
//
// If the rows of `a` are contiguous and the result has few rows, packing does not pay: `a` itself is read as panels,
// whose inner stride is the row stride of `a`.
void sgemm(const char* a_flag, const char* b_flag, const int64_t* m_at, const int64_t* n_at, const int64_t* inner_at,
           const float*, const float* a, const int64_t* a_step, const float* b, const int64_t* b_step,
           const float* beta, float* out, const int64_t* out_step) {
  int64_t m = *m_at, n = *n_at, inner = *inner_at, out_row = *out_step;
  bool adds = *beta != 0;
  int64_t row = *a_flag == 'T' ? 1 : *a_step, column = *a_flag == 'T' ? *a_step : 1;
  int64_t b_row = *b_flag == 'T' ? 1 : *b_step, b_inner = *b_flag == 'T' ? *b_step : 1;
  if (inner == 0 && !adds)
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < m; j++) out[i * out_row + j] = 0;
  bool lies = column == 1 && n <= LYING_ROWS;
  int64_t at_once = lies && n <= TILE_ROWS ? inner : least(OUTER_AT_ONCE, inner);  // one row of tiles reads `a` once
  if (at_once == 0 || m == 0) return;
  int64_t wide = lies ? m : least(m, BLOCK_WORDS / at_once / PANEL_WIDTH * PANEL_WIDTH);
  float spare[SPARE_WORDS + LINE / 4], *packed = spare;
  void* allocated = nullptr;
  if (!lies && at_once * round_up(wide, PANEL_WIDTH) > SPARE_WORDS) {
    allocated = malloc((size_t)(at_once * round_up(wide, PANEL_WIDTH)) * sizeof(float) + LINE);
    if (allocated)
      packed = static_cast<float*>(allocated);
    else  // blocks of one panel fit in `spare`, and the result is bit-identical
      wide = PANEL_WIDTH;
  }
  packed = align(packed);
  for (int64_t left = 0; left < m; left += wide) {
    int64_t n_columns = least(wide, m - left);
    for (int64_t first = 0; first < inner; first += at_once) {
      int64_t n_inner = least(at_once, inner - first), n_next = least(at_once, inner - first - n_inner);
      const float* place = a + first * row + left * column;
      Panels panels = {place, row, PANEL_WIDTH};
      if (!lies) {
        pack({place, row, column}, n_inner, n_columns, packed);
        panels = {packed, PANEL_WIDTH, PANEL_WIDTH * n_inner};
      }
      NextRows next_rows = {b + (first + n_inner) * b_inner, b_inner, b_row == 1 ? n_next : 0, n};
      NextRows next_columns = {place + n_inner * row, row, column == 1 ? n_next : 0, n_columns};
      multiply_block({n, n_columns, n_inner}, {b + first * b_inner, b_row, b_inner}, panels, out + left, out_row,
                     adds || first, next_rows, next_columns);
    }
  }
  free(allocated);
}

}  // namespace autobatch
