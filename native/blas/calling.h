// Calls a BLAS matrix product by its address.

#pragma once

#include <stdint.h>

namespace autobatch {

// out = a @ b in row-major terms; see `Gemm` in autobatch/blas/provider.py. Addresses are in bytes, strides in
// elements.
struct Gemm {
  int64_t a_flipped, b_flipped, m, n, k, a, a_step, b, b_step, out, out_step;
};

// Calls a product; beta 0 overwrites `out`, 1 adds to it.
//
// BLAS is column-major, so it is asked for the transpose: out' = b' @ a', with the operands swapped. All libraries have
// the Fortran interface, which passes every argument by address. Ints are 64 bits; a library that reads 32 bits finds
// the same number in the first half, because the supported machines are little-endian.
inline void call_product(int64_t routine, int64_t itemsize, const Gemm& product, double beta) {
  using Any = const void*;
  using Routine = void (*)(Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, void*, Any);
  const char *flipped = "T", *as_it_lies = "N";
  double factors[] = {1, beta};
  float single[] = {1, (float)beta};
  Any one = itemsize == 4 ? (Any)&single[0] : &factors[0], other = itemsize == 4 ? (Any)&single[1] : &factors[1];
  reinterpret_cast<Routine>(routine)(product.b_flipped ? flipped : as_it_lies, product.a_flipped ? flipped : as_it_lies,
                                     &product.n, &product.m, &product.k, one, reinterpret_cast<Any>(product.b),
                                     &product.b_step, reinterpret_cast<Any>(product.a), &product.a_step, other,
                                     reinterpret_cast<void*>(product.out), &product.out_step);
}

}  // namespace autobatch
