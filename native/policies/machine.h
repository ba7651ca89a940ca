// State machines: a state, encoded from the ready nodes, is looked up in a table of values, which names the type to
// run. `autobatch.policies.fsm` describes states, tables and learning.

#pragma once

#include "policies/rules.h"
#include "support/arrays.h"

namespace autobatch {

enum class Encoding : int { BASE = 0, MAX = 1, SORT = 2 };

struct Machine {
  Encoding encoding;
  bool has_mask;  // if a ready type is critical, only critical types may run
};

// A Python `Table`: S states in the order in which they were met, with room for more, found by hash.
struct ValueTable {
  Table<int16_t> states;   // [room, width]
  Table<double> values;    // [room, T] the expected return of running the type
  Table<int32_t> updates;  // [room, T] number of updates of that value; 0: never tried
  Span<int32_t> slots;     // [power of two] numbers of states by hash, -1 in free slots
  Span<int32_t> n_states;  // [1]

  int32_t n_types() const { return (int32_t)values.columns; }
  int32_t width() const { return (int32_t)states.columns; }
  ptrdiff_t room() const { return states.rows; }

  // Finds the number of a state, or -1 if it was never met.
  int32_t find(const int16_t* state) const { return slots[slot_of(state)]; }
  // Finds the number of a state; adds the state if it is new. There must be room for it.
  int32_t add(const int16_t* state);
  // Returns whether an input shares memory with the table, which is written while the input is read; if so, sets a
  // ValueError.
  template <class T>
  bool refuse_overlap(Span<const T> other) const {
    bool is_shared =
        other.size && (overlap(states.all(), other) || overlap(values.all(), other) || overlap(updates.all(), other) ||
                       overlap(Span<const int32_t>(slots), other) || overlap(Span<const int32_t>(n_states), other));
    if (is_shared) PyErr_SetString(PyExc_ValueError, "table must have memory of its own, got shared memory");
    return is_shared;
  }

 private:
  ptrdiff_t slot_of(const int16_t* state) const;
};

// Reads a table, and checks that its parts fit each other, so that lookups end and stay in bounds.
bool read_value_table(PyObject* tuple, bool is_written, ValueTable& table);

// Writes the state of the first `n_types` types of a single DAG in `width` numbers, one or two per type.
void encode(const Simulator& sim, const Chains& chains, int32_t n_types, Encoding encoding, int16_t* state,
            int32_t width);

// Marks the types that may run: all ready types or, with a mask, only the critical ones if there are any. Returns
// whether any type is ready.
bool allow(const Simulator& sim, const Chains& chains, bool has_mask, Span<uint8_t> allowed);

// Schedules a DAG by a machine; counts in `n_unseen` the batches that the table could not decide and the scoring rule
// did. False if memory runs out.
bool plan_by_machine(const Dag& dag, const ValueTable& table, const Machine& machine, const Weights& weights,
                     Batches& batches, int32_t& n_unseen);

}  // namespace autobatch
