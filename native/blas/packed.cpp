#include "blas/packed.h"

#include "support/processor.h"

namespace autobatch {
namespace {

// Rounds a float32 to bf16, its upper 16 bits, to nearest and ties to even. NaN stays NaN: its quiet bit is set,
// because cutting off a payload that lies only in the lower bits would leave infinity.
AUTOBATCH_INLINE uint32_t to_bf16(uint32_t bits) {
  constexpr uint32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000, QUIET = 0x40;
  uint32_t high = bits >> 16, rounded = (bits + (0x7fff + (high & 1))) >> 16;
  return (bits & MAGNITUDE) > INFINITE ? high | QUIET : rounded;
}

AUTOBATCH_INLINE void round_rows_inline(const uint32_t* source, int64_t row, int64_t n_rows, int64_t width,
                                        uint32_t* out) {
  for (int64_t r = 0; r < n_rows; r++)
    for (int64_t i = 0; i < width; i++) out[r * width + i] = to_bf16(source[r * row + i]) << 16;
}

// Rounds rows to bf16. Each row of the result has `padded_pairs(inner)` words and is padded with zeros.
AUTOBATCH_AVX512 void halve_rows(const uint32_t* source, int64_t row, int64_t n_rows, int64_t inner, uint32_t* out) {
  int64_t width = 2 * padded_pairs(inner);
  uint16_t* halves = reinterpret_cast<uint16_t*>(out);
  for (int64_t r = 0; r < n_rows; r++) {
    for (int64_t k = 0; k < inner; k++) halves[r * width + k] = (uint16_t)to_bf16(source[r * row + k]);
    for (int64_t k = inner; k < width; k++) halves[r * width + k] = 0;
  }
}

// Rounds rows to bf16 and interleaves them in pairs: word i of row r of the result holds element i of rows 2r and 2r+1.
// Pads each row of the result with zeros to `out_row` words, and the result with zero rows to `padded_pairs(n_rows)`
// rows.
AUTOBATCH_AVX512 void pair_rows(const uint32_t* source, int64_t row, int64_t n_rows, int64_t width, uint32_t* out,
                                int64_t out_row) {
  for (int64_t r = 0; r < 2 * padded_pairs(n_rows); r += 2, source += 2 * row, out += out_row) {
    if (r >= n_rows)
      for (int64_t i = 0; i < width; i++) out[i] = 0;
    else if (r + 1 < n_rows)
      for (int64_t i = 0; i < width; i++) out[i] = to_bf16(source[i]) | to_bf16(source[row + i]) << 16;
    else
      for (int64_t i = 0; i < width; i++) out[i] = to_bf16(source[i]);
    for (int64_t i = width; i < out_row; i++) out[i] = 0;
  }
}

const uint32_t* bits_of(const float* numbers) { return reinterpret_cast<const uint32_t*>(numbers); }
uint32_t* bits_of(float* numbers) { return reinterpret_cast<uint32_t*>(numbers); }

// Packs 32-bit words: float32 numbers, or pairs of bf16 numbers.
AUTOBATCH_AVX512 void pack_words(const uint32_t* words, int64_t row, int64_t column, int64_t inner, int64_t n,
                                 uint32_t* panels) {
  for (int64_t left = 0; left < n; left += PANEL_WIDTH) {
    int64_t width = least(PANEL_WIDTH, n - left);
    uint32_t* panel = panels + left * inner;
    for (int64_t first = 0; first < inner; first += LANES) {
      int64_t last = least(first + LANES, inner), turned = 0;
      if (column == 1) {
        for (int64_t k = first; k < last; k++)
          for (int64_t j = 0; j < width; j++) panel[k * PANEL_WIDTH + j] = words[k * row + left + j];
      } else {  // full blocks of a transposed matrix are turned in registers; the remaining columns, word by word
        if (row == 1 && last - first == LANES)
          for (; turned + LANES <= width; turned += LANES)
            turn_words(words + first + (left + turned) * column, column, panel + first * PANEL_WIDTH + turned,
                       PANEL_WIDTH);
        for (int64_t j = turned; j < width; j++)
          for (int64_t k = first; k < last; k++) panel[k * PANEL_WIDTH + j] = words[k * row + (left + j) * column];
      }
      for (int64_t k = first; k < last; k++)
        for (int64_t j = width; j < PANEL_WIDTH; j++) panel[k * PANEL_WIDTH + j] = 0;
    }
  }
}

}  // namespace

void pack(const Matrix& matrix, int64_t inner, int64_t n, float* panels) {
  pack_words(bits_of(matrix.first), matrix.row, matrix.column, inner, n, bits_of(panels));
}

void pack_bf16(const Matrix& matrix, int64_t inner, int64_t n, float* panels, uint32_t* turned) {
  int64_t pairs = padded_pairs(inner);
  bool is_turned = matrix.column != 1 && n > 1;
  for (int64_t left = 0; left < n; left += PANEL_WIDTH) {
    int64_t width = least(PANEL_WIDTH, n - left);
    uint32_t* panel = bits_of(panels) + left * pairs;
    if (is_turned) {
      halve_rows(bits_of(matrix.first) + left * matrix.column, matrix.column, width, inner, turned);
      pack_words(turned, 1, pairs, pairs, width, panel);
    } else {
      pair_rows(bits_of(matrix.first) + left, matrix.row, inner, width, panel, PANEL_WIDTH);
    }
  }
}

void multiply_packed(const Size& size, const float* a, int64_t a_row, const float* panels, float* out, int64_t out_row,
                     bool adds) {
  for (int64_t top = 0; top < size.m; top += ROWS_AT_ONCE) {
    int64_t bottom = least(top + ROWS_AT_ONCE, size.m);
    // The first block of inner indices overwrites `out`, unless `adds`; the others add to it.
    for (int64_t first = 0; first < size.inner; first += INNER_AT_ONCE) {
      int64_t n_inner = least(INNER_AT_ONCE, size.inner - first);
      NextRows next = {a + bottom * a_row + first, a_row, least(ROWS_AT_ONCE, size.m - bottom), n_inner};
      multiply_block({bottom - top, size.n, n_inner}, {a + top * a_row + first, a_row, 1},
                     {panels + first * PANEL_WIDTH, PANEL_WIDTH, PANEL_WIDTH * size.inner}, out + top * out_row,
                     out_row, adds || first, next);
    }
  }
}

void multiply_packed_bf16(const Size& size, const float* a, int64_t a_row, const float* panels, float* out,
                          int64_t out_row, bool adds, uint32_t* scratch) {
  int64_t pairs = padded_pairs(size.inner);
  const float* rounded = reinterpret_cast<const float*>(scratch);
  for (int64_t top = 0; top < size.m; top += ROUNDED_AT_ONCE) {
    int64_t bottom = least(top + ROUNDED_AT_ONCE, size.m);
    halve_rows(bits_of(a) + top * a_row, a_row, bottom - top, size.inner, scratch);
    for (int64_t first = 0; first < pairs; first += INNER_AT_ONCE) {
      Size block = {bottom - top, size.n, least(INNER_AT_ONCE, pairs - first)};
      Panels packed = {panels + first * PANEL_WIDTH, PANEL_WIDTH, PANEL_WIDTH * pairs};
      NextRows next = {a + bottom * a_row, a_row, first ? 0 : least(ROUNDED_AT_ONCE, size.m - bottom), size.inner};
      if (may_use_amx())
        multiply_amx_block(block, scratch + first, pairs, packed, out + top * out_row, out_row, adds || first);
      else
        multiply_bf16_block(block, {rounded + first, pairs, 1}, packed, out + top * out_row, out_row, adds || first,
                            next);
    }
  }
}

// Adds left' @ panels to `out`. `left` (pairs, m) is written by `pair_rows`; AMX reads its transpose, so 32 columns at
// a time are turned into rows.
AUTOBATCH_AVX512 void add_amx_outer(const Size& size, const uint32_t* left, int64_t left_row, const Panels& panels,
                                    float* out, int64_t out_row) {
  constexpr int64_t AT_ONCE = 2 * AMX_ROWS;
  alignas(64) uint32_t turned[AT_ONCE * OUTER_AT_ONCE];
  for (int64_t top = 0; top < size.m; top += AT_ONCE) {
    int64_t n_rows = least(AT_ONCE, size.m - top);
    for (int64_t i = 0; i < n_rows; i += AMX_ROWS)
      for (int64_t k = 0; k < size.inner; k += AMX_PAIRS)
        turn_words(left + k * left_row + top + i, left_row, turned + i * size.inner + k, size.inner);
    multiply_amx_block({n_rows, size.n, size.inner}, turned, size.inner, panels, out + top * out_row, out_row, true);
  }
}

void add_outer_bf16(int64_t rows, int64_t m, int64_t n, const float* x, int64_t x_row, const float* y, int64_t y_row,
                    float* out, int64_t out_row, uint32_t* scratch) {
  uint32_t* left = scratch + OUTER_AT_ONCE * round_up(n, PANEL_WIDTH);
  float* panels = reinterpret_cast<float*>(scratch);
  int64_t left_row = round_up(m, AMX_ROWS);
  for (int64_t first = 0; first < rows; first += 2 * OUTER_AT_ONCE) {
    int64_t n_rows = least(2 * OUTER_AT_ONCE, rows - first), follows = first + n_rows, pairs = padded_pairs(n_rows);
    int64_t n_next = least(2 * OUTER_AT_ONCE, rows - follows);
    pack_bf16({y + first * y_row, y_row, 1}, n_rows, n, panels, nullptr);
    pair_rows(bits_of(x) + first * x_row, x_row, n_rows, m, left, left_row);
    Size size = {m, n, pairs};
    Panels packed = {panels, PANEL_WIDTH, PANEL_WIDTH * pairs};
    if (may_use_amx())
      add_amx_outer(size, left, left_row, packed, out, out_row);
    else
      multiply_bf16_block(size, {reinterpret_cast<const float*>(left), 1, left_row}, packed, out, out_row, true,
                          {x + follows * x_row, x_row, n_next, m}, {y + follows * y_row, y_row, n_next, n});
  }
}

void round_rows(const float* source, int64_t row, int64_t n_rows, int64_t width, float* out) {
  Vectorized<round_rows_inline>::run(bits_of(source), row, n_rows, width, bits_of(out));
}

}  // namespace autobatch
