// Sequentially consistent atomic operations on 64-bit ints: all threads see all changes in one order.

#pragma once

#include <stdint.h>

#ifdef _MSC_VER
#include <intrin.h>
#endif

namespace autobatch {

#ifdef _MSC_VER
inline int64_t load(int64_t* place) { return _InterlockedOr64(place, 0); }
inline void store(int64_t* place, int64_t value) { _InterlockedExchange64(place, value); }
inline int64_t fetch_add(int64_t* place, int64_t amount) { return _InterlockedExchangeAdd64(place, amount); }
inline bool exchange_if(int64_t* place, int64_t expected, int64_t value) {
  return _InterlockedCompareExchange64(place, value, expected) == expected;
}
#else
inline int64_t load(int64_t* place) { return __atomic_load_n(place, __ATOMIC_SEQ_CST); }
inline void store(int64_t* place, int64_t value) { __atomic_store_n(place, value, __ATOMIC_SEQ_CST); }
// Adds to an int; returns its previous value.
inline int64_t fetch_add(int64_t* place, int64_t amount) { return __atomic_fetch_add(place, amount, __ATOMIC_SEQ_CST); }
// Writes `value` if the int equals `expected` (compare and swap); returns whether it did.
inline bool exchange_if(int64_t* place, int64_t expected, int64_t value) {
  return __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#endif

}  // namespace autobatch
