#include "record/shortcut.h"

#include "record/function.h"
#include "record/handles.h"
#include "record/stage.h"

namespace autobatch {
namespace {

// The arguments of a shortcut: a list of values; operands, in order or reversed; an op and its operands; or any.
enum Takes : int { LIST = 0, OPERANDS = 1, REVERSED = 2, OP = 3, ARGUMENTS = 4 };

struct Shortcut {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;  // handles all other calls
  PyObject* inner;     // the function or op to record, unless it is an argument
  PyObject* attributes;
  int takes;
};

Shortcut* as_shortcut(PyObject* self) { return reinterpret_cast<Shortcut*>(self); }

PyObject* shape_name;  // the string "shape"

// Returns whether two ints are equal; false for other objects.
bool are_equal_ints(PyObject* x, PyObject* y) {
  if (!PyLong_CheckExact(x) || !PyLong_CheckExact(y)) return false;
  int overflows_x = 0, overflows_y = 0;
  long long a = PyLong_AsLongLongAndOverflow(x, &overflows_x), b = PyLong_AsLongLongAndOverflow(y, &overflows_y);
  return !overflows_x && !overflows_y && a == b;
}

// Returns whether `given`, a tuple of sizes or a single size, is the shape of a value of this class.
bool is_shape_of(PyObject* kind, PyObject* given) {
  Ref shape(PyObject_GetAttr(kind, shape_name));
  PyErr_Clear();
  if (!shape || !PyTuple_CheckExact(shape.get())) return false;
  Py_ssize_t n_axes = PyTuple_GET_SIZE(shape.get());
  if (!PyTuple_CheckExact(given)) return n_axes == 1 && are_equal_ints(PyTuple_GET_ITEM(shape.get(), 0), given);
  if (PyTuple_GET_SIZE(given) != n_axes) return false;
  for (Py_ssize_t i = 0; i < n_axes; i++)
    if (!are_equal_ints(PyTuple_GET_ITEM(shape.get(), i), PyTuple_GET_ITEM(given, i))) return false;
  return true;
}

// Returns whether the arguments are one non-empty list and, optionally, `shape=` with the shape of its first value.
bool is_of_list(PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames) {
  if (n_args != 1 || !PyList_CheckExact(args[0]) || !PyList_GET_SIZE(args[0])) return false;
  if (!kwnames) return true;
  // Names are interned, so pointers are compared.
  bool names_shape = PyTuple_GET_SIZE(kwnames) == 1 && PyTuple_GET_ITEM(kwnames, 0) == shape_name;
  Ref kind = Ref::borrowed(reinterpret_cast<PyObject*>(Py_TYPE(PyList_GET_ITEM(args[0], 0))));
  return names_shape && is_sealed(kind.get()) && is_shape_of(kind.get(), args[1]);
}

// Returns whether an operand is a number that is recorded unchanged. Python handles 0, because x + 0 is x.
bool is_number(PyObject* x) {
  if (PyFloat_CheckExact(x)) return PyFloat_AS_DOUBLE(x) != 0;
  int overflows = 0;
  long long number = PyLong_CheckExact(x) ? PyLong_AsLongLongAndOverflow(x, &overflows) : 0;
  return number && number >= INT32_MIN && number <= INT32_MAX;
}

// Returns whether all operands are values, numbers, arrays or parameters, and at least one is a value. Python handles
// arrays next to values with rows, because their numbers of rows must be compared.
bool are_operands(Log* log, PyObject* const* args, Py_ssize_t n_args) {
  bool has_value = false, has_rows = false, has_source = false;
  for (Py_ssize_t i = 0; i < n_args; i++) {
    if (PyObject_TypeCheck(args[i], &HandleType)) {
      has_value = true;
      has_rows |= PyObject_TypeCheck(args[i], &RowsType);
    } else if (!is_number(args[i])) {
      if (!is_source(log, args[i])) return false;
      has_source = true;
    }
  }
  return has_value && !(has_rows && has_source);
}

// Returns whether a positional argument is a value, or a list or tuple that begins with one.
bool has_value(PyObject* const* args, Py_ssize_t n_args) {
  for (Py_ssize_t i = 0; i < n_args; i++) {
    PyObject* x = args[i];
    if ((PyList_CheckExact(x) || PyTuple_CheckExact(x)) && PySequence_Fast_GET_SIZE(x))
      x = PySequence_Fast_GET_ITEM(x, 0);
    if (PyObject_TypeCheck(x, &HandleType)) return true;
  }
  return false;
}

// Records a call of an op; returns null without an error if no form matches.
PyObject* record_op(Log* log, PyObject* function, PyObject* const* args, Py_ssize_t n_args, bool is_reversed) {
  if (!are_operands(log, args, n_args)) return nullptr;
  Ref operands(PyTuple_New(n_args));
  for (Py_ssize_t i = 0; operands && i < n_args; i++)
    PyTuple_SET_ITEM(operands.get(), i, Py_NewRef(args[is_reversed ? n_args - 1 - i : i]));
  PyObject* all = operands.get();
  return all ? record_values(log, function, &all, 1, nullptr) : nullptr;
}

// Records a call of a known form; returns null without an error if no form matches.
PyObject* record_known_form(Shortcut* shortcut, Log* log, PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames) {
  int takes = shortcut->takes;
  if (log->is_watched || log->is_wrapped || !n_args) return nullptr;
  if (takes == LIST ? !is_of_list(args, n_args, kwnames) : takes == ARGUMENTS ? !has_value(args, n_args) : !!kwnames)
    return nullptr;
  Ref functions = Ref::borrowed(log->functions);  // owned, because comparing keys may end the recording
  PyObject* key = takes == OP ? args[0] : shortcut->inner;
  Ref function = Ref::borrowed(PyDict_GetItemWithError(functions.get(), key));
  if (!function) return nullptr;
  if (takes == LIST) return record_known_call(log, function.get(), args, 1);
  if (takes == ARGUMENTS) return record_values(log, function.get(), args, n_args, kwnames);
  return record_op(log, function.get(), args + (takes == OP), n_args - (takes == OP), takes == REVERSED);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Shortcut* shortcut = as_shortcut(self);
  if (Log* log = current_log()) {
    Ref held = Ref::borrowed(reinterpret_cast<PyObject*>(log));  // owned, because Python code may end the recording
    PyObject* made = record_known_form(shortcut, log, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (made || PyErr_Occurred()) return made;
  }
  if (Py_EnterRecursiveCall(" in a shortcut")) return nullptr;
  PyObject* found = PyObject_Vectorcall(shortcut->function, args, nargsf, kwnames);
  Py_LeaveRecursiveCall();
  return found;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "inner", "takes", nullptr};
  PyObject *function, *inner;
  int takes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOi:Shortcut", const_cast<char**>(names), &function, &inner, &takes))
    return nullptr;
  if (!PyCallable_Check(function)) return PyErr_SetString(PyExc_TypeError, "function must be callable"), nullptr;
  if (takes < LIST || takes > ARGUMENTS) return PyErr_Format(PyExc_ValueError, "takes must be 0 to 4, got %d", takes);
  if (PyObject_Hash(inner) == -1) return nullptr;
  if (!shape_name && !(shape_name = PyUnicode_InternFromString("shape"))) return nullptr;
  Shortcut* shortcut = as_shortcut(type->tp_alloc(type, 0));
  if (!shortcut) return nullptr;
  shortcut->vectorcall = call;
  shortcut->function = Py_NewRef(function);
  shortcut->inner = Py_NewRef(inner);
  shortcut->takes = takes;
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

// Binds like a function: to an object, but not to a class.
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
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
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
