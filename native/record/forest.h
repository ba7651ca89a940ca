// Forests: trees and DAGs as arrays, with a topological order, children first, and the fields of nodes in columns.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

enum class Field : uint8_t { ABSENT, INT, FLOAT, OBJECT };

// The values of one field, for all nodes.
struct Column {
  Ref name;
  Vec<uint8_t> kinds;  // a `Field` for each node
  Vec<int64_t> words;  // for each node, an int, the bits of a float, or an owned reference
  ~Column();
  // Appends the value of the next node, null if it lacks the field; returns false with an error.
  bool add(PyObject* value);
  double float_at(int32_t node) const {
    double number;
    memcpy(&number, &words[node], sizeof number);
    return number;
  }
  // Returns the value of a node; null without an error if the node lacks the field.
  PyObject* value(int32_t node) const;
  // Returns the truth of a node's value, as Python defines it; 0 if the field is absent, -1 with an error.
  int is_true(int32_t node) const;
};

struct Forest {
  PyObject_HEAD
  int32_t n;
  Vec<int32_t> order;             // all nodes, children before parents
  Vec<int32_t> child_ptr, child;  // the children of each node, in order; -1 for a missing one
  Vec<int32_t> roots;             // nodes without parents
  bool is_chain;                  // whether each node but the first has exactly one child
  Vec<Column*> columns;

  Span<const int32_t> children(int32_t node) const {
    return Span<const int32_t>(child).part(child_ptr[node], child_ptr[node + 1]);
  }
};

extern PyTypeObject ForestType;

}  // namespace autobatch
