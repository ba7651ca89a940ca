// Functions that record the calls of cells: each tries the known forms of its cell.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

struct CallTemplate;

// How a function takes arguments: `bind` decides; by position or name; or any number, collected in a tuple and a dict.
enum Takes : int { OTHERWISE = 0, PLAIN = 1, COLLECTED = 2 };

struct Function {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* name;
  PyObject* names;     // names of the arguments, a tuple of strings
  PyObject* defaults;  // defaults of the last arguments, a tuple
  PyObject* bind;      // bind(args, kwargs): returns the list of all arguments, for calls that are not plain
  PyObject* slow;      // slow(arguments): handles calls of no known form
  PyObject* forms;     // a tuple of forms
  PyObject* wraps;     // the `Wraps` of each argument, as bytes; empty if none is wrapped
  Log* log;
  Vec<CallTemplate*> templates;  // of calls in folds; see `record/fold.h`
  int takes;
};

extern PyTypeObject FunctionType;

// Records a call of a known form in `log`, the current one of this thread. Returns null without an error if no form
// matches, or if the object is not a function that records in this log.
PyObject* record_known_call(const Log* log, PyObject* function, PyObject* const* arguments, Py_ssize_t n);

// Does the same for positional and named arguments, with arrays and parameters replaced by sources.
PyObject* record_values(const Log* log, PyObject* function, PyObject* const* args, Py_ssize_t n_args,
                        PyObject* kwnames);

// Returns whether an argument can be replaced by a source: whether it is an array, a parameter or an input.
bool is_source(Log* log, PyObject* x);

// Calls a function, as its vectorcall does.
PyObject* call_function(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// array_key(x): returns bytes that identify the content, shape and type of a plain float array; else None.
// `key_of_array` does the same for an array, but returns null, without an error, instead of None.
PyObject* key_of_array(PyObject* x);
PyObject* array_key(PyObject*, PyObject* x);

}  // namespace autobatch
