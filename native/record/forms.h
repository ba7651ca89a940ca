// Forms: recognized ways to call a cell. A form tests whether arguments match it, and logs a call that does.
//
// Arguments, and parts of them, are in numbered registers. Steps test registers and load parts into others; writers log
// what registers hold. `autobatch.trace.forms` makes both, as tuples; `Form::read` checks them.

#pragma once

#include "record/handles.h"
#include "record/log.h"

namespace autobatch {

struct Program;

enum class Test : uint8_t {
  CLASS,      // its class is `object`
  SIZE,       // a tuple or a list of n parts
  ITEM,       // loads part n of a tuple or a list into `to`
  KEYS,       // a dict with these keys, in order
  KEY,        // loads the value of a key
  ATTRIBUTE,  // loads an attribute
  ARRAY,      // a plain array of this shape and these kinds of numbers
  ROWS,       // a plain array of any number of rows of this shape
  IS,         // is `object`
  EQUAL,      // is of the class of `object`, and equal to it
  PLAIN,      // is a tuple of texts and ints, of the same classes and equal to those of `object`
  SAME,       // `call`, applied to it, gives something equal to `object`
  EMPTY,      // an empty list
  EACH,       // a list with elements, all of which match a program
};

struct Step {
  Test test;
  int32_t from = 0, to = 0;
  int64_t n = 0;
  Ref object, call;
  Vec<int64_t> shape;
  uint32_t kinds = 0;  // bit k: dtype.kind is 'a' + k
  Program* each = nullptr;
};

// Tests, and loads, of registers of which the first are given.
struct Program {
  Vec<Step*> steps;
  int32_t n_registers = 0;
  bool is_one_class() const;  // tests nothing but the class of its register
  ~Program();
};

enum class Writing : uint8_t { REF, REFS, COUNT, INT, INTS, EACH, DRAW, FLOAT, FLOATS, EACH_FLOATS, COUNT_DRAW };

struct Writer {
  Writing what;
  int32_t from = 0;
  Program* each = nullptr;  // of the elements of a list, borrowed from the step that tests them
  Vec<int32_t> registers;   // of an element: what is written
};

// Part of a group's length: of rows of a slice of another group, or of n.
struct LengthPart {
  int32_t of, times;
  int64_t n, start, stop, step;
};

struct Group {
  int32_t from = -1;  // the register of a list or rows; -1 for a derived group
  Vec<LengthPart> parts;
};

struct Bound {
  int32_t first, second;  // groups; second is -1 for a number
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
  Vec<Bound> bounds;  // on lengths: equal ones, one, at least
  Vec<int32_t> walked;
  PyObject* lengths;  // of walked groups: a set of tuples
  Vec<Writer*> ints, floats;
  Vec<Output> outputs;
  PyObject* kinds;      // keeps the classes
  PyObject* structure;  // tuples of numbers of outputs; or a function of the tuple of outputs
};

extern PyTypeObject FormType;

// Logs a call with these arguments in the log of this thread, which must be that of the form, and makes the result;
// null without an error if the arguments do not match.
PyObject* record_call(Form* form, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
