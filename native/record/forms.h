// Forms: recognized ways to call a cell. A form tests whether arguments match it, and logs the call if they do.
//
// Numbered registers hold arguments and their parts. A step tests a register, or loads a part of it into another one; a
// writer logs the content of a register. `autobatch.trace.forms` makes both as tuples, which `Form` checks.

#pragma once

#include "record/handles.h"
#include "record/log.h"

namespace autobatch {

struct Program;

enum class Test : uint8_t {
  CLASS,      // has exactly the class `object`
  SIZE,       // is a tuple or list of n parts
  ITEM,       // loads part n of a tuple or list into `to`
  KEYS,       // is a dict with these keys, in order
  KEY,        // loads the value of a key
  ATTRIBUTE,  // loads an attribute
  ARRAY,      // is a plain array with this shape and one of these dtype kinds
  ROWS,       // is a plain array with any number of rows of this shape
  IS,         // is `object`
  EQUAL,      // has the class of `object` and equals it
  PLAIN,      // is a tuple of strings and ints that equal those of `object`, classes included
  SAME,       // is an x for which `call(x)` equals `object`
  EMPTY,      // is an empty list
  EACH,       // is a non-empty list whose elements all match a program
};

struct Step {
  Test test;
  int32_t from = 0, to = 0;
  int64_t n = 0;
  Ref object, call;
  Vec<int64_t> shape;
  uint32_t kinds = 0;  // bit k: dtype.kind may be 'a' + k
  Program* each = nullptr;
};

// Steps over registers. The caller sets the first registers, the steps set the others.
struct Program {
  Vec<Step*> steps;
  int32_t n_registers = 0;
  bool is_one_class() const;  // whether the only step is a class test
  ~Program();
};

enum class Writing : uint8_t { REF, REFS, COUNT, INT, INTS, EACH, DRAW, FLOAT, FLOATS, EACH_FLOATS, COUNT_DRAW };

struct Writer {
  Writing what;
  int32_t from = 0;
  Program* each = nullptr;  // of the elements of a list, borrowed from the step that tests them
  Vec<int32_t> registers;   // the registers to write for each element; for COUNT, the group
};

// One term of a derived group's length: the length of a slice of group `of`, or of n rows if `of` is -1, times the
// length of group `times`, unless that is -1.
struct LengthPart {
  int32_t of, times;
  int64_t n, start, stop, step;
};

struct Group {
  int32_t from = -1;  // the register of a list or rows; -1 for a derived group
  Vec<LengthPart> parts;
};

struct Bound {
  int32_t first, second;  // groups of equal length; if second is -1, the length of first must lie in least..most
  int64_t least, most;
};

struct Output {
  PyTypeObject* kind;
  int32_t group;  // the group of its rows, or -1
};

struct Form {
  PyObject_HEAD
  Log* log;
  int32_t number, n_arguments;
  Program* program;
  Vec<Group*> groups;
  Vec<Bound> bounds;  // on the lengths of groups
  Vec<int32_t> walked;
  PyObject* lengths;  // a set of tuples: known lengths of the `walked` groups, over which the cell's body iterates
  Vec<Writer*> ints, floats;
  Vec<Output> outputs;
  PyObject* kinds;  // keeps the classes alive
  static constexpr int32_t NOT_ASKED = -2;
  int32_t result_kind;  // an index into `Log::result_kinds`, for folds; -1 if there is none
  PyObject* structure;  // an output number, a nested tuple of them, or a function of the tuple of outputs
};

extern PyTypeObject FormType;

// Finds the number of the next random draw; returns false with an error.
bool next_draw(Log* log, int64_t& number);

// Logs a call with these n arguments, and returns its result. The form's log must be the current one of this thread.
// Returns null without an error if the arguments do not match.
PyObject* record_call(Form* form, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
