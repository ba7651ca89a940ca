// Adding up rows of a table by their ids, after a radix sort.

#pragma once

#include "support/vec.h"

namespace autobatch {

// Rows of numbers: the first, the numbers from one row to the next, and those of each.
template <class T>
struct NumberRows {
  const T* first;
  int64_t step, width;
};

// Room for sorting `n` ids.
struct SortRoom {
  int64_t *keys, *order, *other_keys, *other_order;
};

// Writes the distinct ids in increasing order, and the sum of the rows of each; returns their number. The ids, which
// are not negative, stand in `room.keys`. Rows of one id are added in the order in which they come.
template <class T>
int64_t sum_rows_by_id(int64_t n, SortRoom room, const NumberRows<T>& rows, int64_t* ids, T* sums);

// Adds rows to others in place, both in the order of increasing ids; returns the number of distinct ids. `ids` and
// `values` have room for `n + n_more` rows.
template <class T>
int64_t merge_rows(int64_t n, int64_t* ids, T* values, Span<const int64_t> more, const T* more_values, int64_t width);

}  // namespace autobatch
