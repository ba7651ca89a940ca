// Lists the steps of a stage for a device. A step is a call of a function for a tile, with the memory of its stage and
// its descriptor; the device runs all steps of a stage in one launch (`autobatch.backends.cuda.launching`).

#pragma once

#include "plan/calls.h"

namespace autobatch {

// `Step` in `sweep.cuh`.
struct DeviceStep {
  int64_t function, memory, descriptor, tile, team, then, arrived, ended;
};

// Counts the blocks of threads that a step can use for a tile: `times` for each group of `at_once` threads, or in total
// if there is no field.
struct BlockRule {
  int64_t type, n_fields;  // the tiles of the type begin at words[ptr[type]]
  int64_t field;           // the field of a tile with the number of rows; -1 for none
  int64_t per_row, at_once, times;

  int64_t count(uint64_t n_rows) const {
    return (int64_t)((n_rows * (uint64_t)per_row + (uint64_t)at_once - 1) / (uint64_t)at_once * (uint64_t)times);
  }
};

constexpr int64_t ON_HOST = -1;  // in place of a function

struct DeviceSteps {
  // The steps of all types, and their rules; at the end the step that begins a stage, and the one that adds up values.
  Span<const DeviceStep> known;
  Span<const BlockRule> rules;
  Span<const CallList::Call> calls;
  Span<const int64_t> tile_ptr, ptr;
  Span<const int64_t> words, word_ptr;  // the tiles of all types, see `PlanTables`
  Span<const int64_t> sum_ptr;          // sums sum_ptr[b]:sum_ptr[b + 1] follow batch b; empty without sums

  // A step that the host runs: its position, and its number among the known steps.
  struct Hosted {
    int64_t at, number, tile;
  };
  Vec<DeviceStep> steps;
  Vec<int64_t> blocks, part_ptr;
  Vec<Hosted> hosted;

  // Lists the steps of all parts; returns a problem of the arguments, or NO_MEMORY.
  Problem list();

 private:
  bool add(int64_t number, int64_t tile, int64_t n_blocks);
};

}  // namespace autobatch
