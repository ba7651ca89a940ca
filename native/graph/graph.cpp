#include "graph/graph.h"

namespace autobatch {
namespace {

PyMethodDef functions[] = {
    {"merge_graphs", merge_graphs, METH_O, nullptr},
    {"join_instances", join_instances, METH_O, nullptr},
    {"crossing_node", crossing_node, METH_O, nullptr},
    fast("split_words", split_words),
    fast("data_starts", data_starts),
    fast("first_out_of_range", first_out_of_range),
    fast("reverse_dag", reverse_dag),
    fast("find_depths", find_depths),
    fast("count_chains", count_chains),
    fast("mark_outputs", mark_outputs),
    fast("rewrite_words", rewrite_words),
    fast("count_shared", count_shared),
    fast("count_values", count_values),
    fast("append_phase", append_phase),
    fast("set_in_use", set_in_use),
    fast("count_readers", count_readers),
    fast("drop_pending", drop_pending),
    fast("nodes_of", nodes_of),
    fast("add_work", add_work),
    fast("sketch_pending", sketch_pending),
    fast("choose_nodes", choose_nodes),
    fast("emit_graph", emit_graph),
    fast("move_rows", move_rows),
    fast("find_kept", find_kept),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_graph(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
