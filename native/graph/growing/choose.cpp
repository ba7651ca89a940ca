// Choosing what a round of a growing graph runs, reads and keeps: `autobatch.graph.growing.GrowingGraph.choose`.

#include "graph/graph.h"
#include "graph/growing/tables.h"

namespace autobatch {
namespace {

struct Round {
  Span<const int32_t> out_ptr, slot_of, wanted, pending;
  int32_t now, run, n_instances;      // numbers of the round and its run (NOWHERE in the last step)
  Vec<int32_t> found, sources, left;  // nodes it runs, values it reads, nodes that stay pending
  Vec<int32_t> kept, slots, ptr;      // values it keeps, their slots, where each instance begins

  bool is_last() const { return run == NOWHERE; }
};

// Marks the wanted values, and chooses the pending nodes that they depend on.
Ended walk(const Growing& g, Round& round) {
  Vec<int32_t> stack;
  for (int32_t v : round.wanted) {
    if (!g.has_value(v) || !g.has_node(g.made_by[v])) return Ended::WRONG;
    g.mark[v] = round.now;
    int32_t node = g.made_by[v];
    if (g.state[node] != PENDING) continue;
    g.state[node] = CHOSEN;
    if (!stack.push(node)) return Ended::NO_MEMORY;
    while (stack.size()) {
      Range reads;
      if (!g.edges_of(stack.pop(), reads)) return Ended::WRONG;
      for (int32_t e = reads.first; e < reads.stop; e++) {
        if (!g.has_node(g.source[e])) return Ended::WRONG;
        if (g.state[g.source[e]] != PENDING) continue;
        g.state[g.source[e]] = CHOSEN;
        if (!stack.push(g.source[e])) return Ended::NO_MEMORY;
      }
    }
  }
  return Ended::WELL;
}

// Separates the chosen nodes from the other pending ones.
Ended divide(const Growing& g, Round& round) {
  for (int32_t node : round.pending) {
    if (!g.has_node(node)) return Ended::WRONG;
    if (!(g.state[node] == CHOSEN ? round.found : round.left).push(node)) return Ended::NO_MEMORY;
  }
  return Ended::WELL;
}

// Finds, once each, the values of earlier rounds that this one reads or, in the last step, returns. Chosen nodes no
// longer count as readers.
Ended find_sources(const Growing& g, Round& round) {
  auto meet = [&](int32_t v) {
    if (g.mark[v] == -round.now) return true;
    g.mark[v] = -round.now;
    return round.sources.push(v);
  };
  for (int32_t v : round.wanted)
    if (round.is_last() && g.state[g.made_by[v]] == DONE && !meet(v)) return Ended::NO_MEMORY;
  for (ptrdiff_t k = 0; k < round.found.size(); k++) {
    Range reads;
    if (!g.edges_of(round.found[k], reads)) return Ended::WRONG;
    for (int32_t e = reads.first; e < reads.stop; e++) {
      int32_t v = g.value_of(g.source[e], g.output[e]);
      if (v < 0 || !g.has_node(g.made_by[v])) return Ended::WRONG;
      g.add_readers(v, -1);
      if (g.state[g.source[e]] == DONE && !meet(v)) return Ended::NO_MEMORY;
    }
  }
  return Ended::WELL;
}

// Sorts items stably by the instance that owns them.
template <class OwnerOf>
Ended put_in_order(Vec<int32_t>& items, int32_t n_instances, OwnerOf owner_of) {
  Vec<int32_t> ends, ordered;
  if (!ends.assign((ptrdiff_t)n_instances + 1, 0) || !ordered.resize(items.size())) return Ended::NO_MEMORY;
  for (ptrdiff_t k = 0; k < items.size(); k++) {
    int32_t owner = owner_of(items[k]);
    if (owner < 0 || owner >= n_instances) return Ended::WRONG;
    ends[owner + 1]++;
  }
  for (int32_t i = 0; i < n_instances; i++) ends[i + 1] += ends[i];
  for (ptrdiff_t k = 0; k < items.size(); k++) ordered[ends[owner_of(items[k])]++] = items[k];
  items = static_cast<Vec<int32_t>&&>(ordered);
  return Ended::WELL;
}

// Finds the values of chosen nodes that are wanted or may be read later, and assigns them rows in their slots.
Ended keep(const Growing& g, Round& round) {
  Vec<int32_t> rows;  // used so far, by slot
  int32_t most = 0;
  for (int32_t slot : round.slot_of) most = slot > most ? slot : most;
  if (!round.ptr.assign((ptrdiff_t)round.n_instances + 1, 0) || !rows.assign((ptrdiff_t)most + 1, 0))
    return Ended::NO_MEMORY;
  for (ptrdiff_t k = 0; k < round.found.size() && !round.is_last(); k++) {
    int32_t node = round.found[k], type_id = g.type_id[node];
    Range own;
    if (!g.values_of(node, own) || type_id < 0 || type_id >= round.out_ptr.size - 1) return Ended::WRONG;
    for (int32_t v = own.first; v < own.stop; v++) {
      if (g.mark[v] != round.now && g.in_use[v] == 0 && g.readers[v] <= 0) continue;
      int64_t output = (int64_t)round.out_ptr[type_id] + (g.word[v] & OUTPUT);
      int32_t slot = output >= 0 && output < round.slot_of.size ? round.slot_of[output] : -1;
      if (slot < 0) return Ended::WRONG;
      g.run[v] = round.run;
      g.slot[v] = slot;
      g.row[v] = rows[slot]++;
      round.ptr[g.owner[node] + 1]++;
      if (!round.kept.push(v) || !round.slots.push(slot)) return Ended::NO_MEMORY;
    }
  }
  for (int32_t i = 0; i < round.n_instances; i++) round.ptr[i + 1] += round.ptr[i];
  return Ended::WELL;
}

Ended choose(const Growing& g, Round& round) {
  Ended ended = walk(g, round);
  auto then = [&](auto step) {
    if (ended == Ended::WELL) ended = step();
  };
  then([&] { return divide(g, round); });
  then([&] { return find_sources(g, round); });
  then(
      [&] { return put_in_order(round.sources, round.n_instances, [&](int32_t v) { return g.owner[g.made_by[v]]; }); });
  then([&] { return put_in_order(round.found, round.n_instances, [&](int32_t node) { return g.owner[node]; }); });
  then([&] { return keep(g, round); });
  return ended;
}

}  // namespace

// choose_nodes(nodes, values, out_ptr, slot_of, wanted, pending, round, run, n_instances): the chosen nodes, the values
// that they read, the other pending nodes; the kept values, their slots, and where those of each instance begin.
PyObject* choose_nodes(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Round round;
  if (!takes("choose_nodes", n, 9) || !read_growing(arguments, n, g) ||
      !read<int32_t>(arguments[2], "out_ptr", round.out_ptr) ||
      !read<int32_t>(arguments[3], "slot_of", round.slot_of) || !read<int32_t>(arguments[4], "wanted", round.wanted) ||
      !read<int32_t>(arguments[5], "pending", round.pending) || !read_int(arguments[6], "round", round.now) ||
      !read_int(arguments[7], "run", round.run) || !read_int(arguments[8], "n_instances", round.n_instances))
    return nullptr;
  if (round.now < 1 || round.n_instances < 0) {
    PyErr_Format(PyExc_ValueError, "round must be at least 1, and n_instances at least 0, got %d and %d", round.now,
                 round.n_instances);
    return nullptr;
  }
  if (!run([&] { return choose(g, round); })) return nullptr;
  Ref results[] = {to_array<int32_t>(round.found), to_array<int32_t>(round.sources), to_array<int32_t>(round.left),
                   to_array<int32_t>(round.kept),  to_array<int32_t>(round.slots),   to_array<int32_t>(round.ptr)};
  for (Ref& result : results)
    if (!result) return nullptr;
  return Py_BuildValue("NNNNNN", results[0].release(), results[1].release(), results[2].release(), results[3].release(),
                       results[4].release(), results[5].release());
}

}  // namespace autobatch
