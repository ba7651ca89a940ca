#include "record/snapshot.h"

#include "support/vec.h"

namespace autobatch {
namespace {

struct Snapshot {
  PyObject_HEAD
  PyObject* containers;    // a tuple
  PyObject* owners;        // a tuple of objects whose `__dict__` counts as a container
  Vec<Py_ssize_t> counts;  // number of objects in each container, then in each owner
  Vec<PyObject*> objects;  // owned
};

Snapshot* as_snapshot(PyObject* self) { return reinterpret_cast<Snapshot*>(self); }

// Passes the keys and values of a mapping, or the elements of another container, to `take(object)`, which returns
// whether to continue. Returns whether all were taken; if not, an error may be set. Only exact dicts, lists and tuples
// are read in place; other containers may run Python code and are copied first.
template <class Take>
bool look_in(PyObject* container, Take take) {
  if (PyDict_CheckExact(container)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value);)
      if (!take(key) || !take(value)) return false;
    return true;
  }
  bool is_sequence = PyList_CheckExact(container) || PyTuple_CheckExact(container);
  bool is_mapping = PyDict_Check(container) || Py_IS_TYPE(container, &PyDictProxy_Type);
  Ref elements(is_sequence ? Py_NewRef(container) : PySequence_List(container));
  if (!elements) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(elements.get()); i++)
    if (!take(PySequence_Fast_GET_ITEM(elements.get(), i))) return false;
  if (!is_mapping) return true;
  Ref values(PyMapping_Values(container));
  if (!values) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values.get()); i++)
    if (!take(PyList_GET_ITEM(values.get(), i))) return false;
  return true;
}

// Passes each container, and the attributes of each owner, to `look(container)`, which returns whether to continue.
template <class Look>
bool for_each(Snapshot* snapshot, Look look) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(snapshot->containers); i++)
    if (!look(PyTuple_GET_ITEM(snapshot->containers, i))) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(snapshot->owners); i++) {
    Ref attributes(PyObject_GetAttrString(PyTuple_GET_ITEM(snapshot->owners, i), "__dict__"));
    if (!attributes || !look(attributes.get())) return false;
  }
  return true;
}

bool take_all(Snapshot* snapshot) {
  return for_each(snapshot, [&](PyObject* container) {
    Py_ssize_t before = snapshot->objects.size();
    return look_in(container,
                   [&](PyObject* object) { return snapshot->objects.push(object) && (Py_INCREF(object), true); }) &&
           snapshot->counts.push(snapshot->objects.size() - before);
  });
}

// holds(): returns whether all containers and owners still have the same objects, in the same order.
PyObject* holds(PyObject* self, PyObject*) {
  Snapshot* snapshot = as_snapshot(self);
  Py_ssize_t at = 0, number = 0;
  bool is_same = for_each(snapshot, [&](PyObject* container) {
    Py_ssize_t end = at + snapshot->counts[number++];
    return look_in(container, [&](PyObject* object) { return at < end && snapshot->objects[at++] == object; }) &&
           at == end;
  });
  return !is_same && PyErr_Occurred() ? nullptr : PyBool_FromLong(is_same);
}

PyObject* make_snapshot(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"containers", "owners", nullptr};
  PyObject *containers, *owners = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Snapshot", const_cast<char**>(names), &containers, &owners))
    return nullptr;
  Ref given(PySequence_Tuple(containers)), owning(owners ? PySequence_Tuple(owners) : PyTuple_New(0));
  Ref made(given && owning ? type->tp_alloc(type, 0) : nullptr);
  if (!made) return nullptr;
  Snapshot* snapshot = as_snapshot(made.get());
  new (&snapshot->counts, At::PLACE) Vec<Py_ssize_t>();
  new (&snapshot->objects, At::PLACE) Vec<PyObject*>();
  snapshot->containers = given.release();
  snapshot->owners = owning.release();
  return take_all(snapshot) ? made.release() : fail();
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Snapshot* snapshot = as_snapshot(self);
  Py_VISIT(snapshot->containers);
  Py_VISIT(snapshot->owners);
  for (ptrdiff_t i = 0; i < snapshot->objects.size(); i++) Py_VISIT(snapshot->objects[i]);
  return 0;
}

void free_snapshot(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Snapshot* snapshot = as_snapshot(self);
  Py_XDECREF(snapshot->containers);
  Py_XDECREF(snapshot->owners);
  for (ptrdiff_t i = 0; i < snapshot->objects.size(); i++) Py_DECREF(snapshot->objects[i]);
  snapshot->counts.~Vec();
  snapshot->objects.~Vec();
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {{"holds", holds, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject snapshot_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Snapshot";
  type.tp_basicsize = sizeof(Snapshot);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "The objects in containers, and in the attributes of owners, at one moment.";
  type.tp_traverse = traverse;
  type.tp_dealloc = free_snapshot;
  type.tp_methods = methods;
  type.tp_new = make_snapshot;
  return type;
}

}  // namespace

PyTypeObject SnapshotType = snapshot_type();

}  // namespace autobatch
