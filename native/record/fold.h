// Folds: call a function for each node of a forest, with the results of its children.
//
// Calls of cells with a known form are logged from templates, without making any Python object. A template lists the
// numbers that the writers of the matching form would log for arguments of certain kinds.

#pragma once

#include "record/forest.h"
#include "record/function.h"

namespace autobatch {

// Folds a forest, and scans a chain; see `Forest` in `autobatch/_native.pyi`.
PyObject* fold_forest(Forest* forest, PyObject* node, PyObject* leaf, PyObject* each, PyObject* where, bool is_spread);
PyObject* scan_chain(Forest* forest, PyObject* step, PyObject* each, PyObject* where, PyObject* initial);

// Frees the templates of a function.
void forget_templates(Function* function);

}  // namespace autobatch
