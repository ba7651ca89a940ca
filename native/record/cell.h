// Cells: functions and methods marked with `@cell`. A call is recorded here if its thread is recording and the function
// that records the cell is known; Python handles all other calls.

#pragma once

#include "support/ints.h"
#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// Maps a cell and its owner to the function that records its calls in a log. Owns references to all three.
class CellFunctions {
 public:
  struct Known {
    PyObject *cell, *owner, *function;  // the owner is null unless the cell is a method
  };
  ~CellFunctions() {
    while (known_.size()) clear();
  }

  // Returns a borrowed reference to the function of a cell; null if there is none.
  PyObject* find(PyObject* cell, PyObject* owner) const {
    int32_t at = place_of_.find(key(cell, owner));
    return at >= 0 && known_[at].cell == cell && known_[at].owner == owner ? known_[at].function : nullptr;
  }
  // Adds or replaces a function; returns false with an error.
  bool add(PyObject* cell, PyObject* owner, PyObject* function);
  void clear();
  int traverse(visitproc visit, void* arg) const;

 private:
  static void drop(const Known& known);
  // Keys may collide: `find` compares the pointers, and `add` replaces the other entry, whose calls then go to Python.
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

// seal_cells(kind): prepares a class of cells: method calls then skip `__get__`, and all calls skip `__call__`.
PyObject* seal_cells(PyObject*, PyObject* kind);

}  // namespace autobatch
