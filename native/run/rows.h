// Sums rows of a table by row id, after a radix sort.

#pragma once

#include "support/vec.h"

namespace autobatch {

// Rows of numbers: the first row, the row stride, and the numbers per row.
template <class T>
struct NumberRows {
  const T* first;
  int64_t step, width;
};

// Work space for sorting `n` ids; each array has room for n.
struct SortRoom {
  int64_t *keys, *order, *other_keys, *other_order;
};

// Writes the distinct ids in increasing order, and the sum of the rows of each id; returns the number of distinct ids.
// `room.keys` holds the ids, which must not be negative. Rows with one id are added in their original order, so sums
// are reproducible.
template <class T>
int64_t sum_rows_by_id(int64_t n, SortRoom room, const NumberRows<T>& rows, int64_t* ids, T* sums);

// Merges the rows `more_values` with ids `more` into `values` and `ids`, in place, and adds rows with equal ids. The
// ids of both must strictly increase. Returns the number of distinct ids, for which `ids` and `values` must have room.
template <class T>
int64_t merge_rows(int64_t n, int64_t* ids, T* values, Span<const int64_t> more, const T* more_values, int64_t width);

}  // namespace autobatch
