// Handles: the objects that stand for outputs of nodes while a program is recorded.
//
// A handle holds a ref, which numbers a call and one of its outputs, and the session of its log, by which handles of
// earlier recordings are recognized. Its class, made by `autobatch.trace.handles`, has the shape.
// A ref has 64 bits: the output in the lowest 8, the number of the call in the next 32, the row in the others.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

constexpr int ID_SHIFT = 8, ROW_SHIFT = 40;
constexpr int64_t ID_MASK = (int64_t(1) << (ROW_SHIFT - ID_SHIFT)) - 1;
constexpr int64_t MOST_REF_ROWS = int64_t(1) << (63 - ROW_SHIFT);  // that a ref can number
constexpr int64_t STALE_REF = ID_MASK << ID_SHIFT;                 // logged for a handle of another session

inline int64_t id_of(int64_t ref) { return ref >> ID_SHIFT & ID_MASK; }

struct Handle {
  PyObject_HEAD
  int64_t ref;
  uint32_t session;
  uint16_t slot;    // of its log
  uint16_t is_row;  // whether it is a row of a value of any number of rows
};

// A value of any number of rows: one output, or rows of such outputs in any order.
struct RowsHandle {
  Handle handle;
  int64_t n;
  PyObject* refs;   // a tuple of the refs of the rows; null for all rows of one output, in order
  PyObject* whole;  // all rows as one value, if recorded; never one with `refs`, so no value leads to itself
};

extern PyTypeObject HandleType, RowsType;

// Returns the ref of a handle; STALE_REF if it is of another session than the log.
inline int64_t ref_in(const Log* log, const Handle* handle) {
  return handle->session == log->session ? handle->ref : STALE_REF;
}

// Makes a handle of a sealed class. `make_rows` makes one of n rows, of a subclass of `RowsType`.
PyObject* make_handle(Log* log, PyTypeObject* kind, int64_t ref, bool is_row = false);
PyObject* make_rows(Log* log, PyTypeObject* kind, int64_t ref, int64_t n);

// seal(kind): prepares a class of handles, whose instances are allocated and freed here.
PyObject* seal(PyObject*, PyObject* kind);
bool is_sealed(PyObject* kind);

}  // namespace autobatch
