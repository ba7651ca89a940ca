#include "record/function.h"

#include "record/fold.h"
#include "record/forms.h"
#include "record/stage.h"

namespace autobatch {
namespace {

constexpr Py_ssize_t FEW = 32;

// The parts of an argument that are wrapped, i.e. replaced by a *source*, the node that holds an array, a parameter or
// an input: none; the argument if it is an array; arrays in tuples and lists as well. PARAMETERS is a flag.
enum Wraps : char { NOTHING = 0, ARRAYS = 1, PARTS = 2, PARAMETERS = 4 };

Function* as_function(PyObject* self) { return reinterpret_cast<Function*>(self); }

PyObject* call_slowly(Function* function, PyObject* const* arguments, Py_ssize_t n) {
  Ref tuple(PyTuple_New(n));
  for (Py_ssize_t i = 0; tuple && i < n; i++) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(arguments[i]));
  return tuple ? call_object(function->slow, tuple.get()).release() : nullptr;
}

// Returns whether a function records in the current log of this thread.
bool is_present(const Function* function) { return function->log == current_log(); }

// Records a call by the first form that matches; returns null without an error if none does.
PyObject* record_known(Function* function, PyObject* const* arguments, Py_ssize_t n) {
  Ref forms = Ref::borrowed(function->forms);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(forms.get()); i++) {
    Form* form = reinterpret_cast<Form*>(PyTuple_GET_ITEM(forms.get(), i));
    PyObject* made = form->n_arguments == n ? record_call(form, arguments, n) : nullptr;
    if (made || PyErr_Occurred()) return made;
  }
  return nullptr;
}

// The effect of wrapping on an argument: none, or it and its parts are replaced by sources; or only Python can tell.
enum class Wrapping { ERROR, NONE, SOURCES, PYTHON };

// How wrapping treats a class other than array, tuple and list; Python is asked once per class.
enum Treatment : long { LEFT = 0, PARAMETER = 1, INPUT = 2 };

Wrapping find_class(Log* log, PyObject* x, char wraps) {
  PyObject* kind = reinterpret_cast<PyObject*>(Py_TYPE(x));
  PyObject* known = PyDict_GetItemWithError(log->treatments, kind);
  if (!known) {
    if (PyErr_Occurred() || !log->treatment_of) return PyErr_Occurred() ? Wrapping::ERROR : Wrapping::PYTHON;
    Ref answer = call_object(log->treatment_of, x);
    if (!answer || PyDict_SetItem(log->treatments, kind, answer.get()) < 0) return Wrapping::ERROR;
    known = PyDict_GetItemWithError(log->treatments, kind);
  }
  long treatment = known && PyLong_Check(known) ? PyLong_AsLong(known) : -1;
  PyErr_Clear();
  if (treatment == INPUT) return Wrapping::SOURCES;
  if (treatment == PARAMETER) return wraps & PARAMETERS ? Wrapping::SOURCES : Wrapping::NONE;
  return treatment == LEFT ? Wrapping::NONE : Wrapping::PYTHON;
}

Wrapping find_wrapping(Log* log, PyObject* x, char wraps) {
  if (wraps == NOTHING || PyObject_TypeCheck(x, &HandleType) || PyLong_CheckExact(x) || PyFloat_CheckExact(x))
    return Wrapping::NONE;
  if (Py_TYPE(x) == &PyArray_Type) {
    int type = PyArray_TYPE(reinterpret_cast<PyArrayObject*>(x));
    return type == NPY_FLOAT32 || type == NPY_FLOAT64 ? Wrapping::SOURCES : Wrapping::PYTHON;
  }
  if (!PyTuple_CheckExact(x) && !PyList_CheckExact(x)) return find_class(log, x, wraps);
  if (!(wraps & PARTS)) return Wrapping::PYTHON;
  if (Py_EnterRecursiveCall(" in an argument of a cell")) return Wrapping::ERROR;
  Wrapping found = Wrapping::NONE;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(x) && found != Wrapping::ERROR && found != Wrapping::PYTHON;
       i++) {
    Ref held = Ref::borrowed(PySequence_Fast_GET_ITEM(x, i));
    Wrapping part = find_wrapping(log, held.get(), wraps);
    if (part != Wrapping::NONE) found = part;
  }
  Py_LeaveRecursiveCall();
  return found;
}

// Returns the source with this key in the current instance. If there is none yet, records a call of `source`, with
// `argument` unless that is null. Returns null without an error if only Python can record it.
PyObject* find_source(Log* log, const Ref& key, const Ref& source, PyObject* argument) {
  PyObject* known = PyDict_GetItemWithError(log->sources, key.get());
  if (known || PyErr_Occurred()) return Py_XNewRef(known);
  Ref made(source ? record_known_call(log, source.get(), &argument, argument ? 1 : 0) : nullptr);
  return made && PyDict_SetItem(log->sources, key.get(), made.get()) == 0 ? made.release() : nullptr;
}

// Returns an argument with arrays and parameters replaced by sources; null without an error if only Python can do so.
PyObject* wrap(Log* log, PyObject* x, char wraps) {
  if (Py_TYPE(x) == &PyArray_Type) {
    Ref key(key_of_array(x));
    return key ? find_source(log, key, Ref::borrowed(log->source), x) : nullptr;
  }
  bool is_tuple = PyTuple_CheckExact(x);
  if (!is_tuple && !PyList_CheckExact(x)) {
    Wrapping found = find_wrapping(log, x, wraps);
    if (found != Wrapping::SOURCES) return found == Wrapping::NONE ? Py_NewRef(x) : nullptr;
    Ref key(PyLong_FromVoidPtr(x));
    Ref functions = Ref::borrowed(log->functions);  // owned, because comparing keys may end the recording
    Ref source = Ref::borrowed(key ? PyDict_GetItemWithError(functions.get(), key.get()) : nullptr);
    return PyErr_Occurred() ? nullptr : find_source(log, key, source, nullptr);
  }
  if (Py_EnterRecursiveCall(" in an argument of a cell")) return nullptr;
  // Copy a list, because it may change while its parts are recorded.
  Ref parts(is_tuple ? Py_NewRef(x) : PyList_AsTuple(x));
  Py_ssize_t n = parts ? PyTuple_GET_SIZE(parts.get()) : 0;
  Ref wrapped(!parts ? nullptr : is_tuple ? PyTuple_New(n) : PyList_New(n));
  for (Py_ssize_t i = 0; wrapped && i < n; i++) {
    PyObject* part = wrap(log, PyTuple_GET_ITEM(parts.get(), i), wraps);
    if (!part)
      wrapped = Ref();
    else if (is_tuple)
      PyTuple_SET_ITEM(wrapped.get(), i, part);
    else
      PyList_SET_ITEM(wrapped.get(), i, part);
  }
  Py_LeaveRecursiveCall();
  return wrapped.release();
}

// Records a call with arrays and parameters replaced by sources. Returns null without an error if there are none, if
// only Python can wrap an argument, or if no form matches the wrapped arguments.
PyObject* record_wrapped(Function* function, PyObject* const* arguments, Py_ssize_t n) {
  Log* log = function->log;
  if (!PyBytes_GET_SIZE(function->wraps) || PyBytes_GET_SIZE(function->wraps) != n) return nullptr;
  const char* wraps = PyBytes_AS_STRING(function->wraps);
  // Look at all arguments first, so that no source is recorded for a call that Python must handle.
  bool has_sources = false;
  for (Py_ssize_t i = 0; i < n; i++) {
    Wrapping found = find_wrapping(log, arguments[i], wraps[i]);
    if (found == Wrapping::ERROR || found == Wrapping::PYTHON) return nullptr;
    has_sources |= found == Wrapping::SOURCES;
  }
  if (!has_sources) return nullptr;
  Ref wrapped(PyTuple_New(n));
  for (Py_ssize_t i = 0; wrapped && i < n; i++) {
    PyObject* x = wraps[i] == NOTHING ? Py_NewRef(arguments[i]) : wrap(log, arguments[i], wraps[i]);
    if (!x) return nullptr;
    PyTuple_SET_ITEM(wrapped.get(), i, x);
  }
  return wrapped ? record_known(function, &PyTuple_GET_ITEM(wrapped.get(), 0), n) : nullptr;
}

// Records a call of a known form, with or without wrapping; returns null without an error if no form matches.
PyObject* record_natively(Function* function, PyObject* const* arguments, Py_ssize_t n) {
  PyObject* made = is_present(function) ? record_known(function, arguments, n) : nullptr;
  // Testing forms may run Python code that ends the recording, so `is_present` is asked again.
  return made || PyErr_Occurred() || !is_present(function) ? made : record_wrapped(function, arguments, n);
}

PyObject* record(Function* function, PyObject* const* arguments, Py_ssize_t n) {
  PyObject* made = record_natively(function, arguments, n);
  return made || PyErr_Occurred() ? made : call_slowly(function, arguments, n);
}

// Binds positional and named arguments; returns false without an error if `bind` must do it.
bool bind_plainly(Function* function, PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames, PyObject** bound) {
  Py_ssize_t n = PyTuple_GET_SIZE(function->names), n_defaults = PyTuple_GET_SIZE(function->defaults);
  if (function->takes != PLAIN || n_args > n) return false;
  for (Py_ssize_t i = 0; i < n; i++) bound[i] = i < n_args ? args[i] : nullptr;
  for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++) {
    Py_ssize_t place = n_args;  // interned names are compared by identity; `bind` compares others
    while (place < n && PyTuple_GET_ITEM(function->names, place) != PyTuple_GET_ITEM(kwnames, k)) place++;
    if (place == n || bound[place]) return false;
    bound[place] = args[n_args + k];
  }
  for (Py_ssize_t i = n_args; i < n; i++) {
    if (bound[i]) continue;
    Py_ssize_t k = i - (n - n_defaults);
    if (k < 0) return false;
    bound[i] = PyTuple_GET_ITEM(function->defaults, k);
  }
  return true;
}

// Packs positional arguments into a tuple and named ones into a dict; returns false with an error.
bool pack(PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames, Ref& given, Ref& named) {
  given = Ref(PyTuple_New(n_args));
  named = Ref(PyDict_New());
  if (!given || !named) return false;
  for (Py_ssize_t i = 0; i < n_args; i++) PyTuple_SET_ITEM(given.get(), i, Py_NewRef(args[i]));
  for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++)
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, k), args[n_args + k]) < 0) return false;
  return true;
}

PyObject* call_bound(Function* function, PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames) {
  Ref given, named;
  if (!pack(args, n_args, kwnames, given, named)) return nullptr;
  Ref bound = call_object(function->bind, given.get(), named.get());
  if (!bound) return nullptr;
  Ref arguments(PySequence_Tuple(bound.get()));
  return arguments ? record(function, &PyTuple_GET_ITEM(arguments.get(), 0), PyTuple_GET_SIZE(arguments.get()))
                   : nullptr;
}

// Records a call whose arguments are a tuple of the positional ones and, if the function takes two, a dict of the rest.
PyObject* call_collected(Function* function, PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames) {
  Ref given, named;
  if (!pack(args, n_args, kwnames, given, named)) return nullptr;
  PyObject* both[2] = {given.get(), named.get()};
  return record(function, both, PyTuple_GET_SIZE(function->names) == 2 ? 2 : 1);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Function* function = as_function(self);
  Py_ssize_t n_args = PyVectorcall_NARGS(nargsf), n = PyTuple_GET_SIZE(function->names);
  if (function->takes == PLAIN && n_args == n && !kwnames) return record(function, args, n);
  if (function->takes == COLLECTED && (n == 2 || !kwnames)) return call_collected(function, args, n_args, kwnames);
  PyObject* bound[FEW];
  if (n <= FEW && bind_plainly(function, args, n_args, kwnames, bound)) return record(function, bound, n);
  return call_bound(function, args, n_args, kwnames);
}

// Function.record(form, arguments): records a call of this form and returns its result; None if the arguments do not
// match, or if the form's log is not the current one of this thread.
PyObject* record_one(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  if (n_args != 2 || Py_TYPE(args[0]) != &FormType || !PyTuple_Check(args[1]))
    return PyErr_SetString(PyExc_TypeError, "record takes a form and a tuple of arguments"), nullptr;
  Form* form = reinterpret_cast<Form*>(args[0]);
  if (PyTuple_GET_SIZE(args[1]) != form->n_arguments) Py_RETURN_NONE;
  PyObject* made =
      form->log == current_log() ? record_call(form, &PyTuple_GET_ITEM(args[1], 0), form->n_arguments) : nullptr;
  if (made || PyErr_Occurred()) return made;
  Py_RETURN_NONE;
}

// function.record_tuple(arguments): records a call with all arguments in order.
PyObject* record_tuple(PyObject* self, PyObject* arguments) {
  if (!PyTuple_Check(arguments)) return PyErr_SetString(PyExc_TypeError, "arguments must be a tuple"), nullptr;
  return record(as_function(self), &PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments));
}

bool are_forms(PyObject* forms) {
  bool are = PyTuple_Check(forms);
  for (Py_ssize_t i = 0; are && i < PyTuple_GET_SIZE(forms); i++)
    are = Py_TYPE(PyTuple_GET_ITEM(forms, i)) == &FormType;
  if (!are) PyErr_SetString(PyExc_TypeError, "forms must be a tuple of forms");
  return are;
}

PyObject* make_function(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"log", "name", "names", "defaults", "takes", "bind", "slow", "wraps", nullptr};
  PyObject *log, *name, *of, *defaults, *bind, *slow, *wraps;
  int takes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UO!O!iOOS:Function", const_cast<char**>(names), &LogType, &log,
                                   &name, &PyTuple_Type, &of, &PyTuple_Type, &defaults, &takes, &bind, &slow, &wraps))
    return nullptr;
  if (PyTuple_GET_SIZE(defaults) > PyTuple_GET_SIZE(of) || !PyCallable_Check(slow) || !PyCallable_Check(bind))
    return PyErr_SetString(PyExc_TypeError, "a function must have names, defaults for the last ones, and callables"),
           nullptr;
  Ref interned(PyTuple_New(PyTuple_GET_SIZE(of)));
  for (Py_ssize_t i = 0; interned && i < PyTuple_GET_SIZE(of); i++) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(of, i)))
      return PyErr_SetString(PyExc_TypeError, "names must be text"), nullptr;
    PyObject* text = Py_NewRef(PyTuple_GET_ITEM(of, i));
    PyUnicode_InternInPlace(&text);
    PyTuple_SET_ITEM(interned.get(), i, text);
  }
  PyObject* forms = interned ? PyTuple_New(0) : nullptr;
  Function* function = forms ? as_function(type->tp_alloc(type, 0)) : nullptr;
  if (!function) return Py_XDECREF(forms), nullptr;
  new (&function->templates, At::PLACE) Vec<CallTemplate*>();
  function->vectorcall = call;
  function->name = Py_NewRef(name);
  function->names = interned.release();
  function->defaults = Py_NewRef(defaults);
  function->bind = Py_NewRef(bind);
  function->slow = Py_NewRef(slow);
  function->forms = forms;
  function->takes = takes;
  function->wraps = Py_NewRef(wraps);
  function->log = reinterpret_cast<Log*>(Py_NewRef(log));
  return reinterpret_cast<PyObject*>(function);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Function* function = as_function(self);
  Py_VISIT(function->defaults);
  Py_VISIT(function->bind);
  Py_VISIT(function->slow);
  Py_VISIT(function->forms);
  Py_VISIT(reinterpret_cast<PyObject*>(function->log));
  return 0;
}

// Breaks reference cycles. The built-in `tuple` replaces the callables, so that a later call is still safe.
int clear(PyObject* self) {
  Function* function = as_function(self);
  Py_XSETREF(function->slow, Py_NewRef(reinterpret_cast<PyObject*>(&PyTuple_Type)));
  Py_XSETREF(function->bind, Py_NewRef(reinterpret_cast<PyObject*>(&PyTuple_Type)));
  forget_templates(function);
  PyObject* none = PyTuple_New(0);
  if (none) Py_XSETREF(function->forms, none);
  return 0;
}

void free_function(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Function* function = as_function(self);
  Py_TRASHCAN_BEGIN(self, free_function)
  forget_templates(function);
  function->templates.~Vec();
  Py_XDECREF(function->name);
  Py_XDECREF(function->names);
  Py_XDECREF(function->defaults);
  Py_XDECREF(function->bind);
  Py_XDECREF(function->slow);
  Py_XDECREF(function->forms);
  Py_XDECREF(function->wraps);
  Py_XDECREF(reinterpret_cast<PyObject*>(function->log));
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

PyObject* get_forms(PyObject* self, void*) { return Py_NewRef(as_function(self)->forms); }

int set_forms(PyObject* self, PyObject* forms, void*) {
  if (!forms || !are_forms(forms))
    return forms ? -1 : (PyErr_SetString(PyExc_TypeError, "forms must not be deleted"), -1);
  forget_templates(as_function(self));  // templates refer to forms
  Py_XSETREF(as_function(self)->forms, Py_NewRef(forms));
  return 0;
}

PyObject* get_name(PyObject* self, void*) { return Py_NewRef(as_function(self)->name); }

PyObject* represent(PyObject* self) { return PyUnicode_FromFormat("<recording of %U>", as_function(self)->name); }

PyGetSetDef attributes[] = {
    {"forms", get_forms, set_forms, "The forms that the function tries, one after another.", nullptr},
    {"__name__", get_name, nullptr, nullptr, nullptr},
    {"__qualname__", get_name, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {{"record", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(record_one)),
                          METH_FASTCALL | METH_STATIC, nullptr},
                         {"record_tuple", record_tuple, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject function_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Function";
  type.tp_basicsize = sizeof(Function);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_doc = "Records the calls of a cell.";
  type.tp_vectorcall_offset = offsetof(Function, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_repr = represent;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = free_function;
  type.tp_getset = attributes;
  type.tp_methods = methods;
  type.tp_new = make_function;
  return type;
}

}  // namespace

PyTypeObject FunctionType = function_type();

PyObject* record_known_call(const Log* log, PyObject* function, PyObject* const* arguments, Py_ssize_t n) {
  bool records_there = Py_TYPE(function) == &FunctionType && as_function(function)->log == log;
  return records_there ? record_known(as_function(function), arguments, n) : nullptr;
}

bool is_source(Log* log, PyObject* x) { return find_wrapping(log, x, ARRAYS | PARAMETERS) == Wrapping::SOURCES; }

PyObject* record_values(const Log* log, PyObject* object, PyObject* const* args, Py_ssize_t n_args, PyObject* kwnames) {
  Function* function = as_function(object);
  if (Py_TYPE(object) != &FunctionType || function->log != log) return nullptr;
  PyObject* bound[FEW];
  Py_ssize_t n = PyTuple_GET_SIZE(function->names);
  if (n <= FEW && bind_plainly(function, args, n_args, kwnames, bound)) return record_natively(function, bound, n);
  bool is_collected = function->takes == COLLECTED && n_args == n && !kwnames;
  return is_collected ? record_natively(function, args, n) : nullptr;
}

PyObject* call_function(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return call(function, args, nargsf, kwnames);
}

PyObject* key_of_array(PyObject* x) {
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(x);
  int type = PyArray_TYPE(array), ndim = PyArray_NDIM(array);
  if ((type != NPY_FLOAT32 && type != NPY_FLOAT64) || !PyArray_ISNOTSWAPPED(array) || !PyArray_IS_C_CONTIGUOUS(array))
    return nullptr;
  Py_ssize_t head = 2 + ndim * (Py_ssize_t)sizeof(npy_intp), size = PyArray_NBYTES(array);
  PyObject* key = PyBytes_FromStringAndSize(nullptr, head + size);
  if (!key) return nullptr;
  char* at = PyBytes_AS_STRING(key);
  *at++ = (char)type;
  *at++ = (char)ndim;
  if (ndim) memcpy(at, PyArray_DIMS(array), (size_t)head - 2);
  if (size) memcpy(at + head - 2, PyArray_DATA(array), (size_t)size);
  return key;
}

PyObject* array_key(PyObject*, PyObject* x) {
  Ref key(Py_TYPE(x) == &PyArray_Type ? key_of_array(x) : nullptr);
  if (key || PyErr_Occurred()) return key.release();
  Py_RETURN_NONE;
}

}  // namespace autobatch
