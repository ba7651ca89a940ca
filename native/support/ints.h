// Reads lists of ints from Python, and defines a map with int keys.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// Makes a Python list of ints; null with an error if memory runs out.
Ref to_list(Span<const int64_t> ints);

// Reads a list of ints into a vector; false with an error.
bool read_ints(PyObject* list, const char* what, Vec<int64_t>& found);

// Reads the ints of a list one by one, each with its own range.
class IntReader {
 public:
  bool read(PyObject* list, const char* what) {
    what_ = what;
    return read_ints(list, what, ints_);
  }
  // Returns the next int, which must lie in low..high. If not, sets an error; all calls then return `low`.
  int64_t next(int64_t low, int64_t high);
  int32_t next_int(int64_t low, int64_t high = INT32_MAX) { return (int32_t)next(low, high); }
  // Returns whether all ints were read, each within its range; if not, sets an error.
  bool is_done();
  bool has_failed() const { return has_failed_; }

 private:
  Vec<int64_t> ints_;
  ptrdiff_t at_ = 0;
  const char* what_ = "";
  bool has_failed_ = false;
};

// A hash table from ints to non-negative ints, with open addressing. At most half of the slots are taken, so that every
// lookup ends at a free slot.
class IntMap {
 public:
  // Returns the value of a key, or -1.
  int32_t find(int64_t key) const {
    if (!slots_.size()) return -1;
    for (ptrdiff_t at = place(key);; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].value < 0 || slots_[at].key == key) return slots_[at].value;
  }
  // Adds a key that is not in the map; false if memory runs out.
  bool insert(int64_t key, int32_t value);

 private:
  struct Slot {
    int64_t key;
    int32_t value;
  };
  ptrdiff_t place(int64_t key) const {
    uint64_t hash = (uint64_t)key * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: Fibonacci hashing
    return (ptrdiff_t)(hash >> 20) & (slots_.size() - 1);
  }
  bool grow();

  Vec<Slot> slots_;  // a power of two of them; a value of -1 marks a free slot
  ptrdiff_t n_ = 0;
};

}  // namespace autobatch
