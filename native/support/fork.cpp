#include "support/fork.h"

#include "support/collection.h"

namespace autobatch {

int64_t Mark::n_forks = 0, Mark::survives_since = 0;
unsigned long Mark::survivor = 0;

PyObject* Mark::renew(PyObject*, PyObject*) {
  unsigned long thread = PyThread_get_thread_ident();
  if (thread != survivor) survivor = thread, survives_since = n_forks;
  n_forks++;
  resume_collection_in_child();
  Py_RETURN_NONE;
}

bool Mark::renew_in_children() {
  static PyMethodDef in_child = {"renew", renew, METH_NOARGS, nullptr};
  Ref os(PyImport_ImportModule("os"));
  if (!os) return false;
  if (!PyObject_HasAttrString(os.get(), "register_at_fork")) return true;  // Windows has no forks
  Ref hooks(Py_BuildValue("{sN}", "after_in_child", PyCFunction_New(&in_child, nullptr)));
  Ref add(PyObject_GetAttrString(os.get(), "register_at_fork")), none(PyTuple_New(0));
  return hooks && add && none && Ref(PyObject_Call(add.get(), none.get(), hooks.get()));
}

}  // namespace autobatch
