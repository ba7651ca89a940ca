// The tables of a growing graph, which `autobatch.graph.growing` describes. Python owns them, and leaves spare room.
//
// Many calls change the tables, so they are never checked as a whole. Instead, each number is checked when it is used
// as a position; a wrong one ends the loop.

#pragma once

#include "graph/words.h"

namespace autobatch {

constexpr int32_t NOWHERE = -1;
enum State : int32_t { PENDING, CHOSEN, DONE };

// A range of positions.
struct Range {
  int32_t first = 0, stop = 0;

  int32_t size() const { return stop - first; }
};

struct Growing {
  // By node, with one extra element. The last four are offsets: where the parts of each node begin.
  Span<int32_t> type_id, state, owner, edge_ptr, attr_ptr, float_ptr, output_ptr;
  Span<int32_t> first_value;           // by output
  Span<int32_t> source, output, port;  // by edge
  Span<int32_t> attr;
  Span<double> floats;
  // By value.
  Span<int32_t> made_by, word, in_use, readers, run, slot, row, kept, mark, number;

  ptrdiff_t n_values() const { return made_by.size; }  // including spare room
  bool has_node(int32_t node) const { return node >= 0 && node < type_id.size - 1; }
  bool has_value(int32_t v) const { return v >= 0 && v < n_values(); }

  // Adds n to the number of readers. Unsigned, because tables may hold any number, and signed overflow is undefined.
  void add_readers(int32_t v, int32_t n) const { readers[v] = (int32_t)((uint32_t)readers[v] + (uint32_t)n); }

  // Finds the part of a node in an array of `size` elements with these offsets; returns false if it is out of bounds.
  static bool part_of(Span<const int32_t> ptr, int32_t node, ptrdiff_t size, Range& part) {
    if (node < 0 || node >= ptr.size - 1) return false;
    part = {ptr[node], ptr[node + 1]};
    return part.first >= 0 && part.first <= part.stop && part.stop <= size;
  }
  bool edges_of(int32_t node, Range& part) const { return part_of(edge_ptr, node, source.size, part); }
  bool values_of(int32_t node, Range& part) const {
    Range outputs;
    if (!part_of(output_ptr, node, first_value.size - 1, outputs)) return false;
    part = {first_value[outputs.first], first_value[outputs.stop]};
    return part.first >= 0 && part.first <= part.stop && part.stop <= n_values();
  }
  // Returns the value of a node that a word names; -1 if there is none.
  int32_t value_of(int32_t node, int32_t named) const {
    Range outputs, rows;
    if (named < 0 || !part_of(output_ptr, node, first_value.size - 1, outputs)) return -1;
    if ((named & OUTPUT) >= outputs.size()) return -1;
    if (!part_of(first_value, outputs.first + (named & OUTPUT), n_values(), rows)) return -1;
    return (named >> OUTPUT_BITS) < rows.size() ? rows.first + (named >> OUTPUT_BITS) : -1;
  }
};

// Reads only the table of values.
bool read_values(PyObject* values, Growing& growing);

// Reads the tables, a `Nodes` and the table of values, from the first two of n arguments. Sets an error if their form
// is wrong, or if they share memory with each other or with another argument, because a write to one would then change
// data that was checked in the other.
bool read_growing(PyObject* const* arguments, Py_ssize_t n, Growing& growing);

// The outcome of a loop over the tables: WRONG if a number in them or in an argument is out of range.
enum class Ended { WELL, NO_MEMORY, WRONG };

// Returns whether a loop ended well; if not, sets an error.
bool is_well(Ended ended);

// Runs a loop with the interpreter lock released.
template <class Loop>
bool run(Loop loop) {
  Ended ended;
  {
    Unlocked unlocked;
    ended = loop();
  }
  return is_well(ended);
}

}  // namespace autobatch
