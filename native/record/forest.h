// Forests: the nodes of trees and DAGs as arrays, children first, with their fields in columns.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

enum class Field : uint8_t { ABSENT, INT, FLOAT, OBJECT };

// A field of all nodes.
struct Column {
  Ref name;
  Vec<uint8_t> kinds;  // a `Field` for each node
  Vec<int64_t> words;  // the int, the bits of the float, or the owned object, of each node
  ~Column();
  // Adds the value of the next node; null for a node without the field. False with an error.
  bool add(PyObject* value);
  double float_at(int32_t node) const {
    double number;
    memcpy(&number, &words[node], sizeof number);
    return number;
  }
  // Returns the value of a node; null without an error if the node lacks the field.
  PyObject* value(int32_t node) const;
  // Whether the value of a node is true, as Python defines it; false if it is absent, -1 with an error.
  int is_true(int32_t node) const;
};

struct Forest {
  PyObject_HEAD
  int32_t n;
  Vec<int32_t> order;             // all nodes, children before parents
  Vec<int32_t> child_ptr, child;  // the children of each node, in order; -1 for a missing one
  Vec<int32_t> roots;             // nodes that are children of none
  bool is_chain;                  // whether each node has one child, but for the first
  Vec<Column*> columns;

  Span<const int32_t> children(int32_t node) const {
    return Span<const int32_t>(child).part(child_ptr[node], child_ptr[node + 1]);
  }
};

extern PyTypeObject ForestType;

}  // namespace autobatch
