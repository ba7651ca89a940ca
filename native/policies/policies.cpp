// The Python bindings of this folder; `_native.pyi` documents them.

#include "policies/course.h"
#include "policies/directed.h"
#include "policies/entries.h"
#include "policies/layers.h"
#include "policies/local_search.h"
#include "policies/machine.h"
#include "policies/network.h"
#include "policies/rules.h"
#include "policies/sequences.h"
#include "policies/simulation.h"
#include "policies/suffixes.h"

namespace autobatch {
namespace {

// plan_by_rule(dag, rule): returns the schedule of a DAG by a rule.
PyObject* plan(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  DirectedRule rule;
  if (!takes("plan_by_rule", n, 2) || !read_directed_rule(arguments[1], rule) || !read_dag(arguments[0], dag) ||
      refuse_backward_edges(dag))
    return nullptr;
  Batches batches;
  bool is_made;
  {
    Unlocked unlocked;
    is_made = plan_best(dag, rule, batches);
  }
  return is_made ? to_python(batches) : PyErr_NoMemory();
}

constexpr ptrdiff_t MOST_POSITIONS = INT32_MAX - 16;  // of a sequence, to which local search adds a few

// Reads a DAG, whose edges must point forward, and a sequence of types.
bool read_sequence(PyObject* const* arguments, Dag& dag, Span<const int32_t>& sequence) {
  if (!read_dag(arguments[0], dag) || !read<int32_t>(arguments[1], "sequence", sequence) || refuse_backward_edges(dag))
    return false;
  if (sequence.size <= MOST_POSITIONS) return true;
  return PyErr_Format(PyExc_ValueError, "sequence must have at most %zd types, got %zd", MOST_POSITIONS, sequence.size),
         false;
}

// embed(dag, sequence, is_late): returns the first position at which each node can run, or K if it cannot; if
// `is_late`, the last position, or -1 if it cannot.
PyObject* embed(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const int32_t> sequence;
  int32_t is_late;
  Stops stops;
  Span<int32_t> position;
  if (!takes("embed", n, 3) || !read_int(arguments[2], "is_late", is_late) || !read_sequence(arguments, dag, sequence))
    return nullptr;
  Ref made = make_array<int32_t>(dag.n_nodes(), position);
  if (!made) return nullptr;
  if (!stops.index(sequence, is_late, dag.n_types, dag.n_nodes())) return PyErr_NoMemory();
  Unlocked unlocked;
  if (!is_late) {
    fill_early(dag, stops, position);
  } else {
    fill_mirrored(dag, stops, position);
    for (int32_t& place : position) place = (int32_t)sequence.size - 1 - place;
  }
  return made.release();
}

// compact_sequence(dag, sequence): returns the sequence without superfluous positions; None if it does not run all
// nodes.
PyObject* compact_sequence(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const int32_t> sequence;
  Vec<int32_t> shorter;
  if (!takes("compact_sequence", n, 2) || !read_sequence(arguments, dag, sequence)) return nullptr;
  Compacted found;
  {
    Unlocked unlocked;
    found = compact(dag, sequence, shorter);
  }
  if (found == Compacted::NO_MEMORY) return PyErr_NoMemory();
  if (found == Compacted::UNFINISHED) Py_RETURN_NONE;
  return to_array<int32_t>(shorter).release();
}

// batches_at(dag, sequence, position): returns the schedule that runs each node at its position, or a node whose
// position does not have its type.
PyObject* batches_at(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const int32_t> sequence, position;
  if (!takes("batches_at", n, 3) || !read_sequence(arguments, dag, sequence) ||
      !read<int32_t>(arguments[2], "position", position))
    return nullptr;
  if (position.size != dag.n_nodes())
    return PyErr_Format(PyExc_ValueError, "position must have an element for each of %d nodes, got %zd", dag.n_nodes(),
                        position.size);
  Batches batches;
  int32_t misplaced;
  {
    Unlocked unlocked;
    misplaced = gather_batches(dag, sequence, position, batches);
  }
  if (misplaced == -2) return PyErr_NoMemory();
  return misplaced >= 0 ? PyLong_FromLong(misplaced) : to_python(batches);
}

// plan_by_machine(dag, table, machine, weights): returns a schedule, and the number of batches that the scoring rule
// decided.
PyObject* plan_machine(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  ValueTable table;
  Machine machine;
  Weights weights;
  if (!takes("plan_by_machine", n, 4) || !read_machine(arguments[2], machine) || !read_weights(arguments[3], weights) ||
      !read_value_table(arguments[1], false, table) || !read_dag(arguments[0], dag) || refuse_backward_edges(dag))
    return nullptr;
  if (dag.n_types < table.n_types())
    return PyErr_Format(PyExc_ValueError, "dag must have at least the %d types of the table, got %d", table.n_types(),
                        dag.n_types),
           nullptr;
  Batches batches;
  int32_t n_unseen;
  bool is_made;
  {
    Unlocked unlocked;  // another thread may learn meanwhile: lookups may see its updates, but stay in bounds
    is_made = plan_by_machine(dag, table, machine, weights, batches, n_unseen);
  }
  if (!is_made) return PyErr_NoMemory();
  Ref made(to_python(batches));
  return made ? Py_BuildValue("Ni", made.release(), (int)n_unseen) : nullptr;
}

// Reads a `Network`.
bool read_network(PyObject* tuple, Network& network) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 7) return refuse_type("weights", "a Network", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  Table<const double> w1, w2, v2, u2;
  if (!read_table<double>(parts[0], "w1", w1) || !read<double>(parts[1], "b1", network.b1) ||
      !read_table<double>(parts[2], "w2", w2) || !read_table<double>(parts[3], "v2", v2) ||
      !read_table<double>(parts[4], "u2", u2) || !read<double>(parts[5], "b2", network.b2) ||
      !read<double>(parts[6], "w3", network.w3))
    return false;
  ptrdiff_t h = network.n_hidden();
  auto has_shape = [h](const Table<const double>& part, ptrdiff_t columns) {
    return part.rows == h && part.columns == columns;
  };
  if (!has_shape(w1, N_TYPE_FEATURES) || network.b1.size != h || !has_shape(w2, h) || !has_shape(v2, h) ||
      !has_shape(u2, N_OVERALL_FEATURES) || network.b2.size != h)
    return PyErr_Format(PyExc_ValueError,
                        "weights must have shapes that fit each other, got w1 (%zd, %zd), b1 (%zd), w2 (%zd, %zd), v2 "
                        "(%zd, %zd), u2 (%zd, %zd), b2 (%zd) and w3 (%zd)",
                        w1.rows, w1.columns, network.b1.size, w2.rows, w2.columns, v2.rows, v2.columns, u2.rows,
                        u2.columns, network.b2.size, h),
           false;
  network.w1 = w1.all(), network.w2 = w2.all(), network.v2 = v2.all(), network.u2 = u2.all();
  return true;
}

// plan_by_network(dag, weights): returns the schedule of a DAG by a network.
PyObject* plan_network(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Network network;
  if (!takes("plan_by_network", n, 2) || !read_dag(arguments[0], dag) || refuse_backward_edges(dag) ||
      !read_network(arguments[1], network))
    return nullptr;
  Batches batches;
  bool is_made;
  {
    Unlocked unlocked;
    is_made = plan_by_network(dag, network, batches);
  }
  return is_made ? to_python(batches) : PyErr_NoMemory();
}

// score_types(weights, rows, overall): returns the scores of types with these features.
PyObject* score(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Network network;
  Table<const float> rows;
  Span<const float> overall;
  Span<double> scores;
  if (!takes("score_types", n, 3) || !read_network(arguments[0], network) ||
      !read_table<float>(arguments[1], "rows", rows) || !read<float>(arguments[2], "overall", overall))
    return nullptr;
  if (rows.columns != N_TYPE_FEATURES || overall.size != N_OVERALL_FEATURES || rows.rows > INT32_MAX)
    return PyErr_Format(PyExc_ValueError,
                        "rows must have %d columns and overall %d elements, got rows (%zd, %zd) and overall (%zd)",
                        (int)N_TYPE_FEATURES, (int)N_OVERALL_FEATURES, rows.rows, rows.columns, overall.size),
           nullptr;
  Ref made = make_array<double>(rows.rows, scores);
  if (!made) return nullptr;
  return score_types(network, rows, overall, scores) ? made.release() : PyErr_NoMemory();
}

// local_search(dag, sequence, seed, n_steps, enough): returns a sequence that does not cost more than the given one.
PyObject* search_locally(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const int32_t> sequence;
  int64_t seed, n_steps;
  double enough;
  if (!takes("local_search", n, 5) || !read_long(arguments[2], "seed", seed) ||
      !read_long(arguments[3], "n_steps", n_steps) || !read_double(arguments[4], "enough", enough) ||
      !read_sequence(arguments, dag, sequence))
    return nullptr;
  if (seed < 1 || seed >= Draws::MODULUS)
    return PyErr_Format(PyExc_ValueError, "seed must lie in 1..%lld, got %lld", (long long)Draws::MODULUS - 1,
                        (long long)seed);
  LocalSearch search;
  bool is_done = search.start(dag, sequence, seed);
  if (is_done) {
    Unlocked unlocked;
    is_done = search.run(n_steps, enough, unlocked);
  }
  return is_done ? to_array<int32_t>(search.current).release() : fail();
}

// find_suffixes(dag, kept, compares): returns the fields of a `Suffixes`, and the suffix of each node.
PyObject* find_suffixes(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const uint8_t> kept;
  int32_t compares;
  if (!takes("find_suffixes", n, 3) || !read_int(arguments[2], "compares", compares) || !read_dag(arguments[0], dag) ||
      !read_flags(arguments[1], "kept", kept) || refuse_backward_edges(dag))
    return nullptr;
  if (kept.size != dag.n_types)
    return PyErr_Format(PyExc_ValueError, "kept must have an element for each of %d types, got %zd", dag.n_types,
                        kept.size);
  SuffixFinder finder;
  bool is_done;
  {
    Unlocked unlocked;
    is_done = finder.find(dag, kept, compares, unlocked);
  }
  if (!is_done) return fail();
  Suffixes found = finder.suffixes();
  Table<uint64_t> rows;
  Ref within = make_table<uint64_t>(compares ? found.size() : 0, found.n_words, rows);
  if (!within) return nullptr;
  if (found.within.size) memcpy(rows.data, found.within.data, (size_t)found.within.size * sizeof(uint64_t));
  Ref type_id = to_array<int32_t>(found.type_id), after_ptr = to_array<int32_t>(found.after_ptr),
      after = to_array<int32_t>(found.after), first = to_array<int32_t>(found.first),
      suffix = to_array<int32_t>(finder.suffix);
  if (!type_id || !after_ptr || !after || !first || !suffix) return nullptr;
  return Py_BuildValue("(NNNNNi)N", type_id.release(), after_ptr.release(), after.release(), first.release(),
                       within.release(), (int)dag.n_types, suffix.release());
}

// Returns whether numbers strictly increase and lie in 0..end-1.
bool are_suffixes(Span<const int32_t> numbers, int32_t end) {
  for (ptrdiff_t i = 0; i + 1 < numbers.size; i++)
    if (numbers[i] >= numbers[i + 1]) return false;
  return within(numbers, 0, end);
}

// Reads a `Suffixes`, and checks it; if `is_compared`, `within` must have a row per suffix.
bool read_suffixes(PyObject* tuple, bool is_compared, Suffixes& found) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 6) return refuse_type("suffixes", "a Suffixes", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  Table<const uint64_t> rows;
  if (!read_int(parts[5], "n_types", found.n_types) || !read<int32_t>(parts[0], "type_id", found.type_id) ||
      !read<int32_t>(parts[1], "after_ptr", found.after_ptr) || !read<int32_t>(parts[2], "after", found.after) ||
      !read<int32_t>(parts[3], "first", found.first) || !read_table<uint64_t>(parts[4], "within", rows))
    return false;
  found.within = {rows.data, rows.rows * rows.columns};
  found.n_words = rows.columns;
  bool fits = found.n_types >= 0 && found.n_types < INT32_MAX && found.type_id.size < INT32_MAX &&
              within(found.type_id, 0, found.n_types) && found.after_ptr.size == found.type_id.size + 1 &&
              rises(found.after_ptr, found.after.size) && are_suffixes(found.first, found.size());
  if (is_compared) fits = fits && rows.rows == found.size() && rows.columns * 64 >= found.size();
  for (int32_t n = 0; fits && n < found.size(); n++) fits = are_suffixes(found.followers(n), n);
  if (!fits)
    PyErr_Format(PyExc_ValueError,
                 "suffixes must be numbered after their followers, with a row of comparisons each if they are "
                 "compared, got %zd suffixes, %zd followers and %zd rows",
                 found.type_id.size, found.after.size, rows.rows);
  return fits;
}

// search_layers(suffixes, cost, limit, width, max_states): returns (sequence, cost, unseen, n_states, gave_up).
PyObject* search(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Suffixes suffixes;
  Span<const double> cost;
  double limit;
  int64_t width, max_states;
  if (!takes("search_layers", n, 5) || !read_double(arguments[2], "limit", limit) ||
      !read_long(arguments[3], "width", width) || !read_long(arguments[4], "max_states", max_states) ||
      !read_suffixes(arguments[0], true, suffixes) || !read<double>(arguments[1], "cost", cost))
    return nullptr;
  if (cost.size != suffixes.n_types)
    return PyErr_Format(PyExc_ValueError, "cost must have an element for each of %d types, got %zd", suffixes.n_types,
                        cost.size);
  Outcome outcome;
  bool is_done;
  {
    Unlocked unlocked;
    is_done = search_layers(suffixes, cost, limit, width, max_states, unlocked, outcome);
  }
  if (!is_done) return fail();
  return Py_BuildValue("NddLO", to_array<int32_t>(outcome.sequence).release(), outcome.cost, outcome.unseen,
                       (long long)outcome.n_states, outcome.gave_up ? Py_True : Py_False);
}

// suffixes_to_dag(suffixes): returns the DAG of the reachable suffixes, and the node of each suffix, or -1.
PyObject* suffixes_to_dag(PyObject*, PyObject* tuple) {
  Suffixes suffixes;
  if (!read_suffixes(tuple, false, suffixes)) return nullptr;
  OwnedDag dag;
  Vec<int32_t> place;
  if (!to_dag(suffixes, dag, place)) return PyErr_NoMemory();
  Ref type_id = to_array<int32_t>(dag.type_id), edge_ptr = to_array<int32_t>(dag.edge_ptr),
      edge_src = to_array<int32_t>(dag.edge_src), places = to_array<int32_t>(place);
  if (!type_id || !edge_ptr || !edge_src || !places) return nullptr;
  return Py_BuildValue("(NNNi)N", type_id.release(), edge_ptr.release(), edge_src.release(), (int)dag.n_types,
                       places.release());
}

// visit_states(dag, sequence, n_known, machine, width): returns the state before each step of a sequence, as
// int16[K, width].
PyObject* visit_states(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Dag dag;
  Span<const int32_t> sequence;
  int32_t n_known, width;
  Machine machine;
  Table<int16_t> states;
  Simulator sim;
  Chains chains;
  if (!takes("visit_states", n, 5) || !read_int(arguments[2], "n_known", n_known) ||
      !read_machine(arguments[3], machine) || !read_int(arguments[4], "width", width) ||
      !read_sequence(arguments, dag, sequence))
    return nullptr;
  if (n_known < 0 || n_known > dag.n_types || (width != n_known && width != 2 * (int64_t)n_known))
    return PyErr_Format(
               PyExc_ValueError,
               "width must be n_known or twice n_known, and n_known at most %d, got width=%lld and n_known=%lld",
               dag.n_types, (long long)width, (long long)n_known),
           nullptr;
  Ref made = make_table<int16_t>(sequence.size, width, states);
  if (!made) return nullptr;
  if (!sim.start(dag) || !chains.start(sim)) return PyErr_NoMemory();
  for (ptrdiff_t k = 0; k < sequence.size; k++) {
    if (sequence[k] < 0 || sequence[k] >= dag.n_types || !sim.is_ready(sequence[k]))
      return PyErr_Format(PyExc_ValueError, "sequence must name ready types, got %d at %zd", sequence[k], k);
    encode(sim, chains, n_known, machine.encoding, states[k], width);
    sim.step(sequence[k]);
    chains.follow(sim, sequence[k]);
  }
  return made.release();
}

// add_states(table, states): adds states that are not in the table, which must have room for all of them; returns the
// number of each state.
PyObject* add_states(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  ValueTable table;
  Table<const int16_t> states;
  Span<int32_t> numbers;
  if (!takes("add_states", n, 2) || !read_value_table(arguments[0], true, table) ||
      !read_table<int16_t>(arguments[1], "states", states) || table.refuse_overlap(states.all()))
    return nullptr;
  if (states.columns != table.width() || table.room() - table.n_states[0] < states.rows)
    return PyErr_Format(
               PyExc_ValueError,
               "states must be at most %zd rows of width %zd, as the table has room for, got %zd rows of width %zd",
               table.room() - table.n_states[0], (ptrdiff_t)table.width(), states.rows, states.columns),
           nullptr;
  Ref made = make_array<int32_t>(states.rows, numbers);
  for (ptrdiff_t i = 0; made && i < states.rows; i++) numbers[i] = table.add(states[i]);
  return made.release();
}

// longest_chains(dag): returns, for each type, the largest number of its nodes on a path.
PyObject* longest_chains(PyObject*, PyObject* tuple) {
  Dag dag;
  Span<int32_t> lengths;
  Vec<int32_t> longest;
  if (!read_dag(tuple, dag) || refuse_backward_edges(dag)) return nullptr;
  Ref made = make_array<int32_t>(dag.n_types, lengths);
  if (!made) return nullptr;
  if (!longest.resize(dag.n_nodes())) return PyErr_NoMemory();
  Unlocked unlocked;
  for (int32_t& length : lengths) length = 0;
  for (int32_t type : dag.type_id) lengths[type] = 1;
  for (int32_t type = 0; type < dag.n_types; type++) {
    for (int32_t node = 0; lengths[type] && node < dag.n_nodes(); node++) {
      int32_t most = 0;
      for (int32_t source : dag.sources(node)) most = longest[source] > most ? longest[source] : most;
      longest[node] = most + (dag.type_id[node] == type);
      lengths[type] = longest[node] > lengths[type] ? longest[node] : lengths[type];
    }
  }
  return made.release();
}

PyMethodDef functions[] = {fast("plan_by_rule", plan),
                           fast("embed", embed),
                           fast("compact_sequence", compact_sequence),
                           fast("batches_at", batches_at),
                           fast("plan_by_machine", plan_machine),
                           fast("plan_by_network", plan_network),
                           fast("score_types", score),
                           fast("local_search", search_locally),
                           fast("find_suffixes", find_suffixes),
                           fast("search_layers", search),
                           {"suffixes_to_dag", suffixes_to_dag, METH_O, nullptr},
                           fast("visit_states", visit_states),
                           {"longest_chains", longest_chains, METH_O, nullptr},
                           fast("add_states", add_states),
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* to_python(const Batches& batches) {
  Ref types = to_array<int32_t>(batches.batch_type), ptr = to_array<int32_t>(batches.batch_ptr),
      order = to_array<int32_t>(batches.order);
  if (!types || !ptr || !order) return nullptr;
  return Py_BuildValue("NNN", types.release(), ptr.release(), order.release());
}

bool refuse_backward_edges(const Dag& dag) {
  if (points_forward(dag)) return false;
  PyErr_SetString(PyExc_ValueError, "dag must have edges that point forward");
  return true;
}

bool read_weights(PyObject* tuple, Weights& weights) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4)
    return refuse_type("weights", "a tuple of four floats", tuple);
  double* parts[] = {&weights.critical, &weights.ready, &weights.own, &weights.height};
  for (int i = 0; i < 4; i++)
    if (!read_double(PyTuple_GET_ITEM(tuple, i), "a weight", *parts[i])) return false;
  return true;
}

bool read_directed_rule(PyObject* tuple, DirectedRule& found) {
  int32_t rule, compacts;
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4) return refuse_type("rule", "a CoreRule", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_int(parts[0], "the number of the rule", rule) || !read_int(parts[1], "directions", found.directions) ||
      !read_int(parts[2], "compacts", compacts) || !read_weights(parts[3], found.weights))
    return false;
  found.rule = (Rule)rule;
  found.compacts = compacts != 0;
  if (rule >= 0 && rule <= (int)Rule::SCORE && found.directions >= FORWARD && found.directions <= (FORWARD | BACKWARD))
    return true;
  PyErr_Format(PyExc_ValueError, "rule must lie in 0..%d, and directions in 1..3, got %d and %d", (int)Rule::SCORE,
               rule, found.directions);
  return false;
}

bool read_machine(PyObject* tuple, Machine& machine) {
  int32_t encoding, mask;
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 2) return refuse_type("machine", "MachineRules", tuple);
  if (!read_int(PyTuple_GET_ITEM(tuple, 0), "encoding", encoding) ||
      !read_int(PyTuple_GET_ITEM(tuple, 1), "mask", mask))
    return false;
  machine = {(Encoding)encoding, mask != 0};
  if (encoding >= 0 && encoding <= (int)Encoding::SORT) return true;
  return PyErr_Format(PyExc_ValueError, "encoding must lie in 0..2, got %d", encoding), false;
}

bool read_rules(PyObject* tuple, LearningRules& rules) {
  int32_t reward, bootstraps, is_optimistic;
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 6) return refuse_type("rules", "LearningRules", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_double(parts[0], "learning_rate", rules.learning_rate) ||
      !read_double(parts[1], "discount", rules.discount) || !read_int(parts[2], "n_steps", rules.n_steps) ||
      !read_int(parts[3], "reward", reward) || !read_int(parts[4], "bootstrap", bootstraps) ||
      !read_int(parts[5], "optimism", is_optimistic))
    return false;
  if (rules.n_steps < 1 || reward < 0 || reward > (int)Reward::CRITICAL)
    return PyErr_Format(PyExc_ValueError, "n_steps must be at least 1 and reward 0 or 1, got n_steps=%d and reward=%d",
                        rules.n_steps, reward),
           false;
  rules.reward = (Reward)reward;
  rules.bootstraps = bootstraps;
  rules.is_optimistic = is_optimistic;
  return true;
}

bool add_policies(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0 && PyModule_AddType(module, &CourseType) == 0 &&
         PyModule_AddType(module, &SimulationType) == 0;
}

}  // namespace autobatch
