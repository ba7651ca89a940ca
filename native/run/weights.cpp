// The steps of the weight stage: products over all rows of a type, and sums of rows, added to gradients.

#include "blas/calling.h"
#include "blas/packed.h"
#include "run/operands.h"
#include "run/steps.h"
#include "support/processor.h"

namespace autobatch {
namespace {

constexpr int64_t STRIP = 48;          // a strip has a multiple of this many rows or columns, for whole register tiles
constexpr int64_t ROUNDED_ROWS = 256;  // rows of both factors that are rounded at a time for a float32 library

// The descriptor of a step; a sum of rows stores the number of its parameters in `routine`. After it comes the first
// slot of each gradient. A gradient has three slots: its address, and its row and column strides in elements.
struct WeightStep {
  int64_t routine, m, n_fields, rows, n, n_strips, itemsize;
  Operand a, b;
  int64_t scratch;

  int64_t gradient(int64_t number) const { return reinterpret_cast<const int64_t*>(this + 1)[number]; }
};

// The range of rows or elements of a strip of a gradient. One thread computes a strip completely, so that gradients do
// not depend on the number of threads.
struct Strip {
  int64_t first, end;

  Strip(int64_t size, int64_t strip, int64_t n_strips) {
    int64_t at_once = (size + n_strips * STRIP - 1) / (n_strips * STRIP) * STRIP;
    first = least(strip * at_once, size), end = least((strip + 1) * at_once, size);
  }
};

// A strip (m, n) of a gradient, and the factors of the product a' @ b that is added to it.
struct Outer {
  const WeightStep& step;
  TileView tile;
  int64_t n_rows, m, n, a, a_step, b, b_step, out, out_step;

  Outer(int64_t memory, int64_t descriptor, int64_t k)
      : step(*reinterpret_cast<const WeightStep*>(descriptor)),
        tile(memory, step.n_fields, k),
        n_rows(tile.fields[step.rows]),
        m(step.m),
        n(step.n),
        a(tile.address(step.a, step.itemsize)),
        a_step(step.a.step),
        b(tile.address(step.b, step.itemsize)),
        b_step(step.b.step) {
    const int64_t* gradient = tile.slots + step.gradient(0);
    out_step = gradient[1];
    if (gradient[2] != 1) {  // the gradient is stored by columns: computes its transpose, b' @ a
      swap(a, b), swap(a_step, b_step), swap(m, n);
      out_step = gradient[2];
    }
    Strip strip(m, tile.fields[step.n_fields - 1], step.n_strips);  // the last field of a tile numbers its strip
    m = strip.end - strip.first;
    a += strip.first * step.itemsize;
    out = gradient[0] + strip.first * out_step * step.itemsize;
  }

 private:
  static void swap(int64_t& x, int64_t& y) {
    int64_t before = x;
    x = y, y = before;
  }
};

const float* floats(int64_t address) { return reinterpret_cast<const float*>(address); }

}  // namespace

// Adds a strip of a' @ b to a gradient, with a BLAS library.
void add_outer(int64_t memory, int64_t descriptor, int64_t k) {
  Outer at(memory, descriptor, k);
  if (at.m > 0 && at.n_rows > 0)
    call_product(at.step.routine, at.step.itemsize,
                 {1, 0, at.m, at.n, at.n_rows, at.a, at.a_step, at.b, at.b_step, at.out, at.out_step}, 1);
}

// Does the same with the native bf16 product; both factors are rounded to bf16.
void add_bf16_outer(int64_t memory, int64_t descriptor, int64_t k) {
  Outer at(memory, descriptor, k);
  if (at.m > 0)
    add_outer_bf16(at.n_rows, at.m, at.n, floats(at.a), at.a_step, floats(at.b), at.b_step,
                   reinterpret_cast<float*>(at.out), at.out_step,
                   reinterpret_cast<uint32_t*>(at.tile.scratch(at.step.scratch)));
}

// Does the same with a float32 library, after rounding both factors to bf16.
void add_rounded_outer(int64_t memory, int64_t descriptor, int64_t k) {
  Outer at(memory, descriptor, k);
  if (at.m <= 0) return;
  float* left = reinterpret_cast<float*>(at.tile.scratch(at.step.scratch));
  float* right = left + ROUNDED_ROWS * at.m;
  for (int64_t first = 0; first < at.n_rows; first += ROUNDED_ROWS) {
    int64_t n_rows = least(ROUNDED_ROWS, at.n_rows - first);
    round_rows(floats(at.a) + first * at.a_step, at.a_step, n_rows, at.m, left);
    round_rows(floats(at.b) + first * at.b_step, at.b_step, n_rows, at.n, right);
    call_product(at.step.routine, sizeof(float),
                 {1, 0, at.m, at.n, n_rows, reinterpret_cast<int64_t>(left), at.m, reinterpret_cast<int64_t>(right),
                  at.n, at.out, at.out_step},
                 1);
  }
}

namespace {

// Writes the sum of rows. Reads four rows at a time, so that sums are written 25% as often.
template <class T>
AUTOBATCH_INLINE void sum_rows(const T* rows, int64_t step, int64_t n_rows, int64_t width, T* total) {
  for (int64_t i = 0; i < width; i++) total[i] = 0;
  int64_t row = 0;
  for (; row + 4 <= n_rows; row += 4) {
    const T *a = rows + row * step, *b = a + step, *c = b + step, *d = c + step;
    for (int64_t i = 0; i < width; i++) total[i] += (a[i] + b[i]) + (c[i] + d[i]);
  }
  for (; row < n_rows; row++)
    for (int64_t i = 0; i < width; i++) total[i] += rows[row * step + i];
}

// Adds `total` to the elements from number `first` on of a matrix with n columns; `row` and `column` are its strides.
template <class T>
AUTOBATCH_INLINE void add_total(const T* total, int64_t size, int64_t first, int64_t n, T* target, int64_t row,
                                int64_t column) {
  if (column == 1 && row == n)
    for (int64_t i = 0; i < size; i++) target[first + i] += total[i];
  else
    for (int64_t i = 0; i < size; i++) target[(first + i) / n * row + (first + i) % n * column] += total[i];
}

template <class T>
void add_sum(int64_t memory, const WeightStep& step, int64_t k) {
  TileView tile(memory, step.n_fields, k);
  Strip strip(step.m * step.n, tile.fields[step.n_fields - 1], step.n_strips);
  int64_t width = strip.end - strip.first;
  T* total = reinterpret_cast<T*>(tile.scratch(step.scratch)) + strip.first;
  const T* rows = reinterpret_cast<const T*>(tile.address(step.a, step.itemsize)) + strip.first;
  Vectorized<sum_rows<T>>::run(rows, step.a.step, tile.fields[step.rows], width, total);
  for (int64_t number = 0; number < step.routine; number++) {
    const int64_t* gradient = tile.slots + step.gradient(number);
    Vectorized<add_total<T>>::run(total, width, strip.first, step.n, reinterpret_cast<T*>(gradient[0]), gradient[1],
                                  gradient[2]);
  }
}

}  // namespace

// Adds a strip of a sum of rows to gradients.
void add_row_sum(int64_t memory, int64_t descriptor, int64_t k) {
  const WeightStep& step = *reinterpret_cast<const WeightStep*>(descriptor);
  step.itemsize == 4 ? add_sum<float>(memory, step, k) : add_sum<double>(memory, step, k);
}

}  // namespace autobatch
