// Layouts: where the parts of the calls of a form lie in the log, and which of them have derivatives.

#pragma once

#include "record/log.h"
#include "support/ints.h"

namespace autobatch {

// What a form logs of one part of the arguments, as ints or as floats; see `Item` of `autobatch.trace.forms`.
struct LogItem {
  int32_t kind;  // see `Code`
  int32_t group, size;
  int32_t first_part, n_parts;  // among those of the layout
};

// Of a value, or of one value of each element of a list, the leaves that it and its next outputs are.
struct LogPart {
  int32_t first_leaf, n_leaves, n_variables;
};

// A leaf of the arguments: the output with this number behind what an item logs.
struct Leaf {
  int64_t leaf;
  int32_t item, part, output;
  int32_t variable;  // among the arguments with derivatives, or -1
};

// A result, or an argument, that may have derivatives.
struct Variable {
  int64_t name;    // the leaf, or what `autobatch.trace.tape` calls the output
  int32_t output;  // of the call; -1 for arguments
  int32_t group;   // of its rows, or -1
  int32_t shape;   // its number
};

struct Layout {
  PyObject_HEAD
  int32_t form, n_lists;
  Vec<LogItem> ints, floats;
  Vec<LogPart> parts;
  Vec<Leaf> leaves;
  IntMap place_of;  // of a leaf, among the leaves
  Vec<Variable> outputs, arguments;
  PyObject* shapes;      // a tuple
  PyObject* parameters;  // that the cell reads: a tuple
  PyObject* count_rows;  // count_rows(group, lengths of lists)

  const Leaf* find(int64_t leaf) const {  // null if there is none
    int32_t place = place_of.find(leaf);
    return place < 0 ? nullptr : &leaves[place];
  }
  bool is_value(const Leaf& leaf) const;  // or the values of a list, rather than data
  const Variable* find_output(int64_t name) const;
  PyObject* shape(const Variable& variable) const { return PyTuple_GET_ITEM(shapes, variable.shape); }
};

extern PyTypeObject LayoutType;

// How many ints, or floats, an item of n elements has.
int64_t width(const LogItem& item, int64_t n);

// The number of rows of a group: that of a list, or what Python counts; -1 with an error.
int64_t count_rows(PyObject* count, int32_t group, Span<const int64_t> lengths);

}  // namespace autobatch
