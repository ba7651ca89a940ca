// Derivatives being recorded: for each value and parameter, the terms that add up to its derivative.

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
  IntMap of_value, of_parameter;  // the sum of a ref; of a parameter, by its address
  Vec<Sum> sums;
  Vec<Term> terms;
  PyObject* parameters;  // a tuple, which keeps them alive while addresses identify them

  // On failure, these functions set an error and return false.

  // Adds a term to the derivative of a key: a ref, or the address of a parameter.
  bool add(IntMap& sum_of, int64_t key, int64_t term);
  // Sets the derivative of a ref.
  bool set(int64_t value, int64_t term);
  // Records the sum of values, unless there is just one.
  bool add_up(Span<const int64_t> refs, PyObject* shape, int64_t& ref);
  // Replaces the terms of a sum by a single value, `ref`.
  bool make_one(int32_t sum, PyObject* shape, int64_t& ref);
  // Makes a sum one value unless a batch can gather its terms: those made by one type must be of one output, because a
  // batch writes its outputs one after another.
  bool make_gatherable(int32_t sum, PyObject* shape);
  // Finds the derivative of a value as one value, zeros if there is none.
  bool total_or_zeros(int64_t value, PyObject* shape, int64_t& ref);
};

extern PyTypeObject DerivativesType;

// Makes a `Derivatives` without terms; null with an error.
Derivatives* make_derivatives(Log* log, PyObject* parameters);

}  // namespace autobatch
