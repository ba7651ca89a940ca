#include "policies/simulation.h"

#include "policies/entries.h"
#include "policies/learning.h"
#include "policies/network.h"

namespace autobatch {
namespace {

struct State {
  OwnedDag dag;
  bool is_measured = false;  // whether chains and restricted are followed
  Simulator sim;
  Chains chains;
  Restricted restricted;
};

struct Simulation {
  PyObject_HEAD
  State* state;
};

State& state_of(PyObject* self) { return *reinterpret_cast<Simulation*>(self)->state; }

PyObject* make_simulation(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"dag", "node_ptr", "is_measured", nullptr};
  PyObject *given, *ranges = Py_None;
  int is_measured = 1;
  Dag dag;
  Span<const int32_t> node_ptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Op:Simulation", const_cast<char**>(names), &given, &ranges,
                                   &is_measured) ||
      !read_dag(given, dag) || refuse_backward_edges(dag) ||
      (ranges != Py_None && !read<int32_t>(ranges, "node_ptr", node_ptr)))
    return nullptr;
  if (ranges != Py_None) {
    ptrdiff_t n_dags = node_ptr.size - 1;
    bool fits = n_dags > 0 && n_dags < INT32_MAX && rises(node_ptr, dag.n_nodes()) && dag.n_types % n_dags == 0;
    for (ptrdiff_t g = 0; fits && g < n_dags; g++) {
      int32_t n_types = dag.n_types / (int32_t)n_dags, first = (int32_t)g * n_types;
      fits = within(dag.type_id.part(node_ptr[g], node_ptr[g + 1]), first, first + n_types) &&
             within(dag.edge_src.part(dag.edge_ptr[node_ptr[g]], dag.edge_ptr[node_ptr[g + 1]]), node_ptr[g],
                    node_ptr[g + 1]);
    }
    if (!fits)
      return PyErr_Format(PyExc_ValueError,
                          "node_ptr must be the ranges of stacked DAGs, got %zd offsets for %d nodes of %d types",
                          node_ptr.size, dag.n_nodes(), dag.n_types),
             nullptr;
  }
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Simulation* self = reinterpret_cast<Simulation*>(made.get());
  State* state = self->state = make<State>();
  if (!state || !state->dag.copy(dag) || !state->sim.start(state->dag.view(), node_ptr)) return PyErr_NoMemory();
  state->is_measured = is_measured;
  if (is_measured && (!state->chains.start(state->sim) || !state->restricted.start(state->sim)))
    return PyErr_NoMemory();
  return made.release();
}

void free_simulation(PyObject* self) {
  discard(reinterpret_cast<Simulation*>(self)->state);
  Py_TYPE(self)->tp_free(self);
}

// ready(): returns the number of ready nodes of each type.
PyObject* ready(PyObject* self, PyObject*) {
  const Simulator& sim = state_of(self).sim;
  Span<int32_t> counts;
  Ref made = make_array<int32_t>(sim.dag.n_types, counts);
  for (int32_t type = 0; made && type < sim.dag.n_types; type++) counts[type] = sim.n_ready(type);
  return made.release();
}

// unrun(): returns the number of nodes of each type that have not run.
PyObject* unrun(PyObject* self, PyObject*) {
  const Simulator& sim = state_of(self).sim;
  Span<int32_t> counts;
  Ref made = make_array<int32_t>(sim.dag.n_types, counts);
  for (int32_t type = 0; made && type < sim.dag.n_types; type++) counts[type] = sim.n_unrun(type);
  return made.release();
}

// Reads a type, which must have a ready node.
bool read_ready(const Simulator& sim, PyObject* object, int32_t& type) {
  if (!read_int(object, "type", type)) return false;
  if (type >= 0 && type < sim.dag.n_types && sim.is_ready(type)) return true;
  return PyErr_Format(PyExc_ValueError, "type must have a ready node, got %d", type), false;
}

// step(type): runs all ready nodes of a type as one batch.
PyObject* step(PyObject* self, PyObject* object) {
  State& state = state_of(self);
  int32_t type;
  if (!read_ready(state.sim, object, type)) return nullptr;
  Span<const int32_t> batch = state.sim.step(type);
  if (state.is_measured) {
    state.restricted.unblock(state.sim, type, batch);
    state.chains.follow(state.sim, type);
  }
  Py_RETURN_NONE;
}

// Returns whether chains and frontiers are not followed; if so, sets a ValueError.
bool refuse_unmeasured(const State& state) {
  if (!state.is_measured) PyErr_SetString(PyExc_ValueError, "simulation must be measured, got an unmeasured one");
  return !state.is_measured;
}

// reward(kind, type): returns the reward of running a type now.
PyObject* reward(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  const State& state = state_of(self);
  int32_t kind, type;
  if (!takes("reward", n, 2) || refuse_unmeasured(state) || !read_int(arguments[0], "kind", kind) ||
      !read_ready(state.sim, arguments[1], type))
    return nullptr;
  if (kind < 0 || kind > (int)Reward::CRITICAL)
    return PyErr_Format(PyExc_ValueError, "kind must be 0 or 1, got %d", kind);
  return PyFloat_FromDouble(reward_of((Reward)kind, state.sim.n_ready(type), state.restricted.frontier[type],
                                      state.chains.is_critical(type)));
}

// bound(): returns a lower bound on the number of remaining batches, by the chains ahead.
PyObject* bound(PyObject* self, PyObject*) {
  int64_t total = 0;
  if (refuse_unmeasured(state_of(self))) return nullptr;
  for (int32_t most : Span<const int32_t>(state_of(self).chains.most)) total += most;
  return PyLong_FromLongLong(total);
}

// batches(): returns the schedule of a single DAG so far.
PyObject* batches(PyObject* self, PyObject*) {
  Batches found;
  return state_of(self).sim.finish(found) ? to_python(found) : PyErr_NoMemory();
}

// features(): returns the features of the types of a single DAG, and of the whole DAG, for a network.
PyObject* features(PyObject* self, PyObject*) {
  const State& state = state_of(self);
  Table<float> rows;
  Span<float> overall;
  if (refuse_unmeasured(state)) return nullptr;
  Ref of_types = make_table<float>(state.sim.dag.n_types, N_TYPE_FEATURES, rows),
      of_all = make_array<float>(N_OVERALL_FEATURES, overall);
  if (!of_types || !of_all) return nullptr;
  describe_types(state.sim, state.chains, state.restricted, rows.data, overall.data);
  return Py_BuildValue("NN", of_types.release(), of_all.release());
}

// tables(): returns reader_ptr, reader, ahead, height, segment, blocked and frontier, for a device.
PyObject* tables(PyObject* self, PyObject*) {
  const State& state = state_of(self);
  if (refuse_unmeasured(state)) return nullptr;
  Span<const int32_t> parts[] = {state.sim.reader_ptr(),   state.sim.all_readers(), state.chains.ahead(),
                                 state.chains.height(),    state.sim.segment,       state.restricted.blocked(),
                                 state.restricted.frontier};
  Ref found(PyTuple_New(7));
  for (int i = 0; found && i < 7; i++) {
    PyObject* part = to_array<int32_t>(parts[i]).release();
    if (!part) return nullptr;
    PyTuple_SET_ITEM(found.get(), i, part);
  }
  return found.release();
}

PyMethodDef methods[] = {{"ready", ready, METH_NOARGS, nullptr},
                         {"unrun", unrun, METH_NOARGS, nullptr},
                         {"step", step, METH_O, nullptr},
                         fast("reward", reward),
                         {"bound", bound, METH_NOARGS, nullptr},
                         {"batches", batches, METH_NOARGS, nullptr},
                         {"features", features, METH_NOARGS, nullptr},
                         {"tables", tables, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject simulation_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Simulation";
  type.tp_basicsize = sizeof(Simulation);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "The state of a DAG, or of stacked DAGs, in which some nodes have run.";
  type.tp_dealloc = free_simulation;
  type.tp_methods = methods;
  type.tp_new = make_simulation;
  return type;
}

}  // namespace

PyTypeObject SimulationType = simulation_type();

}  // namespace autobatch
