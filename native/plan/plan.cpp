// The functions of this folder that Python calls; `_native.pyi` describes them.

#include "graph/marks.h"
#include "graph/rewrite/rewrite.h"
#include "plan/lifetimes.h"
#include "plan/placement.h"
#include "plan/plan_tables.h"
#include "plan/sums.h"
#include "policies/entries.h"
#include "support/clock.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_PLACE = int64_t(1) << 61;  // so that places behind the buffer can be counted

bool read_threads(PyObject* number, int32_t& n_threads) {
  constexpr int32_t MOST_THREADS = 1 << 16;
  if (!read_int(number, "n_threads", n_threads)) return false;
  if (n_threads >= 1 && n_threads <= MOST_THREADS) return true;
  return PyErr_Format(PyExc_ValueError, "n_threads must lie in 1..%d, got %d", MOST_THREADS, n_threads), false;
}

// place_values(words, floats, batches, types, layout): the parts of a plan, in the order of `Plan`.
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

// A loss, by the paths of its gradients.
struct Loss {
  Flows flows;
  int32_t slot = -1;

  // Reads both; the paths may be None if there is no slot.
  bool read(PyObject* flows_given, PyObject* slot_given, int32_t n_types, ptrdiff_t n_slots) {
    if (!read_int(slot_given, "slot", slot) || slot < 0) return !PyErr_Occurred();
    if (!read_flows(flows_given, flows)) return false;
    if (slot < n_slots && flows.n_types() == n_types) return true;
    return PyErr_SetString(PyExc_ValueError, "flows and slot must be of these types, got others"), false;
  }
  // Finds whether the loss depends on all nodes of a graph; false without a loss.
  Problem find_whole(const Graph& graph, ptrdiff_t n_slots, bool& is_whole) const {
    is_whole = false;
    if (slot < 0) return nullptr;
    ptrdiff_t width = 1;  // the first column is of the nodes
    for (int32_t n_outputs : flows.n_outputs) width = n_outputs >= width ? n_outputs + ptrdiff_t(1) : width;
    Vec<uint8_t> marks, wanted;
    if (!marks.resize(graph.n_nodes() * width) || !wanted.assign(n_slots, 0)) return NO_MEMORY;
    wanted[slot] = 1;
    Marked marked = mark_all(graph, flows, wanted, {marks.data(), graph.n_nodes(), width});
    is_whole = marked == Marked::WHOLE;
    return marked == Marked::WRONG ? "a slot, an output or a port does not exist" : nullptr;
  }
};

// plan_graphs(graphs, types, passes, rule, layout, sizes, n_threads, flows, slot): those of `merge_graphs`, or None for
// a single graph; words, floats and changes of the rewritten graph; its schedule; the parts of a plan; those of its
// tables, or None if a type of the plan has no sizes yet; whether the loss in the slot depends on all nodes; and the
// seconds that merging, rewriting, scheduling and placing took.
PyObject* plan_graphs(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Merging merging;
  Rewriting rewriting;
  TypedGraph graph;
  DirectedRule rule;
  Batches batches;
  Placement placement;
  CellSizes sizes;
  Loss loss;
  int32_t passes, n_threads;
  double times[5] = {seconds_now()};  // when each stage begins, and when all are done
  if (!takes("plan_graphs", n, 9) || !read_int(arguments[2], "passes", passes) ||
      !read_directed_rule(arguments[3], rule) || !merging.read(arguments[0]))
    return nullptr;
  bool merges = merging.parts.size() != 1;
  if ((merges && !merging.make_arrays()) || !rewriting.take(merges ? merging.whole : merging.parts[0], arguments[1]) ||
      !placement.read_layout(arguments[4], rewriting.given.types) ||
      !placement.fits(rewriting.given, rewriting.draft.floats) || !read_threads(arguments[6], n_threads) ||
      (arguments[5] != Py_None && !read_cell_sizes(arguments[5], placement.n_types(), placement.n_blocks(), sizes)) ||
      !loss.read(arguments[7], arguments[8], placement.n_types(), placement.n_slots()))
    return nullptr;
  Problem problem;
  PlanArrays plan;
  PlanTables tables;
  bool has_tables = false, is_whole = false;
  {
    Unlocked unlocked;
    if (merges) merging.write();
    times[1] = seconds_now();
    problem = rewriting.run(passes);
    if (!problem) problem = rewriting.finish(graph);
    times[2] = seconds_now();
    const Graph& parts = graph.graph;
    Dag dag{parts.type_id, parts.edge_ptr, parts.edge_src, (int32_t)graph.types.n_types()};
    if (!problem && !plan_best(dag, rule, batches)) problem = NO_MEMORY;
    times[3] = seconds_now();
    BatchSpans scheduled{batches.batch_type, batches.batch_ptr, batches.order};
    if (!problem) problem = placement.place(graph, rewriting.draft.floats, scheduled);
    if (!problem) {
      placement.list_arrays(scheduled, plan);
      has_tables = sizes.scratch.rows && fit(sizes, plan);
      if (has_tables) problem = tables.make(plan, sizes, n_threads);
    }
    if (!problem) problem = loss.find_whole(graph.graph, placement.n_slots(), is_whole);
    times[4] = seconds_now();
  }
  if (problem) return rewriting.refuse(problem);
  Ref floats = rewriting.floats(), words = rewriting.words(), changes = rewriting.changes(),
      schedule(to_python(batches)), parts = placement.to_python(plan),
      merged = merges ? merging.to_python() : Ref::borrowed(Py_None);
  if (!words || !floats || !changes || !schedule || !parts || !merged) return nullptr;
  Ref listed = has_tables ? tables.to_python(plan) : Ref::borrowed(Py_None);
  if (!listed) return nullptr;
  return Py_BuildValue("NNNNNNNO(dddd)", merged.release(), words.release(), floats.release(), changes.release(),
                       schedule.release(), parts.release(), listed.release(), is_whole ? Py_True : Py_False,
                       times[1] - times[0], times[2] - times[1], times[3] - times[2], times[4] - times[3]);
}

// give_out(first, size, start): the places of areas, and the end of memory; see `lifetimes.h`.
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
  if (!fits) return PyErr_SetString(PyExc_ValueError, "first[k] must lie in 0..k for each size, got others"), nullptr;
  for (int64_t left = last < 0 ? INT64_MAX : INT64_MAX - last; int64_t one : size)
    if (one > 0 && (left -= one) < 0)
      return PyErr_SetString(PyExc_ValueError, "areas must end within 64 bits, got more"), nullptr;
  if (!give_out(first, size, last, place)) return PyErr_NoMemory();
  return Py_BuildValue("NL", to_array<int64_t>(place).release(), (long long)last);
}

// make_tables(plan, sizes, n_threads): the parts of a `PlanTables`, in order.
PyObject* make_tables(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanArrays plan;
  CellSizes sizes;
  int32_t n_threads;
  if (!takes("make_tables", n, 3) || !read_threads(arguments[2], n_threads) || !read_plan_arrays(arguments[0], plan) ||
      !read_cell_sizes(arguments[1], plan.n_types(), plan.n_blocks(), sizes))
    return nullptr;
  if (!fit(sizes, plan)) return refuse_value("sizes must be those of the types of the plan, got others");
  PlanTables tables;
  Problem problem;
  {
    Unlocked unlocked;
    problem = tables.make(plan, sizes, n_threads);
  }
  return set_problem(problem) ? tables.to_python(plan).release() : nullptr;
}

// find_sums(plan, dest, width, first): (to, table, parts, ptr, size), see `Sums` in Python.
PyObject* find_sums_of(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanArrays plan;
  Span<const int64_t> dest, width;
  int64_t first;
  if (!takes("find_sums", n, 4) || !read_long(arguments[3], "first", first) || !read_plan_arrays(arguments[0], plan) ||
      !read<int64_t>(arguments[1], "dest", dest) || !read<int64_t>(arguments[2], "width", width))
    return nullptr;
  bool fits = dest.size == plan.adds.size && width.size == plan.out_block.size && first >= 0 && first <= MOST_PLACE;
  for (int64_t one : width) fits = fits && one >= 0 && one <= INT32_MAX;
  if (!fits) return PyErr_SetString(PyExc_ValueError, "dest, width and first must fit the plan, got others"), nullptr;
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

PyMethodDef functions[] = {fast("plan_graphs", plan_graphs), fast("place_values", place_values),
                           fast("give_out", give_out_areas), fast("make_tables", make_tables),
                           fast("find_sums", find_sums_of),  {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_plan(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
