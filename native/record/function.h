// Functions that replace cells while programs are recorded: each tries the known forms of its cell.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject FunctionType;

// Records a call of a known form by a function; null without an error if it has none.
PyObject* record_known_call(PyObject* function, PyObject* const* arguments, Py_ssize_t n);

// array_key(x): bytes that identify the content, shape and type of a plain float array; None for anything else.
// key_of_array does the same for an array, with null, without an error, in place of None.
PyObject* key_of_array(PyObject* x);
PyObject* array_key(PyObject*, PyObject* x);

}  // namespace autobatch
