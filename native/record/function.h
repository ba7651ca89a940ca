// Functions that replace cells while programs are recorded: each tries the forms that are known of its cell.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject FunctionType;

// array_key(x): bytes that tell the content of a plain float array, with its shape and type; null without an error where
// it is none.
PyObject* key_of_array(PyObject* x);
PyObject* array_key(PyObject*, PyObject* x);

}  // namespace autobatch
