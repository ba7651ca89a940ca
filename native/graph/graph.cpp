#include "graph/graph.h"

namespace autobatch {
namespace {

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef fast(const char* name, Fast function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef functions[] = {
    {"merge_words", merge_words, METH_O, nullptr},
    fast("rewrite_words", rewrite_words),
    fast("count_shared", count_shared),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_graph(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
