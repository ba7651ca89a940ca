#include "record/handles.h"

namespace autobatch {
namespace {

constexpr int MOST_SPARE = 4096;
Handle* spare[MOST_SPARE];  // freed handles, to be reused
int n_spare = 0;

void forget(Handle* handle, int64_t ref) {
  Log* log = log_in(handle->slot);
  if (log && log->counts && log->session == handle->session) log->count(ref, -1);
}

void free_handle(PyObject* self) {
  Handle* handle = reinterpret_cast<Handle*>(self);
  PyTypeObject* kind = Py_TYPE(self);
  forget(handle, handle->ref);
  if (n_spare < MOST_SPARE)
    spare[n_spare++] = handle;
  else
    PyObject_Free(self);
  Py_DECREF(kind);
}

void free_rows(PyObject* self) {
  RowsHandle* rows = reinterpret_cast<RowsHandle*>(self);
  PyTypeObject* kind = Py_TYPE(self);
  if (rows->refs)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows->refs); i++)
      forget(&rows->handle, PyLong_AsLongLong(PyTuple_GET_ITEM(rows->refs, i)));
  else
    forget(&rows->handle, rows->handle.ref);
  Py_XDECREF(rows->refs);
  Py_XDECREF(rows->whole);
  PyObject_Free(self);
  Py_DECREF(kind);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "a recorded value must be made by a recording");
  return nullptr;
}

void free_base(PyObject* self) { PyObject_Free(self); }  // never called: classes are sealed before they have instances

Log* present_log(Handle* handle) {
  Log* log = log_in(handle->slot);
  return log && log->session == handle->session ? log : nullptr;
}

PyObject* get_ref(PyObject* self, void*) {
  Handle* handle = reinterpret_cast<Handle*>(self);
  return PyLong_FromLongLong(present_log(handle) ? handle->ref : STALE_REF);
}

PyObject* get_is_row(PyObject* self, void*) { return PyBool_FromLong(reinterpret_cast<Handle*>(self)->is_row); }

PyObject* rebind(PyObject* self, PyObject* other) {
  if (!PyObject_TypeCheck(other, &HandleType) || PyObject_TypeCheck(self, &RowsType) ||
      PyObject_TypeCheck(other, &RowsType)) {
    PyErr_SetString(PyExc_TypeError, "a value must be bound to another value");
    return nullptr;
  }
  Handle *handle = reinterpret_cast<Handle*>(self), *to = reinterpret_cast<Handle*>(other);
  Log* log = present_log(to);
  if (!log || log != present_log(handle)) {
    PyErr_SetString(PyExc_ValueError, "a value must be bound to a value of the same recording");
    return nullptr;
  }
  if (log->counts) {
    log->count(to->ref, 1);
    log->count(handle->ref, -1);
  }
  handle->ref = to->ref;
  Py_RETURN_NONE;
}

PyGetSetDef handle_attributes[] = {
    {"ref", get_ref, nullptr, "A number that identifies the node, the output and the row.", nullptr},
    {"is_row", get_is_row, nullptr, "Whether it is a row of a value of any number of rows.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef handle_methods[] = {{"rebind", rebind, METH_O, "Represent another value from now on."},
                                {nullptr, nullptr, 0, nullptr}};

PyObject* get_refs(PyObject* self, void*) {
  RowsHandle* rows = reinterpret_cast<RowsHandle*>(self);
  if (rows->refs) return present_log(&rows->handle) ? Py_NewRef(rows->refs) : PyTuple_New(0);
  int64_t first = present_log(&rows->handle) ? rows->handle.ref : STALE_REF, step = int64_t(1) << ROW_SHIFT;
  return PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "LLL", (long long)first,
                               (long long)(first + 1 + (rows->n - 1) * step), (long long)step);
}

PyObject* get_whole(PyObject* self, void*) {
  PyObject* whole = reinterpret_cast<RowsHandle*>(self)->whole;
  return Py_NewRef(whole ? whole : Py_None);
}

int set_whole(PyObject* self, PyObject* value, void*) {
  RowsHandle* rows = reinterpret_cast<RowsHandle*>(self);
  if (value == Py_None) value = nullptr;
  bool is_rows = value && PyObject_TypeCheck(value, &RowsType);
  if (value && (!rows->refs || !PyObject_TypeCheck(value, &HandleType) ||
                (is_rows && reinterpret_cast<RowsHandle*>(value)->refs)))
    return PyErr_SetString(PyExc_TypeError, "whole must be one output, for rows of several"), -1;
  Py_XSETREF(rows->whole, Py_XNewRef(value));
  return 0;
}

PyObject* get_n_rows(PyObject* self, void*) { return PyLong_FromLongLong(reinterpret_cast<RowsHandle*>(self)->n); }

PyGetSetDef rows_attributes[] = {
    {"refs", get_refs, nullptr, "The refs of the rows, in order.", nullptr},
    {"n_rows", get_n_rows, nullptr, "Number of rows.", nullptr},
    {"whole", get_whole, set_whole, "All rows as one value, if recorded; else None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject handle_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Handle";
  type.tp_basicsize = sizeof(Handle);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_doc = "An output of a recorded node.";
  type.tp_dealloc = free_base;
  type.tp_getset = handle_attributes;
  type.tp_methods = handle_methods;
  type.tp_new = refuse_new;
  return type;
}

PyTypeObject rows_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.RowsHandle";
  type.tp_basicsize = sizeof(RowsHandle);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_doc = "An output of any number of rows, or rows of such outputs.";
  type.tp_dealloc = free_base;
  type.tp_getset = rows_attributes;
  type.tp_base = &HandleType;
  type.tp_new = refuse_new;
  return type;
}

}  // namespace

PyTypeObject HandleType = handle_type();
PyTypeObject RowsType = rows_type();

PyObject* make_handle(Log* log, PyTypeObject* kind, int64_t ref, bool is_row) {
  Handle* handle = n_spare ? spare[--n_spare] : static_cast<Handle*>(PyObject_Malloc(sizeof(Handle)));
  if (!handle) return PyErr_NoMemory();
  PyObject* object = reinterpret_cast<PyObject*>(handle);
  Py_SET_REFCNT(object, 1);
  Py_SET_TYPE(object, reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(kind))));
  handle->ref = ref;
  handle->session = log->session;
  handle->slot = log->slot;
  handle->is_row = is_row;
  if (log->counts) log->count(ref, 1);
  return object;
}

PyObject* make_rows(Log* log, PyTypeObject* kind, int64_t ref, int64_t n) {
  RowsHandle* rows = static_cast<RowsHandle*>(PyObject_Malloc(sizeof(RowsHandle)));
  if (!rows) return PyErr_NoMemory();
  PyObject_Init(reinterpret_cast<PyObject*>(rows), kind);
  rows->handle.ref = ref;
  rows->handle.session = log->session;
  rows->handle.slot = log->slot;
  rows->handle.is_row = false;
  rows->n = n;
  rows->refs = rows->whole = nullptr;
  if (log->counts) log->count(ref, 1);
  return reinterpret_cast<PyObject*>(rows);
}

bool is_sealed(PyObject* kind) {
  if (!PyType_Check(kind)) return false;
  destructor dealloc = reinterpret_cast<PyTypeObject*>(kind)->tp_dealloc;
  return dealloc == free_handle || dealloc == free_rows;
}

PyObject* seal(PyObject*, PyObject* argument) {
  PyTypeObject* kind = reinterpret_cast<PyTypeObject*>(argument);
  if (!PyType_Check(argument) || !PyType_IsSubtype(kind, &HandleType) || !(kind->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    PyErr_SetString(PyExc_TypeError, "kind must be a class of handles");
    return nullptr;
  }
  bool is_rows = PyType_IsSubtype(kind, &RowsType);
  Py_ssize_t size = is_rows ? (Py_ssize_t)sizeof(RowsHandle) : (Py_ssize_t)sizeof(Handle);
  if (kind->tp_basicsize != size || kind->tp_itemsize || kind->tp_dictoffset || kind->tp_weaklistoffset) {
    PyErr_SetString(PyExc_TypeError, "a class of handles must have __slots__ = () and no attributes of its own");
    return nullptr;
  }
  // Handles are never part of a reference cycle, so the collector need not track them. A subclass could add attributes,
  // so none is allowed.
  kind->tp_flags &= ~(Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE);
  kind->tp_dealloc = is_rows ? free_rows : free_handle;
  Py_RETURN_NONE;
}

}  // namespace autobatch
