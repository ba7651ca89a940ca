// Merging the graphs of instances into the graph of a mini-batch.

#pragma once

#include "graph/words.h"

namespace autobatch {

// The graphs of a list, and the merged graph.
class Merging {
 public:
  // A graph of the list, or the merged graph.
  struct Part {
    Graph graph;
    Sizes sizes;
    Span<const double> floats;
    PyObject *words_array, *floats_array;  // borrowed; `Merging` owns the arrays of its `parts`

    // Reads the arrays of a graph, and checks that they fit each other.
    bool read(PyObject* words, PyObject* floats);
  };

  Merging() = default;
  Merging(const Merging&) = delete;
  Merging& operator=(const Merging&) = delete;
  ~Merging();

  // Reads a list of graphs. They stay alive while the interpreter lock is released.
  bool read(PyObject* list);
  // Makes the arrays of the merged graph; sets an OverflowError if positions do not fit 32 bits.
  bool make_arrays();
  // Writes the graphs one after another and renumbers nodes, edges and outputs. Needs no interpreter lock.
  void write();
  // Returns the words, floats, structures and keys of the merged graph, and the two flags below.
  Ref to_python() const;

  Vec<Part> parts;
  bool are_alike = true, are_in_range = true;  // whether all have the same table of types; are known to be in range
  Part whole;                                  // the merged graph, once its arrays are made

 private:
  Ref graphs_, words_, floats_, structures_, keys_;
  NewGraph written_;
  Span<double> written_floats_;
  Sizes total_;
};

}  // namespace autobatch
