#include "record/programs.h"

#include "record/handles.h"
#include "record/stage.h"

namespace autobatch {
namespace {

Request* as_request(PyObject* self) { return reinterpret_cast<Request*>(self); }
AsyncProgram* as_program(PyObject* self) { return reinterpret_cast<AsyncProgram*>(self); }

PyObject* make_request(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"values", nullptr};
  PyObject* values;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Request", const_cast<char**>(names), &values)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self) as_request(self)->values = Py_NewRef(values);
  return self;
}

int traverse_request(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_request(self)->values);
  return 0;
}

int clear_request(PyObject* self) {
  Py_CLEAR(as_request(self)->values);
  return 0;
}

void free_request(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_request(self);
  Py_TYPE(self)->tp_free(self);
}

// Returns whether `x` is a handle of the recording that is active in this thread.
bool is_current(PyObject* x) {
  Log* log = current_log();
  return log && PyObject_TypeCheck(x, &HandleType) && log_in(reinterpret_cast<Handle*>(x)->slot) == log;
}

// Returns whether `values` is a handle of the current recording, or a tuple of such handles that is not empty.
bool are_current(PyObject* values) {
  if (!PyTuple_CheckExact(values)) return is_current(values);
  Py_ssize_t n = PyTuple_GET_SIZE(values);
  for (Py_ssize_t i = 0; i < n; i++)
    if (!is_current(PyTuple_GET_ITEM(values, i))) return false;
  return n > 0;
}

// Returns the request itself as an iterator, or what its method `_await_slowly` returns for other values.
PyObject* await_request(PyObject* self) {
  Request* request = as_request(self);
  if (request->is_awaited || !request->values || !are_current(request->values))
    return PyObject_CallMethod(self, "_await_slowly", nullptr);
  request->is_awaited = true;
  return Py_NewRef(self);
}

PySendResult send_to_request(PyObject* self, PyObject* answer, PyObject** found) {
  bool is_sent = as_request(self)->is_sent;
  as_request(self)->is_sent = true;
  *found = Py_NewRef(is_sent ? answer : self);
  return is_sent ? PYGEN_RETURN : PYGEN_NEXT;
}

// The same as a method, which raises StopIteration with the answer: Python 3.12 and later call it in `await`.
PyObject* send(PyObject* self, PyObject* answer) {
  PyObject* found;
  if (send_to_request(self, answer, &found) == PYGEN_NEXT) return found;
  Ref result(found), stop(PyObject_CallOneArg(PyExc_StopIteration, found));  // a tuple is one argument, not several
  if (stop) PyErr_SetObject(PyExc_StopIteration, stop.get());
  return nullptr;
}

PyObject* next_of_request(PyObject* self) { return send(self, Py_None); }

PyMemberDef request_members[] = {
    {"values", T_OBJECT, offsetof(Request, values), 0, "The requested values; None after they were read."},
    {"is_awaited", T_BOOL, offsetof(Request, is_awaited), 0, "Whether it was awaited."},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef request_methods[] = {{"send", send, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyAsyncMethods request_as_async = [] {
  PyAsyncMethods found = {};
  found.am_await = await_request;
  found.am_send = send_to_request;
  return found;
}();

PyTypeObject request_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Request";
  type.tp_basicsize = sizeof(Request);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "A request for the numbers of values.";
  type.tp_traverse = traverse_request;
  type.tp_clear = clear_request;
  type.tp_dealloc = free_request;
  type.tp_as_async = &request_as_async;
  type.tp_iternext = next_of_request;
  type.tp_members = request_members;
  type.tp_methods = request_methods;
  type.tp_new = make_request;
  return type;
}

int traverse_program(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_program(self)->steps);
  Py_VISIT(as_program(self)->draw);
  Py_VISIT(as_program(self)->reply);
  Py_VISIT(as_program(self)->asked);
  return 0;
}

int clear_program(PyObject* self) {
  Py_CLEAR(as_program(self)->steps);
  Py_CLEAR(as_program(self)->draw);
  Py_CLEAR(as_program(self)->reply);
  Py_CLEAR(as_program(self)->asked);
  return 0;
}

void free_program(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_program(self);
  Py_TYPE(self)->tp_free(self);
}

PyObject* make_program(PyTypeObject* type, PyObject*, PyObject*) { return type->tp_alloc(type, 0); }

PyMemberDef program_members[] = {
    {"steps", T_OBJECT, offsetof(AsyncProgram, steps), 0,
     "Resumes the root branch; None if Python advances the program."},
    {"draw", T_OBJECT, offsetof(AsyncProgram, draw), 0, "A function that returns the number of the next draw."},
    {"reply", T_OBJECT, offsetof(AsyncProgram, reply), 0, "The answer with which the root branch resumes."},
    {"asked", T_OBJECT, offsetof(AsyncProgram, asked), 0, "The request that the root branch waits for, or None."},
    {"is_over", T_BOOL, offsetof(AsyncProgram, is_over), 0, "Whether the program has ended."},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject program_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.AsyncProgram";
  type.tp_basicsize = sizeof(AsyncProgram);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "A program whose root branch runs alone.";
  type.tp_traverse = traverse_program;
  type.tp_clear = clear_program;
  type.tp_dealloc = free_program;
  type.tp_members = program_members;
  type.tp_new = make_program;
  return type;
}

// Returns the slot of the class of a value; null, without an error, if it is unknown.
Ref slot_of(PyObject* known, PyObject* value) {
  if (!PyObject_TypeCheck(value, &HandleType)) return Ref();
  return Ref::borrowed(PyDict_GetItemWithError(known, reinterpret_cast<PyObject*>(Py_TYPE(value))));
}

bool append_value(Log* log, PyObject* value, PyObject* slot, PyObject* refs, PyObject* slots) {
  Ref ref(PyLong_FromLongLong(ref_in(log, reinterpret_cast<Handle*>(value))));
  return ref && PyList_Append(refs, ref.get()) == 0 && PyList_Append(slots, slot) == 0;
}

// Reads and drops the values of a request: appends their refs and slots. Returns the structure of the answer: None for
// one number, n for a tuple of n; null, without an error, if a class of values is not known.
Ref read_values(Log* log, Request* request, PyObject* known, PyObject* refs, PyObject* slots) {
  Ref values = Ref::borrowed(request->values);
  if (!values) return Ref();
  if (!PyTuple_CheckExact(values.get())) {
    Ref slot = slot_of(known, values.get());
    if (!slot || !append_value(log, values.get(), slot.get(), refs, slots)) return Ref();
    Py_CLEAR(request->values);
    return Ref::borrowed(Py_None);
  }
  Py_ssize_t n = PyTuple_GET_SIZE(values.get());
  Ref found(n ? PyTuple_New(n) : nullptr);
  for (Py_ssize_t i = 0; found && i < n; i++) {
    PyObject* slot = slot_of(known, PyTuple_GET_ITEM(values.get(), i)).release();
    if (!slot) return Ref();
    PyTuple_SET_ITEM(found.get(), i, slot);
  }
  for (Py_ssize_t i = 0; found && i < n; i++) {
    PyObject* slot = PyTuple_GET_ITEM(found.get(), i);
    if (!append_value(log, PyTuple_GET_ITEM(values.get(), i), slot, refs, slots)) return Ref();
  }
  if (!found) return Ref();
  Py_CLEAR(request->values);
  return Ref(PyLong_FromSsize_t(n));
}

// Takes the current exception, with its traceback.
Ref take_error() {
#if PY_VERSION_HEX >= 0x030C0000
  return Ref(PyErr_GetRaisedException());
#else
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback) PyException_SetTraceback(error, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(error);
#endif
}

// Resumes a program. Returns the structure of its request; null, without an error, if Python must continue.
Ref advance(Log* log, PyObject* self, PyObject* known, PyObject* caught, PyObject* refs, PyObject* slots) {
  AsyncProgram* program = as_program(self);
  if (!program->steps || program->steps == Py_None || program->is_over) return Ref();
  Ref steps = Ref::borrowed(program->steps), answer(program->reply ? program->reply : Py_NewRef(Py_None));
  program->reply = nullptr;
  Py_XSETREF(log->draw, Py_XNewRef(program->draw));
  PyObject* found = nullptr;
  PySendResult status = PyIter_Send(steps.get(), answer.get(), &found);
  Ref result(found);
  if (status == PYGEN_NEXT && PyObject_TypeCheck(found, &RequestType)) {
    Py_XSETREF(program->asked, Py_NewRef(found));
    return read_values(log, as_request(found), known, refs, slots);
  }
  if (status == PYGEN_ERROR) {
    if (!PyErr_ExceptionMatches(caught)) return Ref();
    result = take_error();
  }
  Ref done(PyObject_CallMethod(self, "resumed", "iO", (int)status, result.get()));
  return Ref();
}

// Appends `x` until the list has n elements.
bool fill(PyObject* list, Py_ssize_t n, Py_ssize_t x) {
  while (PyList_GET_SIZE(list) < n) {
    Ref number(PyLong_FromSsize_t(x));
    if (!number || PyList_Append(list, number.get()) < 0) return false;
  }
  return true;
}

// Reads the program at a place; null with an error.
Ref program_at(PyObject* programs, PyObject* place, Py_ssize_t& at) {
  at = PyLong_AsSsize_t(place);
  if (at == -1 && PyErr_Occurred()) return Ref();
  PyObject* found = at >= 0 && at < PyList_GET_SIZE(programs) ? PyList_GET_ITEM(programs, at) : nullptr;
  if (found && PyObject_TypeCheck(found, &AsyncProgramType)) return Ref::borrowed(found);
  PyErr_Format(PyExc_ValueError, "places must have programs, got %zd", at);
  return Ref();
}

bool refuse_other(PyObject* x, PyTypeObject* kind, const char* name) {
  return !PyObject_TypeCheck(x, kind) && !refuse_type(name, kind->tp_name, x);
}

// Returns the next of some numbers; null with an error if there are too few.
Ref next_of(PyObject* numbers) {
  Ref found(PyIter_Next(numbers));
  if (!found && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "numbers must have one for each requested value, got fewer");
  return found;
}

}  // namespace

PyTypeObject RequestType = request_type();
PyTypeObject AsyncProgramType = program_type();

// advance(programs, places, known, caught, go_on, refs, slots, log_ptr, output_ptr, asked): resumes the programs at
// these places. Appends the refs and slots of requested values, and where each place begins in the log and among them;
// stores the structure of each request in `asked`. Calls go_on(place) if Python must continue.
PyObject* advance_programs(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("advance", n_args, 10)) return nullptr;
  PyObject *programs = args[0], *places = args[1], *known = args[2], *caught = args[3], *go_on = args[4],
           *refs = args[5], *slots = args[6], *log_ptr = args[7], *output_ptr = args[8], *asked = args[9];
  if (refuse_other(programs, &PyList_Type, "programs") || refuse_other(places, &PyList_Type, "places") ||
      refuse_other(known, &PyDict_Type, "known") || refuse_other(refs, &PyList_Type, "refs") ||
      refuse_other(slots, &PyList_Type, "slots") || refuse_other(log_ptr, &PyList_Type, "log_ptr") ||
      refuse_other(output_ptr, &PyList_Type, "output_ptr") || refuse_other(asked, &PyDict_Type, "asked"))
    return nullptr;
  Log* log = reinterpret_cast<Log*>(self);
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(places); k++) {
    Ref place = Ref::borrowed(PyList_GET_ITEM(places, k));
    Py_ssize_t at;
    Ref program = program_at(programs, place.get(), at);
    if (!program || !fill(log_ptr, at + 1, log->ints.size()) || !fill(output_ptr, at + 1, PyList_GET_SIZE(refs)))
      return nullptr;
    PyDict_Clear(log->sources);
    Ref structure = advance(log, program.get(), known, caught, refs, slots);
    if (structure) {
      if (PyDict_SetItem(asked, place.get(), structure.get()) < 0) return nullptr;
    } else {
      Ref done(PyErr_Occurred() ? nullptr : PyObject_CallOneArg(go_on, place.get()));
      if (!done) return nullptr;
    }
  }
  Py_ssize_t n = PyList_GET_SIZE(programs);
  PyDict_Clear(log->sources);
  if (!fill(log_ptr, n + 1, log->ints.size()) || !fill(output_ptr, n + 1, PyList_GET_SIZE(refs))) return nullptr;
  Py_RETURN_NONE;
}

// answer(programs, asked, numbers, go_on): gives programs the numbers that they wait for, in the order of
// `asked`. Calls go_on(place, structure, numbers), with the iterator of the numbers left, for other structures.
PyObject* answer_programs(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("answer", n_args, 4)) return nullptr;
  PyObject *programs = args[0], *go_on = args[3];
  if (refuse_other(programs, &PyList_Type, "programs") || refuse_other(args[1], &PyDict_Type, "asked")) return nullptr;
  Ref asked(PyDict_Items(args[1])), numbers(asked ? PyObject_GetIter(args[2]) : nullptr);
  if (!numbers) return nullptr;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(asked.get()); k++) {
    PyObject *place = PyTuple_GET_ITEM(PyList_GET_ITEM(asked.get(), k), 0),
             *structure = PyTuple_GET_ITEM(PyList_GET_ITEM(asked.get(), k), 1);
    if (structure != Py_None && !PyLong_CheckExact(structure)) {
      Ref done(PyObject_CallFunctionObjArgs(go_on, place, structure, numbers.get(), nullptr));
      if (!done) return nullptr;
      continue;
    }
    Py_ssize_t at, n = structure == Py_None ? -1 : PyLong_AsSsize_t(structure);
    Ref program = program_at(programs, place, at), found(n < 0 ? nullptr : PyTuple_New(n));
    if (!program || PyErr_Occurred()) return nullptr;
    if (n < 0) found = next_of(numbers.get());
    for (Py_ssize_t i = 0; i < n; i++) {
      Ref number = next_of(numbers.get());
      if (!number) return nullptr;
      PyTuple_SET_ITEM(found.get(), i, number.release());
    }
    if (!found) return nullptr;
    Py_XSETREF(as_program(program.get())->reply, found.release());
    Py_CLEAR(as_program(program.get())->asked);
  }
  Py_RETURN_NONE;
}

// read_request(request, known, refs, slots): reads a request as `advance` does; returns the structure of its answer, or
// NotImplemented if a class of values is not known.
PyObject* read_request(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("read_request", n_args, 4)) return nullptr;
  if (refuse_other(args[0], &RequestType, "request") || refuse_other(args[1], &PyDict_Type, "known") ||
      refuse_other(args[2], &PyList_Type, "refs") || refuse_other(args[3], &PyList_Type, "slots"))
    return nullptr;
  Ref found = read_values(reinterpret_cast<Log*>(self), as_request(args[0]), args[1], args[2], args[3]);
  if (!found && !PyErr_Occurred()) Py_RETURN_NOTIMPLEMENTED;
  return found.release();
}

}  // namespace autobatch
