#include "plan/job.h"

#include "support/atomic.h"
#include "support/clock.h"

namespace autobatch {

constexpr Py_ssize_t N_ARGUMENTS = 9;

bool PlanJob::read(PyObject* const* arguments) {
  if (!pipeline_.read(arguments + 1) || !merging_.read(arguments[0])) return false;
  merges_ = merging_.parts.size() != 1;
  return (!merges_ || merging_.make_arrays()) &&
         pipeline_.take(merges_ ? merging_.whole : merging_.parts[0], arguments[1]) &&
         loss_.read(arguments[7], arguments[8], pipeline_.placement);
}

void PlanJob::run() {
  double began = seconds_now();
  if (merges_) merging_.write();
  merge_seconds_ = seconds_now() - began;
  problem_ = pipeline_.run();
  if (!problem_) problem_ = loss_.find_whole(pipeline_.graph.graph, pipeline_.placement.n_slots(), is_whole_);
}

PyObject* PlanJob::to_python() {
  Ref planned = pipeline_.to_python(problem_);
  if (!planned) return nullptr;
  Ref merged = merges_ ? merging_.to_python() : Ref::borrowed(Py_None);
  if (!merged) return nullptr;
  return Py_BuildValue("NNOd", merged.release(), planned.release(), is_whole_ ? Py_True : Py_False, merge_seconds_);
}

PyObject* plan_graphs(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  PlanJob job;
  if (!takes("plan_graphs", n, N_ARGUMENTS) || !job.read(arguments)) return nullptr;
  {
    Unlocked unlocked;
    job.run();
  }
  return job.to_python();
}

namespace {

// The Python type: a job that two threads may try to run. The first to do so runs it, and the other may wait for it.
enum State : int64_t { WAITING, TAKEN, DONE, READ };

struct PlanJobObject {
  PyObject_HEAD
  PyObject* arguments;  // a tuple, which owns the arrays that the job reads
  PlanJob* job;
  PyThread_type_lock running;  // held while a thread runs the job
  int64_t state;
};

PlanJobObject* as_job(PyObject* self) { return reinterpret_cast<PlanJobObject*>(self); }

PyObject* make_job(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (kwargs && PyDict_GET_SIZE(kwargs)) return refuse_type("arguments of PlanJob", "positional", kwargs), nullptr;
  if (!takes("PlanJob", PyTuple_GET_SIZE(args), N_ARGUMENTS)) return nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  PlanJobObject* self = as_job(made.get());
  self->arguments = Py_NewRef(args);
  self->job = make<PlanJob>();
  self->running = PyThread_allocate_lock();
  if (!self->job || !self->running) return PyErr_NoMemory();
  return self->job->read(&PyTuple_GET_ITEM(args, 0)) ? made.release() : nullptr;
}

void free_job(PyObject* self) {
  discard(as_job(self)->job);
  if (as_job(self)->running) PyThread_free_lock(as_job(self)->running);
  Py_XDECREF(as_job(self)->arguments);
  Py_TYPE(self)->tp_free(self);
}

// Runs the job unless another thread has taken it. Needs no interpreter lock.
void run_once(PlanJobObject* self) {
  if (!exchange_if(&self->state, WAITING, TAKEN)) return;
  PyThread_acquire_lock(self->running, WAIT_LOCK);
  self->job->run();
  store(&self->state, DONE);
  PyThread_release_lock(self->running);
}

// run(): plans, unless another thread does so or has done so.
PyObject* run_job(PyObject* self, PyObject*) {
  {
    Unlocked unlocked;
    run_once(as_job(self));
  }
  Py_RETURN_NONE;
}

// result(): plans, or waits for the thread that does; returns what `plan_graphs` returns.
PyObject* read_job(PyObject* self, PyObject*) {
  PlanJobObject* job = as_job(self);
  {
    Unlocked unlocked;
    run_once(job);
    // A thread that has taken the job holds the lock, or is about to: then the state is not DONE yet.
    while (load(&job->state) == TAKEN) {
      PyThread_acquire_lock(job->running, WAIT_LOCK);
      PyThread_release_lock(job->running);
    }
  }
  if (!exchange_if(&job->state, DONE, READ)) return refuse_value("the result of a PlanJob must be read only once");
  return job->job->to_python();
}

PyMethodDef methods[] = {
    {"run", run_job, METH_NOARGS, nullptr}, {"result", read_job, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyTypeObject job_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.PlanJob";
  type.tp_basicsize = sizeof(PlanJobObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "A mini-batch that is planned ahead of its run.";
  type.tp_dealloc = free_job;
  type.tp_methods = methods;
  type.tp_new = make_job;
  return type;
}

}  // namespace

PyTypeObject PlanJobType = job_type();

}  // namespace autobatch
