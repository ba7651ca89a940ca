// Cells: what users mark with `@cell`. A call of one is recorded if its thread records and its function is known;
// Python takes all other calls.

#pragma once

#include "support/ints.h"
#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// The functions that record the cells of one log, by cell and owner; all are owned.
class CellFunctions {
 public:
  struct Known {
    PyObject *cell, *owner, *function;  // the owner is null for a function
  };
  ~CellFunctions() { clear(); }

  // The function of a cell, borrowed; null if none is known.
  PyObject* find(PyObject* cell, PyObject* owner) const {
    int32_t at = place_of_.find(key(cell, owner));
    return at >= 0 && known_[at].cell == cell && known_[at].owner == owner ? known_[at].function : nullptr;
  }
  // Adds a function, or replaces the known one; false with an error.
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

extern PyTypeObject CellType, BoundCellType;

// seal_cells(kind): prepares a class of cells: calls and methods of its instances skip `__get__` and `__call__`.
PyObject* seal_cells(PyObject*, PyObject* kind);

}  // namespace autobatch
