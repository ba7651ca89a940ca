#include "record/stage.h"

namespace autobatch {
namespace {

thread_local Log* log = nullptr;           // of `current`, borrowed
thread_local PyObject* current = nullptr;  // owned; a `with` block of each thread takes back what it has set

PyObject* get_current(PyObject*, void*) { return Py_NewRef(current ? current : Py_None); }

int set_current(PyObject*, PyObject* value, void*) {
  PyObject* found = value && value != Py_None ? PyObject_GetAttrString(value, "log") : nullptr;
  PyErr_Clear();  // what traces has none
  log = found && Py_TYPE(found) == &LogType ? reinterpret_cast<Log*>(found) : nullptr;
  if (log && log->owner != value) log = nullptr;  // a log lives as long as its owner
  Py_XDECREF(found);
  PyObject* before = current;
  current = value == Py_None ? nullptr : Py_XNewRef(value);
  Py_XDECREF(before);
  return 0;
}

PyGetSetDef attributes[] = {
    {"current", get_current, set_current, "What traces or records in this thread; None in eager mode.", nullptr},
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

PyObject* current_stage() { return current; }

Log* current_log() { return log; }

PyTypeObject StageType = stage_type();

}  // namespace autobatch
