// Cells: functions and methods marked with `@cell`. A call is recorded here if its thread is recording and the function
// that records the cell is known; Python handles all other calls.

#pragma once

#include "support/ints.h"
#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// The functions that record the cells of a log, by cell and owner; all of these objects are owned.
class CellFunctions {
 public:
  struct Known {
    PyObject *cell, *owner, *function;  // the owner is null unless the cell is a method
  };
  ~CellFunctions() {
    while (known_.size()) clear();
  }

  // Returns the function of a cell, borrowed; null if it is not known.
  PyObject* find(PyObject* cell, PyObject* owner) const {
    int32_t at = place_of_.find(key(cell, owner));
    return at >= 0 && known_[at].cell == cell && known_[at].owner == owner ? known_[at].function : nullptr;
  }
  // Adds or replaces a function; false with an error.
  bool add(PyObject* cell, PyObject* owner, PyObject* function);
  void clear();
  int traverse(visitproc visit, void* arg) const;

 private:
  static void drop(const Known& known);
  static int64_t key(PyObject* cell, PyObject* owner) {
    return (int64_t)((uint64_t)(uintptr_t)cell * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)owner);
  }

  IntMap place_of_;
  Vec<Known> known_;
};

// A cell bound to the object that it is a method of.
struct BoundCell {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *cell, *owner;
};

extern PyTypeObject CellType, BoundCellType;

// seal_cells(kind): prepares a class of cells, so that method calls skip `__get__`, and all calls `__call__`.
PyObject* seal_cells(PyObject*, PyObject* kind);

}  // namespace autobatch
