// The stages of a round of a growing graph: choose its nodes, assign rows to the values that it keeps, emit its graph.
//
// Each stage reads its arguments, runs without the interpreter lock, and makes its results.

#pragma once

#include "graph/growing/tables.h"

namespace autobatch {

// Calls a stage unless an earlier one failed.
template <class Stage>
void then(Ended& ended, Stage stage) {
  if (ended == Ended::WELL) ended = stage();
}

// Chooses the nodes that a round runs, and the values that it reads and keeps.
class Choice {
 public:
  // Reads out_ptr, slot_of, wanted, pending, round, run and n_instances.
  bool read(PyObject* const* arguments);
  Ended choose(const Growing& g);
  // Returns the nodes, the sources and the other pending nodes; the kept values, their slots, and where the values of
  // each instance begin.
  Ref to_python() const;

  bool is_last() const { return run == NOWHERE; }

  Span<const int32_t> out_ptr, slot_of, wanted, pending;
  int32_t now, run, n_instances;       // numbers of the round and its run (NOWHERE in the last step)
  Vec<int32_t> nodes, sources, left;   // nodes that it runs, values that it reads, nodes that stay pending
  Vec<int32_t> kept, kept_slots, ptr;  // values that it keeps, their slots, where each instance begins

 private:
  Ended walk(const Growing& g);
  Ended divide(const Growing& g);
  Ended find_sources(const Growing& g);
  Ended keep(const Growing& g);
};

// Assigns rows of the tables of kept values to values of the last run.
class RowMoves {
 public:
  // Reads the values from `of`, and held, free, n_free and size from `arguments`.
  bool read(PyObject* of, PyObject* const* arguments);
  // Frees the rows of values that neither this round nor a later one can read, and assigns rows to the new values.
  Ended move(const Growing& g, int32_t now);
  // Returns the rows in results, the rows in tables, and where the rows of each slot begin.
  Ref to_python() const;

 private:
  ptrdiff_t n_slots() const { return held_.rows; }
  Ended take_back(const Growing& g, int32_t now);
  Ended count(const Growing& g, int32_t now);
  Ended give(const Growing& g, int32_t now);

  Span<const int32_t> of_;
  Table<int32_t> held_, free_;   // by slot: the value in each row; the stack of free rows
  Span<int32_t> n_free_, size_;  // by slot
  Vec<int32_t> found_, rows_, ptr_;
};

// Emits the graph of a round: its nodes, and a source for each value of an earlier round.
class Emission {
 public:
  // Reads the returned values, their slots, and where the values of each instance begin.
  bool read_results(PyObject* results);
  // Uses the values that a choice keeps as results. The choice must outlive this.
  void take_kept(const Choice& choice) { values_ = choice.kept, slots_ = choice.kept_slots, ptr_ = choice.ptr; }
  // Returns whether all sources have a type.
  bool has_types(const Growing& g) const;
  // Makes the arrays of the graph; sets an error if the tables do not fit.
  bool make_arrays(const Growing& g);
  // Writes the graph, and marks its nodes as done.
  Ended write(const Growing& g);

  Span<const int32_t> source_type, nodes, sources;  // source type by slot; nodes and source values, in order
  Ref words, floats;

 private:
  // The positions at which new nodes, edges etc. go into the graph.
  struct Place {
    int32_t node = 0, edge = 0, attr = 0, floats = 0, output = 0;
  };
  Ended measure(const Growing& g);
  Ended write_source(const Growing& g, int32_t v, Place& at);
  Ended write_node(const Growing& g, int32_t node, Place& at);

  Span<const int32_t> values_, slots_, ptr_;
  Sizes sizes_;
  NewGraph graph_;
  Span<double> new_floats_;
};

}  // namespace autobatch
