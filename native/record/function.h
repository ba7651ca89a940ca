// Functions that replace cells while programs are recorded: each tries the forms that are known of its cell.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject FunctionType;

// Records a call of a known form by a function; null without an error if it has none.
PyObject* record_known_call(PyObject* function, PyObject* const* arguments, Py_ssize_t n);

// array_key(x): bytes that tell the content of a plain float array, with its shape and type; null without an error where
// it is none.
PyObject* key_of_array(PyObject* x);
PyObject* array_key(PyObject*, PyObject* x);

}  // namespace autobatch
