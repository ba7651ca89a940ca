// The extension module `autobatch._native`, with the functions and types of `graph/` and `record/`.

#define AUTOBATCH_IMPORTS_NUMPY
#include "record/record.h"
#include "support/python.h"

namespace autobatch {
bool add_blas(PyObject* module);
bool add_graph(PyObject* module);
bool add_plan(PyObject* module);
bool add_policies(PyObject* module);
bool add_run(PyObject* module);

namespace {

int execute(PyObject* module) {
  Ref numpy(PyImport_ImportModule("numpy"));  // fails with a clearer error than the next line
  if (!numpy || PyArray_ImportNumPyAPI() < 0) return -1;
  return add_graph(module) && add_record(module) && add_policies(module) && add_plan(module) && add_blas(module) &&
                 add_run(module)
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
