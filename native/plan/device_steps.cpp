#include "plan/device_steps.h"

namespace autobatch {

bool DeviceSteps::add(int64_t number, int64_t tile, int64_t n_blocks) {
  if (!steps.push(known[number]) || !blocks.push(n_blocks)) return false;
  steps.back().tile = tile;
  return true;
}

Problem DeviceSteps::list() {
  constexpr Problem OUT_OF_RANGE = "calls must name known steps and tiles, got others";
  int64_t n_known = known.size - 2, begin = n_known, add_up = n_known + 1;
  if (!part_ptr.reserve(ptr.size) || !steps.reserve(calls.size + sum_ptr.size + 1) || !add(begin, 0, 1))
    return NO_MEMORY;
  for (ptrdiff_t part = 0; part < ptr.size; part++) {
    part_ptr.append(steps.size());
    if (part + 1 == ptr.size) break;
    if (ptr[part] < 0 || ptr[part] > ptr[part + 1] || ptr[part + 1] >= tile_ptr.size) return OUT_OF_RANGE;
    int64_t first = tile_ptr[ptr[part]], end = tile_ptr[ptr[part + 1]];
    if (first < 0 || end > calls.size) return OUT_OF_RANGE;
    for (int64_t call = first; call < end; call++) {
      auto [number, tile] = calls[call];
      if (number < 0 || number >= n_known || tile < 0 || tile >= words.size) return OUT_OF_RANGE;
      const BlockRule& rule = rules[number];
      int64_t n_rows = 1;
      if (rule.field >= 0) {
        uint64_t at = (uint64_t)tile * (uint64_t)rule.n_fields + (uint64_t)(word_ptr[rule.type] + rule.field);
        if (at >= (uint64_t)words.size) return OUT_OF_RANGE;
        n_rows = words[(ptrdiff_t)at];
      }
      if (!add(number, tile, rule.field < 0 ? rule.times : rule.count((uint64_t)n_rows))) return NO_MEMORY;
      if (known[number].function == ON_HOST && !hosted.push({steps.size() - 1, number, tile})) return NO_MEMORY;
    }
    if (part == 0 || part >= sum_ptr.size) continue;
    uint64_t n_sums = (uint64_t)sum_ptr[part] - (uint64_t)sum_ptr[part - 1];
    if (n_sums && !add(add_up, part - 1, rules[add_up].count(n_sums))) return NO_MEMORY;
  }
  return nullptr;
}

}  // namespace autobatch
