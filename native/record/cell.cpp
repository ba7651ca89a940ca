#include "record/cell.h"

#include "record/function.h"
#include "record/stage.h"

namespace autobatch {
namespace {

constexpr int N_KINDS = 8;  // size of a cell's cache of the classes of first arguments

// A cache entry: the version tag of a class, and whether the cell is a method of that class.
struct Kind {
  uint32_t version;
  bool has_cell;
};

struct Cell {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Kind kinds[N_KINDS];
};

Cell* as_cell(PyObject* self) { return reinterpret_cast<Cell*>(self); }
BoundCell* as_bound(PyObject* self) { return reinterpret_cast<BoundCell*>(self); }

// Returns the version tag of a class, which is unique and changes whenever the class does; 0 if there is none.
uint32_t version_of(PyTypeObject* kind) {
#if PY_VERSION_HEX >= 0x030C0000
  if (!PyUnstable_Type_AssignVersionTag(kind)) return 0;
#else
  if (!PyType_HasFeature(kind, Py_TPFLAGS_VALID_VERSION_TAG)) {
    Ref nothing(PyObject_GetAttrString(reinterpret_cast<PyObject*>(kind), "no_such_name"));  // the look-up assigns one
    PyErr_Clear();
  }
  if (!PyType_HasFeature(kind, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return kind->tp_version_tag;
}

// Returns whether a class, or one of its bases, has the cell as an attribute. Skips classes not defined in Python.
bool is_member(PyObject* cell, PyTypeObject* kind) {
  PyObject* bases = kind->tp_mro;
  for (Py_ssize_t i = 0; bases && i < PyTuple_GET_SIZE(bases); i++) {
    PyTypeObject* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i));
    if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) || !base->tp_dict) continue;
    PyObject *name, *member;
    Py_ssize_t at = 0;
    while (PyDict_Next(base->tp_dict, &at, &name, &member))
      if (member == cell) return true;
  }
  return false;
}

// Returns whether a cell is a method of an object's class.
bool is_method(PyObject* self, PyObject* first) {
  PyTypeObject* kind = Py_TYPE(first);
  if (!PyType_HasFeature(kind, Py_TPFLAGS_HEAPTYPE)) return false;
  uint32_t version = version_of(kind);
  if (!version) return is_member(self, kind);
  Kind& known = as_cell(self)->kinds[version % N_KINDS];
  if (known.version != version) known = {version, is_member(self, kind)};
  return known.has_cell;
}

// Calls a cell's Python method `call(owner, args, kwargs)`.
PyObject* call_python(PyObject* cell, PyObject* owner, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  Ref positional(PyTuple_New(n)), named(PyDict_New());
  for (Py_ssize_t i = 0; positional && i < n; i++) PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
  if (!positional || !named) return nullptr;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), args[n + i]) < 0) return nullptr;
  return PyObject_CallMethod(cell, "call", "OOO", owner ? owner : Py_None, positional.get(), named.get());
}

// Records a call of a cell, or calls Python if that is not possible. `owner` is null unless the cell is a method.
PyObject* call_of(PyObject* cell, PyObject* owner, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  Log* log = current_log();
  // Owned, because the call may run Python code that clears `log->cells`.
  Ref function = Ref::borrowed(log && !log->is_wrapped ? log->cells.find(cell, owner) : nullptr);
  if (function) return call_function(function.get(), args, (size_t)n, kwnames);
  return call_python(cell, owner, args, n, kwnames);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Py_ssize_t n = PyVectorcall_NARGS(nargsf);
  if (n && is_method(self, args[0])) return call_of(self, args[0], args + 1, n - 1, kwnames);
  return call_of(self, nullptr, args, n, kwnames);
}

PyObject* call_bound(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return call_of(as_bound(self)->cell, as_bound(self)->owner, args, PyVectorcall_NARGS(nargsf), kwnames);
}

PyObject* make_cell(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) as_cell(self)->vectorcall = call;
  return self;
}

PyObject* bind_as(PyTypeObject* type, PyObject* cell, PyObject* owner) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  as_bound(self)->vectorcall = call_bound;
  as_bound(self)->cell = Py_NewRef(cell);
  as_bound(self)->owner = Py_NewRef(owner);
  return self;
}

// Binds the cell to an object; returns the cell itself if it is looked up on a class.
PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? bind_as(&BoundCellType, self, object) : Py_NewRef(self);
}

PyObject* make_bound(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"cell", "owner", nullptr};
  PyObject *cell, *owner;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:BoundCell", const_cast<char**>(names), &CellType, &cell, &owner))
    return nullptr;
  return bind_as(type, cell, owner);
}

int traverse_bound(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_bound(self)->cell);
  Py_VISIT(as_bound(self)->owner);
  return 0;
}

void free_bound(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, free_bound)
  Py_XDECREF(as_bound(self)->cell);
  Py_XDECREF(as_bound(self)->owner);
  type->tp_free(self);
  Py_TRASHCAN_END
}

// Makes copies and pickles bind the cell again.
PyObject* reduce(PyObject* self, PyObject*) {
  return Py_BuildValue("O(OO)", reinterpret_cast<PyObject*>(Py_TYPE(self)), as_bound(self)->cell,
                       as_bound(self)->owner);
}

PyObject* represent(PyObject* self) {
  Ref name(PyObject_GetAttrString(as_bound(self)->cell, "name"));
  if (!name) return nullptr;
  return PyUnicode_FromFormat("<cell %S of %s>", name.get(), Py_TYPE(as_bound(self)->owner)->tp_name);
}

PyMemberDef members[] = {{"cell", T_OBJECT_EX, offsetof(BoundCell, cell), READONLY, nullptr},
                         {"owner", T_OBJECT_EX, offsetof(BoundCell, owner), READONLY, nullptr},
                         {"__self__", T_OBJECT_EX, offsetof(BoundCell, owner), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject cell_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Cell";
  type.tp_basicsize = sizeof(Cell);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_doc = "A function or method whose calls are recorded, each as one node.";
  type.tp_vectorcall_offset = offsetof(Cell, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_descr_get = bind;
  type.tp_new = make_cell;
  return type;
}

PyTypeObject bound_cell_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.BoundCell";
  type.tp_basicsize = sizeof(BoundCell);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_doc = "A cell bound to the object that it is a method of.";
  type.tp_vectorcall_offset = offsetof(BoundCell, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_repr = represent;
  type.tp_traverse = traverse_bound;
  type.tp_dealloc = free_bound;
  type.tp_members = members;
  type.tp_methods = methods;
  type.tp_new = make_bound;
  return type;
}

}  // namespace

PyTypeObject CellType = cell_type();
PyTypeObject BoundCellType = bound_cell_type();

bool CellFunctions::add(PyObject* cell, PyObject* owner, PyObject* function) {
  int32_t at = place_of_.find(key(cell, owner));
  if (at < 0) {
    bool is_added = known_.reserve(1) && place_of_.insert(key(cell, owner), (int32_t)known_.size());
    if (!is_added) return PyErr_NoMemory(), false;
    known_.append({Py_NewRef(cell), Py_XNewRef(owner), Py_NewRef(function)});
    return true;
  }
  Known before = known_[at];
  known_[at] = {Py_NewRef(cell), Py_XNewRef(owner), Py_NewRef(function)};
  drop(before);
  return true;
}

void CellFunctions::clear() {
  Vec<Known> before = static_cast<Vec<Known>&&>(known_);  // freeing an owner may run code that adds functions
  place_of_ = IntMap();
  while (before.size()) drop(before.pop());
}

int CellFunctions::traverse(visitproc visit, void* arg) const {
  for (ptrdiff_t i = 0; i < known_.size(); i++) {
    Py_VISIT(known_[i].cell);
    Py_VISIT(known_[i].owner);
    Py_VISIT(known_[i].function);
  }
  return 0;
}

void CellFunctions::drop(const Known& known) {
  Py_DECREF(known.cell);
  Py_XDECREF(known.owner);
  Py_DECREF(known.function);
}

PyObject* seal_cells(PyObject*, PyObject* argument) {
  PyTypeObject* kind = reinterpret_cast<PyTypeObject*>(argument);
  if (!PyType_Check(argument) || !PyType_IsSubtype(kind, &CellType))
    return PyErr_SetString(PyExc_TypeError, "kind must be a class of cells"), nullptr;
  if (kind->tp_call == PyVectorcall_Call && kind->tp_descr_get == bind) {
    kind->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    PyType_Modified(kind);
  }
  Py_RETURN_NONE;
}

}  // namespace autobatch
