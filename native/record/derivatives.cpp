#include "record/derivatives.h"

#include "graph/words.h"
#include "record/handles.h"

namespace autobatch {
namespace {

Derivatives* as_derivatives(PyObject* self) { return reinterpret_cast<Derivatives*>(self); }

int traverse_derivatives(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(as_derivatives(self)->log));
  Py_VISIT(as_derivatives(self)->parameters);
  return 0;
}

void free_derivatives(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Derivatives* found = as_derivatives(self);
  found->of_value.~IntMap();
  found->of_parameter.~IntMap();
  found->sums.~Vec();
  found->terms.~Vec();
  Py_XDECREF(found->parameters);
  Py_XDECREF(reinterpret_cast<PyObject*>(found->log));
  Py_TYPE(self)->tp_free(self);
}

PyObject* one_value(Derivatives* found, int32_t sum, PyObject* shape) {
  int64_t ref;
  if (sum < 0) Py_RETURN_NONE;
  return found->make_one(sum, shape, ref) ? PyLong_FromLongLong(ref) : nullptr;
}

// Checks that there are two arguments, a ref and a shape, and reads the ref.
bool read_value(const char* function, PyObject* const* args, Py_ssize_t n_args, int64_t& ref) {
  if (!takes(function, n_args, 2)) return false;
  ref = PyLong_AsLongLong(args[0]);
  return ref != -1 || !PyErr_Occurred();
}

// total(ref, shape): returns the derivative of a value; None if there is none.
PyObject* total(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  int64_t ref;
  if (!read_value("total", args, n_args, ref)) return nullptr;
  return one_value(as_derivatives(self), as_derivatives(self)->of_value.find(ref), args[1]);
}

// total_or_zeros(ref, shape): returns the derivative of a value, or zeros.
PyObject* total_or_zeros(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  int64_t ref;
  if (!read_value("total_or_zeros", args, n_args, ref)) return nullptr;
  return as_derivatives(self)->total_or_zeros(ref, args[1], ref) ? PyLong_FromLongLong(ref) : nullptr;
}

// of_parameter(parameter, shape): returns the derivative of a parameter; None if there is none.
PyObject* of_parameter(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("of_parameter", n_args, 2)) return nullptr;
  return one_value(as_derivatives(self), as_derivatives(self)->of_parameter.find((int64_t)(intptr_t)args[0]), args[1]);
}

PyMethodDef methods[] = {fast("total", total),
                         fast("total_or_zeros", total_or_zeros),
                         fast("of_parameter", of_parameter),
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject derivatives_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Derivatives";
  type.tp_basicsize = sizeof(Derivatives);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_doc = "The derivatives that have been recorded.";
  type.tp_traverse = traverse_derivatives;
  type.tp_dealloc = free_derivatives;
  type.tp_methods = methods;
  return type;
}

}  // namespace

PyTypeObject DerivativesType = derivatives_type();

Derivatives* make_derivatives(Log* log, PyObject* parameters) {
  Derivatives* found = as_derivatives(DerivativesType.tp_alloc(&DerivativesType, 0));
  if (!found) return nullptr;
  new (&found->of_value, At::PLACE) IntMap();
  new (&found->of_parameter, At::PLACE) IntMap();
  new (&found->sums, At::PLACE) Vec<Derivatives::Sum>();
  new (&found->terms, At::PLACE) Vec<Derivatives::Term>();
  found->log = reinterpret_cast<Log*>(Py_NewRef(reinterpret_cast<PyObject*>(log)));
  found->parameters = Py_NewRef(parameters);
  return found;
}

bool Derivatives::add(IntMap& sum_of, int64_t key, int64_t term) {
  int32_t sum = sum_of.find(key), place = (int32_t)terms.size();
  if (place == INT32_MAX) return PyErr_SetString(PyExc_OverflowError, "a derivative has too many terms"), false;
  if (!terms.push({term, -1})) return PyErr_NoMemory(), false;
  if (sum < 0) {
    bool is_added = sums.push({place, place, 1}) && sum_of.insert(key, (int32_t)sums.size() - 1);
    return is_added || (PyErr_NoMemory(), false);
  }
  terms[sums[sum].last].next = place;
  sums[sum] = {sums[sum].first, place, sums[sum].n + 1};
  return true;
}

bool Derivatives::set(int64_t value, int64_t term) {
  int32_t sum = of_value.find(value);
  if (sum < 0) return add(of_value, value, term);
  sums[sum] = {sums[sum].first, sums[sum].first, 1};
  terms[sums[sum].first] = {term, -1};
  return true;
}

bool Derivatives::add_up(Span<const int64_t> refs, PyObject* shape, int64_t& ref) {
  if (refs.size == 1) return ref = refs[0], true;
  Ref number(PyObject_CallMethod(log->owner, "sum_form", "(O)", shape));
  long form = number ? PyLong_AsLong(number.get()) : -1;
  if (form == -1 && PyErr_Occurred()) return false;
  Vec<int64_t> ints;
  if (!ints.reserve(1 + refs.size)) return PyErr_NoMemory(), false;
  ints.append(refs.size);
  for (int64_t term : refs) ints.append(term);
  ref = log->add(form, ints, {});
  return ref >= 0;
}

bool Derivatives::make_one(int32_t sum, PyObject* shape, int64_t& ref) {
  if (sums[sum].n == 1) return ref = terms[sums[sum].first].ref, true;
  Vec<int64_t> refs;
  if (!refs.reserve(sums[sum].n)) return PyErr_NoMemory(), false;
  for (int32_t at = sums[sum].first; at >= 0; at = terms[at].next) refs.append(terms[at].ref);
  if (!add_up(refs, shape, ref)) return false;
  sums[sum] = {sums[sum].first, sums[sum].first, 1};
  terms[sums[sum].first] = {ref, -1};
  return true;
}

bool Derivatives::make_gatherable(int32_t sum, PyObject* shape) {
  struct Made {
    int32_t type;
    int64_t output;
  };
  // Usually all terms are the same output of their nodes, so that types need not be compared.
  Vec<Made> known;
  bool is_one = true;
  int64_t first = terms[sums[sum].first].ref & OUTPUT, ref;
  for (int32_t at = sums[sum].first; at >= 0; at = terms[at].next) is_one &= (terms[at].ref & OUTPUT) == first;
  for (int32_t at = is_one ? -1 : sums[sum].first; at >= 0; at = terms[at].next) {
    int64_t id = id_of(terms[at].ref);
    if (!log->has(id)) return PyErr_SetString(PyExc_IndexError, "no call made a derivative"), false;
    Made made = {log->code[log->code_ptr[log->form_at(id)]], terms[at].ref & OUTPUT};
    ptrdiff_t k = 0;
    while (k < known.size() && known[k].type != made.type) k++;
    if (k == known.size() && !known.push(made)) return PyErr_NoMemory(), false;
    if (known[k].output != made.output) return make_one(sum, shape, ref);
  }
  return true;
}

bool Derivatives::total_or_zeros(int64_t value, PyObject* shape, int64_t& ref) {
  int32_t sum = of_value.find(value);
  if (sum >= 0) return make_one(sum, shape, ref);
  Ref zeros(PyObject_CallMethod(log->owner, "zeros", "(O)", shape));
  if (!zeros) return false;
  if (!PyObject_TypeCheck(zeros.get(), &HandleType))
    return PyErr_SetString(PyExc_TypeError, "zeros must return a value"), false;
  ref = ref_in(log, reinterpret_cast<Handle*>(zeros.get()));
  return true;
}

}  // namespace autobatch
