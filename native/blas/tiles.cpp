#include "blas/tiles.h"

#include "support/processor.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

namespace autobatch {

#ifdef AUTOBATCH_X86
namespace {

// The operands of a register tile: up to 6 rows by up to 64 columns, 16 rows by up to 16 columns, 1 row by 4 panels, or
// 2 rows by 2 panels.
struct Tile {
  Grid a;
  const float* panel;
  int64_t panel_inner, next_panel, n_inner;
  float* out;
  int64_t out_row, n_columns;
  bool adds;
};

// Keeps the compiler from unrolling a loop: unrolled, it would need more registers than there are.
AUTOBATCH_INLINE void stay_rolled() {
#ifndef _MSC_VER
  __asm__ volatile("");
#endif
}

AUTOBATCH_INLINE void prefetch_written(const float* place) {
#ifdef _MSC_VER
  _m_prefetchw(place);
#else
  __builtin_prefetch(place, 1, 3);
#endif
}

namespace float32 {
#define TARGET AUTOBATCH_AVX512
#define ADD_PRODUCT(sum, row, column) _mm512_fmadd_ps(row, column, sum)
#include "blas/tile.inc"
#undef TARGET
#undef ADD_PRODUCT
}  // namespace float32

#ifndef _MSC_VER
namespace bf16 {
#define TARGET AUTOBATCH_BF16
#define ADD_PRODUCT(sum, row, column) _mm512_dpbf16_ps(sum, (__m512bh)(row), (__m512bh)(column))
#include "blas/tile.inc"
#undef TARGET
#undef ADD_PRODUCT
}  // namespace bf16
#endif

// Prefetches a share of the rows, as progress goes from `begin` to `end` out of `whole`. Addresses need not be valid,
// because prefetches do not fault.
void prefetch_share(const NextRows& rows, int64_t begin, int64_t end, int64_t whole) {
  for (int64_t r = rows.n_rows * begin / whole; r < rows.n_rows * end / whole; r++)
    for (int64_t word = 0; word < rows.width; word += LANES)
      _mm_prefetch(reinterpret_cast<const char*>(rows.first + r * rows.row + word), _MM_HINT_T0);
}

template <void (*MULTIPLY)(int64_t, const Tile&)>
void multiply(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
              const NextRows& rows, const NextRows& columns) {
  int64_t whole = size.m * size.n, wide = size.m == 1 ? 4 * PANEL_WIDTH : size.m == 2 ? 2 * PANEL_WIDTH : PANEL_WIDTH;
  for (int64_t left = 0, width; left < size.n; left += width) {
    // One or two rows take panels one by one once there are fewer than a wide tile needs.
    width = size.n - left;
    width = width >= wide ? wide : width < PANEL_WIDTH ? width : PANEL_WIDTH;
    const float* panel = panels.first + left / PANEL_WIDTH * panels.panel;
    for (int64_t i = 0, n_rows; i < size.m; i += n_rows) {
      bool is_tall = size.m - i >= TALL_ROWS && width <= PANEL_WIDTH - LANES;
      n_rows = is_tall ? TALL_ROWS : size.m - i < TILE_ROWS ? size.m - i : TILE_ROWS;
      int64_t begin = left * size.m + i * width, end = begin + n_rows * width;
      prefetch_share(rows, begin, end, whole);
      prefetch_share(columns, begin, end, whole);
      Grid first = {a.first + i * a.row, a.row, a.inner};
      for (int64_t j = 0; j < width; j += is_tall ? LANES : wide)
        MULTIPLY(n_rows, {first, panel + j, panels.inner, panels.panel, size.inner, out + i * out_row + left + j,
                          out_row, width - j, adds});
    }
  }
}

}  // namespace

void multiply_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                    const NextRows& rows, const NextRows& columns) {
  multiply<float32::multiply_tile>(size, a, panels, out, out_row, adds, rows, columns);
}

void multiply_bf16_block(const Size& size, const Grid& a, const Panels& panels, float* out, int64_t out_row, bool adds,
                         const NextRows& rows, const NextRows& columns) {
#ifndef _MSC_VER
  multiply<bf16::multiply_tile>(size, a, panels, out, out_row, adds, rows, columns);
#endif
}

// Transposes in registers: swaps single words between adjacent lines, then pairs of words between lines that are two
// apart, and so on.
AUTOBATCH_AVX512 void turn_words(const uint32_t* source, int64_t source_row, uint32_t* out, int64_t out_row) {
  __m512i lines[LANES];
  UNROLL for (int i = 0; i < LANES; i++) lines[i] = _mm512_loadu_si512(source + source_row * i);
  UNROLL for (int apart = 1; apart < LANES; apart *= 2) {
    alignas(64) int32_t low[LANES], high[LANES];
    UNROLL for (int j = 0; j < LANES; j++) {
      low[j] = j & apart ? (int)LANES + j - apart : j;
      high[j] = j & apart ? (int)LANES + j : j + apart;
    }
    __m512i from_low = _mm512_load_si512(low), from_high = _mm512_load_si512(high);
    UNROLL for (int first = 0; first < LANES; first++) {
      if (first & apart) continue;
      __m512i one = lines[first], other = lines[first + apart];
      lines[first] = _mm512_permutex2var_epi32(one, from_low, other);
      lines[first + apart] = _mm512_permutex2var_epi32(one, from_high, other);
    }
  }
  UNROLL for (int i = 0; i < LANES; i++) _mm512_storeu_si512(out + out_row * i, lines[i]);
}

#else  // nothing calls these, as the processor has no AVX-512

void multiply_block(const Size&, const Grid&, const Panels&, float*, int64_t, bool, const NextRows&, const NextRows&) {}

void multiply_bf16_block(const Size&, const Grid&, const Panels&, float*, int64_t, bool, const NextRows&,
                         const NextRows&) {}

void turn_words(const uint32_t*, int64_t, uint32_t*, int64_t) {}

#endif

}  // namespace autobatch
