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

}  // namespace autobatch
