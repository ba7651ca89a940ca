#include "support/arrays.h"

namespace autobatch {

bool check_array(PyObject* object, const char* what, int type, const char* type_name, int ndim) {
  if (!PyArray_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s must be an array of %s, got %.80s", what, type_name, Py_TYPE(object)->tp_name);
    return false;
  }
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_TYPE(array) != type || !PyArray_ISNOTSWAPPED(array)) {
    PyErr_Format(PyExc_TypeError, "%s must be an array of %s, got one of %S", what, type_name, PyArray_DESCR(array));
    return false;
  }
  if (PyArray_NDIM(array) != ndim || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISALIGNED(array)) {
    PyErr_Format(PyExc_ValueError, "%s must be a contiguous array of %d dimensions, got one of %d", what, ndim,
                 PyArray_NDIM(array));
    return false;
  }
  return true;
}

bool read_int(PyObject* object, const char* what, int32_t& number) {
  int overflow = 0;
  long long found = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (found == -1 && PyErr_Occurred()) return false;
  if (overflow || found < INT32_MIN || found > INT32_MAX) {
    PyErr_Format(PyExc_ValueError, "%s must be an int of 32 bits, got %R", what, object);
    return false;
  }
  number = (int32_t)found;
  return true;
}

}  // namespace autobatch
