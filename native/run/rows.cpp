#include "run/rows.h"

#include "support/processor.h"

namespace autobatch {
namespace {

constexpr int N_BITS = 11;
constexpr int64_t N_BUCKETS = 1 << N_BITS;

// Sorts the keys, and `order` with them, stably by N_BITS bits from bit `shift` on: one pass of a radix sort, from
// `keys` and `order` to `other_keys` and `other_order`.
void sort_by_bits(int64_t n, int shift, const SortRoom& room) {
  int64_t starts[N_BUCKETS] = {}, total = 0;
  auto bucket_of = [&](int64_t at) { return (room.keys[at] >> shift) & (N_BUCKETS - 1); };
  for (int64_t at = 0; at < n; at++) starts[bucket_of(at)]++;
  for (int64_t& start : starts) {
    int64_t here = start;
    start = total;
    total += here;
  }
  for (int64_t at = 0; at < n; at++) {
    int64_t place = starts[bucket_of(at)]++;
    room.other_keys[place] = room.keys[at], room.other_order[place] = room.order[at];
  }
}

template <class T>
AUTOBATCH_INLINE void add_numbers(T* __restrict target, const T* __restrict source, int64_t size) {
  for (int64_t i = 0; i < size; i++) target[i] += source[i];
}

template <class T>
void copy_numbers(T* target, const T* source, int64_t size) {
  memmove(target, source, (size_t)size * sizeof(T));
}

}  // namespace

template <class T>
int64_t sum_rows_by_id(int64_t n, SortRoom room, const NumberRows<T>& rows, int64_t* ids, T* sums) {
  int64_t largest = 0, n_ids = 0;
  for (int64_t at = 0; at < n; at++) {
    room.order[at] = at;
    if (room.keys[at] > largest) largest = room.keys[at];
  }
  for (int shift = 0; shift < 64 && (shift == 0 || largest >> shift); shift += N_BITS) {
    sort_by_bits(n, shift, room);
    room = {room.other_keys, room.other_order, room.keys, room.order};  // the next pass sorts from there
  }
  for (int64_t at = 0; at < n; at++) {
    const T* row = rows.first + room.order[at] * rows.step;
    if (at && room.keys[at] == room.keys[at - 1]) {
      Vectorized<add_numbers<T>>::run(sums + (n_ids - 1) * rows.width, row, rows.width);
    } else {
      ids[n_ids] = room.keys[at];
      copy_numbers(sums + n_ids++ * rows.width, row, rows.width);
    }
  }
  return n_ids;
}

template <class T>
int64_t merge_rows(int64_t n, int64_t* ids, T* values, Span<const int64_t> more, const T* more_values, int64_t width) {
  int64_t common = 0, other = 0;
  for (int64_t at = 0; at < n && other < more.size;) {
    int64_t a = ids[at], b = more[other];
    common += a == b;
    at += a <= b;
    other += b <= a;
  }
  int64_t total = n + more.size - common, place = total;
  for (other = more.size; other > 0;) {  // backwards, so that no row is overwritten before it is moved
    T* target = values + --place * width;
    if (n > 0 && ids[n - 1] >= more[other - 1]) {
      ids[place] = ids[--n];
      copy_numbers(target, values + n * width, width);
      if (ids[place] == more[other - 1]) Vectorized<add_numbers<T>>::run(target, more_values + --other * width, width);
    } else {
      ids[place] = more[--other];
      copy_numbers(target, more_values + other * width, width);
    }
  }
  return total;
}

template int64_t sum_rows_by_id(int64_t, SortRoom, const NumberRows<float>&, int64_t*, float*);
template int64_t sum_rows_by_id(int64_t, SortRoom, const NumberRows<double>&, int64_t*, double*);
template int64_t merge_rows(int64_t, int64_t*, float*, Span<const int64_t>, const float*, int64_t);
template int64_t merge_rows(int64_t, int64_t*, double*, Span<const int64_t>, const double*, int64_t);

}  // namespace autobatch
