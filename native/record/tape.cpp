#include "record/tape.h"

#include "record/walk.h"

namespace autobatch {
namespace {

Tape* as_tape(PyObject* self) { return reinterpret_cast<Tape*>(self); }

// Tape(log, begun): `begun` has the numbers of ints and floats that were logged before the tape begins; None for all.
PyObject* make_tape(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"log", "begun", nullptr};
  PyObject *of, *begun = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O:Tape", const_cast<char**>(names), &LogType, &of, &begun))
    return nullptr;
  Log* log = reinterpret_cast<Log*>(of);
  long long ints = log->ints.size(), floats = log->floats.size();
  if (begun != Py_None) {
    if (!PyTuple_Check(begun)) return PyErr_SetString(PyExc_TypeError, "begun must be two numbers"), nullptr;
    if (!PyArg_ParseTuple(begun, "LL", &ints, &floats)) return nullptr;
  }
  if (ints < 0 || ints > log->ints.size() || floats < 0 || floats > log->floats.size())
    return PyErr_SetString(PyExc_ValueError, "a tape must begin within the log"), nullptr;
  Ref layouts(PyList_New(0));
  Ref made(layouts ? type->tp_alloc(type, 0) : nullptr);
  if (!made) return nullptr;
  Tape* tape = as_tape(made.get());
  tape->log = reinterpret_cast<Log*>(Py_NewRef(of));
  tape->session = log->session;
  tape->begun_ints = ints;
  tape->begun_floats = floats;
  new (&tape->ints, At::PLACE) Vec<int64_t>();
  new (&tape->floats, At::PLACE) Vec<double>();
  new (&tape->calls, At::PLACE) Vec<TapedCall>();
  tape->layouts = layouts.release();
  return made.release();
}

int traverse_tape(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(as_tape(self)->log));
  Py_VISIT(as_tape(self)->layouts);
  return 0;
}

void free_tape(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Tape* tape = as_tape(self);
  if (tape->weakrefs) PyObject_ClearWeakRefs(self);
  tape->ints.~Vec();
  tape->floats.~Vec();
  tape->calls.~Vec();
  Py_XDECREF(tape->layouts);
  Py_XDECREF(reinterpret_cast<PyObject*>(tape->log));
  Py_TYPE(self)->tp_free(self);
}

bool refuse_if_closed(const Tape* tape, bool is_closed) {
  if (tape->is_closed != is_closed) return false;
  PyErr_SetString(PyExc_RuntimeError,
                  is_closed ? "a tape is closed already" : "a tape must be closed before it is read");
  return true;
}

bool copy_logged(Tape* tape) {
  const Log* log = tape->log;
  bool is_same =
      log->session == tape->session && tape->begun_ints <= log->ints.size() && tape->begun_floats <= log->floats.size();
  if (!is_same) return PyErr_SetString(PyExc_RuntimeError, "a tape must be of the present recording"), false;
  ptrdiff_t n_ints = log->ints.size() - tape->begun_ints, n_floats = log->floats.size() - tape->begun_floats;
  if (!tape->ints.reserve(n_ints) || !tape->floats.reserve(n_floats)) return PyErr_NoMemory(), false;
  for (ptrdiff_t i = tape->begun_ints; i < log->ints.size(); i++) tape->ints.append(log->ints[i]);
  for (ptrdiff_t i = tape->begun_floats; i < log->floats.size(); i++) tape->floats.append(log->floats[i]);
  return true;
}

// save(): copies the calls logged so far, before the recording clears its log.
PyObject* save(PyObject* self, PyObject*) {
  Tape* tape = as_tape(self);
  if (refuse_if_closed(tape, true) || refuse_if_busy(tape->log) || !copy_logged(tape)) return nullptr;
  tape->begun_ints = tape->begun_floats = 0;  // the cleared log continues the tape from its start
  Py_RETURN_NONE;
}

// Returns the index of a form's layout in `tape->layouts`, and asks Python for a missing one; -1 with an error.
int32_t find_layout(Tape* tape, int32_t form, IntMap& known) {
  int32_t place = known.find(form);
  if (place >= 0) return place;
  Ref found(PyObject_CallMethod(tape->log->owner, "layout", "i", (int)form));
  if (!found) return -1;
  if (Py_TYPE(found.get()) != &LayoutType || reinterpret_cast<Layout*>(found.get())->form != form)
    return PyErr_SetString(PyExc_TypeError, "layout must return the layout of the form"), -1;
  if (PyList_Append(tape->layouts, found.get()) < 0) return -1;
  place = (int32_t)PyList_GET_SIZE(tape->layouts) - 1;
  return known.insert(form, place) ? place : (PyErr_NoMemory(), -1);
}

// close(): closes the tape, and finds the calls on it.
PyObject* close(PyObject* self, PyObject*) {
  Tape* tape = as_tape(self);
  if (refuse_if_closed(tape, true) || refuse_if_busy(tape->log) || !copy_logged(tape)) return nullptr;
  tape->is_closed = true;
  IntMap known;
  CallReader reader(*tape);
  TapedCall call = {0, 0, 0, 0};
  while (call.ints < tape->ints.size()) {
    call.number = id_of(tape->ints[call.ints]);
    if (!tape->log->has(call.number)) return PyErr_SetString(PyExc_ValueError, "a tape must begin at a call"), nullptr;
    call.layout = find_layout(tape, tape->log->form_at(call.number), known);
    if (call.layout < 0 || !reader.read(call)) return nullptr;
    if (!tape->calls.push(call)) return PyErr_NoMemory();
    call.ints = reader.end();
    call.floats += reader.n_floats();
  }
  Py_RETURN_NONE;
}

PyObject* get_calls(PyObject* self, void*) {
  Tape* tape = as_tape(self);
  Ref found(PyList_New(tape->calls.size()));
  for (ptrdiff_t i = 0; found && i < tape->calls.size(); i++) {
    const TapedCall& call = tape->calls[i];
    PyObject* pair = Py_BuildValue("iL", (int)tape->layout(call).form, (long long)call.number);
    if (!pair) return nullptr;
    PyList_SET_ITEM(found.get(), i, pair);
  }
  return found.release();
}

// refs_of(k): returns a dict with the refs of each leaf of the arguments of call k that is not data.
PyObject* refs_of(PyObject* self, PyObject* argument) {
  Tape* tape = as_tape(self);
  Py_ssize_t k = PyNumber_AsSsize_t(argument, PyExc_IndexError);
  if (k == -1 && PyErr_Occurred()) return nullptr;
  if (k < 0 || k >= tape->calls.size()) return PyErr_Format(PyExc_IndexError, "the tape has no call %zd", k);
  CallReader reader(*tape);
  Ref found(PyDict_New());
  if (!found || !reader.read(tape->calls[k])) return nullptr;
  const Layout& layout = tape->layout(tape->calls[k]);
  for (ptrdiff_t i = 0; i < layout.leaves.size(); i++) {
    const Leaf& leaf = layout.leaves[i];
    if (!layout.is_value(leaf)) continue;
    Refs refs = reader.refs_of(leaf);
    Ref leaf_number(PyLong_FromLongLong(leaf.leaf)), list(PyList_New(refs.n));
    for (int64_t row = 0; list && row < refs.n; row++) {
      PyObject* ref = PyLong_FromLongLong(refs[row]);
      if (!ref) return nullptr;
      PyList_SET_ITEM(list.get(), row, ref);
    }
    if (!leaf_number || !list || PyDict_SetItem(found.get(), leaf_number.get(), list.get()) < 0) return nullptr;
  }
  return found.release();
}

// Returns whether a walk may begin; if not, sets an error.
bool may_walk(const Tape* tape) {
  if (refuse_if_closed(tape, false)) return false;
  if (tape->session == tape->log->session) return true;
  PyErr_SetString(PyExc_RuntimeError, "a tape must be of the present recording");
  return false;
}

// gradients(values, terms, wanted, parameters): records gradients; returns them as `Derivatives`.
PyObject* gradients(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Tape* tape = as_tape(self);
  if (!takes("gradients", n_args, 4) || !may_walk(tape)) return nullptr;
  Vec<int64_t> values, terms, wanted;
  if (!read_ints(args[0], "values", values) || !read_ints(args[1], "terms", terms) ||
      !read_ints(args[2], "wanted", wanted))
    return nullptr;
  if (!PyTuple_Check(args[3])) return PyErr_SetString(PyExc_TypeError, "parameters must be a tuple"), nullptr;
  if (values.size() != terms.size())
    return PyErr_Format(PyExc_ValueError, "values must have one term each, got %zd values and %zd terms", values.size(),
                        terms.size()),
           nullptr;
  return record_gradients(*tape, values, terms, wanted, args[3]);
}

// tangents(values, terms, parameters, along): records tangents; returns them as `Derivatives`.
PyObject* tangents(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Tape* tape = as_tape(self);
  if (!takes("tangents", n_args, 4) || !may_walk(tape)) return nullptr;
  Vec<int64_t> values, terms;
  if (!read_ints(args[0], "values", values) || !read_ints(args[1], "terms", terms)) return nullptr;
  if (!PyTuple_Check(args[2]) || !PyTuple_Check(args[3]) || PyTuple_GET_SIZE(args[2]) != PyTuple_GET_SIZE(args[3]))
    return PyErr_SetString(PyExc_TypeError, "parameters and their tangents must be tuples of one size"), nullptr;
  if (values.size() != terms.size())
    return PyErr_Format(PyExc_ValueError, "values must have one term each, got %zd values and %zd terms", values.size(),
                        terms.size()),
           nullptr;
  return record_tangents(*tape, values, terms, args[2], args[3]);
}

PyObject* get_is_stale(PyObject* self, void*) {
  return PyBool_FromLong(as_tape(self)->session != as_tape(self)->log->session);
}

PyGetSetDef attributes[] = {{"calls", get_calls, nullptr, "The form and the number of each call.", nullptr},
                            {"is_stale", get_is_stale, nullptr, "Whether the recording is over.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {{"save", save, METH_NOARGS, nullptr},
                         {"close", close, METH_NOARGS, nullptr},
                         {"refs_of", refs_of, METH_O, nullptr},
                         fast("gradients", gradients),
                         fast("tangents", tangents),
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject tape_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Tape";
  type.tp_basicsize = sizeof(Tape);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_weaklistoffset = offsetof(Tape, weakrefs);
  type.tp_doc = "The calls that a recording logs while a function runs.";
  type.tp_traverse = traverse_tape;
  type.tp_dealloc = free_tape;
  type.tp_getset = attributes;
  type.tp_methods = methods;
  type.tp_new = make_tape;
  return type;
}

}  // namespace

PyTypeObject TapeType = tape_type();

bool CallReader::read(const TapedCall& call) {
  const Layout& layout = tape_->layout(call);
  const Vec<int64_t>& ints = tape_->ints;
  layout_ = &layout;
  if (!lengths_.assign(layout.n_lists, 1) || !places_.resize(layout.ints.size() + 1)) return PyErr_NoMemory(), false;
  ptrdiff_t at = call.ints + 1;
  for (ptrdiff_t i = 0; i < layout.ints.size(); i++) {
    const LogItem& item = layout.ints[i];
    int64_t n = 1, left = ints.size() - at;
    places_[i] = at;
    if (item.kind == EACH || item.kind == ROWS) {
      // Divide, because n * columns may overflow. A bad length sets `left` to -1, which the check below refuses.
      n = left > 0 ? ints[at] : -1;
      int64_t columns = item.kind == ROWS ? item.size : item.n_parts;
      if (n < 0 || (columns && n > left / columns)) n = left, left = -1;
      if (item.group >= 0) lengths_[item.group] = n;
    }
    if (width(item, n) > left) return PyErr_SetString(PyExc_ValueError, "a tape must have whole calls"), false;
    at += (ptrdiff_t)width(item, n);
  }
  places_[layout.ints.size()] = at;
  floats_ = call.floats;
  if (floats_ + n_floats() > tape_->floats.size())
    return PyErr_SetString(PyExc_ValueError, "a tape must have the floats of its calls"), false;
  return true;
}

int64_t CallReader::n_floats() const {
  int64_t n = 0;
  for (ptrdiff_t i = 0; i < layout_->floats.size(); i++) n += n_floats_of(layout_->floats[i]);
  return n;
}

Refs CallReader::refs_of(const Leaf& leaf) const {
  const LogItem& item = layout_->ints[leaf.item];
  ptrdiff_t at = places_[leaf.item];
  const int64_t* ints = tape_->ints.data();
  if (item.kind == VALUE) return {ints[at] + leaf.output, 1, 0, nullptr};
  return {leaf.output, ints[at], item.n_parts, ints + at + 1 + leaf.part};
}

}  // namespace autobatch
