// The functions of this folder that Python calls; `_native.pyi` describes them.

#include "graph/rewrite/rewrite.h"
#include "plan/lifetimes.h"
#include "plan/placement.h"
#include "plan/sums.h"
#include "policies/entries.h"
#include "support/clock.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_PLACE = int64_t(1) << 61;  // so that places behind the buffer can be counted

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
  return set_problem(problem) ? placement.to_python().release() : nullptr;
}

// plan_graph(words, floats, types, passes, rule, layout): words, floats and changes of the rewritten graph; its
// schedule; the parts of a plan; and the seconds that rewriting, scheduling and placing took.
PyObject* plan_graph(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Rewriting rewriting;
  TypedGraph graph;
  DirectedRule rule;
  Batches batches;
  Placement placement;
  int32_t passes;
  if (!takes("plan_graph", n, 6) || !read_int(arguments[3], "passes", passes) ||
      !read_directed_rule(arguments[4], rule) || !rewriting.read(arguments[0], arguments[1], arguments[2]) ||
      !placement.read_layout(arguments[5], rewriting.given.types) ||
      !placement.fits(rewriting.given, rewriting.draft.floats))
    return nullptr;
  Problem problem;
  double times[4];  // when each stage begins, and when all are done
  {
    Unlocked unlocked;
    times[0] = seconds_now();
    problem = rewriting.run(passes);
    if (!problem) problem = rewriting.finish(graph);
    times[1] = seconds_now();
    const Graph& parts = graph.graph;
    Dag dag{parts.type_id, parts.edge_ptr, parts.edge_src, (int32_t)graph.types.n_types()};
    if (!problem && !plan_best(dag, rule, batches)) problem = NO_MEMORY;
    times[2] = seconds_now();
    if (!problem)
      problem = placement.place(graph, rewriting.draft.floats, {batches.batch_type, batches.batch_ptr, batches.order});
    times[3] = seconds_now();
  }
  if (problem) return rewriting.refuse(problem);
  Ref floats = rewriting.floats(), words = rewriting.words(), changes = rewriting.changes(),
      schedule(to_python(batches)), parts = placement.to_python();
  if (!words || !floats || !changes || !schedule || !parts) return nullptr;
  return Py_BuildValue("NNNNN(ddd)", words.release(), floats.release(), changes.release(), schedule.release(),
                       parts.release(), times[1] - times[0], times[2] - times[1], times[3] - times[2]);
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

// Makes the arrays of a list of calls: (calls, tile_ptr, ptr).
PyObject* to_python(const CallList& list) {
  static_assert(sizeof(CallList::Call) == 2 * sizeof(int64_t));
  Table<int64_t> rows;
  Ref calls = make_table<int64_t>(list.calls.size(), 2, rows), tile_ptr = to_array<int64_t>(list.tile_ptr),
      ptr = to_array<int64_t>(list.ptr);
  if (!calls || !tile_ptr || !ptr) return nullptr;
  if (rows.rows) memcpy(rows.data, list.calls.data(), (size_t)rows.rows * sizeof(CallList::Call));
  return Py_BuildValue("NNN", calls.release(), tile_ptr.release(), ptr.release());
}

// Lists the addresses of a plan: of `dest_ptr`, `dest` and `adds`; of the tiles of each type; and of the ints, the
// floats and the segments of each block.
void list_addresses(const PlanArrays& plan, const Tiles& tiles, const int64_t* words, Span<int64_t> addresses) {
  auto address = [](const void* memory) { return (int64_t)(intptr_t)memory; };
  int64_t* next = addresses.data;
  *next++ = address(plan.dest_ptr.data);
  *next++ = address(plan.dest);
  *next++ = address(plan.adds.data);
  for (int32_t type = 0; type < plan.n_types(); type++) *next++ = address(words + tiles.ptr[type]);
  uint64_t ints = (uint64_t)address(plan.ints), floats = (uint64_t)address(plan.floats);
  int32_t n = plan.n_blocks();
  for (int32_t block = 0; block < n; block++) {
    next[block] = (int64_t)ints;
    next[n + block] = (int64_t)floats;
    next[2 * (ptrdiff_t)n + block] = address(plan.segments.data + plan.segment_base[block]);
    ints += sizeof(int32_t) * (uint64_t)plan.block_rows[block] * (uint64_t)plan.block_ints[block];
    floats += sizeof(double) * (uint64_t)plan.block_rows[block] * (uint64_t)plan.block_floats[block];
  }
}

uint8_t n_bits(int64_t number) {
  uint8_t n = 0;
  for (; number > 0; number >>= 1) n++;
  return n;
}

constexpr int32_t N_DESTINATIONS = 3;  // the first addresses

// make_tables(plan, sizes, n_threads): (words, ptr, mean_rows, kept_size, scratch_size, forward, backward, weights,
// is_serial, addresses, classes).
PyObject* make_tables(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanArrays plan;
  CellSizes sizes;
  int32_t n_threads;
  if (!takes("make_tables", n, 3) || !read_int(arguments[2], "n_threads", n_threads) ||
      !read_plan_arrays(arguments[0], plan) || !read_cell_sizes(arguments[1], plan, sizes))
    return nullptr;
  constexpr int32_t MOST_THREADS = 1 << 16;
  if (n_threads < 1 || n_threads > MOST_THREADS)
    return PyErr_Format(PyExc_ValueError, "n_threads must lie in 1..%d, got %d", MOST_THREADS, n_threads);
  Tiles tiles;
  CallList forward, backward, weights;
  Vec<uint8_t> is_serial;
  Problem problem = nullptr;
  {
    Unlocked unlocked;
    bool adds_up = false;
    for (ptrdiff_t i = 0; n_threads > 1 && i < plan.adds.size; i++) adds_up |= plan.adds[i] != 0;
    if (adds_up) problem = find_serial(plan, is_serial);
    if (!problem && (!make_tiles(plan, sizes, n_threads, tiles) ||
                     !list_calls(plan, sizes, tiles.counts, FORWARD_STAGE, n_threads, forward) ||
                     !list_calls(plan, sizes, tiles.counts, BACKWARD_STAGE, n_threads, backward) ||
                     !list_weight_calls(sizes, tiles.counts, n_threads, weights)))
      problem = NO_MEMORY;
  }
  if (!set_problem(problem)) return nullptr;
  int32_t n_blocks = plan.n_blocks();
  Table<int64_t> means;
  Span<int64_t> words, addresses;
  Span<uint8_t> serial_flags;
  Ref words_array = make_array<int64_t>(tiles.words.size(), words), mean_rows = make_table<int64_t>(n_blocks, 2, means),
      lists[] = {Ref(to_python(forward)), Ref(to_python(backward)), Ref(to_python(weights))},
      serial = make_flags(is_serial.size(), serial_flags),
      address_array = make_array<int64_t>(N_DESTINATIONS + plan.n_types() + 3 * (ptrdiff_t)n_blocks, addresses),
      ptr = to_array<int64_t>(tiles.ptr), classes(PyBytes_FromStringAndSize(nullptr, 3 * (Py_ssize_t)n_blocks));
  if (!words_array || !mean_rows || !lists[0] || !lists[1] || !lists[2] || !serial || !address_array || !ptr ||
      !classes)
    return nullptr;
  if (words.size) memcpy(words.data, tiles.words.data(), (size_t)words.size * sizeof(int64_t));
  if (is_serial.size()) memcpy(serial_flags.data, is_serial.data(), (size_t)is_serial.size());
  list_addresses(plan, tiles, words.data, addresses);
  char* of_block = PyBytes_AS_STRING(classes.get());
  for (ptrdiff_t block = 0; block < n_blocks; block++) {
    for (int kind = 0; kind < 2; kind++) {
      means[block][kind] = tiles.mean_rows[2 * block + kind];
      of_block[kind * (ptrdiff_t)n_blocks + block] = (char)n_bits(means[block][kind]);
    }
    of_block[2 * (ptrdiff_t)n_blocks + block] = (char)n_bits(plan.block_rows[block]);
  }
  return Py_BuildValue("NNNLLNNNNNN", words_array.release(), ptr.release(), mean_rows.release(),
                       (long long)tiles.kept_size, (long long)tiles.scratch_size, lists[0].release(),
                       lists[1].release(), lists[2].release(), serial.release(), address_array.release(),
                       classes.release());
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

PyMethodDef functions[] = {fast("plan_graph", plan_graph),   fast("place_values", place_values),
                           fast("give_out", give_out_areas), fast("make_tables", make_tables),
                           fast("find_sums", find_sums_of),  {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_plan(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
