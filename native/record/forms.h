// Forms: recognized ways to call a cell. A form tests whether arguments match it, and logs the call if they do.
//
// Arguments and their parts are in numbered registers. Steps test registers and load parts into others; writers log
// what registers hold. `autobatch.trace.forms` makes both, as tuples, which are checked when a `Form` is made.

#pragma once

#include "record/handles.h"
#include "record/log.h"

namespace autobatch {

struct Program;

enum class Test : uint8_t {
  CLASS,      // is of the class `object`
  SIZE,       // is a tuple or a list of n parts
  ITEM,       // loads part n of a tuple or a list into `to`
  KEYS,       // is a dict with these keys, in order
  KEY,        // loads the value of a key
  ATTRIBUTE,  // loads an attribute
  ARRAY,      // is a plain array of this shape and these kinds of numbers
  ROWS,       // is a plain array of any number of rows of this shape
  IS,         // is `object`
  EQUAL,      // is of the class of `object`, and equal to it
  PLAIN,      // is a tuple of strings and ints, of the same classes and equal to those of `object`
  SAME,       // `call` of it equals `object`
  EMPTY,      // is an empty list
  EACH,       // is a non-empty list, whose elements all match a program
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

// Steps over registers, the first of which are given.
struct Program {
  Vec<Step*> steps;
  int32_t n_registers = 0;
  bool is_one_class() const;  // tests only the class of its register
  ~Program();
};

enum class Writing : uint8_t { REF, REFS, COUNT, INT, INTS, EACH, DRAW, FLOAT, FLOATS, EACH_FLOATS, COUNT_DRAW };

struct Writer {
  Writing what;
  int32_t from = 0;
  Program* each = nullptr;  // of the elements of a list, borrowed from the step that tests them
  Vec<int32_t> registers;   // those to write of each element; for COUNT, a group instead
};

// Part of a group's length: that of a slice of group `of` (-1: of n rows), times that of group `times` (-1: one).
struct LengthPart {
  int32_t of, times;
  int64_t n, start, stop, step;
};

struct Group {
  int32_t from = -1;  // the register of a list or rows; -1 for a derived group
  Vec<LengthPart> parts;
};

struct Bound {
  int32_t first, second;  // groups of equal length; or second is -1, and the length of first is in least..most
  int64_t least, most;
};

struct Output {
  PyTypeObject* kind;
  int32_t group;  // of its rows, or -1
};

struct Form {
  PyObject_HEAD
  Log* log;
  int32_t number, n_arguments;
  Program* program;
  Vec<Group*> groups;
  Vec<Bound> bounds;  // on the lengths of groups
  Vec<int32_t> walked;
  PyObject* lengths;  // a set of tuples: the known lengths of walked groups
  Vec<Writer*> ints, floats;
  Vec<Output> outputs;
  PyObject* kinds;  // keeps the classes alive
  static constexpr int32_t NOT_ASKED = -2;
  int32_t result_kind;  // in `Log::result_kinds`, for folds; -1 if there is none
  PyObject* structure;  // the number of an output, tuples of those, or a function of the tuple of outputs
};

extern PyTypeObject FormType;

// Takes the number of the next random draw; false with an error.
bool next_draw(Log* log, int64_t& number);

// Logs a call with these arguments in the log of the form, which must be that of this thread, and makes the result;
// null without an error if the arguments do not match.
PyObject* record_call(Form* form, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
