// Choosing the nodes that a round of a growing graph runs, and the values that it reads and keeps; see
// `autobatch.graph.growing.GrowingGraph.choose`.

#include "graph/graph.h"
#include "graph/growing/round.h"

namespace autobatch {

// Marks the wanted values, and chooses the pending nodes that they depend on.
Ended Choice::walk(const Growing& g) {
  Vec<int32_t> stack;
  for (int32_t v : wanted) {
    if (!g.has_value(v) || !g.has_node(g.made_by[v])) return Ended::WRONG;
    g.mark[v] = now;
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
Ended Choice::divide(const Growing& g) {
  for (int32_t node : pending) {
    if (!g.has_node(node)) return Ended::WRONG;
    if (!(g.state[node] == CHOSEN ? nodes : left).push(node)) return Ended::NO_MEMORY;
  }
  return Ended::WELL;
}

// Finds, once each, the values of earlier rounds that this one reads or, in the last step, returns. A mark of -now
// means that a value is found already. Chosen nodes no longer count as readers.
Ended Choice::find_sources(const Growing& g) {
  auto meet = [&](int32_t v) {
    if (g.mark[v] == -now) return true;
    g.mark[v] = -now;
    return sources.push(v);
  };
  for (int32_t v : wanted)
    if (is_last() && g.state[g.made_by[v]] == DONE && !meet(v)) return Ended::NO_MEMORY;
  for (ptrdiff_t k = 0; k < nodes.size(); k++) {
    Range reads;
    if (!g.edges_of(nodes[k], reads)) return Ended::WRONG;
    for (int32_t e = reads.first; e < reads.stop; e++) {
      int32_t v = g.value_of(g.source[e], g.output[e]);
      if (v < 0 || !g.has_node(g.made_by[v])) return Ended::WRONG;
      g.add_readers(v, -1);
      if (g.state[g.source[e]] == DONE && !meet(v)) return Ended::NO_MEMORY;
    }
  }
  return Ended::WELL;
}

namespace {

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

}  // namespace

// Finds the values of chosen nodes that are wanted or may be read later, and assigns them rows in their slots.
Ended Choice::keep(const Growing& g) {
  Vec<int32_t> rows;  // used so far, by slot
  int32_t most = 0;
  for (int32_t slot : slot_of) most = slot > most ? slot : most;
  if (!ptr.assign((ptrdiff_t)n_instances + 1, 0) || !rows.assign((ptrdiff_t)most + 1, 0)) return Ended::NO_MEMORY;
  for (ptrdiff_t k = 0; k < nodes.size() && !is_last(); k++) {
    int32_t node = nodes[k], type_id = g.type_id[node];
    Range own;
    if (!g.values_of(node, own) || type_id < 0 || type_id >= out_ptr.size - 1) return Ended::WRONG;
    for (int32_t v = own.first; v < own.stop; v++) {
      if (g.mark[v] != now && g.in_use[v] == 0 && g.readers[v] <= 0) continue;
      int64_t output = (int64_t)out_ptr[type_id] + (g.word[v] & OUTPUT);
      int32_t slot = output >= 0 && output < slot_of.size ? slot_of[output] : -1;
      if (slot < 0) return Ended::WRONG;
      g.run[v] = run;
      g.slot[v] = slot;
      g.row[v] = rows[slot]++;
      ptr[g.owner[node] + 1]++;
      if (!kept.push(v) || !kept_slots.push(slot)) return Ended::NO_MEMORY;
    }
  }
  for (int32_t i = 0; i < n_instances; i++) ptr[i + 1] += ptr[i];
  return Ended::WELL;
}

// The order matters: `find_sources` takes the chosen nodes off the numbers of readers, which `keep` tests.
Ended Choice::choose(const Growing& g) {
  Ended ended = walk(g);
  then(ended, [&] { return divide(g); });
  then(ended, [&] { return find_sources(g); });
  then(ended, [&] { return put_in_order(sources, n_instances, [&](int32_t v) { return g.owner[g.made_by[v]]; }); });
  then(ended, [&] { return put_in_order(nodes, n_instances, [&](int32_t node) { return g.owner[node]; }); });
  then(ended, [&] { return keep(g); });
  return ended;
}

bool Choice::read(PyObject* const* arguments) {
  if (!autobatch::read<int32_t>(arguments[0], "out_ptr", out_ptr) ||
      !autobatch::read<int32_t>(arguments[1], "slot_of", slot_of) ||
      !autobatch::read<int32_t>(arguments[2], "wanted", wanted) ||
      !autobatch::read<int32_t>(arguments[3], "pending", pending) || !read_int(arguments[4], "round", now) ||
      !read_int(arguments[5], "run", run) || !read_int(arguments[6], "n_instances", n_instances))
    return false;
  if (now >= 1 && n_instances >= 0) return true;
  PyErr_Format(PyExc_ValueError, "round must be at least 1, and n_instances at least 0, got %d and %d", now,
               n_instances);
  return false;
}

Ref Choice::to_python() const {
  Ref parts[] = {to_array<int32_t>(nodes), to_array<int32_t>(sources),    to_array<int32_t>(left),
                 to_array<int32_t>(kept),  to_array<int32_t>(kept_slots), to_array<int32_t>(ptr)};
  for (Ref& part : parts)
    if (!part) return Ref();
  return Ref(Py_BuildValue("NNNNNN", parts[0].release(), parts[1].release(), parts[2].release(), parts[3].release(),
                           parts[4].release(), parts[5].release()));
}

// choose_nodes(nodes, values, out_ptr, slot_of, wanted, pending, round, run, n_instances): chooses the nodes of a
// round; returns the parts of `Choice`.
PyObject* choose_nodes(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Choice choice;
  if (!takes("choose_nodes", n, 9) || !read_growing(arguments, n, g) || !choice.read(arguments + 2) ||
      !run([&] { return choice.choose(g); }))
    return nullptr;
  return choice.to_python().release();
}

}  // namespace autobatch
