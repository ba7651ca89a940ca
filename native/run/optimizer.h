// The rules of the optimizers: each number of a parameter, and of its state, is read and written once.
//
// The number of state arrays selects the rule: none is plain descent, one is momentum, two are the moments of Adam.
// Every operation is rounded as NumPy rounds it, so the order of rows, and the number of rows processed together,
// changes no bit.

#pragma once

#include "support/vec.h"

namespace autobatch {

// The hyperparameters of a rule, in the dtype of the parameter.
//
// - none: lr, decay.
// - one: lr, decay, momentum, and 1 for Nesterov's form or 0.
// - two: the rate, the decay that is added to the gradient, both betas, 1 - each, the root of 1 - beta_2**step, eps,
// and
//   the factor by which the numbers shrink first.
constexpr ptrdiff_t N_CONSTANTS = 9;

enum class RowsChanged { GIVEN, TOUCHED, ALL };  // those with a gradient; those that ever had one too; all

// A parameter in memory: rows of `width` numbers, `step` apart. Its state is contiguous, or null.
template <class T>
struct Parameter {
  int64_t n_rows, width, step;
  T *data, *first, *second;
};

// Determines which rows the rule changes: rows without a gradient are skipped if they would stay the same.
template <class T>
RowsChanged rows_that_change(bool has_first, bool has_second, const T* constants);

// Changes all rows; those of the gradient begin `grad_step` numbers apart.
template <class T>
void update_dense(const Parameter<T>& parameter, const T* grad, int64_t grad_step, const T* constants);

// Changes the rows with these ids, which increase, by the rows `values`; and rows without a gradient, unless `is_lazy`.
// `touched` says which rows ever had a gradient, and is updated.
template <class T>
void update_rows(const Parameter<T>& parameter, Span<const int64_t> ids, const T* values, uint8_t* touched,
                 const T* constants, bool is_lazy);

}  // namespace autobatch
