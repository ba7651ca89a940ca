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

bool read_long(PyObject* object, const char* what, int64_t& number) {
  if (!PyLong_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s must be an int, got %.80s", what, Py_TYPE(object)->tp_name);
    return false;
  }
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow) PyErr_Format(PyExc_ValueError, "%s must be an int of 64 bits, got %R", what, object);
  return !overflow;
}

bool read_int(PyObject* object, const char* what, int32_t& number) {
  int64_t found;
  if (!read_long(object, what, found)) return false;
  number = (int32_t)found;
  if (number == found) return true;
  PyErr_Format(PyExc_ValueError, "%s must be an int of 32 bits, got %R", what, object);
  return false;
}

bool read_double(PyObject* object, const char* what, double& number) {
  if (PyFloat_Check(object)) {
    number = PyFloat_AS_DOUBLE(object);
    return true;
  }
  if (!PyLong_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s must be a float, got %.80s", what, Py_TYPE(object)->tp_name);
    return false;
  }
  number = PyLong_AsDouble(object);
  return number != -1 || !PyErr_Occurred();
}

}  // namespace autobatch
