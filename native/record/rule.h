// Rules: how to record the derivatives of calls of a form; `autobatch.trace.tape` makes them.
//
// The derivative is recorded as a call, which logs parts of the first call, some of its outputs, and given derivatives.

#pragma once

#include "record/layout.h"

namespace autobatch {

// Columns of the rows of an item, or the whole item.
struct Columns {
  int32_t item;
  bool are_all;
  Vec<int32_t> columns;

  bool fits(const Vec<LogItem>& items) const;  // whether the item has these columns
};

enum class Derived : int32_t { OF_LEAF = 0, OF_PARAMETER = 1, OF_OUTPUT = 2 };

// What a result is the derivative of: a leaf or an output, by name, or a parameter of the call, by number.
struct DerivedResult {
  Derived kind;
  int64_t name;
  int32_t given;   // the given derivative that it equals; -1 if it is an output of the recorded call
  int32_t output;  // its number, in that case
  int32_t group;   // of its rows, or -1
};

struct Rule {
  PyObject_HEAD
  int32_t base, form;  // of the first call, and of the recorded call
  int32_t n_given;
  Vec<Columns*> ints, floats;
  Vec<int32_t> kept;  // outputs of the first call
  Vec<int32_t> own;   // the given derivatives that are logged, in order
  Vec<DerivedResult> results;
  bool is_recorded;     // whether any result is an output of the recorded call
  bool asks_each_time;  // whether `serves` depends on the lengths of lists
  PyObject* serves;     // serves(lengths of lists): whether the rule fits a call
  PyObject* count_rows;
  uint64_t served;  // the last walk that asked `serves`, or made the rule
};

extern PyTypeObject RuleType;

}  // namespace autobatch
