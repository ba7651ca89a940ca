// The log of a recording: the calls of cells, as ints and floats, and their forms.
//
// A call is logged as the ref of its first output, then what the code of its form says; `decode` makes a graph of it.
// Calls are numbered from 0 in each session: a recording, or all phases of an async one.

#pragma once

#include "record/cell.h"
#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// An edge of a call of fixed width: where its ref is among the ints after the call's own ref, what to add to the
// output, and the port that reads it.
struct FixedEdge {
  int32_t offset, output, port;
};

// How to read the calls of a form without lists and long data: they all log the same number of ints.
struct FixedForm {
  bool is_fixed;
  int32_t type_id, width, first_edge, n_edges, first_word, n_words;
};

// The values that calls return: their classes, and how they are nested.
struct ResultKind {
  Ref classes;    // a tuple of (class, group) for each output
  Ref structure;  // the number of an output, or tuples of those
};

struct Log {
  PyObject_HEAD
  PyObject* owner;       // the stage of a thread that records here
  PyObject* draw;        // returns the number of the next random draw; if null, the draws of each instance are counted
  PyObject* sources;     // a dict: the values of arrays and parameters in this instance
  PyObject* source;      // the function that records an array as a node
  PyObject* treatments;  // a dict: by class, how lifting treats arguments
  PyObject* treatment_of;  // treatment_of(x): how lifting treats the class of x
  PyObject* functions;     // a dict: what records an op, a function made of ops, or, by `id`, a parameter
  CellFunctions cells;
  uint32_t session;
  uint16_t slot;
  char is_watched;  // whether Python counts the recorded calls; if so, shortcuts call Python
  char is_wrapped;  // whether Python changes the results of functions; if so, shortcuts call Python
  bool counts;      // whether handles of each call are counted
  bool busy;        // while it is decoded without the interpreter lock, or a call is written, which may run Python
  int64_t begun_ints, begun_floats;  // the sizes of both when the instance began
  int64_t n_instances, n_draws;
  Vec<int64_t> ints;
  Vec<double> floats;
  int64_t n_forgotten;            // the first ids, which no vector has: no handle and no node is left of their calls
  Vec<int32_t> form_of;           // by id
  Vec<ResultKind*> result_kinds;  // of calls in folds
  Vec<int32_t> code, code_ptr;    // what each form logs
  Vec<FixedForm> fixed;           // by form
  Vec<FixedEdge> fixed_edges;
  Vec<int32_t> fixed_words;  // offsets of int attributes
  int64_t first_id;          // of the present phase
  Vec<int32_t> node_of;      // by id, for earlier phases: the node, or -1
  int64_t n_nodes;           // of earlier phases: one more than the last of `node_of`
  Vec<int32_t> alive;        // by id: handles in use
  Vec<int32_t> survivors;    // ids that were in use at the last sweep
  int64_t swept;             // ids below this have been swept

  // The id of the next call.
  int64_t next_id() const { return n_forgotten + form_of.size(); }
  // Whether a call is known by this id.
  bool has(int64_t id) const { return id >= n_forgotten && id < next_id(); }
  // The form of a call.
  int32_t form_at(int64_t id) const { return form_of[id - n_forgotten]; }
  // Forgets the first calls, up to one of which a node or a handle is left.
  void forget_first();
  // Adds a call of a form, whose items the caller then adds; returns its id, or -1 with an error.
  int64_t add_call(int32_t form);
  // Logs a call of a form; returns the ref of its first output, or -1 with an error.
  int64_t add(int64_t form, Span<const int64_t> items, Span<const double> numbers);
  // Counts a handle that was made (`by` 1) or freed (`by` -1).
  void count(int64_t ref, int by);
};

extern PyTypeObject LogType;

// Returns whether a log is busy; if so, sets an error.
bool refuse_if_busy(Log* log);

// The log in a slot; null if it is gone.
Log* log_in(uint16_t slot);

}  // namespace autobatch
