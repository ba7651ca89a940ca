#include "support/python.h"

#include <stdarg.h>

namespace autobatch {
namespace {

// A nested call takes 2 KB of the stack. Python's own limit is not enough: it counts Python frames, or allows 10,000
// calls in C.
constexpr int MOST_NESTED = 200;
thread_local int n_nested = 0;

}  // namespace

Ref call_object(PyObject* callable, PyObject* first, PyObject* second) {
  if (n_nested == MOST_NESTED) {
    PyErr_SetString(PyExc_RecursionError, "calls are nested too deeply while one is recorded");
    return Ref();
  }
  PyObject* arguments[] = {first, second};
  n_nested++;
  Ref found(PyObject_Vectorcall(callable, arguments, second ? 2 : 1, nullptr));
  n_nested--;
  return found;
}

void set_data_error(const char* format, ...) {
  Ref errors(PyImport_ImportModule("autobatch.errors"));
  Ref kind(errors ? PyObject_GetAttrString(errors.get(), "DataError") : nullptr);
  if (!kind) return;
  va_list parts;
  va_start(parts, format);
  PyErr_FormatV(kind.get(), format, parts);
  va_end(parts);
}

}  // namespace autobatch
