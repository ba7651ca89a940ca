// The update rules of the optimizers. Each number of a parameter and of its state is read and written once.
//
// The number of state arrays selects the rule: none for plain SGD, one for momentum, two for the moments of Adam. Every
// operation is rounded as in NumPy, so results are bit-identical in any order of rows, and for any number of rows at a
// time.

#pragma once

#include "support/vec.h"

namespace autobatch {

// The hyperparameters of a rule, in the dtype of the parameter.
//
// - no state: lr, decay.
// - one array: lr, decay, momentum, and 1 for Nesterov's form or else 0.
// - two arrays: the rate, the decay that is added to the gradient, beta_1, beta_2, 1 - beta_1, 1 - beta_2, the root of
//   1 - beta_2**step, eps, and the factor by which the parameter shrinks first.
constexpr ptrdiff_t N_CONSTANTS = 9;

enum class RowsChanged { GIVEN, TOUCHED, ALL };  // rows with a gradient; also rows that ever had one; all rows

// A parameter in memory: rows of `width` numbers with a row stride of `step`. Its state arrays are contiguous, or null.
template <class T>
struct Parameter {
  int64_t n_rows, width, step;
  T *data, *first, *second;
};

// Determines which rows the rule changes; other rows without a gradient can be skipped.
template <class T>
RowsChanged rows_that_change(bool has_first, bool has_second, const T* constants);

// Updates all rows; `grad_step` is the row stride of the gradient.
template <class T>
void update_dense(const Parameter<T>& parameter, const T* grad, int64_t grad_step, const T* constants);

// Updates the rows with these ids, which must strictly increase, by the gradients `values`; unless `is_lazy`, also the
// rows without a gradient that the rule changes. `touched` marks the rows that ever had a gradient, and is updated.
template <class T>
void update_rows(const Parameter<T>& parameter, Span<const int64_t> ids, const T* values, uint8_t* touched,
                 const T* constants, bool is_lazy);

}  // namespace autobatch
