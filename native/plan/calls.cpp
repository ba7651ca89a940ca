#include "plan/calls.h"

namespace autobatch {
namespace {

// Writes a list of calls, part by part and tile by tile. `start` reserves all memory, so that later calls cannot fail.
class Writer {
 public:
  explicit Writer(CallList& list) : list_(list) {}
  bool start(int64_t n_calls, int64_t n_tiles, int64_t n_parts) {
    return list_.calls.reserve(n_calls) && list_.tile_ptr.reserve(n_tiles + 1) && list_.ptr.reserve(n_parts + 1) &&
           list_.tile_ptr.push(0) && list_.ptr.push(0);
  }
  void add_tile(int64_t first_step, int64_t end_step, int64_t tile) {
    for (int64_t step = first_step; step < end_step; step++) list_.calls.append({step, tile});
    list_.tile_ptr.append(list_.calls.size());
  }
  void end_part() { list_.ptr.append(list_.tile_ptr.size() - 1); }

 private:
  CallList& list_;
};

// Adds numbers that were not checked. A sum that overflows wraps around; callers check that the result is in range.
int64_t sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

}  // namespace

bool list_calls(const PlanArrays& plan, const CellSizes& sizes, Span<const int64_t> counts, Stage stage,
                int32_t n_threads, CallList& list) {
  enum Moment { BEFORE, INSIDE, AFTER };
  int32_t n_types = plan.n_types(), n_batches = plan.n_batches();
  Vec<int64_t> first, n_done;  // per type: the first step of each moment and the end; its tiles so far
  if (!first.assign(4 * (ptrdiff_t)n_types, 0) || !n_done.assign(n_types, 0)) return false;
  int64_t n_steps = 0, n_calls = 0, n_tiles = 0;
  for (int32_t type = 0; type < n_types; type++) {
    int64_t n_cut = counts[2 * (ptrdiff_t)type], n_whole = counts[2 * (ptrdiff_t)type + 1];
    if (!n_cut) continue;
    const int64_t* steps = sizes.steps_of(stage, type);
    // Without tiles for all rows, the steps before and after the batches run with the tiles of each batch.
    int64_t before = n_whole ? steps[BEFORE] : 0, after = n_whole ? steps[AFTER] : 0;
    int64_t inside = steps[BEFORE] + steps[INSIDE] + steps[AFTER] - before - after;
    int64_t* own = first.data() + 4 * (ptrdiff_t)type;
    own[BEFORE] = n_steps;
    own[INSIDE] = own[BEFORE] + before;
    own[AFTER] = own[INSIDE] + inside;
    own[AFTER + 1] = n_steps = own[AFTER] + after;
    n_tiles += n_cut + n_whole * ((before > 0) + (after > 0));
    n_calls += n_cut * inside + n_whole * (before + after);
  }
  Writer writer(list);
  if (!writer.start(n_calls, n_tiles, (int64_t)n_batches + 2)) return false;
  auto add_whole = [&](Moment moment) {
    for (int32_t type = 0; type < n_types; type++) {
      const int64_t* own = first.data() + 4 * (ptrdiff_t)type;
      for (int64_t k = 0; own[moment] < own[moment + 1] && k < counts[2 * (ptrdiff_t)type + 1]; k++)
        writer.add_tile(own[moment], own[moment + 1], counts[2 * (ptrdiff_t)type] + k);
    }
    writer.end_part();
  };
  add_whole(BEFORE);
  for (int32_t k = 0; k < n_batches; k++) {
    int32_t batch = stage == BACKWARD_STAGE ? n_batches - 1 - k : k, type = plan.batch_type[batch];
    const int64_t* own = first.data() + 4 * (ptrdiff_t)type;
    int64_t n = count_tiles(plan.n_rows(batch), sizes.most_rows[type], n_threads), n_cut = counts[2 * (ptrdiff_t)type];
    for (int64_t i = 0; own[INSIDE] < own[AFTER] && i < n; i++) {
      int64_t tile = n_done[type]++;  // backward visits batches, and the tiles of each batch, in reverse order
      writer.add_tile(own[INSIDE], own[AFTER], stage == BACKWARD_STAGE ? n_cut - 1 - tile : tile);
    }
    writer.end_part();
  }
  add_whole(AFTER);
  return true;
}

bool list_weight_calls(const CellSizes& sizes, Span<const int64_t> counts, int32_t n_threads, CallList& list) {
  enum Part { COMPILED = 0, OTHERS = 2 };  // the indices of their counts in `steps_of`
  ptrdiff_t n_types = sizes.fields.size;
  Vec<int64_t> first;  // per type: the first compiled step, the first other step, and the end
  if (!first.assign(3 * n_types, 0)) return false;
  int64_t n_steps = 0, n_calls = 0;
  for (int32_t type = 0; type < n_types; type++) {
    const int64_t* steps = sizes.steps_of(WEIGHT_STAGE, type);
    bool is_met = counts[2 * (ptrdiff_t)type] > 0;
    int64_t n_compiled = is_met ? steps[COMPILED] : 0, n_others = is_met ? steps[OTHERS] : 0;
    int64_t* own = first.data() + 3 * (ptrdiff_t)type;
    own[0] = n_steps;
    own[1] = n_steps + n_compiled;
    own[2] = n_steps = own[1] + n_others;
    n_calls += n_compiled * n_threads + n_others;
  }
  Writer writer(list);
  if (!writer.start(n_calls, n_types * ((int64_t)n_threads + 1), 2 * n_types)) return false;
  for (int part = 0; part < 2; part++)
    for (ptrdiff_t type = 0; type < n_types; type++) {
      const int64_t* own = first.data() + 3 * type;
      int64_t n_strips = part ? 1 : n_threads, n_before = counts[2 * type] + counts[2 * type + 1];
      for (int64_t strip = 0; own[part] < own[part + 1] && strip < n_strips; strip++)
        writer.add_tile(own[part], own[part + 1], n_before + strip);
      writer.end_part();
    }
  return true;
}

Span<const int64_t> entries_of(const PlanArrays& plan, int32_t type, int32_t output, int64_t start, int64_t end) {
  if (int32_t block = plan.out_block[output]) {
    const int64_t* ptr = plan.segments_of(plan.block_ptr[type] + block);
    start = ptr[start];
    end = ptr[end];
  }
  int64_t first = sum(plan.dest_base[output], start), last = sum(plan.dest_base[output], end);
  if (first < 0 || first > last || last >= plan.dest_ptr.size) return {};
  return plan.dest_ptr.part(first, last + 1);
}

Problem find_serial(const PlanArrays& plan, Vec<uint8_t>& is_serial) {
  Vec<int64_t> n_done;
  if (!is_serial.assign(plan.n_batches(), 0) || !n_done.assign(plan.n_types(), 0)) return NO_MEMORY;
  for (int32_t batch = 0; batch < plan.n_batches(); batch++) {
    int32_t type = plan.batch_type[batch];
    int64_t start = n_done[type], end = n_done[type] += plan.n_rows(batch);
    for (int32_t output = plan.out_ptr[type]; output < plan.out_ptr[type + 1]; output++) {
      Span<const int64_t> entries = entries_of(plan, type, output, start, end);
      if (!entries.size) return "destinations of the plan are out of range";
      int64_t first = entries[0], last = entries[entries.size - 1];
      if (first < 0 || last > plan.adds.size) return "destinations of the plan are out of range";
      for (int64_t entry = first; entry < last; entry++) is_serial[batch] |= plan.adds[entry] != 0;
    }
  }
  return nullptr;
}

}  // namespace autobatch
