#include "record/stage.h"

namespace autobatch {
namespace {

// Owned references. Python sets them in a `with` block, which resets them at its end.
thread_local Log* log = nullptr;  // the log of `current`; null if it has none
thread_local PyObject* current = nullptr;

PyObject* get_current(PyObject*, void*) { return Py_NewRef(current ? current : Py_None); }

int set_current(PyObject*, PyObject* value, void*) {
  PyObject* found = value && value != Py_None ? PyObject_GetAttrString(value, "log") : nullptr;
  PyErr_Clear();  // a tracer has no log
  if (found && (Py_TYPE(found) != &LogType || reinterpret_cast<Log*>(found)->owner != value)) Py_CLEAR(found);
  Log* log_before = log;
  PyObject* before = current;
  log = reinterpret_cast<Log*>(found);
  current = value == Py_None ? nullptr : Py_XNewRef(value);
  // Released last, because freeing an object may run code that reads the stage.
  Py_XDECREF(before);
  Py_XDECREF(reinterpret_cast<PyObject*>(log_before));
  return 0;
}

PyGetSetDef attributes[] = {{"current", get_current, set_current,
                             "The tracer or recording that is active in this thread; None in eager mode.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject stage_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Stage";
  type.tp_basicsize = sizeof(PyObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "The stage of each thread.";
  type.tp_getset = attributes;
  type.tp_new = PyType_GenericNew;
  return type;
}

}  // namespace

Log* current_log() { return log; }

PyTypeObject StageType = stage_type();

}  // namespace autobatch
