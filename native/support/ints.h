// Ints that Python gives as a list, and a map from ints.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

// Reads a list of ints.
bool read_ints(PyObject* list, const char* what, Vec<int64_t>& found);

// Reads a list of ints one after another, each within its range.
class IntReader {
 public:
  bool read(PyObject* list, const char* what) {
    what_ = what;
    return read_ints(list, what, ints_);
  }
  // Gives the next number, which must be from `low` to `high`; with an error, `low`, then and from now on.
  int64_t next(int64_t low, int64_t high);
  int32_t next_int(int64_t low, int64_t high = INT32_MAX) { return (int32_t)next(low, high); }
  // Whether all numbers were read, and were in their ranges; sets an error.
  bool is_done();
  bool has_failed() const { return has_failed_; }

 private:
  Vec<int64_t> ints_;
  ptrdiff_t at_ = 0;
  const char* what_ = "";
  bool has_failed_ = false;
};

// A hash table from ints to ints that are 0 or more, with open addressing.
class IntMap {
 public:
  // The value of a key; -1 if it has none.
  int32_t find(int64_t key) const {
    if (!slots_.size()) return -1;
    for (ptrdiff_t at = place(key);; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].value < 0 || slots_[at].key == key) return slots_[at].value;
  }
  // Sets the value of a key that has none; false if memory runs out.
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

  Vec<Slot> slots_;  // a power of two; a value of -1 is free
  ptrdiff_t n_ = 0;
};

}  // namespace autobatch
