// The extension module `autobatch._native`, with the functions and types of all folders.

#define AUTOBATCH_IMPORTS_NUMPY
#include "record/record.h"
#include "support/collection.h"
#include "support/fork.h"
#include "support/python.h"

namespace autobatch {
bool add_blas(PyObject* module);
bool add_graph(PyObject* module);
bool add_plan(PyObject* module);
bool add_policies(PyObject* module);
bool add_run(PyObject* module);

namespace {

// is_set(name): whether a variable of the environment is neither empty nor "0".
PyObject* is_set(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name)) return refuse_type("name", "a str", name), nullptr;
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) return nullptr;
  const char* value = getenv(text);
  return PyBool_FromLong(value && *value && strcmp(value, "0") != 0);
}

PyObject* pause_collection(PyObject*, PyObject*) {
  autobatch::pause_collection();
  Py_RETURN_NONE;
}

PyObject* resume_collection(PyObject*, PyObject*) {
  autobatch::resume_collection();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"is_set", is_set, METH_O, nullptr},
                           {"pause_collection", pause_collection, METH_NOARGS, nullptr},
                           {"resume_collection", resume_collection, METH_NOARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

int execute(PyObject* module) {
  Ref numpy(PyImport_ImportModule("numpy"));  // fails with a clearer error than the next line
  if (!numpy || PyArray_ImportNumPyAPI() < 0) return -1;
  return Mark::renew_in_children() && add_graph(module) && add_record(module) && add_policies(module) &&
                 add_plan(module) && add_blas(module) && add_run(module) &&
                 PyModule_AddFunctions(module, functions) == 0
             ? 0
             : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "autobatch._native",
                          "The native core; types are in _native.pyi.",
                          0,
                          nullptr,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace autobatch

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&autobatch::definition); }
