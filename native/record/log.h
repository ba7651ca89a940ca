// The log of a recording: the calls of cells, as ints and floats, and their forms.
//
// A call is logged as the ref of its first output, followed by the items that the code of its form lists. `decode`
// makes a graph from the log. Calls are numbered from 0 in each session, which is a recording with all its phases.

#pragma once

#include "record/cell.h"
#include "support/fork.h"
#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// An edge of a call of fixed width: the offset of its ref in the ints that follow the call's own ref, the number to add
// to the output of that ref, and the port that reads it.
struct FixedEdge {
  int32_t offset, output, port;
};

// The offsets by which the calls of a form are decoded. They are complete only if `is_fixed`: all calls of the form log
// the same number of ints, because it has neither lists nor long data.
struct FixedForm {
  bool is_fixed;
  int32_t type_id, width, first_edge, n_edges, first_word, n_words;
};

// The classes and the nesting of the values that calls return.
struct ResultKind {
  Ref classes;    // a tuple of (class, group) for each output
  Ref structure;  // an output number, or a nested tuple of them
};

struct Log {
  PyObject_HEAD
  PyObject* owner;         // the stage that records here
  PyObject* draw;          // a function that returns the next draw's number; if null, draws are counted per instance
  PyObject* sources;       // a dict: the values that represent arrays and parameters in this instance
  PyObject* source;        // the function that records an array as a node
  PyObject* treatments;    // a dict: for each class, how wrapping treats its objects
  PyObject* treatment_of;  // treatment_of(x): returns how wrapping treats the class of x
  PyObject* functions;     // a dict: the function that records an op, a function made of ops, or a parameter (by `id`)
  CellFunctions cells;
  uint32_t session;
  uint16_t slot;
  char is_watched;  // whether Python counts the recorded calls; if so, shortcuts call Python
  char is_wrapped;  // whether Python changes the results of functions; if so, shortcuts call Python
  bool counts;      // whether the live handles of each call are counted
  Mark busy;        // set during decoding, which releases the interpreter lock, and while a call is written
  int64_t begun_ints, begun_floats;  // the sizes of `ints` and `floats` when the instance began
  int64_t n_instances, n_draws;
  Vec<int64_t> ints;
  Vec<double> floats;
  int64_t n_forgotten;            // calls below this id have no handle or node left; vectors by id start here
  Vec<int32_t> form_of;           // by id
  Vec<ResultKind*> result_kinds;  // kinds of results of calls in folds
  Vec<int32_t> code, code_ptr;    // the code of each form
  Vec<FixedForm> fixed;           // by form
  Vec<FixedEdge> fixed_edges;
  Vec<int32_t> fixed_words;  // offsets of int attributes
  int64_t first_id;          // the first id of the current phase
  Vec<int32_t> node_of;      // by id, for earlier phases: the node, or -1
  int64_t n_nodes;           // of earlier phases: one more than the greatest in `node_of`
  Vec<int32_t> alive;        // by id: number of live handles
  Vec<int32_t> survivors;    // ids with live handles at the last sweep, ascending
  int64_t swept;             // ids below this have been swept

  // Returns the id of the next call.
  int64_t next_id() const { return n_forgotten + form_of.size(); }
  // Returns whether a call with this id was logged and is not forgotten.
  bool has(int64_t id) const { return id >= n_forgotten && id < next_id(); }
  // Returns the form of a call.
  int32_t form_at(int64_t id) const { return form_of[id - n_forgotten]; }
  // Forgets the first calls, up to the first one that has a node or a handle left.
  void forget_first();
  // Begins a call of a form, to which the caller then appends the items; returns its id, or -1 with an error.
  int64_t add_call(int32_t form);
  // Logs a call of a form; returns the ref of its first output, or -1 with an error.
  int64_t add(int64_t form, Span<const int64_t> items, Span<const double> numbers);
  // Adds `by` to the number of live handles of a call: 1 for a new handle, -1 for a freed one.
  void count(int64_t ref, int by);
};

extern PyTypeObject LogType;

// Returns whether a log is busy; if so, sets an error.
bool refuse_if_busy(Log* log);

// Returns the log in a slot; null if it was freed.
Log* log_in(uint16_t slot);

}  // namespace autobatch
