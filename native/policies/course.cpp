#include "policies/course.h"

#include "policies/entries.h"
#include "policies/learning.h"

namespace autobatch {
namespace {

struct CourseObject {
  PyObject_HEAD
  Course* course;
};

CourseObject* as_course(PyObject* self) { return reinterpret_cast<CourseObject*>(self); }

PyObject* make_course(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"dag", nullptr};
  PyObject* given;
  Dag dag;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Course", const_cast<char**>(names), &given) ||
      !read_dag(given, dag) || refuse_backward_edges(dag))
    return nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  CourseObject* self = as_course(made.get());
  self->course = make<Course>();
  return self->course && self->course->start(dag) ? made.release() : PyErr_NoMemory();
}

void free_course(PyObject* self) {
  discard(as_course(self)->course);
  Py_TYPE(self)->tp_free(self);
}

// run(table, machine, rules, epsilon, generator, plan): plays an episode, and learns from it. Holds the interpreter
// lock, because other threads may use the same table and the same NumPy bit generator.
PyObject* run(PyObject* object, PyObject* const* arguments, Py_ssize_t n) {
  Course& course = *as_course(object)->course;
  ValueTable table;
  Machine machine;
  LearningRules rules;
  double epsilon;
  Span<const int32_t> plan;
  if (!takes("run", n, 6)) return nullptr;
  Ref capsule(
      PyObject_GetAttrString(arguments[4], "capsule"));  // read first, because it may run code that changes arrays
  if (!capsule && PyErr_ExceptionMatches(PyExc_AttributeError))
    return PyErr_Format(PyExc_TypeError, "generator must be a NumPy bit generator, got %.80s",
                        Py_TYPE(arguments[4])->tp_name);
  void* random = capsule ? PyCapsule_GetPointer(capsule.get(), "BitGenerator") : nullptr;
  if (!random || !read_machine(arguments[1], machine) || !read_rules(arguments[2], rules) ||
      !read_double(arguments[3], "epsilon", epsilon) || !read_value_table(arguments[0], true, table) ||
      !read<int32_t>(arguments[5], "plan", plan) || table.refuse_overlap(plan))
    return nullptr;
  ptrdiff_t n_steps = plan.size ? plan.size : course.n_nodes();
  if (table.n_types() != course.n_types() || table.room() - table.n_states[0] < n_steps)
    return PyErr_Format(
               PyExc_ValueError,
               "table must have the %d types of the DAG and room for %zd states, got %d types and room for %zd",
               course.n_types(), n_steps, table.n_types(), (ptrdiff_t)(table.room() - table.n_states[0])),
           nullptr;
  if (!course.run(table, machine, rules, epsilon, static_cast<bitgen_t*>(random), plan))
    return PyErr_SetString(
               PyExc_ValueError,
               "plan must name a ready type at each step until all nodes have run, got a plan that does not"),
           nullptr;
  Py_RETURN_NONE;
}

// episode(): returns the state before each batch of the last episode, the type that ran, and the reward.
PyObject* episode(PyObject* object, PyObject*) {
  const Course& course = *as_course(object)->course;
  const Episode& last = course.episode();
  ptrdiff_t n = course.n_batches();
  Ref visited = to_array<int32_t>(Span<const int32_t>(last.visited).part(0, n)),
      chosen = to_array<int32_t>(Span<const int32_t>(last.chosen).part(0, n)),
      rewards = to_array<double>(Span<const double>(last.rewards).part(0, n));
  if (!visited || !chosen || !rewards) return nullptr;
  return Py_BuildValue("NNN", visited.release(), chosen.release(), rewards.release());
}

PyMethodDef methods[] = {fast("run", run), {"episode", episode, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject course_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Course";
  type.tp_basicsize = sizeof(CourseObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "A mini-batch to learn on.";
  type.tp_dealloc = free_course;
  type.tp_methods = methods;
  type.tp_new = make_course;
  return type;
}

}  // namespace

PyTypeObject CourseType = course_type();

}  // namespace autobatch
