// Rules: how to record the derivatives of calls of a form; `autobatch.trace.tape` makes them.
//
// A derivative is recorded as a call of its own. It logs parts of the original call, some outputs of that call, and the
// derivatives that it is given.

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

// A result of a rule: the derivative of a leaf or an output, by name, or of a parameter of the call, by number.
struct DerivedResult {
  Derived kind;
  int64_t name;
  int32_t given;   // the given derivative that it equals; -1 if it is an output of the recorded call
  int32_t output;  // the number of that output
  int32_t group;   // the group of its rows, or -1
};

struct Rule {
  PyObject_HEAD
  int32_t base, form;  // forms of the original call and of the recorded call
  int32_t n_given;
  Vec<Columns*> ints, floats;
  Vec<int32_t> kept;  // the outputs of the original call that are logged
  Vec<int32_t> own;   // the given derivatives that are logged, in order
  Vec<DerivedResult> results;
  bool is_recorded;     // whether any result is an output of the recorded call
  bool asks_each_time;  // whether `serves` depends on the lengths of lists
  PyObject* serves;     // serves(lengths of lists): returns whether the rule fits a call
  PyObject* count_rows;
  uint64_t served;  // the last walk that asked `serves`, or made the rule
};

extern PyTypeObject RuleType;

}  // namespace autobatch
