// Rows in the tables of kept values, for `autobatch.graph.growing.KeptRows`.

#include "graph/graph.h"
#include "graph/growing/tables.h"

namespace autobatch {
namespace {

// The tables of all slots: the value in each row, and a stack of free rows.
struct Kept {
  Table<int32_t> held, free;
  Span<int32_t> n_free, size;

  ptrdiff_t n_slots() const { return held.rows; }
};

bool read_kept(PyObject* const* arguments, Kept& kept) {
  if (!read_table<int32_t>(arguments[0], "held", kept.held) || !read_table<int32_t>(arguments[1], "free", kept.free) ||
      !read_mutable<int32_t>(arguments[2], "n_free", kept.n_free) ||
      !read_mutable<int32_t>(arguments[3], "size", kept.size))
    return false;
  ptrdiff_t n_slots = kept.n_slots();
  if (kept.free.rows == n_slots && kept.free.columns == kept.held.columns && kept.n_free.size == n_slots &&
      kept.size.size == n_slots)
    return true;
  PyErr_SetString(PyExc_ValueError, "free, n_free and size must be of the slots and rows of held, got other sizes");
  return false;
}

// Whether a value is a source of this round, or may be read later.
bool may_be_read(const Growing& g, int32_t v, int32_t now) {
  return g.in_use[v] != 0 || g.readers[v] > 0 || g.mark[v] == -(int64_t)now;
}

// Frees the rows of values that nothing can read any more.
Ended take_back(const Growing& g, const Kept& kept, int32_t now) {
  for (ptrdiff_t slot = 0; slot < kept.n_slots(); slot++) {
    for (int32_t row = 0; row < kept.size[slot]; row++) {
      if (row >= kept.held.columns) return Ended::WRONG;
      int32_t v = kept.held[slot][row];
      if (v == NOWHERE) continue;
      if (!g.has_value(v)) return Ended::WRONG;
      if (may_be_read(g, v, now)) continue;
      int32_t n_free = kept.n_free[slot];
      if (n_free < 0 || n_free >= kept.free.columns) return Ended::WRONG;
      kept.free[slot][n_free] = row;
      kept.n_free[slot] = n_free + 1;
      g.kept[v] = kept.held[slot][row] = NOWHERE;
    }
  }
  return Ended::WELL;
}

// Counts the values that need rows; `ptr` then says where those of each slot begin.
Ended count(const Growing& g, const Kept& kept, Span<const int32_t> of, int32_t now, Span<int32_t> ptr) {
  for (int32_t& start : ptr) start = 0;
  for (int32_t v : of) {
    if (!g.has_value(v)) return Ended::WRONG;
    if (!may_be_read(g, v, now)) continue;
    int32_t slot = g.slot[v];
    if (slot < 0 || slot >= kept.n_slots()) return Ended::WRONG;
    ptr[slot + 1]++;
  }
  for (ptrdiff_t slot = 0; slot < kept.n_slots(); slot++) ptr[slot + 1] += ptr[slot];
  return Ended::WELL;
}

// Gives rows to these values; on entry, `ends` says where those of each slot begin.
Ended give(const Growing& g, const Kept& kept, Span<const int32_t> of, int32_t now, Span<int32_t> ends,
           Span<int32_t> found, Span<int32_t> rows) {
  for (int32_t v : of) {
    if (!g.has_value(v)) return Ended::WRONG;
    if (!may_be_read(g, v, now)) continue;
    int32_t slot = g.slot[v];
    if (slot < 0 || slot >= kept.n_slots()) return Ended::WRONG;
    int32_t place = ends[slot]++, n_free = kept.n_free[slot];
    if (n_free < 1 || n_free > kept.free.columns || place >= found.size) return Ended::WRONG;
    int32_t row = kept.free[slot][n_free - 1];
    if (row < 0 || row >= kept.held.columns) return Ended::WRONG;
    kept.n_free[slot] = n_free - 1;
    found[place] = g.row[v];
    rows[place] = row;
    kept.held[slot][row] = v;
    g.kept[v] = row;
    if (kept.size[slot] <= row) kept.size[slot] = row + 1;
  }
  return Ended::WELL;
}

}  // namespace

// move_rows(values, of, round, held, free, n_free, size): the rows in results and in tables, and where slots begin.
PyObject* move_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Growing g;
  Kept kept;
  Span<const int32_t> of;
  int32_t now;
  if (!takes("move_rows", n, 7) || !read_values(arguments[0], g) || !read<int32_t>(arguments[1], "of", of) ||
      !read_int(arguments[2], "round", now) || !read_kept(arguments + 3, kept))
    return nullptr;
  if (of.size > INT32_MAX) return is_well(Ended::WRONG), nullptr;
  Span<int32_t> ptr, found, rows;
  Vec<int32_t> ends;
  Ref made_ptr = make_array<int32_t>(kept.n_slots() + 1, ptr);
  if (!made_ptr) return nullptr;
  if (!run([&] {
        Ended ended = take_back(g, kept, now);
        if (ended == Ended::WELL) ended = count(g, kept, of, now, ptr);
        return ended == Ended::WELL && !ends.copy(ptr) ? Ended::NO_MEMORY : ended;
      }))
    return nullptr;
  Ref made_found = make_array<int32_t>(ends.back(), found), made_rows = make_array<int32_t>(ends.back(), rows);
  if (!made_found || !made_rows || !run([&] { return give(g, kept, of, now, ends, found, rows); })) return nullptr;
  return Py_BuildValue("NNN", made_found.release(), made_rows.release(), made_ptr.release());
}

}  // namespace autobatch
