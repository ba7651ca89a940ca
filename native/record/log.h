// The log of a recording: the calls of cells, as ints and floats, and the forms that they have.
//
// A call is logged as the ref of what it returns, then what the code of its form says; `decode` makes a graph of it. Ids
// of calls count up from 0 in each session: a recording, or all phases of an async one.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

struct Log {
  PyObject_HEAD
  PyObject* owner;  // what is the stage of a thread while it records here
  PyObject* draw;   // gives the number of the next draw of random numbers; null to count the draws of an instance
  PyObject* sources;  // what stands for arrays and parameters in this instance: a dict
  PyObject* source;   // the function that records an array as a node
  PyObject* functions;  // those that record functions made of ops: a dict
  uint32_t session;
  uint16_t slot;
  bool counts;  // whether it counts the handles of each call
  bool busy;    // while it is decoded without the interpreter lock, or a call is written, which may call Python
  int64_t begun_ints, begun_floats;  // how long both were when the instance began
  int64_t n_instances, n_draws;
  Vec<int64_t> ints;
  Vec<double> floats;
  Vec<int32_t> form_of;         // by id
  Vec<int32_t> code, code_ptr;  // what each form logs
  int64_t first_id;             // of the present phase
  Vec<int32_t> node_of;         // by id, of earlier phases: the node, or -1
  Vec<int32_t> alive;           // by id: handles in use
  Vec<int32_t> survivors;       // ids that were in use at the last sweep
  int64_t swept;                // ids below were swept once

  // Adds a call of a form whose items follow, and gives its id; -1 with an error.
  int64_t add_call(int32_t form);
  // Counts a handle that is made or gone.
  void count(int64_t ref, int by);
};

extern PyTypeObject LogType;

// Sets an error if a log is busy.
bool refuse_if_busy(Log* log);

// The log in a slot; null if it is gone.
Log* log_in(uint16_t slot);

}  // namespace autobatch
