#include "support/python.h"

namespace autobatch {

Ref call_object(PyObject* callable, PyObject* first, PyObject* second) {
  if (Py_EnterRecursiveCall(" while a call is recorded")) return Ref();
  PyObject* arguments[] = {first, second};
  Ref found(PyObject_Vectorcall(callable, arguments, second ? 2 : 1, nullptr));
  Py_LeaveRecursiveCall();
  return found;
}

}  // namespace autobatch
