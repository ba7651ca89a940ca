// Derivatives during a walk over a tape: for each value and parameter, the terms whose sum is its derivative.

#pragma once

#include "record/log.h"
#include "support/ints.h"

namespace autobatch {

struct Derivatives {
  struct Term {
    int64_t ref;
    int32_t next;
  };
  // A linked list of terms.
  struct Sum {
    int32_t first, last, n;
  };

  PyObject_HEAD
  Log* log;
  IntMap of_value, of_parameter;  // index of the sum, by ref; by address of the parameter
  Vec<Sum> sums;
  Vec<Term> terms;
  PyObject* parameters;  // a tuple that keeps the parameters alive, because their addresses identify them

  // On failure, these functions set an error and return false.

  // Adds a term to the derivative of a key: a ref, or the address of a parameter.
  bool add(IntMap& sum_of, int64_t key, int64_t term);
  // Sets the derivative of a ref.
  bool set(int64_t value, int64_t term);
  // Records the sum of values; a single value is returned unchanged.
  bool add_up(Span<const int64_t> refs, PyObject* shape, int64_t& ref);
  // Replaces the terms of a sum with a single value, `ref`.
  bool make_one(int32_t sum, PyObject* shape, int64_t& ref);
  // Replaces a sum with a single value unless a batch can gather its terms. For that, all terms made by nodes of one
  // type must be the same output: a batch writes its outputs one after another, so it would otherwise be unclear which
  // write stores and which ones add.
  bool make_gatherable(int32_t sum, PyObject* shape);
  // Finds the derivative of a value as a single value; zeros if there is none.
  bool total_or_zeros(int64_t value, PyObject* shape, int64_t& ref);
};

extern PyTypeObject DerivativesType;

// Makes a `Derivatives` without terms; null with an error.
Derivatives* make_derivatives(Log* log, PyObject* parameters);

}  // namespace autobatch
