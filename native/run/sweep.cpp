// The Python type `Sweep`.

#include "run/entries.h"
#include "run/team.h"

namespace autobatch {
namespace {

struct SweepObject {
  PyObject_HEAD
  Sweep* sweep;
};

Sweep& sweep_of(PyObject* self) { return *reinterpret_cast<SweepObject*>(self)->sweep; }

PyObject* make_sweep(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Sweep", const_cast<char**>(names))) return nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  SweepObject* self = reinterpret_cast<SweepObject*>(made.get());
  self->sweep = make<Sweep>();
  return self->sweep ? made.release() : PyErr_NoMemory();
}

void free_sweep(PyObject* self) {
  discard(reinterpret_cast<SweepObject*>(self)->sweep);
  Py_TYPE(self)->tp_free(self);
}

// Returns whether a sweep is open, or closed, as `is_open` demands; if not, sets a ValueError.
bool check_open(Sweep& sweep, bool is_open) {
  if (sweep.is_open() == is_open) return true;
  PyErr_SetString(PyExc_ValueError,
                  is_open ? "sweep must be open, got a closed one" : "sweep must be closed, got an open one");
  return false;
}

// open(first, last): opens a sweep over these parts; returns its number.
PyObject* open_sweep(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  constexpr int64_t MOST_PARTS = INT32_MAX;
  int64_t first, last;
  if (!takes("open", n, 2) || !read_long(arguments[0], "first", first) || !read_long(arguments[1], "last", last) ||
      !check_open(sweep_of(self), false))
    return nullptr;
  if (first < 0 || last < first || last > MOST_PARTS)
    return PyErr_Format(PyExc_ValueError, "parts must be a range, got %lld:%lld", (long long)first, (long long)last);
  int64_t number = sweep_of(self).open(first, last);
  return number < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(number);
}

// close(): closes the sweep if one is open, and waits until no thread makes a call of it.
PyObject* close_sweep(PyObject* self, PyObject*) {
  if (sweep_of(self).is_open()) {
    Unlocked unlocked;
    sweep_of(self).close();
  }
  Py_RETURN_NONE;
}

// Reads steps and calls, and takes part in the open sweep; false with an error.
bool work(Sweep& sweep, PyObject* steps, PyObject* calls, bool leads) {
  Span<const BoundStep> bound;
  CallSpans list;
  if (!read_records(steps, "addresses", bound) || !read_call_list(calls, bound, sweep.first(), sweep.last(), list))
    return false;
  Unlocked unlocked;
  sweep.work(bound, list, leads);
  return true;
}

// lead(addresses, calls): makes all calls of the open sweep that helpers do not make.
PyObject* lead_sweep(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  if (!takes("lead", n, 2) || !check_open(sweep_of(self), true) ||
      !work(sweep_of(self), arguments[0], arguments[1], true))
    return nullptr;
  Py_RETURN_NONE;
}

// join(number, addresses, calls): makes calls of the sweep with this number until none are left or it is closed.
//
// `enter` comes first: only between `enter` and `leave` is it certain that the leader keeps the sweep, its range and
// the arrays that the calls use.
PyObject* join_sweep(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  int64_t number;
  if (!takes("join", n, 3) || !read_long(arguments[0], "number", number)) return nullptr;
  if (!sweep_of(self).enter(number)) Py_RETURN_NONE;
  bool is_done = work(sweep_of(self), arguments[1], arguments[2], false);
  sweep_of(self).leave();
  return is_done ? Py_NewRef(Py_None) : nullptr;
}

PyMethodDef methods[] = {fast("open", open_sweep),
                         {"close", close_sweep, METH_NOARGS, nullptr},
                         fast("lead", lead_sweep),
                         fast("join", join_sweep),
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject sweep_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Sweep";
  type.tp_basicsize = sizeof(SweepObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "The state shared by the threads that make the calls of a stage.";
  type.tp_dealloc = free_sweep;
  type.tp_methods = methods;
  type.tp_new = make_sweep;
  return type;
}

}  // namespace

PyTypeObject SweepType = sweep_type();

}  // namespace autobatch
