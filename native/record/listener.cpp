#include "record/listener.h"

#include "support/ints.h"

namespace autobatch {
namespace {

struct CallListener {
  PyObject_HEAD
  PyObject* report_function;
  PyObject* report_builtin;
  PyObject* held;  // keeps the objects behind `known` alive, so that their addresses are not reused
  IntMap known;    // addresses of code objects, and of definitions of C functions
};

CallListener* as_listener(PyObject* self) { return reinterpret_cast<CallListener*>(self); }

bool is_known(CallListener* listener, const void* address) { return listener->known.find((int64_t)address) >= 0; }

bool note(CallListener* listener, const void* address, PyObject* holder) {
  if (PyList_Append(listener->held, holder) < 0) return false;
  return listener->known.insert((int64_t)address, 0) || fail();
}

int hear_function(CallListener* listener, PyFrameObject* frame) {
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  if (is_known(listener, code.get())) return 0;
  Ref globals(PyFrame_GetGlobals(frame));
  if (!note(listener, code.get(), code.get())) return -1;
  return call_object(listener->report_function, code.get(), globals.get()) ? 0 : -1;
}

// Returns whether an object is a built-in container or string: its methods read neither random numbers nor a clock.
bool is_container(PyObject* owner) {
  return PyList_CheckExact(owner) || PyDict_CheckExact(owner) || PyTuple_CheckExact(owner) ||
         PyUnicode_CheckExact(owner) || Py_IS_TYPE(owner, &PySet_Type);
}

int hear_builtin(CallListener* listener, PyFrameObject* frame, PyObject* function) {
  PyObject* owner = PyCFunction_Check(function) ? PyCFunction_GET_SELF(function) : nullptr;
  if (owner && is_container(owner)) return 0;
  const void* definition =
      owner && PyModule_CheckExact(owner) ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml : nullptr;
  if (definition && is_known(listener, definition)) return 0;
  Ref globals(PyFrame_GetGlobals(frame));
  Ref is_harmless = call_object(listener->report_builtin, function, globals.get());
  if (!is_harmless) return -1;
  return definition && is_harmless.get() == Py_True && !note(listener, definition, function) ? -1 : 0;
}

int hear(PyObject* self, PyFrameObject* frame, int event, PyObject* function) {
  Ref held = Ref::borrowed(self);  // owned, because a report may replace the profile function
  if (event != PyTrace_CALL && event != PyTrace_C_CALL) return 0;
  CallListener* listener = as_listener(self);
  int found = event == PyTrace_CALL ? hear_function(listener, frame) : hear_builtin(listener, frame, function);
  if (found < 0) PyEval_SetProfile(nullptr, nullptr);  // or else the call of sys.setprofile would fail as well
  return found;
}

// enable(): makes this listener the profile function of this thread.
PyObject* enable(PyObject* self, PyObject*) {
  PyEval_SetProfile(hear, self);
  Py_RETURN_NONE;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"report_function", "report_builtin", nullptr};
  PyObject *report_function, *report_builtin;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:CallListener", const_cast<char**>(names), &report_function,
                                   &report_builtin))
    return nullptr;
  if (!PyCallable_Check(report_function)) return refuse_type("report_function", "callable", report_function), nullptr;
  if (!PyCallable_Check(report_builtin)) return refuse_type("report_builtin", "callable", report_builtin), nullptr;
  Ref held(PyList_New(0));
  CallListener* listener = held ? as_listener(type->tp_alloc(type, 0)) : nullptr;
  if (!listener) return nullptr;
  new (&listener->known, At::PLACE) IntMap();
  listener->report_function = Py_NewRef(report_function);
  listener->report_builtin = Py_NewRef(report_builtin);
  listener->held = held.release();
  return reinterpret_cast<PyObject*>(listener);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_listener(self)->report_function);
  Py_VISIT(as_listener(self)->report_builtin);
  Py_VISIT(as_listener(self)->held);
  return 0;
}

void free_listener(PyObject* self) {
  PyObject_GC_UnTrack(self);
  CallListener* listener = as_listener(self);
  Py_XDECREF(listener->report_function);
  Py_XDECREF(listener->report_builtin);
  Py_XDECREF(listener->held);
  listener->known.~IntMap();
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {{"enable", enable, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject listener_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.CallListener";
  type.tp_basicsize = sizeof(CallListener);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "Reports the calls of its thread, each function once.";
  type.tp_traverse = traverse;
  type.tp_dealloc = free_listener;
  type.tp_methods = methods;
  type.tp_new = make;
  return type;
}

}  // namespace

PyTypeObject CallListenerType = listener_type();

}  // namespace autobatch
