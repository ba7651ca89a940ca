// Layouts: the places of the parts of a form's calls in the log, and the parts that have derivatives.

#pragma once

#include "record/log.h"
#include "support/ints.h"

namespace autobatch {

// The ints or floats that a form logs for one part of the arguments; see `Item` in `autobatch.trace.forms`.
struct LogItem {
  int32_t kind;  // see `Code`
  int32_t group, size;
  int32_t first_part, n_parts;  // in `Layout::parts`
};

// A logged value, or one of the values of each list element. Its leaves are the value itself and the outputs after it.
struct LogPart {
  int32_t first_leaf, n_leaves, n_variables;
};

// A leaf of the arguments: the output that is `output` places after the value that is logged for a part of an item.
struct Leaf {
  int64_t leaf;
  int32_t item, part, output;
  int32_t variable;  // its index among the arguments with derivatives, or -1
};

// A result or an argument that may have derivatives.
struct Variable {
  int64_t name;    // the leaf, or the name of the output in `autobatch.trace.tape`
  int32_t output;  // the output of the call; -1 for arguments
  int32_t group;   // the group of its rows, or -1
  int32_t shape;   // an index into `Layout::shapes`
};

struct Layout {
  PyObject_HEAD
  int32_t form, n_lists;
  Vec<LogItem> ints, floats;
  Vec<LogPart> parts;
  Vec<Leaf> leaves;
  IntMap place_of;  // the index of a leaf in `leaves`
  Vec<Variable> outputs, arguments;
  PyObject* shapes;      // a tuple
  PyObject* parameters;  // a tuple of the parameters that the cell reads
  PyObject* count_rows;  // count_rows(group, lengths of lists): returns the number of rows of a group

  const Leaf* find(int64_t leaf) const {  // null if there is none
    int32_t place = place_of.find(leaf);
    return place < 0 ? nullptr : &leaves[place];
  }
  bool is_value(const Leaf& leaf) const;  // whether it is a value or a list of values, not data
  const Variable* find_output(int64_t name) const;
  PyObject* shape(const Variable& variable) const { return PyTuple_GET_ITEM(shapes, variable.shape); }
};

extern PyTypeObject LayoutType;

// Counts the ints that are logged for an item of n elements.
int64_t width(const LogItem& item, int64_t n);

// Returns the number of rows of a group: the length of a list, or the result of calling `count`; -1 with an error.
int64_t count_rows(PyObject* count, int32_t group, Span<const int64_t> lengths);

}  // namespace autobatch
