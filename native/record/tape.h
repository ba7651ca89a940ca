// Tapes: the calls logged while a function runs, from which its derivatives are recorded.

#pragma once

#include "record/decode.h"
#include "record/handles.h"
#include "record/layout.h"

namespace autobatch {

// A call on a tape: its number, its layout, and where it begins in the ints and floats of the tape.
struct TapedCall {
  int64_t number;
  int32_t layout;
  ptrdiff_t ints, floats;
};

struct Tape {
  PyObject_HEAD
  Log* log;
  uint32_t session;
  int64_t begun_ints, begun_floats;  // start of the part of the log that is not copied yet
  bool is_closed;
  Vec<int64_t> ints;
  Vec<double> floats;
  Vec<TapedCall> calls;
  PyObject* layouts;  // a list with the layout of each form on the tape
  PyObject* weakrefs;

  const Layout& layout(const TapedCall& call) const {
    return *reinterpret_cast<Layout*>(PyList_GET_ITEM(layouts, call.layout));
  }
};

extern PyTypeObject TapeType;

// A sequence of n refs. Ref k is row k of `first`; if `refs` is set, it is refs[k * step] + first.
struct Refs {
  int64_t first, n, step = 0;
  const int64_t* refs = nullptr;

  int64_t operator[](int64_t k) const { return first + (refs ? refs[k * step] : k << ROW_SHIFT); }
};

// Reads the calls of a tape.
class CallReader {
 public:
  explicit CallReader(const Tape& tape) : tape_(&tape) {}

  // Finds the places of the items of a call; returns false with an error.
  bool read(const TapedCall& call);
  const Layout& layout() const { return *layout_; }
  Span<const int64_t> lengths() const { return lengths_; }  // of its lists; 1 if no length is logged
  Span<const int64_t> item(int32_t k) const {
    return Span<const int64_t>(tape_->ints).part(places_[k], places_[k + 1]);
  }
  ptrdiff_t end() const { return places_[layout_->ints.size()]; }
  int64_t n_floats() const;
  int64_t n_floats_of(const LogItem& item) const {
    return item.kind == ROWS ? item.size * lengths_[item.group] : item.size;
  }
  const double* floats() const { return tape_->floats.data() + floats_; }
  // Returns the refs of a leaf: one, or one for each element of a list.
  Refs refs_of(const Leaf& leaf) const;

 private:
  const Tape* tape_;
  const Layout* layout_ = nullptr;
  Vec<int64_t> lengths_;
  Vec<ptrdiff_t> places_;
  ptrdiff_t floats_ = 0;
};

}  // namespace autobatch
