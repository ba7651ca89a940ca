#include "support/ints.h"

namespace autobatch {

Ref to_list(Span<const int64_t> ints) {
  Ref list(PyList_New(ints.size));
  for (ptrdiff_t i = 0; list && i < ints.size; i++) {
    PyObject* x = PyLong_FromLongLong(ints[i]);
    if (!x) return Ref();
    PyList_SET_ITEM(list.get(), i, x);
  }
  return list;
}

bool read_ints(PyObject* list, const char* what, Vec<int64_t>& found) {
  if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "%s must be a list of ints", what), false;
  if (!found.reserve(PyList_GET_SIZE(list))) return PyErr_NoMemory(), false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    Ref number = Ref::borrowed(PyList_GET_ITEM(list, i));
    int64_t x = PyLong_AsLongLong(number.get());
    if (x == -1 && PyErr_Occurred()) return false;
    if (!found.push(x)) return PyErr_NoMemory(), false;
  }
  return true;
}

int64_t IntReader::next(int64_t low, int64_t high) {
  if (!has_failed_ && at_ < ints_.size() && ints_[at_] >= low && ints_[at_] <= high) return ints_[at_++];
  if (!has_failed_ && at_ < ints_.size())
    PyErr_Format(PyExc_ValueError, "int %zd of %s must lie within %lld..%lld, got %lld", at_, what_, (long long)low,
                 (long long)high, (long long)ints_[at_]);
  else if (!has_failed_)
    PyErr_Format(PyExc_ValueError, "%s must have more than %zd ints", what_, at_);
  has_failed_ = true;
  return low;
}

bool IntReader::is_done() {
  if (!has_failed_ && at_ < ints_.size()) {
    PyErr_Format(PyExc_ValueError, "%s must have %zd ints, got %zd", what_, at_, ints_.size());
    has_failed_ = true;
  }
  return !has_failed_;
}

bool IntMap::insert(int64_t key, int32_t value) {
  if (2 * (n_ + 1) > slots_.size() && !grow()) return false;
  ptrdiff_t at = place(key);
  while (slots_[at].value >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {key, value};
  n_++;
  return true;
}

bool IntMap::grow() {
  Vec<Slot> before;
  ptrdiff_t size = slots_.size() ? 2 * slots_.size() : 64;
  Vec<Slot> larger;
  if (!larger.assign(size, {0, -1})) return false;
  before = static_cast<Vec<Slot>&&>(slots_);
  slots_ = static_cast<Vec<Slot>&&>(larger);
  for (ptrdiff_t i = 0; i < before.size(); i++) {
    if (before[i].value < 0) continue;
    ptrdiff_t at = place(before[i].key);
    while (slots_[at].value >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = before[i];
  }
  return true;
}

}  // namespace autobatch
