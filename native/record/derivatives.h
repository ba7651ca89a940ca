// Derivatives that are being recorded: for each value, and each parameter, the values that add up to it.

#pragma once

#include "record/log.h"
#include "support/ints.h"

namespace autobatch {

struct Derivatives {
  struct Term {
    int64_t ref;
    int32_t next;
  };
  // Terms that follow one another.
  struct Sum {
    int32_t first, last, n;
  };

  PyObject_HEAD
  Log* log;
  IntMap of_value, of_parameter;  // the sum of a ref, and of the address of a parameter
  Vec<Sum> sums;
  Vec<Term> terms;
  PyObject* parameters;  // a tuple of those whose addresses are known, to keep them

  // The functions that may fail set an error, and give false.

  // Adds a term to the derivative of a ref or of the address of a parameter.
  bool add(IntMap& sum_of, int64_t key, int64_t term);
  // Sets the derivative of a ref.
  bool set(int64_t value, int64_t term);
  // Records the sum of values, if they are not one.
  bool add_up(Span<const int64_t> refs, PyObject* shape, int64_t& ref);
  // Makes a sum one value, and gives it.
  bool make_one(int32_t sum, PyObject* shape, int64_t& ref);
  // Makes a sum one value unless a batch can gather its terms: those that one type makes must be of one output, because
  // a batch writes its outputs one after another.
  bool make_gatherable(int32_t sum, PyObject* shape);
  // Finds the derivative of a value, as one value; zeros if there is none.
  bool total_or_zeros(int64_t value, PyObject* shape, int64_t& ref);
};

extern PyTypeObject DerivativesType;

// Makes derivatives, of which none is known; null with an error.
Derivatives* make_derivatives(Log* log, PyObject* parameters);

}  // namespace autobatch
