// The Python bindings of this folder; `_native.pyi` documents them.

#include "graph/growing/round.h"
#include "plan/device_steps.h"
#include "plan/job.h"
#include "plan/lifetimes.h"
#include "plan/sums.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_PLACE = int64_t(1) << 61;  // so that places after the buffer do not overflow

// place_values(words, floats, batches, types, layout): returns the parts of a plan, in the order of `Plan`.
PyObject* place_values(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph graph;
  Span<const double> floats;
  BatchSpans batches;
  Placement placement;
  if (!takes("place_values", n, 5) || !read_graph_and_types(arguments[0], arguments[3], graph) ||
      !read<double>(arguments[1], "floats", floats) || !placement.read_layout(arguments[4], graph.types) ||
      !placement.fits(graph, floats) ||
      !read_batches(arguments[2], graph.graph.n_nodes(), placement.n_types(), batches))
    return nullptr;
  Problem problem;
  {
    Unlocked unlocked;
    problem = check_types(graph);
    if (!problem) problem = placement.place(graph, floats, batches);
  }
  PlanArrays plan;
  return set_problem(problem) ? placement.to_python(plan).release() : nullptr;
}

// plan_round(round, types, passes, rule, layout, sizes, n_threads): returns the parts of a `Choice`; the parts of a
// `RowMoves`, or None if there is nothing to run; the words and floats of the graph; and the parts of a `Planned`. The
// last two are None if there is nothing to run, or if a source has no type yet.
PyObject* plan_round(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Choice choice;
  RowMoves moves;
  Emission emission;
  Pipeline pipeline;
  constexpr Py_ssize_t N_PARTS = 16;
  if (!takes("plan_round", n, 7)) return nullptr;
  if (!PyTuple_Check(arguments[0]) || PyTuple_GET_SIZE(arguments[0]) != N_PARTS)
    return PyErr_Format(PyExc_TypeError, "round must be a tuple of %zd, got %.80s", N_PARTS,
                        Py_TYPE(arguments[0])->tp_name);
  PyObject* parts[N_PARTS];
  for (Py_ssize_t k = 0; k < N_PARTS; k++) parts[k] = PyTuple_GET_ITEM(arguments[0], k);
  bool gives_results = parts[15] != Py_None;
  if (!read_growing(parts, N_PARTS, g) || !choice.read(parts + 2) || !moves.read(parts[9], parts + 10) ||
      !read<int32_t>(parts[14], "source_type", emission.source_type) ||
      (gives_results && !emission.read_results(parts[15])) || !pipeline.read(arguments + 1))
    return nullptr;
  bool runs = false, has_types = false;
  auto begin = [&] {
    Ended ended = choice.choose(g);
    runs = ended == Ended::WELL && (choice.nodes.size() || gives_results);
    if (!runs) return ended;
    ended = moves.move(g, choice.now);
    emission.nodes = choice.nodes;
    emission.sources = choice.sources;
    if (!gives_results) emission.take_kept(choice);
    has_types = emission.has_types(g);
    return ended;
  };
  if (!autobatch::run(begin)) return nullptr;
  Ref chosen = choice.to_python(), moved = runs ? moves.to_python() : Ref::borrowed(Py_None);
  if (!chosen || !moved) return nullptr;
  if (!runs || !has_types) return Py_BuildValue("NNOO", chosen.release(), moved.release(), Py_None, Py_None);
  Merging::Part part;
  if (!emission.make_arrays(g) || !autobatch::run([&] { return emission.write(g); }) ||
      !part.read(emission.words.get(), emission.floats.get()) || !pipeline.take(part, arguments[1]))
    return nullptr;
  Problem problem;
  {
    Unlocked unlocked;
    problem = pipeline.run();
  }
  Ref planned = pipeline.to_python(problem);
  if (!planned) return nullptr;
  return Py_BuildValue("NN(NN)N", chosen.release(), moved.release(), emission.words.release(),
                       emission.floats.release(), planned.release());
}

// give_out(first, size, start): returns the places of areas, and the end of memory; see `lifetimes.h`.
PyObject* give_out_areas(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const int32_t> first;
  Span<const int64_t> size;
  Vec<int64_t> place;
  int64_t last;
  if (!takes("give_out", n, 3) || !read_long(arguments[2], "start", last) ||
      !read<int32_t>(arguments[0], "first", first) || !read<int64_t>(arguments[1], "size", size))
    return nullptr;
  bool fits = size.size == first.size && first.size < INT32_MAX;
  for (ptrdiff_t k = 0; fits && k < first.size; k++) fits = first[k] >= 0 && first[k] <= k;
  if (!fits)
    return PyErr_Format(PyExc_ValueError, "first[k] must lie in 0..k for each of %zd sizes, got %zd ints", size.size,
                        first.size),
           nullptr;
  // If no area reuses a gap, memory ends at the start plus all sizes, which must not overflow.
  for (int64_t left = last < 0 ? INT64_MAX : INT64_MAX - last; int64_t one : size)
    if (one > 0 && (left -= one) < 0)
      return PyErr_SetString(PyExc_ValueError, "areas must end within 64 bits, got larger sizes"), nullptr;
  if (!give_out(first, size, last, place)) return PyErr_NoMemory();
  return Py_BuildValue("NL", to_array<int64_t>(place).release(), (long long)last);
}

// make_tables(plan, sizes, n_threads): returns the parts of a `PlanTables`, in order.
PyObject* make_tables(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanArrays plan;
  CellSizes sizes;
  int32_t n_threads;
  if (!takes("make_tables", n, 3) || !read_threads(arguments[2], n_threads) || !read_plan_arrays(arguments[0], plan) ||
      !read_cell_sizes(arguments[1], plan.n_types(), plan.n_blocks(), sizes))
    return nullptr;
  if (!fit(sizes, plan))
    return PyErr_Format(
        PyExc_ValueError,
        "sizes must have positive most_rows and the fields of the plan's %d types, got sizes of other types",
        plan.n_types());
  PlanTables tables;
  Problem problem;
  {
    Unlocked unlocked;
    problem = tables.make(plan, sizes, n_threads);
  }
  return set_problem(problem) ? tables.to_python(plan).release() : nullptr;
}

// find_sums(plan, dest, width, first): returns (to, table, parts, ptr, size); see `Sums` in Python.
PyObject* find_sums_of(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanArrays plan;
  Span<const int64_t> dest, width;
  int64_t first;
  if (!takes("find_sums", n, 4) || !read_long(arguments[3], "first", first) || !read_plan_arrays(arguments[0], plan) ||
      !read<int64_t>(arguments[1], "dest", dest) || !read<int64_t>(arguments[2], "width", width))
    return nullptr;
  bool fits = dest.size == plan.adds.size && width.size == plan.out_block.size && first >= 0 && first <= MOST_PLACE;
  for (int64_t one : width) fits = fits && one >= 0 && one <= INT32_MAX;
  if (!fits)
    return PyErr_Format(PyExc_ValueError,
                        "dest must have %zd elements, width %zd of at least 0, and first lie in 0..%lld, got dest "
                        "(%zd), width (%zd) and first=%lld",
                        plan.adds.size, plan.out_block.size, (long long)MOST_PLACE, dest.size, width.size,
                        (long long)first),
           nullptr;
  Sums sums;
  Problem problem;
  {
    Unlocked unlocked;
    problem = find_sums(plan, dest, width, first, sums);
  }
  if (!set_problem(problem)) return nullptr;
  Table<int64_t> rows;
  Ref to = to_array<int64_t>(sums.to), table = make_table<int64_t>(sums.table.size(), 4, rows),
      parts = to_array<int64_t>(sums.parts), ptr = to_array<int64_t>(sums.ptr);
  if (!to || !table || !parts || !ptr) return nullptr;
  static_assert(sizeof(Sums::Sum) == 4 * sizeof(int64_t));
  if (rows.rows) memcpy(rows.data, sums.table.data(), (size_t)rows.rows * sizeof(Sums::Sum));
  return Py_BuildValue("NNNNL", to.release(), table.release(), parts.release(), ptr.release(), (long long)sums.size);
}

// Reads the calls of a `CallList` of Python.
bool read_calls(PyObject* tuple, DeviceSteps& list) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4)
    return refuse_type("calls", "(calls, tile_ptr, ptr, is_serial)", tuple);
  Table<const int64_t> calls;
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_table<int64_t>(parts[0], "calls", calls) || !read<int64_t>(parts[1], "tile_ptr", list.tile_ptr) ||
      !read<int64_t>(parts[2], "ptr", list.ptr))
    return false;
  list.calls = {reinterpret_cast<const CallList::Call*>(calls.data), calls.rows};
  if (calls.columns == 2) return true;
  return refuse_value("calls must have 2 columns, step and tile"), false;
}

// Reads the rules of known steps, and checks that they are those of the types of these tiles.
bool read_rules(PyObject* array, DeviceSteps& list) {
  Table<const int64_t> rules;
  if (!read_table<int64_t>(array, "rules", rules)) return false;
  constexpr int64_t MOST = INT32_MAX;
  bool fits = rules.columns == 6 && rules.rows == list.known.size && rules.rows >= 2;
  for (ptrdiff_t i = 0; fits && i < rules.rows; i++) {
    const int64_t* rule = rules[i];
    fits = within({rule, 1}, 0, i + 2 < rules.rows ? list.word_ptr.size : 1) && within({rule + 1, 1}, 0, MOST) &&
           within({rule + 2, 1}, -1, MOST) && rule[4] > 0;
  }
  list.rules = {reinterpret_cast<const BlockRule*>(rules.data), rules.rows};
  static_assert(sizeof(BlockRule) == 6 * sizeof(int64_t));
  return fits || (refuse_value("rules must be those of known steps, got others"), false);
}

// list_device_steps(known, rules, calls, words, word_ptr, sum_ptr): returns (steps, blocks, ptr, hosted); see `Sweep`
// in `autobatch.backends.cuda.launching`.
PyObject* list_device_steps(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  DeviceSteps list;
  if (!takes("list_device_steps", n, 6) || !read_records(arguments[0], "known", list.known) ||
      !read_calls(arguments[2], list) || !read<int64_t>(arguments[3], "words", list.words) ||
      !read<int64_t>(arguments[4], "word_ptr", list.word_ptr) || !read_rules(arguments[1], list) ||
      !read<int64_t>(arguments[5], "sum_ptr", list.sum_ptr))
    return nullptr;
  if (!within(list.word_ptr, 0, list.words.size + 1)) return refuse_value("word_ptr must stay in words");
  Problem problem;
  {
    Unlocked unlocked;
    problem = list.list();
  }
  if (!set_problem(problem)) return nullptr;
  Table<int64_t> steps, hosted;
  Ref steps_array = make_table<int64_t>(list.steps.size(), sizeof(DeviceStep) / sizeof(int64_t), steps),
      hosted_array = make_table<int64_t>(list.hosted.size(), sizeof(DeviceSteps::Hosted) / sizeof(int64_t), hosted),
      blocks = to_array<int64_t>(list.blocks), ptr = to_array<int64_t>(list.part_ptr);
  if (!steps_array || !hosted_array || !blocks || !ptr) return nullptr;
  memcpy(steps.data, list.steps.data(), (size_t)steps.rows * sizeof(DeviceStep));
  if (hosted.rows) memcpy(hosted.data, list.hosted.data(), (size_t)hosted.rows * sizeof(DeviceSteps::Hosted));
  return Py_BuildValue("NNNN", steps_array.release(), blocks.release(), ptr.release(), hosted_array.release());
}

PyMethodDef functions[] = {fast("plan_graphs", plan_graphs),
                           fast("plan_round", plan_round),
                           fast("place_values", place_values),
                           fast("give_out", give_out_areas),
                           fast("make_tables", make_tables),
                           fast("find_sums", find_sums_of),
                           fast("list_device_steps", list_device_steps),
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_plan(PyObject* module) {
  return PyModule_AddType(module, &PlanJobType) == 0 && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace autobatch
