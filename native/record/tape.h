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
  int64_t begun_ints, begun_floats;  // where the part of the log that is not yet copied begins
  bool is_closed;
  Vec<int64_t> ints;
  Vec<double> floats;
  Vec<TapedCall> calls;
  PyObject* layouts;  // a list: one for each form of a call
  PyObject* weakrefs;

  const Layout& layout(const TapedCall& call) const {
    return *reinterpret_cast<Layout*>(PyList_GET_ITEM(layouts, call.layout));
  }
};

extern PyTypeObject TapeType;

// A sequence of refs: number k is `first` plus k rows or, if there are `refs`, `first` plus refs[k * step].
struct Refs {
  int64_t first, n, step = 0;
  const int64_t* refs = nullptr;

  int64_t operator[](int64_t k) const { return first + (refs ? refs[k * step] : k << ROW_SHIFT); }
};

// Reads the calls of a tape.
class CallReader {
 public:
  explicit CallReader(const Tape& tape) : tape_(&tape) {}

  // Finds where the items of a call are; false with an error.
  bool read(const TapedCall& call);
  const Layout& layout() const { return *layout_; }
  Span<const int64_t> lengths() const { return lengths_; }  // of its lists; 1 for those that log no length
  Span<const int64_t> item(int32_t k) const {
    return Span<const int64_t>(tape_->ints).part(places_[k], places_[k + 1]);
  }
  ptrdiff_t end() const { return places_[layout_->ints.size()]; }
  int64_t n_floats() const;
  int64_t n_floats_of(const LogItem& item) const {
    return item.kind == ROWS ? item.size * lengths_[item.group] : item.size;
  }
  const double* floats() const { return tape_->floats.data() + floats_; }
  // Returns the refs that a leaf stands for: one, or one for each element of a list.
  Refs refs_of(const Leaf& leaf) const;

 private:
  const Tape* tape_;
  const Layout* layout_ = nullptr;
  Vec<int64_t> lengths_;
  Vec<ptrdiff_t> places_;
  ptrdiff_t floats_ = 0;
};

}  // namespace autobatch
