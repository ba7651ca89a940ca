// Handles: the objects that represent outputs of nodes while a program is recorded.
//
// A handle holds a ref, which names a call and one of its outputs, and the session of its log, which tells handles of
// earlier recordings apart. Its class, made by `autobatch.trace.handles`, has the shape. A ref has 64 bits: the output
// in bits 0 to 7, the id of the call in bits 8 to 39, and the row in bits 40 to 62; the sign bit is 0.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

constexpr int ID_SHIFT = 8, ROW_SHIFT = 40;
constexpr int64_t ID_MASK = (int64_t(1) << (ROW_SHIFT - ID_SHIFT)) - 1;
constexpr int64_t MOST_REF_ROWS = int64_t(1) << (63 - ROW_SHIFT);  // the most rows that a ref can number
constexpr int64_t STALE_REF = ID_MASK << ID_SHIFT;                 // logged for handles of other sessions

inline int64_t id_of(int64_t ref) { return ref >> ID_SHIFT & ID_MASK; }

struct Handle {
  PyObject_HEAD
  int64_t ref;
  uint32_t session;
  uint16_t slot;    // the slot of its log
  uint16_t is_row;  // whether it is one row of a value with any number of rows
};

// A value with any number of rows: all rows of one output, or rows of several outputs in any order.
struct RowsHandle {
  Handle handle;
  int64_t n;
  PyObject* refs;   // a tuple with the ref of each row; null for all rows of one output, in order
  PyObject* whole;  // all rows as one value, if recorded; it has no `refs` itself, so there are no reference cycles
};

extern PyTypeObject HandleType, RowsType;

// Returns the ref of a handle; STALE_REF if the handle belongs to another session than the log's current one.
inline int64_t ref_in(const Log* log, const Handle* handle) {
  return handle->session == log->session ? handle->ref : STALE_REF;
}

// Makes a handle of a sealed class. `make_rows` makes one with n rows; its class must be a subclass of `RowsType`.
PyObject* make_handle(Log* log, PyTypeObject* kind, int64_t ref, bool is_row = false);
PyObject* make_rows(Log* log, PyTypeObject* kind, int64_t ref, int64_t n);

// seal(kind): prepares a class of handles, whose instances are then allocated and freed by this module.
PyObject* seal(PyObject*, PyObject* kind);
bool is_sealed(PyObject* kind);

}  // namespace autobatch
