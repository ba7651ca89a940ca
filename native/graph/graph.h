// The functions of this folder that Python calls; `graph.cpp` lists them, and `_native.pyi` has their types.

#pragma once

#include "support/python.h"

namespace autobatch {

PyObject* merge_words(PyObject*, PyObject* parts);

PyObject* rewrite_words(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* count_shared(PyObject*, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
