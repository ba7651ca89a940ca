// Rules: how to record the derivative of a call of one form; `autobatch.trace.tape` makes them.
//
// The call that a rule records logs parts of the first call, kept outputs of it, and the derivatives that are given.

#pragma once

#include "record/layout.h"

namespace autobatch {

// Columns of the rows of an item, or all of them.
struct Columns {
  int32_t item;
  bool are_all;
  Vec<int32_t> columns;

  bool fits(const Vec<LogItem>& items) const;  // whether the item has these columns
};

enum class Derived : int32_t { OF_LEAF = 0, OF_PARAMETER = 1, OF_OUTPUT = 2 };

// What a result is the derivative of: a leaf or an output, by name, or one of the parameters of the call.
struct DerivedResult {
  Derived kind;
  int64_t name;
  int32_t given;   // the given derivative that it equals; -1 if it is an output
  int32_t output;  // of the recorded call
  int32_t group;   // of its rows, or -1
};

struct Rule {
  PyObject_HEAD
  int32_t base, form;  // of the first call, and of the recorded one
  int32_t n_given;
  Vec<Columns*> ints, floats;
  Vec<int32_t> kept;  // outputs of the first call
  Vec<int32_t> own;   // the given derivatives that are logged, in order
  Vec<DerivedResult> results;
  bool is_recorded;     // whether any result is an output
  bool asks_each_time;  // whether `serves` depends on the lengths of lists
  PyObject* serves;     // serves(lengths of lists): whether the rule is right for a call
  PyObject* count_rows;
  uint64_t served;  // the walk in which `serves` was asked last
};

extern PyTypeObject RuleType;

}  // namespace autobatch
