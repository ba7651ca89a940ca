// The steps that multiply the rows of a tile by a matrix that all tiles share.

#include "blas/calling.h"
#include "blas/packed.h"
#include "run/operands.h"
#include "run/steps.h"

namespace autobatch {
namespace {

// The descriptor of a product, `PRODUCT` of autobatch/backends/cpu/compiled_cell.py.
struct Product {
  int64_t routine, beta, n_fields, rows, n, inner, itemsize;
  Operand a, out;
  int64_t b_flipped, b, b_step, scratch;
};

// The operands of a product for one tile.
struct Operands {
  const Product& product;
  TileView tile;
  int64_t n_rows, a, out;

  Operands(int64_t memory, int64_t descriptor, int64_t k)
      : product(*reinterpret_cast<const Product*>(descriptor)),
        tile(memory, product.n_fields, k),
        n_rows(tile.fields[product.rows]),
        a(tile.address(product.a, product.itemsize)),
        out(tile.address(product.out, product.itemsize)) {}

  Size size() const { return {n_rows, product.n, product.inner}; }
  const float* panels() const { return reinterpret_cast<const float*>(product.b); }
};

}  // namespace

// Multiplies with a BLAS library.
void multiply_by_library(int64_t memory, int64_t descriptor, int64_t k) {
  Operands at(memory, descriptor, k);
  const Product& product = at.product;
  if (at.n_rows > 0)
    call_product(product.routine, product.itemsize,
                 {0, product.b_flipped, at.n_rows, product.n, product.inner, at.a, product.a.step, product.b,
                  product.b_step, at.out, product.out.step},
                 (double)product.beta);
}

// Multiplies by a packed matrix.
void multiply_by_panels(int64_t memory, int64_t descriptor, int64_t k) {
  Operands at(memory, descriptor, k);
  if (at.n_rows > 0)
    multiply_packed(at.size(), reinterpret_cast<const float*>(at.a), at.product.a.step, at.panels(),
                    reinterpret_cast<float*>(at.out), at.product.out.step, at.product.beta);
}

// Multiplies by a packed matrix of bf16 numbers; the rows are rounded to bf16.
void multiply_by_bf16_panels(int64_t memory, int64_t descriptor, int64_t k) {
  Operands at(memory, descriptor, k);
  if (at.n_rows > 0)
    multiply_packed_bf16(at.size(), reinterpret_cast<const float*>(at.a), at.product.a.step, at.panels(),
                         reinterpret_cast<float*>(at.out), at.product.out.step, at.product.beta,
                         reinterpret_cast<uint32_t*>(at.tile.scratch(at.product.scratch)));
}

// Multiplies in float32 after rounding: rows are rounded to bf16 but stored as float32, and the matrix was rounded
// before. Uses a BLAS library, or the native product if the matrix is packed.
void multiply_rounded(int64_t memory, int64_t descriptor, int64_t k) {
  Operands at(memory, descriptor, k);
  const Product& product = at.product;
  int64_t scratch = at.tile.scratch(product.scratch);
  for (int64_t first = 0; first < at.n_rows; first += ROWS_AT_ONCE) {
    int64_t n_rows = least(ROWS_AT_ONCE, at.n_rows - first);
    float* out = reinterpret_cast<float*>(at.out) + first * product.out.step;
    float* rows = reinterpret_cast<float*>(scratch);
    round_rows(reinterpret_cast<const float*>(at.a) + first * product.a.step, product.a.step, n_rows, product.inner,
               rows);
    if (product.routine)
      call_product(product.routine, product.itemsize,
                   {0, product.b_flipped, n_rows, product.n, product.inner, scratch, product.inner, product.b,
                    product.b_step, reinterpret_cast<int64_t>(out), product.out.step},
                   (double)product.beta);
    else
      multiply_packed({n_rows, product.n, product.inner}, rows, product.inner, at.panels(), out, product.out.step,
                      product.beta);
  }
}

}  // namespace autobatch
