// The functions of this folder that Python calls; `_native.pyi` describes them.

#pragma once

#include "support/python.h"

namespace autobatch {

PyObject* merge_graphs(PyObject*, PyObject* graphs);
PyObject* join_instances(PyObject*, PyObject* graphs);
PyObject* crossing_node(PyObject*, PyObject* words);
PyObject* split_words(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* data_starts(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* first_out_of_range(PyObject*, PyObject* const* arguments, Py_ssize_t n);

PyObject* reverse_dag(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* find_depths(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* count_chains(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* mark_outputs(PyObject*, PyObject* const* arguments, Py_ssize_t n);

PyObject* rewrite_words(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* count_shared(PyObject*, PyObject* const* arguments, Py_ssize_t n);

PyObject* count_values(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* append_phase(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* set_in_use(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* count_readers(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* drop_pending(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* nodes_of(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* add_work(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* sketch_pending(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* choose_nodes(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* emit_graph(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* move_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n);
PyObject* find_kept(PyObject*, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
