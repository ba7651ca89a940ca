// Products of bf16 by the tile registers of AMX: sixteen rows by sixteen columns in one instruction.
//
// A register holds sixteen rows of 64 bytes. Rows of the left matrix are pairs of neighbouring inner indices; the right
// one is packed as for AVX-512 (`tiles.h`), of which sixteen neighbouring columns of sixteen pairs are a register.

#pragma once

#include <stdint.h>

#include "blas/tiles.h"

namespace autobatch {

constexpr int64_t AMX_ROWS = 16, AMX_PAIRS = 16;

// Whether the processor has AMX with bf16, and the system lets this process use it: asked at the first call.
bool may_use_amx();

// Writes rows @ panels to `out`, or adds it. `size.inner` counts pairs, a multiple of 16; rows begin `row` words apart.
// Only where `may_use_amx()`.
void multiply_amx_block(const Size& size, const uint32_t* rows, int64_t row, const Panels& panels, float* out,
                        int64_t out_row, bool adds);

}  // namespace autobatch
