#include "blas/amx.h"

#include "support/atomic.h"
#include "support/processor.h"

#if defined(AUTOBATCH_X86) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define AUTOBATCH_AMX AUTOBATCH_TARGET("amx-tile,amx-bf16")
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace autobatch {

#ifdef AUTOBATCH_AMX
namespace {

// Asks Linux for permission to use the tile registers, which it saves only for processes that asked; returns whether it
// was granted.
bool ask_for_tiles() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
  return processor().has_amx && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

// The tile configuration, in the memory layout that the LDTILECFG instruction reads.
struct alignas(64) Layout {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t n_bytes[16] = {};
  uint8_t n_rows[16] = {};

  void set(int number, int64_t rows, int64_t words) {
    n_rows[number] = (uint8_t)rows;
    n_bytes[number] = (uint16_t)(4 * words);
  }
};

// The operands of a block: up to 32 rows of the left matrix, up to 64 columns of a panel, and the place of the result.
// `row` and `out_row` are row strides in words.
struct Block {
  const uint32_t* rows;
  int64_t row;
  const float* panel;
  int64_t n_pairs;
  float* out;
  int64_t out_row;
  bool adds;
};

// The shapes of blocks. Registers 0 to 3 hold sums, 4 and 5 rows, and 5 to 7 columns. The last columns of a block may
// be fewer than 16, so they and their sums have registers of their own, which are configured narrower.
enum Shape { SQUARE, TALL, WIDE, SINGLE };  // registers of sums: 2 by 2, 2 by 1, 1 by 4, and 1 by 1

AUTOBATCH_AMX void lay_out(Shape shape, int64_t last_rows, int64_t last_columns) {
  bool has_lower = shape == SQUARE || shape == TALL;
  int64_t upper = has_lower ? AMX_ROWS : last_rows;
  Layout layout;
  layout.set(0, upper, shape == SQUARE || shape == WIDE ? LANES : last_columns);
  layout.set(1, upper, shape == SQUARE ? last_columns : LANES);
  layout.set(2, has_lower ? last_rows : upper, shape == TALL ? last_columns : LANES);
  layout.set(3, has_lower ? last_rows : upper, last_columns);
  layout.set(4, upper, AMX_PAIRS);
  layout.set(5, has_lower ? last_rows : AMX_PAIRS, AMX_PAIRS);  // rows, or 16 columns of a WIDE block
  layout.set(6, AMX_PAIRS, LANES);
  layout.set(7, AMX_PAIRS, last_columns);
  _tile_loadconfig(&layout);
}

// Initializes a register of sums with zeros or with the result so far. A macro, because the intrinsics take register
// numbers as literals.
#define START(sum, place)               \
  {                                     \
    if (block.adds)                     \
      _tile_loadd(sum, place, out_row); \
    else                                \
      _tile_zero(sum);                  \
  }

template <Shape SHAPE>
AUTOBATCH_AMX void multiply(const Block& block) {
  constexpr int64_t WORD = sizeof(float), LINE = PANEL_WIDTH * WORD;
  int64_t row = block.row * WORD, out_row = block.out_row * WORD;
  float *upper = block.out, *lower = upper + AMX_ROWS * block.out_row;
  START(0, upper)
  if constexpr (SHAPE == SQUARE || SHAPE == WIDE) START(1, upper + LANES)
  if constexpr (SHAPE == SQUARE || SHAPE == TALL) START(2, lower)
  if constexpr (SHAPE == SQUARE) START(3, lower + LANES)
  if constexpr (SHAPE == WIDE) {
    START(2, upper + 2 * LANES)
    START(3, upper + 3 * LANES)
  }
  const uint32_t* rows = block.rows;
  const float* line = block.panel;
  for (int64_t k = 0; k < block.n_pairs; k += AMX_PAIRS, rows += AMX_PAIRS, line += AMX_PAIRS * PANEL_WIDTH) {
    _tile_loadd(4, rows, row);
    if constexpr (SHAPE == SQUARE) {
      _tile_loadd(6, line, LINE);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, rows + AMX_ROWS * block.row, row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, line + LANES, LINE);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    } else if constexpr (SHAPE == TALL) {
      _tile_loadd(7, line, LINE);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, rows + AMX_ROWS * block.row, row);
      _tile_dpbf16ps(2, 5, 7);
    } else if constexpr (SHAPE == WIDE) {
      _tile_loadd(5, line, LINE);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, line + LANES, LINE);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(5, line + 2 * LANES, LINE);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(7, line + 3 * LANES, LINE);
      _tile_dpbf16ps(3, 4, 7);
    } else {
      _tile_loadd(7, line, LINE);
      _tile_dpbf16ps(0, 4, 7);
    }
  }
  _tile_stored(0, upper, out_row);
  if constexpr (SHAPE == SQUARE || SHAPE == WIDE) _tile_stored(1, upper + LANES, out_row);
  if constexpr (SHAPE == SQUARE || SHAPE == TALL) _tile_stored(2, lower, out_row);
  if constexpr (SHAPE == SQUARE) _tile_stored(3, lower + LANES, out_row);
  if constexpr (SHAPE == WIDE) {
    _tile_stored(2, upper + 2 * LANES, out_row);
    _tile_stored(3, upper + 3 * LANES, out_row);
  }
}
#undef START

// Multiplies blocks. Reconfigures the tile registers only when the shape of a block differs from that of the previous
// one.
class Multiplier {
 public:
  AUTOBATCH_AMX void multiply(const Block& block, int64_t n_rows, int64_t n_columns) {
    bool has_lower = n_rows > AMX_ROWS;
    Shape shape = has_lower ? n_columns > LANES ? SQUARE : TALL : n_columns > LANES ? WIDE : SINGLE;
    int64_t last_rows = has_lower ? n_rows - AMX_ROWS : n_rows, last_columns = (n_columns - 1) % LANES + 1;
    if (shape != shape_ || last_rows != last_rows_ || last_columns != last_columns_)
      lay_out(shape_ = shape, last_rows_ = last_rows, last_columns_ = last_columns);
    switch (shape) {
      case SQUARE:
        return autobatch::multiply<SQUARE>(block);
      case TALL:
        return autobatch::multiply<TALL>(block);
      case WIDE:
        return autobatch::multiply<WIDE>(block);
      case SINGLE:
        return autobatch::multiply<SINGLE>(block);
    }
  }
  AUTOBATCH_AMX ~Multiplier() { _tile_release(); }  // to the initial state, which context switches need not save

 private:
  Shape shape_ = SINGLE;
  int64_t last_rows_ = 0, last_columns_ = 0;  // no block has 0 rows, so the first one configures the registers
};

// Returns the number of columns of the next block. With two registers of rows, it takes one or two registers of
// columns; with one, it takes four (WIDE) if there are enough columns, and else one.
int64_t columns_at_once(int64_t n_rows, int64_t n_columns) {
  int64_t most = n_rows > AMX_ROWS ? 2 * LANES : 4 * LANES;
  return n_columns > most ? most : n_columns > most - LANES ? n_columns : n_columns > LANES ? LANES : n_columns;
}

}  // namespace

bool may_use_amx() {
  enum Answer : int64_t { UNKNOWN, YES, NO };
  static int64_t answer = UNKNOWN;
  if (load(&answer) == UNKNOWN) store(&answer, ask_for_tiles() ? YES : NO);  // threads that race store the same answer
  return load(&answer) == YES;
}

void multiply_amx_block(const Size& size, const uint32_t* rows, int64_t row, const Panels& panels, float* out,
                        int64_t out_row, bool adds) {
  Multiplier multiplier;
  for (int64_t left = 0; left < size.n; left += PANEL_WIDTH) {
    int64_t width = size.n - left < PANEL_WIDTH ? size.n - left : PANEL_WIDTH;
    const float* panel = panels.first + left / PANEL_WIDTH * panels.panel;
    for (int64_t top = 0, n_rows; top < size.m; top += n_rows) {
      n_rows = size.m - top < 2 * AMX_ROWS ? size.m - top : 2 * AMX_ROWS;
      for (int64_t j = 0, n_columns; j < width; j += n_columns) {
        n_columns = columns_at_once(n_rows, width - j);
        multiplier.multiply(
            {rows + top * row, row, panel + j, size.inner, out + top * out_row + left + j, out_row, adds}, n_rows,
            n_columns);
      }
    }
  }
}

#else

bool may_use_amx() { return false; }

void multiply_amx_block(const Size&, const uint32_t*, int64_t, const Panels&, float*, int64_t, bool) {}

#endif

}  // namespace autobatch
