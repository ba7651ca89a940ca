#include "record/stage.h"

namespace autobatch {
namespace {

// Owned references, set by a `with` block, which resets them at its end.
thread_local Log* log = nullptr;  // the log of `current`; null if it has none
thread_local PyObject* current = nullptr;

PyObject* get_current(PyObject*, void*) { return Py_NewRef(current ? current : Py_None); }

// Makes a tracer or recording, or null, the stage of this thread.
void put(Ref value, Ref its_log) {
  // Released last, because freeing an object may run code that reads the stage.
  Ref before(current), log_before(reinterpret_cast<PyObject*>(log));
  current = value.release();
  log = reinterpret_cast<Log*>(its_log.release());
}

// Finds the log of a stage, which is null for a tracer.
Ref log_of(PyObject* value) {
  Ref found(value ? PyObject_GetAttrString(value, "log") : nullptr);
  PyErr_Clear();  // a tracer has no log
  bool is_own = found && Py_TYPE(found.get()) == &LogType && reinterpret_cast<Log*>(found.get())->owner == value;
  return is_own ? Ref(found.release()) : Ref();
}

int set_current(PyObject*, PyObject* value, void*) {
  if (value == Py_None) value = nullptr;
  put(Ref::borrowed(value), log_of(value));
  return 0;
}

PyGetSetDef attributes[] = {{"current", get_current, set_current,
                             "The tracer or recording that is active in this thread; None in eager mode.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

// A block in which a thread has a stage. It is native because Python handles Ctrl-C where a Python function starts: an
// `__exit__` in Python could be interrupted before it resets the stage.
struct Block {
  PyObject_HEAD
  PyObject *own, *before;  // stages, or null
  PyObject* log_before;
};

Block* as_block(PyObject* self) { return reinterpret_cast<Block*>(self); }

PyObject* make_block(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"current", nullptr};
  PyObject* given;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:stage", const_cast<char**>(names), &given)) return nullptr;
  PyObject* made = type->tp_alloc(type, 0);
  if (made && given != Py_None) as_block(made)->own = Py_NewRef(given);
  return made;
}

PyObject* enter_block(PyObject* self, PyObject*) {
  Block* block = as_block(self);
  Ref its_log = log_of(block->own);
  Ref before(block->before), log_before(block->log_before);  // null, unless it was entered twice
  block->before = Py_XNewRef(current);
  block->log_before = Py_XNewRef(reinterpret_cast<PyObject*>(log));
  put(Ref::borrowed(block->own), static_cast<Ref&&>(its_log));
  Py_RETURN_NONE;
}

PyObject* exit_block(PyObject* self, PyObject* const*, Py_ssize_t) {
  Ref before(as_block(self)->before), log_before(as_block(self)->log_before);
  as_block(self)->before = as_block(self)->log_before = nullptr;
  put(static_cast<Ref&&>(before), static_cast<Ref&&>(log_before));
  Py_RETURN_NONE;
}

int traverse_block(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_block(self)->own);
  Py_VISIT(as_block(self)->before);
  Py_VISIT(as_block(self)->log_before);
  return 0;
}

int clear_block(PyObject* self) {
  Py_CLEAR(as_block(self)->own);
  Py_CLEAR(as_block(self)->before);
  Py_CLEAR(as_block(self)->log_before);
  return 0;
}

void free_block(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_block(self);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef block_methods[] = {
    {"__enter__", enter_block, METH_NOARGS, nullptr}, fast("__exit__", exit_block), {nullptr, nullptr, 0, nullptr}};

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

PyTypeObject block_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.stage";
  type.tp_basicsize = sizeof(Block);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "Make `current` this thread's stage within the context.";
  type.tp_methods = block_methods;
  type.tp_traverse = traverse_block;
  type.tp_clear = clear_block;
  type.tp_dealloc = free_block;
  type.tp_new = make_block;
  return type;
}

}  // namespace

Log* current_log() { return log; }

PyTypeObject StageType = stage_type();
PyTypeObject StageBlockType = block_type();

}  // namespace autobatch
