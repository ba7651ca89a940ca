// Async programs of instances: one resumes until it waits for values, and is answered with their numbers.
//
// The core runs a program while only its root branch runs, and that branch requests one value or a tuple of values.
// `autobatch.trace.driving` handles everything else: branches, ends, errors, and requests of other structures.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

// A request for the numbers of values, which is its own iterator: it yields itself, and returns the answer.
struct Request {
  PyObject_HEAD
  PyObject* values;  // null after they were read
  char is_awaited, is_sent;
};

// The state of a program whose root branch runs alone.
struct AsyncProgram {
  PyObject_HEAD
  PyObject* steps;  // resumes the root branch; null or None if Python must advance the program
  PyObject* draw;   // returns the number of the next draw of random numbers
  PyObject* reply;  // the answer with which the branch resumes; null for None
  PyObject* asked;  // the request that the branch waits for, or null
  char is_over;
};

extern PyTypeObject RequestType, AsyncProgramType;

// Methods of logs.
PyObject* advance_programs(PyObject* self, PyObject* const* args, Py_ssize_t n_args);
PyObject* answer_programs(PyObject* self, PyObject* const* args, Py_ssize_t n_args);
PyObject* read_request(PyObject* self, PyObject* const* args, Py_ssize_t n_args);

}  // namespace autobatch
