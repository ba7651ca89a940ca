// The steps that need no generated kernel: products, sums of rows, and the gradients of weights.
//
// A step is a function of three ints: the address of its stage's memory, which is an array of addresses; the address of
// its descriptor; and the number of a tile. Generated kernels have the same signature. In `autobatch/backends/cpu`,
// `autobatch/backends/cpu/compiled_cell.py` writes the descriptors of products and of gradients.

#pragma once

#include <stdint.h>

namespace autobatch {

using Step = void (*)(int64_t memory, int64_t descriptor, int64_t tile);

// Multiply the rows of a tile by a matrix: with a BLAS library; packed; packed in bf16; and in float32, by either way,
// after rounding to bf16.
void multiply_by_library(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_by_panels(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_by_bf16_panels(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_rounded(int64_t memory, int64_t descriptor, int64_t tile);

// Add a strip of a product over all rows to a gradient: with a BLAS library; in bf16; and with a library after rounding
// to bf16.
void add_outer(int64_t memory, int64_t descriptor, int64_t tile);
void add_bf16_outer(int64_t memory, int64_t descriptor, int64_t tile);
void add_rounded_outer(int64_t memory, int64_t descriptor, int64_t tile);

// Adds a strip of the sum of all rows to gradients.
void add_row_sum(int64_t memory, int64_t descriptor, int64_t tile);

}  // namespace autobatch
