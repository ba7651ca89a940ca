#include "run/optimizer.h"

#include <math.h>

#include "support/processor.h"

namespace autobatch {
namespace {

constexpr int64_t N_ZEROS = 4096;  // numbers without a gradient that are updated at a time

inline float root_of(float x) { return sqrtf(x); }
inline double root_of(double x) { return sqrt(x); }

template <class T>
AUTOBATCH_INLINE void update_plainly(T* __restrict data, const T* __restrict grad, const T* constants, int64_t size) {
  T lr = constants[0], decay = constants[1];
  if (decay != 0)
    for (int64_t i = 0; i < size; i++) data[i] = data[i] - (data[i] * decay + grad[i]) * lr;
  else
    for (int64_t i = 0; i < size; i++) data[i] = data[i] - grad[i] * lr;
}

template <class T>
AUTOBATCH_INLINE void update_by_momentum(T* __restrict data, T* __restrict velocity, const T* __restrict grad,
                                         const T* constants, int64_t size) {
  T lr = constants[0], decay = constants[1], momentum = constants[2];
  bool is_nesterov = constants[3] != 0, decays = decay != 0;
  for (int64_t i = 0; i < size; i++) {
    T g = decays ? data[i] * decay + grad[i] : grad[i];
    T v = velocity[i] = velocity[i] * momentum + g;
    data[i] = data[i] - (is_nesterov ? v * momentum + g : v) * lr;
  }
}

template <class T>
AUTOBATCH_INLINE void update_by_moments(T* __restrict data, T* __restrict mean, T* __restrict mean_square,
                                        const T* __restrict grad, const T* constants, int64_t size) {
  T rate = constants[0], decay = constants[1], beta_1 = constants[2], beta_2 = constants[3], share_1 = constants[4],
    share_2 = constants[5], root = constants[6], eps = constants[7], shrink = constants[8];
  bool decays = decay != 0;
  for (int64_t i = 0; i < size; i++) {
    T x = data[i] * shrink, g = decays ? x * decay + grad[i] : grad[i];
    T m = mean[i] = mean[i] * beta_1 + g * share_1;
    T v = mean_square[i] = mean_square[i] * beta_2 + g * g * share_2;
    data[i] = x - m / (root_of(v) / root + eps) * rate;
  }
}

// Updates contiguous numbers by the rule that the state arrays select.
template <class T>
void update(T* data, T* first, T* second, const T* grad, const T* constants, int64_t size) {
  if (second)
    Vectorized<update_by_moments<T>>::run(data, first, second, grad, constants, size);
  else if (first)
    Vectorized<update_by_momentum<T>>::run(data, first, grad, constants, size);
  else
    Vectorized<update_plainly<T>>::run(data, grad, constants, size);
}

// Updates rows first:last of a parameter with a gradient of zero.
template <class T>
void update_without_gradient(const Parameter<T>& p, int64_t first, int64_t last, const T* constants) {
  static const T ZEROS[N_ZEROS] = {};
  int64_t at_once = p.step == p.width ? last - first : 1, width = at_once * p.width;
  for (int64_t row = first; row < last; row += at_once)
    for (int64_t i = 0; i < width; i += N_ZEROS) {
      int64_t at = row * p.width + i;
      update(p.data + row * p.step + i, p.first ? p.first + at : nullptr, p.second ? p.second + at : nullptr, ZEROS,
             constants, width - i < N_ZEROS ? width - i : N_ZEROS);
    }
}

// Updates one row.
template <class T>
void update_row(const Parameter<T>& p, int64_t row, const T* grad, const T* constants) {
  int64_t at = row * p.width;
  update(p.data + row * p.step, p.first ? p.first + at : nullptr, p.second ? p.second + at : nullptr, grad, constants,
         p.width);
}

}  // namespace

template <class T>
RowsChanged rows_that_change(bool has_first, bool has_second, const T* constants) {
  // Tries the rule on one number whose gradient and state are zero, because it treats all such numbers alike.
  T number = 1, first = 0, second = 0, zero = 0;
  update(&number, has_first ? &first : nullptr, has_second ? &second : nullptr, &zero, constants, 1);
  if (number != 1 || first != 0 || second != 0) return RowsChanged::ALL;
  return has_first ? RowsChanged::TOUCHED : RowsChanged::GIVEN;
}

template <class T>
void update_dense(const Parameter<T>& p, const T* grad, int64_t grad_step, const T* constants) {
  if (p.step == p.width && grad_step == p.width)
    update(p.data, p.first, p.second, grad, constants, p.n_rows * p.width);
  else
    for (int64_t row = 0; row < p.n_rows; row++) update_row(p, row, grad + row * grad_step, constants);
}

template <class T>
void update_rows(const Parameter<T>& p, Span<const int64_t> ids, const T* values, uint8_t* touched, const T* constants,
                 bool is_lazy) {
  RowsChanged which = is_lazy ? RowsChanged::GIVEN : rows_that_change(p.first, p.second, constants);
  int64_t row = 0;
  // Before each id, and after the last one, lies a gap of rows without a gradient. Within a gap, ALL updates every row,
  // TOUCHED every run of rows that ever had a gradient, and GIVEN no rows.
  for (ptrdiff_t at = 0; at <= ids.size; at++) {
    int64_t stop = at < ids.size ? ids[at] : p.n_rows;
    while (which != RowsChanged::GIVEN && row < stop) {
      int64_t end = row;
      while (end < stop && (which == RowsChanged::ALL || touched[end])) end++;
      update_without_gradient(p, row, end, constants);
      for (row = end; row < stop && which == RowsChanged::TOUCHED && !touched[row];) row++;
    }
    if (at == ids.size) break;
    touched[stop] = 1;
    update_row(p, stop, values + at * p.width, constants);
    row = stop + 1;
  }
}

#define INSTANTIATE(T)                                                          \
  template RowsChanged rows_that_change(bool, bool, const T*);                  \
  template void update_dense(const Parameter<T>&, const T*, int64_t, const T*); \
  template void update_rows(const Parameter<T>&, Span<const int64_t>, const T*, uint8_t*, const T*, bool);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace autobatch
