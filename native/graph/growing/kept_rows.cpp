// Rows in the tables of kept values, for `autobatch.graph.growing.KeptRows`.

#include "graph/graph.h"
#include "graph/growing/round.h"

namespace autobatch {
// Returns whether a value is a source of this round, or may be read later. `mark` is -now for a source of this round.
static bool may_be_read(const Growing& g, int32_t v, int32_t now) {
  return g.in_use[v] != 0 || g.readers[v] > 0 || g.mark[v] == -(int64_t)now;
}

bool RowMoves::read(PyObject* of, PyObject* const* arguments) {
  if (!autobatch::read<int32_t>(of, "of", of_) || !read_table<int32_t>(arguments[0], "held", held_) ||
      !read_table<int32_t>(arguments[1], "free", free_) || !read_mutable<int32_t>(arguments[2], "n_free", n_free_) ||
      !read_mutable<int32_t>(arguments[3], "size", size_))
    return false;
  if (free_.rows == n_slots() && free_.columns == held_.columns && n_free_.size == n_slots() &&
      size_.size == n_slots() && of_.size <= INT32_MAX)
    return true;
  PyErr_Format(PyExc_ValueError,
               "free must have the shape of held, and n_free and size one number per slot (%zd), got %zd and %zd",
               n_slots(), n_free_.size, size_.size);
  return false;
}

Ended RowMoves::move(const Growing& g, int32_t now) {
  Ended ended = take_back(g, now);
  then(ended, [&] { return count(g, now); });
  then(ended, [&] { return give(g, now); });
  return ended;
}

// Frees the rows of values that nothing can read any more.
Ended RowMoves::take_back(const Growing& g, int32_t now) {
  for (ptrdiff_t slot = 0; slot < n_slots(); slot++) {
    for (int32_t row = 0; row < size_[slot]; row++) {
      if (row >= held_.columns) return Ended::WRONG;
      int32_t v = held_[slot][row];
      if (v == NOWHERE) continue;
      if (!g.has_value(v)) return Ended::WRONG;
      if (may_be_read(g, v, now)) continue;
      int32_t n_free = n_free_[slot];
      if (n_free < 0 || n_free >= free_.columns) return Ended::WRONG;
      free_[slot][n_free] = row;
      n_free_[slot] = n_free + 1;
      g.kept[v] = held_[slot][row] = NOWHERE;
    }
  }
  return Ended::WELL;
}

// Counts the values that need rows, and sets `ptr_` to where the values of each slot begin.
Ended RowMoves::count(const Growing& g, int32_t now) {
  if (!ptr_.assign(n_slots() + 1, 0)) return Ended::NO_MEMORY;
  for (int32_t v : of_) {
    if (!g.has_value(v)) return Ended::WRONG;
    if (!may_be_read(g, v, now)) continue;
    int32_t slot = g.slot[v];
    if (slot < 0 || slot >= n_slots()) return Ended::WRONG;
    ptr_[slot + 1]++;
  }
  for (ptrdiff_t slot = 0; slot < n_slots(); slot++) ptr_[slot + 1] += ptr_[slot];
  return Ended::WELL;
}

// Assigns rows to the values that need them. Checks values again, because their array may share memory with the tables.
Ended RowMoves::give(const Growing& g, int32_t now) {
  Vec<int32_t> ends;  // of the rows assigned so far, by slot
  if (!ends.copy(ptr_) || !found_.resize(ptr_.back()) || !rows_.resize(ptr_.back())) return Ended::NO_MEMORY;
  for (int32_t v : of_) {
    if (!g.has_value(v)) return Ended::WRONG;
    if (!may_be_read(g, v, now)) continue;
    int32_t slot = g.slot[v];
    if (slot < 0 || slot >= n_slots()) return Ended::WRONG;
    int32_t place = ends[slot]++, n_free = n_free_[slot];
    if (n_free < 1 || n_free > free_.columns || place >= found_.size()) return Ended::WRONG;
    int32_t row = free_[slot][n_free - 1];
    if (row < 0 || row >= held_.columns) return Ended::WRONG;
    n_free_[slot] = n_free - 1;
    found_[place] = g.row[v];
    rows_[place] = row;
    held_[slot][row] = v;
    g.kept[v] = row;
    if (size_[slot] <= row) size_[slot] = row + 1;
  }
  return Ended::WELL;
}

Ref RowMoves::to_python() const {
  Ref found = to_array<int32_t>(found_), rows = to_array<int32_t>(rows_), ptr = to_array<int32_t>(ptr_);
  if (!found || !rows || !ptr) return Ref();
  return Ref(Py_BuildValue("NNN", found.release(), rows.release(), ptr.release()));
}

// move_rows(values, of, round, held, free, n_free, size): frees and assigns rows; returns the rows in results and in
// tables, and where those of each slot begin.
PyObject* move_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  RowMoves moves;
  int32_t now;
  if (!takes("move_rows", n, 7) || !read_values(arguments[0], g) || !read_int(arguments[2], "round", now) ||
      !moves.read(arguments[1], arguments + 3) || !run([&] { return moves.move(g, now); }))
    return nullptr;
  return moves.to_python().release();
}

// Returns which group a value belongs to: twice its slot, plus one if run `run` computed it (NOWHERE for no run); -1 if
// it is not kept.
static int64_t group_of(const Growing& g, int32_t v, int32_t run) {
  bool is_new = run != NOWHERE && g.run[v] == run;
  return g.slot[v] < 0 || (is_new ? g.row[v] : g.kept[v]) < 0 ? -1 : 2 * (int64_t)g.slot[v] + is_new;
}

constexpr int64_t MOST_GROUPS = 1 << 20;  // far more than any recording has; bounds memory if the tables are wrong

// Counts the values of each group.
static Ended count_groups(const Growing& g, Span<const int32_t> of, int32_t run, Vec<int32_t>& sizes) {
  for (int32_t v : of) {
    int64_t group = g.has_value(v) ? group_of(g, v, run) : -1;
    if (group < 0 || group >= MOST_GROUPS) return Ended::WRONG;
    while (sizes.size() <= group)
      if (!sizes.push(0)) return Ended::NO_MEMORY;
    sizes[(ptrdiff_t)group]++;
  }
  return Ended::WELL;
}

// find_kept(values, of, run): groups values by their slot and by whether `run` computed them; returns for each group,
// in this order, the slot; whether they are of that run; their positions in `of`, None if all values are in one group;
// and their rows in the results of the run or in the table of the slot.
PyObject* find_kept(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Span<const int32_t> of;
  int32_t run;
  Vec<int32_t> sizes;
  if (!takes("find_kept", n, 3) || !read_values(arguments[0], g) || !read<int32_t>(arguments[1], "of", of) ||
      !read_int(arguments[2], "run", run) || !is_well(count_groups(g, of, run, sizes)))
    return nullptr;
  Ref groups(PyList_New(0));
  if (!groups) return nullptr;
  for (ptrdiff_t group = 0; group < sizes.size(); group++) {
    if (!sizes[group]) continue;
    bool is_all = sizes[group] == of.size, is_new = group % 2;
    Span<int32_t> places, rows;
    Ref at = is_all ? Ref::borrowed(Py_None) : make_array<int32_t>(sizes[group], places);
    Ref found = make_array<int32_t>(sizes[group], rows);
    if (!at || !found) return nullptr;
    for (ptrdiff_t k = 0, next = 0; k < of.size && next < rows.size; k++) {
      if (group_of(g, of[k], run) != group) continue;
      if (!is_all) places[next] = (int32_t)k;
      rows[next++] = is_new ? g.row[of[k]] : g.kept[of[k]];
    }
    Ref entry(Py_BuildValue("iOOO", (int)(group / 2), is_new ? Py_True : Py_False, at.get(), found.get()));
    if (!entry || PyList_Append(groups.get(), entry.get()) < 0) return nullptr;
  }
  return groups.release();
}

}  // namespace autobatch
