#include "record/shortcut.h"

#include "record/function.h"
#include "record/handles.h"
#include "record/stage.h"

namespace autobatch {
namespace {

struct Shortcut {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;  // takes all other calls
  PyObject* inner;     // what is recorded of a list of values
  PyObject* attributes;
};

Shortcut* as_shortcut(PyObject* self) { return reinterpret_cast<Shortcut*>(self); }

PyObject* call_inner(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Shortcut* shortcut = as_shortcut(self);
  Log* log = current_log();
  bool is_list = PyVectorcall_NARGS(nargsf) == 1 && !kwnames && PyList_CheckExact(args[0]) && PyList_GET_SIZE(args[0]);
  if (log && is_list && !log->is_watched) {
    Ref functions = Ref::borrowed(log->functions);  // comparing keys may end the recording
    Ref function = Ref::borrowed(PyDict_GetItemWithError(functions.get(), shortcut->inner));
    PyObject* made = function ? record_known_call(function.get(), args, 1) : nullptr;
    if (made || PyErr_Occurred()) return made;
  }
  return PyObject_Vectorcall(shortcut->function, args, nargsf, kwnames);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (Py_EnterRecursiveCall(" while a call is recorded")) return nullptr;
  PyObject* made = call_inner(self, args, nargsf, kwnames);
  Py_LeaveRecursiveCall();
  return made;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "inner", nullptr};
  PyObject *function, *inner;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Shortcut", const_cast<char**>(names), &function, &inner)) return nullptr;
  if (!PyCallable_Check(function) || PyObject_Hash(inner) == -1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "function must be callable");
    return nullptr;
  }
  Shortcut* shortcut = as_shortcut(type->tp_alloc(type, 0));
  if (!shortcut) return nullptr;
  shortcut->vectorcall = call;
  shortcut->function = Py_NewRef(function);
  shortcut->inner = Py_NewRef(inner);
  return reinterpret_cast<PyObject*>(shortcut);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_shortcut(self)->function);
  Py_VISIT(as_shortcut(self)->inner);
  Py_VISIT(as_shortcut(self)->attributes);
  return 0;
}

void free_shortcut(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, free_shortcut)
  Py_XDECREF(as_shortcut(self)->function);
  Py_XDECREF(as_shortcut(self)->inner);
  Py_XDECREF(as_shortcut(self)->attributes);
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject* represent(PyObject* self) {
  Ref name(PyObject_GetAttrString(self, "__qualname__"));
  return name ? PyUnicode_FromFormat("<function %S>", name.get()) : nullptr;
}

// Binds like a function; so it is shown as one, too.
PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyGetSetDef attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject shortcut_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Shortcut";
  type.tp_basicsize = sizeof(Shortcut);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Shortcut, vectorcall);
  type.tp_dictoffset = offsetof(Shortcut, attributes);
  type.tp_call = PyVectorcall_Call;
  type.tp_repr = represent;
  type.tp_descr_get = bind;
  type.tp_traverse = traverse;
  type.tp_dealloc = free_shortcut;
  type.tp_methods = methods;
  type.tp_getset = attributes;
  type.tp_new = make;
  return type;
}

}  // namespace

PyTypeObject ShortcutType = shortcut_type();

}  // namespace autobatch
