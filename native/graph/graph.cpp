#include "graph/graph.h"

namespace autobatch {
namespace {

PyMethodDef functions[] = {{"merge_words", merge_words, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_graph(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
