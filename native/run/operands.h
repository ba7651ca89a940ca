// The operands of steps: rows of arrays, located by the ints of a descriptor and of a tile.

#pragma once

#include <stdint.h>

namespace autobatch {

enum Slot : int64_t { SCRATCH_SLOT = 1, TABLE_SLOT = 7 };  // in a stage's memory; see `SLOTS` in compiler/writer.py

// Rows of an array: the slot of the array, the field of a tile that holds their first element, an offset from there in
// bytes, and the row stride in elements.
struct Operand {
  int64_t slot, first, offset, step;
};

// The arrays of a stage, and the fields of one tile.
struct TileView {
  const int64_t *slots, *fields;

  TileView(int64_t memory, int64_t n_fields, int64_t tile)
      : slots(reinterpret_cast<const int64_t*>(memory)),
        fields(reinterpret_cast<const int64_t*>(slots[TABLE_SLOT]) + tile * n_fields) {}

  // Returns the address where the rows of an operand begin.
  int64_t address(const Operand& rows, int64_t itemsize) const {
    return slots[rows.slot] + rows.offset + fields[rows.first] * itemsize;
  }
  // Returns an address in the scratch memory of the thread.
  int64_t scratch(int64_t offset) const { return slots[SCRATCH_SLOT] + offset; }
};

}  // namespace autobatch
