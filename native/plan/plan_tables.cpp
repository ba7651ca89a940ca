#include "plan/plan_tables.h"

namespace autobatch {
namespace {

constexpr int32_t N_DESTINATIONS = 3;  // the number of leading addresses

// Makes the fields of a Python `CallList`.
Ref to_python(const CallList& list, const Vec<uint8_t>* is_serial) {
  static_assert(sizeof(CallList::Call) == 2 * sizeof(int64_t));
  Table<int64_t> rows;
  Span<uint8_t> flags;
  Ref calls = make_table<int64_t>(list.calls.size(), 2, rows), tile_ptr = to_array<int64_t>(list.tile_ptr),
      ptr = to_array<int64_t>(list.ptr), serial = make_flags(is_serial ? is_serial->size() : 0, flags);
  if (!calls || !tile_ptr || !ptr || !serial) return Ref();
  if (rows.rows) memcpy(rows.data, list.calls.data(), (size_t)rows.rows * sizeof(CallList::Call));
  if (flags.size) memcpy(flags.data, is_serial->data(), (size_t)flags.size);
  return Ref(Py_BuildValue("NNNN", calls.release(), tile_ptr.release(), ptr.release(), serial.release()));
}

// Lists the addresses of `dest_ptr`, `dest` and `adds`; of the tiles of each type; and of the ints, the floats and the
// segments of each block.
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

// Lists the types that have rows, as a tuple.
Ref present_types(const PlanArrays& plan) {
  Py_ssize_t n = 0;
  for (int32_t type = 0; type < plan.n_types(); type++) n += plan.block_rows[plan.block_ptr[type]] > 0;
  Ref found(PyTuple_New(n));
  n = 0;
  for (int32_t type = 0; found && type < plan.n_types(); type++) {
    if (!plan.block_rows[plan.block_ptr[type]]) continue;
    PyObject* number = PyLong_FromLong(type);
    if (!number) return Ref();
    PyTuple_SET_ITEM(found.get(), n++, number);
  }
  return found;
}

uint8_t n_bits(int64_t number) {
  uint8_t n = 0;
  for (; number > 0; number >>= 1) n++;
  return n;
}

}  // namespace

Problem PlanTables::make(const PlanArrays& plan, const CellSizes& sizes, int32_t n_threads) {
  bool adds_up = false;  // otherwise, and with a single thread, `is_serial_` stays empty
  for (ptrdiff_t i = 0; n_threads > 1 && i < plan.adds.size; i++) adds_up |= plan.adds[i] != 0;
  if (adds_up)
    if (Problem problem = find_serial(plan, is_serial_)) return problem;
  bool is_done = make_tiles(plan, sizes, n_threads, tiles_) &&
                 list_calls(plan, sizes, tiles_.counts, FORWARD_STAGE, n_threads, lists_[FORWARD_STAGE]) &&
                 list_calls(plan, sizes, tiles_.counts, BACKWARD_STAGE, n_threads, lists_[BACKWARD_STAGE]) &&
                 list_weight_calls(sizes, tiles_.counts, n_threads, lists_[WEIGHT_STAGE]);
  return is_done ? nullptr : NO_MEMORY;
}

Ref PlanTables::to_python(const PlanArrays& plan) const {
  int32_t n_blocks = plan.n_blocks();
  Table<int64_t> means;
  Span<int64_t> words, addresses;
  Ref present = present_types(plan), words_array = make_array<int64_t>(tiles_.words.size(), words),
      ptr = to_array<int64_t>(tiles_.ptr), mean_rows = make_table<int64_t>(n_blocks, 2, means),
      forward = autobatch::to_python(lists_[FORWARD_STAGE], &is_serial_),
      backward = autobatch::to_python(lists_[BACKWARD_STAGE], nullptr),
      weights = autobatch::to_python(lists_[WEIGHT_STAGE], nullptr),
      address_array = make_array<int64_t>(N_DESTINATIONS + plan.n_types() + 3 * (ptrdiff_t)n_blocks, addresses),
      size_classes(PyBytes_FromStringAndSize(nullptr, 2 * (Py_ssize_t)n_blocks)),
      row_classes(PyBytes_FromStringAndSize(nullptr, n_blocks));
  if (!present || !words_array || !ptr || !mean_rows || !forward || !backward || !weights || !address_array ||
      !size_classes || !row_classes)
    return Ref();
  if (words.size) memcpy(words.data, tiles_.words.data(), (size_t)words.size * sizeof(int64_t));
  list_addresses(plan, tiles_, words.data, addresses);
  char *of_sizes = PyBytes_AS_STRING(size_classes.get()), *of_rows = PyBytes_AS_STRING(row_classes.get());
  for (ptrdiff_t block = 0; block < n_blocks; block++) {
    for (int kind = 0; kind < 2; kind++) {
      means[block][kind] = tiles_.mean_rows[2 * block + kind];
      of_sizes[kind * (ptrdiff_t)n_blocks + block] = (char)n_bits(means[block][kind]);
    }
    of_rows[block] = (char)n_bits(plan.block_rows[block]);
  }
  return Ref(Py_BuildValue("NNNNLL(NNN)NNN", present.release(), words_array.release(), ptr.release(),
                           mean_rows.release(), (long long)tiles_.kept_size, (long long)tiles_.scratch_size,
                           forward.release(), backward.release(), weights.release(), address_array.release(),
                           size_classes.release(), row_classes.release()));
}

}  // namespace autobatch
