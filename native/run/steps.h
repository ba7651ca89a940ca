// The steps that need no generated kernel: products, sums of rows, and the gradients of weights.
//
// A step is a function of three ints: the address of the memory of its stage, which is an array of addresses, that of
// its descriptor, and the number of a tile. Generated kernels are called in the same way. `autobatch/backends/cpu`
// writes descriptors: `products.py` those of products, `weights.py` those of gradients.

#pragma once

#include <stdint.h>

namespace autobatch {

using Step = void (*)(int64_t memory, int64_t descriptor, int64_t tile);

// The rows of a tile times a matrix: by a library; packed; packed, in bf16; and rounded to bf16 by either.
void multiply_by_library(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_by_panels(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_by_bf16_panels(int64_t memory, int64_t descriptor, int64_t tile);
void multiply_rounded(int64_t memory, int64_t descriptor, int64_t tile);

// A strip of a product over all rows, added to a gradient: by a library; in bf16; and rounded to bf16 by a library.
void add_outer(int64_t memory, int64_t descriptor, int64_t tile);
void add_bf16_outer(int64_t memory, int64_t descriptor, int64_t tile);
void add_rounded_outer(int64_t memory, int64_t descriptor, int64_t tile);

// A strip of the sum of all rows, added to gradients.
void add_row_sum(int64_t memory, int64_t descriptor, int64_t tile);

}  // namespace autobatch
