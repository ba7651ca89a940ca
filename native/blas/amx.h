// Matrix products of bf16 numbers with the tile registers of AMX: one instruction multiplies 16 rows by 16 columns.
//
// A tile register holds 16 rows of 64 bytes. Each word of the left matrix is a pair of bf16 numbers at adjacent inner
// indices. The right matrix is packed as for AVX-512 (`tiles.h`): 16 pairs of inner indices by 16 adjacent columns of a
// panel fill a register.

#pragma once

#include <stdint.h>

#include "blas/tiles.h"

namespace autobatch {

constexpr int64_t AMX_ROWS = 16, AMX_PAIRS = 16;

// Returns whether the processor has AMX with bf16 and the system lets this process use it. Only the first call asks.
bool may_use_amx();

// Writes rows @ panels to `out`, or adds it if `adds`. `size.inner` counts pairs and must be a multiple of 16; `row` is
// the row stride of `rows` in words. Requires `may_use_amx()`.
void multiply_amx_block(const Size& size, const uint32_t* rows, int64_t row, const Panels& panels, float* out,
                        int64_t out_row, bool adds);

}  // namespace autobatch
