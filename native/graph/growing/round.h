// A round of a growing graph, in its stages: choose what it runs, give rows to what it keeps, and emit its graph.
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

// The choice of what a round runs, reads and keeps.
class Choice {
 public:
  // Reads out_ptr, slot_of, wanted, pending, round, run and n_instances.
  bool read(PyObject* const* arguments);
  Ended choose(const Growing& g);
  // Returns the nodes, the sources, the other pending nodes; the kept values, their slots, and where those of each
  // instance begin.
  Ref to_python() const;

  bool is_last() const { return run == NOWHERE; }

  Span<const int32_t> out_ptr, slot_of, wanted, pending;
  int32_t now, run, n_instances;       // numbers of the round and its run (NOWHERE in the last step)
  Vec<int32_t> nodes, sources, left;   // nodes it runs, values it reads, nodes that stay pending
  Vec<int32_t> kept, kept_slots, ptr;  // values it keeps, their slots, where each instance begins

 private:
  Ended walk(const Growing& g);
  Ended divide(const Growing& g);
  Ended find_sources(const Growing& g);
  Ended keep(const Growing& g);
};

// The rows of the tables of kept values that the values of the last run get.
class RowMoves {
 public:
  // Reads the values, and from the second argument on held, free, n_free and size.
  bool read(PyObject* of, PyObject* const* arguments);
  // Takes back the rows of values that nothing reads any more in this round or later, and gives rows to others.
  Ended move(const Growing& g, int32_t now);
  // Returns the rows in results, the rows in tables, and where those of each slot begin.
  Ref to_python() const;

 private:
  ptrdiff_t n_slots() const { return held_.rows; }
  Ended take_back(const Growing& g, int32_t now);
  Ended count(const Growing& g, int32_t now);
  Ended give(const Growing& g, int32_t now);

  Span<const int32_t> of_;
  Table<int32_t> held_, free_;   // by slot: the value in each row; a stack of free rows
  Span<int32_t> n_free_, size_;  // by slot
  Vec<int32_t> found_, rows_, ptr_;
};

// The graph of a round, made of its nodes and of a source for each value of an earlier round.
class Emission {
 public:
  // Reads returned values, their slots, and where those of each instance begin.
  bool read_results(PyObject* results);
  // Takes the values that a choice keeps in the place of results.
  void take_kept(const Choice& choice) { values_ = choice.kept, slots_ = choice.kept_slots, ptr_ = choice.ptr; }
  // Whether all sources have a type.
  bool has_types(const Growing& g) const;
  // Makes the arrays of the graph; an error if the tables do not fit.
  bool make_arrays(const Growing& g);
  // Writes the graph, and marks its nodes as done.
  Ended write(const Growing& g);

  Span<const int32_t> source_type, nodes, sources;  // source type by slot; nodes and source values, in order
  Ref words, floats;

 private:
  // Where new nodes, edges etc. go in the graph.
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
