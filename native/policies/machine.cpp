#include "policies/machine.h"

namespace autobatch {
namespace {

constexpr uint32_t FNV_OFFSET = 2166136261u, FNV_PRIME = 16777619u;  // of the 32-bit FNV-1a hash

double absolute(double x) { return x < 0 ? -x : x; }

// Returns the weights of the scoring rule. With a mask, critical types must score highest, so their weight exceeds any
// difference of the other terms.
Weights mask_weights(const Weights& weights, bool has_mask) {
  double others = absolute(weights.ready) + absolute(weights.own) + absolute(weights.height);
  return {has_mask ? 1.0 + 2.0 * others : weights.critical, weights.ready, weights.own, weights.height};
}

// Finds the allowed type with the highest value among those tried in the current state, the lowest type among equals;
// -1 if none was tried, or if a type that the table does not know is ready.
int32_t best_tried(const Simulator& sim, const Chains& chains, const ValueTable& table, Encoding encoding,
                   int16_t* state, Span<const uint8_t> allowed) {
  int32_t n_known = table.n_types(), best = -1;
  for (int32_t a = n_known; a < allowed.size; a++)
    if (sim.is_ready(a)) return -1;
  encode(sim, chains, n_known, encoding, state, table.width());
  int32_t number = table.find(state);
  for (int32_t a = 0; number >= 0 && a < n_known; a++)
    if (allowed[a] && table.updates[number][a] > 0 &&
        (best < 0 || table.values[number][a] > table.values[number][best]))
      best = a;
  return best;
}

}  // namespace

ptrdiff_t ValueTable::slot_of(const int16_t* state) const {
  uint32_t code = FNV_OFFSET;
  for (int32_t i = 0; i < width(); i++) code = (code ^ (uint32_t)(int32_t)state[i]) * FNV_PRIME;
  ptrdiff_t last = slots.size - 1, slot = (ptrdiff_t)(code & (uint32_t)last);
  while (slots[slot] >= 0 && memcmp(states[slots[slot]], state, (size_t)width() * sizeof(int16_t)) != 0)
    slot = (slot + 1) & last;
  return slot;
}

int32_t ValueTable::add(const int16_t* state) {
  ptrdiff_t slot = slot_of(state);
  if (slots[slot] >= 0) return slots[slot];
  int32_t number = n_states[0]++;
  memcpy(states[number], state, (size_t)width() * sizeof(int16_t));
  for (int32_t a = 0; a < n_types(); a++) values[number][a] = updates[number][a] = 0;
  return slots[slot] = number;
}

bool read_value_table(PyObject* tuple, bool is_written, ValueTable& table) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 5) {
    PyErr_Format(PyExc_TypeError, "table must be a Table, got %.80s", Py_TYPE(tuple)->tp_name);
    return false;
  }
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  Span<const int32_t> slots, n_states;
  if (!read_table<int16_t>(parts[0], "states", table.states, NPY_INT16, "int16", is_written) ||
      !read_table<double>(parts[1], "values", table.values, NPY_FLOAT64, "float64", is_written) ||
      !read_table<int32_t>(parts[2], "updates", table.updates, NPY_INT32, "int32", is_written) ||
      !read<int32_t>(parts[3], "slots", slots) || !read<int32_t>(parts[4], "n_states", n_states))
    return false;
  for (int k = 3; is_written && k < 5; k++)
    if (PyArray_FailUnlessWriteable(reinterpret_cast<PyArrayObject*>(parts[k]), "table") < 0) return false;
  table.slots = {const_cast<int32_t*>(slots.data), slots.size};
  table.n_states = {const_cast<int32_t*>(n_states.data), n_states.size};
  ptrdiff_t room = table.room(), n_slots = table.slots.size;
  bool fits = table.states.columns <= INT32_MAX && table.values.columns <= INT32_MAX / 2;
  fits = fits && table.values.rows == room && table.updates.rows == room &&
         table.updates.columns == table.values.columns && table.n_states.size == 1;
  fits = fits && table.n_states[0] >= 0 && table.n_states[0] <= room;
  fits = fits && n_slots > room && n_slots <= INT32_MAX && (n_slots & (n_slots - 1)) == 0;
  fits = fits && (table.width() == table.n_types() || table.width() == 2 * table.n_types());
  fits = fits && within(table.slots, -1, table.n_states[0]);
  fits = fits && !(is_written && (overlap(slots, n_states) || overlap(table.updates.all(), slots) ||
                                  overlap(table.updates.all(), n_states) || overlap(table.values.all(), slots) ||
                                  overlap(table.values.all(), n_states) || overlap(table.states.all(), slots) ||
                                  overlap(table.states.all(), n_states)));
  ptrdiff_t n_taken = 0;
  for (ptrdiff_t slot = 0; fits && slot < n_slots; slot++) n_taken += table.slots[slot] >= 0;
  if (fits && n_taken <= table.n_states[0]) return true;  // some slot is free, so each lookup ends
  PyErr_Format(PyExc_ValueError,
               "table must have parts that fit each other, got states (%zd, %zd), values (%zd, %zd), updates (%zd, "
               "%zd), %zd slots and %zd n_states",
               table.states.rows, table.states.columns, table.values.rows, table.values.columns, table.updates.rows,
               table.updates.columns, n_slots, table.n_states.size);
  return false;
}

void encode(const Simulator& sim, const Chains& chains, int32_t n_types, Encoding encoding, int16_t* state,
            int32_t width) {
  int32_t largest = 0, most = 0;
  for (int32_t a = 0; a < n_types; a++) {
    int32_t n_ready = sim.n_ready(a);
    state[a] = n_ready > 0;
    if (n_ready > most) {
      largest = a;
      most = n_ready;
    }
    for (int32_t b = 0; encoding == Encoding::SORT && n_ready > 0 && b < n_types; b++)
      state[a] += sim.n_ready(b) > n_ready || (sim.n_ready(b) == n_ready && b < a);
  }
  if (encoding == Encoding::MAX && most > 0) state[largest] = 2;
  for (int32_t a = 0; width > n_types && a < n_types; a++) state[n_types + a] = state[a] > 0 && chains.is_critical(a);
}

bool allow(const Simulator& sim, const Chains& chains, bool has_mask, Span<uint8_t> allowed) {
  bool any_ready = false, any_critical = false;
  for (int32_t a = 0; a < allowed.size; a++) {
    allowed[a] = sim.is_ready(a);
    any_ready |= allowed[a] != 0;
    any_critical |= allowed[a] && chains.is_critical(a);
  }
  for (int32_t a = 0; has_mask && any_critical && a < allowed.size; a++) allowed[a] &= chains.is_critical(a);
  return any_ready;
}

bool plan_by_machine(const Dag& dag, const ValueTable& table, const Machine& machine, const Weights& weights,
                     Batches& batches, int32_t& n_unseen) {
  Simulator sim;
  Chains chains;
  Vec<int16_t> state;
  Vec<uint8_t> allowed;
  if (!sim.start(dag) || !chains.start(sim) || !state.assign(table.width(), 0) || !allowed.resize(dag.n_types))
    return false;
  Weights ranking = mask_weights(weights, machine.has_mask);
  n_unseen = 0;
  while (allow(sim, chains, machine.has_mask, allowed)) {
    int32_t type = best_tried(sim, chains, table, machine.encoding, state.data(), allowed);
    if (type < 0) {
      n_unseen++;
      type = highest_score(sim, chains, 0, dag.n_types, ranking);
    }
    sim.step(type);
    chains.follow(sim, type);
  }
  return sim.finish(batches);
}

}  // namespace autobatch
