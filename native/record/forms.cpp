#include "record/forms.h"

#include "graph/words.h"
#include "support/arrays.h"

namespace autobatch {
namespace {

constexpr int32_t MOST_REGISTERS = 1 << 20, FEW = 48, MOST_DEPTH = 1000;

// The registers of a running program. They are borrowed references; the frame also owns the parts of objects that may
// change while the program runs, such as elements of lists.
class Frame {
 public:
  explicit Frame(const Program& program) {
    if (program.n_registers > FEW) {
      many_ = static_cast<PyObject**>(malloc(sizeof(PyObject*) * (size_t)program.n_registers));
      registers = many_;
    }
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    for (ptrdiff_t i = 0; i < owned_.size(); i++) Py_DECREF(owned_[i]);
    free(many_);
  }
  bool is_made() const { return registers != nullptr; }
  // Takes over a reference and releases it with the frame; returns false with an error.
  bool own(PyObject* object) {
    if (owned_.push(object)) return true;
    Py_DECREF(object);
    PyErr_NoMemory();
    return false;
  }

  // Takes over the references of another frame.
  bool adopt(Frame& other) {
    if (!owned_.reserve(other.owned_.size())) return PyErr_NoMemory(), false;
    for (ptrdiff_t i = 0; i < other.owned_.size(); i++) owned_.append(other.owned_[i]);
    other.owned_.resize(0);
    return true;
  }

  PyObject** registers = few_;
  Vec<PyObject*> elements;  // the registers of all list elements, in the order of the EACH steps

 private:
  PyObject* few_[FEW];
  PyObject** many_ = nullptr;
  Vec<PyObject*> owned_;
};

enum Result : int { FAILED = -1, DIFFERS = 0, MATCHES = 1 };

bool has_kind(PyObject* x, uint32_t kinds) {
  char kind = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(x))->kind;
  return kind >= 'a' && kind <= 'z' && (kinds >> (kind - 'a') & 1);
}

Result test_array(const Step& step, PyObject* x) {
  if (Py_TYPE(x) != &PyArray_Type) return DIFFERS;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(x);
  int skipped = step.test == Test::ROWS;
  if (PyArray_NDIM(array) != step.shape.size() + skipped || !has_kind(x, step.kinds)) return DIFFERS;
  for (ptrdiff_t i = 0; i < step.shape.size(); i++)
    if (PyArray_DIM(array, (int)i + skipped) != step.shape[i]) return DIFFERS;
  return MATCHES;
}

Result test_keys(const Step& step, PyObject* x) {
  if (!PyDict_Check(x) || PyDict_GET_SIZE(x) != PyTuple_GET_SIZE(step.object.get())) return DIFFERS;
  // Keys are mostly the same objects in all calls, so compare pointers first, and call Python only if they differ.
  PyObject *key, *value;
  Py_ssize_t at = 0, k = 0;
  bool are_known = true;
  while (are_known && PyDict_Next(x, &at, &key, &value)) are_known = key == PyTuple_GET_ITEM(step.object.get(), k++);
  if (are_known) return MATCHES;
  Ref keys(PySequence_Tuple(x));
  if (!keys) return FAILED;
  Ref exact = call_object(step.call.get(), keys.get());
  Ref wanted = exact ? call_object(step.call.get(), step.object.get()) : Ref();
  if (!wanted) return FAILED;
  return (Result)PyObject_RichCompareBool(exact.get(), wanted.get(), Py_EQ);
}

// Compares an object with a tuple of strings and ints.
Result test_plain(PyObject* x, PyObject* wanted) {
  if (!PyTuple_CheckExact(x) || PyTuple_GET_SIZE(x) != PyTuple_GET_SIZE(wanted)) return DIFFERS;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(x); i++) {
    PyObject *part = PyTuple_GET_ITEM(x, i), *other = PyTuple_GET_ITEM(wanted, i);
    Result result = Py_TYPE(part) == Py_TYPE(other) ? (Result)PyObject_RichCompareBool(part, other, Py_EQ) : DIFFERS;
    if (result != MATCHES) return result;
  }
  return MATCHES;
}

Result run(const Program& program, Frame& frame);

// Tests all elements of a list. Appends their registers to `around.elements`, unless only their class is tested.
Result test_each(const Step& step, PyObject* x, Frame& around) {
  if (!PyList_CheckExact(x) || !PyList_GET_SIZE(x)) return DIFFERS;
  const Program& program = *step.each;
  if (program.is_one_class()) {
    PyObject* kind = program.steps[0]->object.get();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(x); i++)
      if (reinterpret_cast<PyObject*>(Py_TYPE(PyList_GET_ITEM(x, i))) != kind) return DIFFERS;
    return MATCHES;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(x); i++) {
    Frame frame(program);
    if (!frame.is_made()) return PyErr_NoMemory(), FAILED;
    frame.registers[0] = PyList_GET_ITEM(x, i);
    if (!around.own(Py_NewRef(frame.registers[0]))) return FAILED;
    Result result = run(program, frame);
    if (result != MATCHES) return result;
    if (!around.adopt(frame)) return FAILED;
    for (int32_t k = 0; k < program.n_registers; k++)
      if (!around.elements.push(frame.registers[k])) return PyErr_NoMemory(), FAILED;
  }
  return MATCHES;
}

// Runs a step of a kind that few forms have.
Result run_rare(const Step& step, Frame& frame) {
  PyObject* x = frame.registers[step.from];
  switch (step.test) {
    case Test::KEYS:
      return test_keys(step, x);
    case Test::KEY: {
      PyObject* found = PyDict_Check(x) ? PyDict_GetItemWithError(x, step.object.get()) : nullptr;
      if (!found) return PyErr_Occurred() ? FAILED : DIFFERS;
      frame.registers[step.to] = found;
      return frame.own(Py_NewRef(found)) ? MATCHES : FAILED;
    }
    case Test::ATTRIBUTE: {
      PyObject* found = PyObject_GetAttr(x, step.object.get());
      if (!found) return FAILED;
      frame.registers[step.to] = found;
      return frame.own(found) ? MATCHES : FAILED;
    }
    case Test::ARRAY:
    case Test::ROWS:
      return test_array(step, x);
    case Test::IS:
      return x == step.object.get() ? MATCHES : DIFFERS;
    case Test::EQUAL:
      if (Py_TYPE(x) != Py_TYPE(step.object.get())) return DIFFERS;
      return (Result)PyObject_RichCompareBool(x, step.object.get(), Py_EQ);
    case Test::PLAIN:
      return test_plain(x, step.object.get());
    case Test::SAME: {
      Ref made = call_object(step.call.get(), x);
      return made ? (Result)PyObject_RichCompareBool(made.get(), step.object.get(), Py_EQ) : FAILED;
    }
    case Test::EMPTY:
      return PyList_CheckExact(x) && !PyList_GET_SIZE(x) ? MATCHES : DIFFERS;
    case Test::EACH:
      return test_each(step, x, frame);
    default:
      return DIFFERS;
  }
}

inline Result run_step(const Step& step, Frame& frame) {
  PyObject* x = frame.registers[step.from];
  switch (step.test) {
    case Test::CLASS:
      return reinterpret_cast<PyObject*>(Py_TYPE(x)) == step.object.get() ? MATCHES : DIFFERS;
    case Test::SIZE:
      return (PyTuple_Check(x)  ? PyTuple_GET_SIZE(x)
              : PyList_Check(x) ? PyList_GET_SIZE(x)
                                : -1) == step.n
                 ? MATCHES
                 : DIFFERS;
    case Test::ITEM:
      if (PyTuple_Check(x) && step.n < PyTuple_GET_SIZE(x)) {
        frame.registers[step.to] = PyTuple_GET_ITEM(x, step.n);
        return MATCHES;
      }
      if (!PyList_Check(x) || step.n >= PyList_GET_SIZE(x)) return DIFFERS;
      frame.registers[step.to] = PyList_GET_ITEM(x, step.n);
      return frame.own(Py_NewRef(frame.registers[step.to])) ? MATCHES : FAILED;
    default:
      return run_rare(step, frame);
  }
}

Result run(const Program& program, Frame& frame) {
  for (ptrdiff_t i = 0; i < program.steps.size(); i++) {
    Result result = run_step(*program.steps[i], frame);
    if (result != MATCHES) return result;
  }
  return MATCHES;
}

// Lengths of groups.

constexpr int64_t MOST_LENGTH = int64_t(1) << 31;  // above any length in a graph; the product of two fits int64

// Counts the rows of an object; 0 if it has none.
int64_t count_rows(PyObject* x) {
  if (PyList_Check(x)) return PyList_GET_SIZE(x);
  if (PyArray_Check(x) && PyArray_NDIM(reinterpret_cast<PyArrayObject*>(x)) > 0)
    return PyArray_DIM(reinterpret_cast<PyArrayObject*>(x), 0);
  if (PyObject_TypeCheck(x, &RowsType)) return reinterpret_cast<RowsHandle*>(x)->n;
  return 0;
}

int64_t slice_length(const LengthPart& part, int64_t n) {
  Py_ssize_t start = part.start, stop = part.stop;
  return PySlice_AdjustIndices((Py_ssize_t)n, &start, &stop, (Py_ssize_t)part.step);
}

// Finds the lengths of all groups. A derived group refers only to earlier ones, so one pass suffices. Each length is
// clamped before another one is multiplied by it.
void find_lengths(const Form* form, PyObject** registers, int64_t* lengths) {
  for (ptrdiff_t g = 0; g < form->groups.size(); g++) {
    const Group& group = *form->groups[g];
    lengths[g] = 0;
    if (group.from >= 0) lengths[g] = count_rows(registers[group.from]);
    if (lengths[g] > MOST_LENGTH) lengths[g] = MOST_LENGTH;
    for (ptrdiff_t p = 0; p < group.parts.size(); p++) {
      const LengthPart& part = group.parts[p];
      int64_t n = slice_length(part, part.of < 0 ? part.n : lengths[part.of]);
      lengths[g] += part.times < 0 ? n : n * lengths[part.times];
      if (lengths[g] > MOST_LENGTH) lengths[g] = MOST_LENGTH;
    }
  }
}

Result test_lengths(const Form* form, const int64_t* lengths) {
  for (ptrdiff_t i = 0; i < form->bounds.size(); i++) {
    const Bound& bound = form->bounds[i];
    int64_t n = lengths[bound.first];
    if (bound.second >= 0 ? n != lengths[bound.second] : n < bound.least || n > bound.most) return DIFFERS;
  }
  if (!form->walked.size()) return MATCHES;
  Ref found(PyTuple_New(form->walked.size()));
  for (ptrdiff_t i = 0; found && i < form->walked.size(); i++) {
    PyObject* n = PyLong_FromLongLong(lengths[form->walked[i]]);
    if (!n) return FAILED;
    PyTuple_SET_ITEM(found.get(), i, n);
  }
  return found ? (Result)PySet_Contains(form->lengths, found.get()) : FAILED;
}

// Writing.

bool write_int(Log* log, PyObject* x) {
  if (!PyLong_Check(x))
    return PyErr_SetString(PyExc_RuntimeError, "a list was changed while its call was recorded"), false;
  int overflow;
  int64_t value = PyLong_AsLongLongAndOverflow(x, &overflow);
  if (value == -1 && !overflow && PyErr_Occurred()) return false;
  return log->ints.push(overflow ? INT64_MAX : value) || (PyErr_NoMemory(), false);  // decoding rejects INT64_MAX
}

bool write_ints(Log* log, PyObject* x) {
  if (!PyArray_Check(x)) return write_int(log, x);
  PyArrayObject* given = reinterpret_cast<PyArrayObject*>(x);
  // A uint64 above INT64_MAX is negative when it is read as int64; it is logged as INT64_MAX, which decoding rejects.
  bool is_large = PyArray_DESCR(given)->kind == 'u' && PyArray_ITEMSIZE(given) == 8;
  Ref array(PyArray_FROMANY(x, is_large ? NPY_UINT64 : NPY_INT64, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
  if (!array) return false;
  PyArrayObject* ints = reinterpret_cast<PyArrayObject*>(array.get());
  npy_intp n = PyArray_SIZE(ints);
  if (!log->ints.reserve(n)) return PyErr_NoMemory(), false;
  const int64_t* data = static_cast<const int64_t*>(PyArray_DATA(ints));
  for (npy_intp i = 0; i < n; i++) log->ints.append(is_large && data[i] < 0 ? INT64_MAX : data[i]);
  return true;
}

bool write_floats(Log* log, PyObject* x) {
  if (PyFloat_Check(x)) return log->floats.push(PyFloat_AS_DOUBLE(x)) || (PyErr_NoMemory(), false);
  Ref array(PyArray_FROMANY(x, NPY_FLOAT64, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
  if (!array) return false;
  PyArrayObject* floats = reinterpret_cast<PyArrayObject*>(array.get());
  npy_intp n = PyArray_SIZE(floats);
  if (!log->floats.reserve(n)) return PyErr_NoMemory(), false;
  const double* data = static_cast<const double*>(PyArray_DATA(floats));
  for (npy_intp i = 0; i < n; i++) log->floats.append(data[i]);
  return true;
}

// Writes the ref of a handle.
bool write_ref(Log* log, PyObject* x) {
  return log->ints.push(ref_in(log, reinterpret_cast<Handle*>(x))) || (PyErr_NoMemory(), false);
}

// Writes the refs of the n rows of a value.
bool write_refs(Log* log, PyObject* x, int64_t n) {
  RowsHandle* rows = reinterpret_cast<RowsHandle*>(x);
  if (!log->ints.reserve(n)) return PyErr_NoMemory(), false;
  bool is_stale = rows->handle.session != log->session;
  for (int64_t i = 0; i < n; i++) {
    int64_t ref = rows->handle.ref + (i << ROW_SHIFT);
    if (rows->refs) ref = PyLong_AsLongLong(PyTuple_GET_ITEM(rows->refs, i));
    log->ints.append(is_stale ? STALE_REF : ref);
  }
  return true;
}

// Writes the writer's registers for each of the n elements of a list; in `frame.elements`, these begin at `at`. The
// list may have changed since it was tested, so sizes and classes are checked again.
bool write_each(Log* log, const Writer& writer, PyObject* x, int64_t n, const Frame& frame, ptrdiff_t at) {
  const Program& program = *writer.each;
  bool is_list = program.is_one_class(), is_float = writer.what == Writing::EACH_FLOATS;
  PyObject* kind = program.steps.size() ? program.steps[0]->object.get() : nullptr;
  bool are_handles = is_list && is_sealed(kind);
  for (int64_t i = 0; i < n; i++)
    for (ptrdiff_t k = 0; k < writer.registers.size(); k++) {
      ptrdiff_t place = at + i * program.n_registers + writer.registers[k];
      bool is_there = is_list ? i < PyList_GET_SIZE(x) : place < frame.elements.size();
      PyObject* part = !is_there ? nullptr : is_list ? PyList_GET_ITEM(x, i) : frame.elements[place];
      if (!part || (is_list && reinterpret_cast<PyObject*>(Py_TYPE(part)) != kind))
        return PyErr_SetString(PyExc_RuntimeError, "a list was changed while its call was recorded"), false;
      bool is_handle = are_handles || PyObject_TypeCheck(part, &HandleType);
      Ref held = Ref::borrowed(part);
      if (!(is_float ? write_floats(log, part) : is_handle ? write_ref(log, part) : write_ints(log, part)))
        return false;
    }
  return true;
}

bool draw(Log* log, bool is_logged) {
  int64_t number;
  if (!next_draw(log, number)) return false;
  return !is_logged || log->ints.push(number) || (PyErr_NoMemory(), false);
}

// Returns the index in `frame.elements` at which the elements of the writer's list begin.
ptrdiff_t first_element(const Form* form, const Writer& writer, const Frame& frame) {
  ptrdiff_t at = 0;
  for (ptrdiff_t i = 0; i < form->program->steps.size(); i++) {
    const Step& step = *form->program->steps[i];
    if (step.test != Test::EACH) continue;
    if (step.each == writer.each) break;
    if (!step.each->is_one_class()) at += count_rows(frame.registers[step.from]) * step.each->n_registers;
  }
  return at;
}

bool write(Form* form, const Writer& writer, const Frame& frame, const int64_t* lengths) {
  Log* log = form->log;
  PyObject* x = frame.registers[writer.from];
  switch (writer.what) {
    case Writing::REF:
      return write_ref(log, x);
    case Writing::REFS:
      return write_refs(log, x, count_rows(x));
    case Writing::COUNT:
      return log->ints.push(lengths[writer.registers[0]]) || (PyErr_NoMemory(), false);
    case Writing::INT:
      return write_int(log, x);
    case Writing::INTS:
      return write_ints(log, x);
    case Writing::EACH:
    case Writing::EACH_FLOATS:
      return write_each(log, writer, x, count_rows(x), frame, first_element(form, writer, frame));
    case Writing::FLOAT:
    case Writing::FLOATS:
      return write_floats(log, x);
    case Writing::DRAW:
      return draw(log, true);
    case Writing::COUNT_DRAW:
      return draw(log, false);
  }
  return false;
}

// Results.

PyObject* make_output(Form* form, int32_t k, int64_t first, const int64_t* lengths) {
  const Output& output = form->outputs[k];
  if (output.group < 0) return make_handle(form->log, output.kind, first + k);
  int64_t n = lengths[output.group];
  if (n > MOST_REF_ROWS) {
    set_data_error("a value of %lld rows goes from a cell to others, but %lld is the most.", (long long)n,
                   (long long)MOST_REF_ROWS);
    return nullptr;
  }
  return make_rows(form->log, output.kind, first + k, n);
}

// Builds the structure of outputs that a call returns.
PyObject* build(Form* form, PyObject* structure, int64_t first, const int64_t* lengths) {
  if (!PyTuple_CheckExact(structure)) return make_output(form, (int32_t)PyLong_AsLong(structure), first, lengths);
  Py_ssize_t n = PyTuple_GET_SIZE(structure);
  Ref made(PyTuple_New(n));
  for (Py_ssize_t i = 0; made && i < n; i++) {
    PyObject* part = build(form, PyTuple_GET_ITEM(structure, i), first, lengths);
    if (!part) return nullptr;
    PyTuple_SET_ITEM(made.get(), i, part);
  }
  return made.release();
}

PyObject* build_result(Form* form, int64_t first, const int64_t* lengths) {
  if (PyTuple_CheckExact(form->structure) || PyLong_Check(form->structure))
    return build(form, form->structure, first, lengths);
  Ref values(PyTuple_New(form->outputs.size()));
  for (ptrdiff_t k = 0; values && k < form->outputs.size(); k++) {
    PyObject* value = make_output(form, (int32_t)k, first, lengths);
    if (!value) return nullptr;
    PyTuple_SET_ITEM(values.get(), k, value);
  }
  return values ? call_object(form->structure, values.get()).release() : nullptr;
}

// Reading forms from Python.

struct Name {
  const char* text;
  int value;
};

const Name TESTS[] = {{"class", (int)Test::CLASS}, {"size", (int)Test::SIZE}, {"item", (int)Test::ITEM},
                      {"keys", (int)Test::KEYS},   {"key", (int)Test::KEY},   {"attribute", (int)Test::ATTRIBUTE},
                      {"array", (int)Test::ARRAY}, {"rows", (int)Test::ROWS}, {"is", (int)Test::IS},
                      {"equal", (int)Test::EQUAL}, {"same", (int)Test::SAME}, {"plain", (int)Test::PLAIN},
                      {"empty", (int)Test::EMPTY}, {"each", (int)Test::EACH}};
const Name WRITINGS[] = {{"ref", (int)Writing::REF},
                         {"refs", (int)Writing::REFS},
                         {"count", (int)Writing::COUNT},
                         {"int", (int)Writing::INT},
                         {"ints", (int)Writing::INTS},
                         {"each", (int)Writing::EACH},
                         {"draw", (int)Writing::DRAW},
                         {"float", (int)Writing::FLOAT},
                         {"floats", (int)Writing::FLOATS},
                         {"each_floats", (int)Writing::EACH_FLOATS},
                         {"count_draw", (int)Writing::COUNT_DRAW}};

template <int N>
int number_of(const Name (&names)[N], PyObject* text) {
  for (const Name& name : names)
    if (PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, name.text) == 0) return name.value;
  PyErr_Format(PyExc_ValueError, "a step of a form must be known, got %R", text);
  return -1;
}

bool refuse(const char* what) { return PyErr_Format(PyExc_ValueError, "%s", what), false; }

bool read_number(PyObject* x, int64_t low, int64_t high, int64_t& number) {
  number = PyLong_AsLongLong(x);
  if (number == -1 && PyErr_Occurred()) return false;
  if (number >= low && number < high) return true;
  return PyErr_Format(PyExc_ValueError, "a number in a form must lie in %lld..%lld, got %lld", (long long)low,
                      (long long)(high - 1), (long long)number),
         false;
}

// Returns the parts of a tuple, which must have n to `most` of them; null with an error.
PyObject** parts_of(PyObject* x, Py_ssize_t n, Py_ssize_t most) {
  if (!PyTuple_Check(x) || PyTuple_GET_SIZE(x) < n || PyTuple_GET_SIZE(x) > most)
    return PyErr_Format(PyExc_TypeError, "a part of a form must be a tuple of %zd to %zd, got %.80R", n, most, x),
           nullptr;
  return &PyTuple_GET_ITEM(x, 0);
}

bool read_program(PyObject* steps, int32_t n_given, int64_t n_registers, Program& program, bool is_element);

// Reads a step, (name, from, ...). A step may read only registers that are set, and each register is set once.
bool read_step(PyObject* tuple, Vec<uint8_t>& is_set, Step& step, bool is_element) {
  PyObject** parts = parts_of(tuple, 2, 5);
  int test = parts ? number_of(TESTS, parts[0]) : -1;
  if (test < 0) return false;
  step.test = (Test)test;
  Py_ssize_t n_parts = PyTuple_GET_SIZE(tuple);
  int64_t from, to;
  if (!read_number(parts[1], 0, is_set.size(), from)) return false;
  if (!is_set[from]) return refuse("a step of a form must read a register that is set");
  step.from = (int32_t)from;
  auto has = [&](Py_ssize_t n) { return n_parts == n || refuse("a step of a form has another number of parts"); };
  auto sets = [&](PyObject* x) {
    if (!read_number(x, 0, is_set.size(), to)) return false;
    if (is_set[to]) return refuse("a step of a form must set a register that is not set");
    is_set[to] = 1;
    step.to = (int32_t)to;
    return true;
  };
  switch (step.test) {
    case Test::CLASS:
      if (!has(3) || !PyType_Check(parts[2]))
        return PyErr_Occurred() ? false : refuse("a class in a form must be a type");
      step.object = Ref::borrowed(parts[2]);
      return true;
    case Test::SIZE:
      return has(3) && read_number(parts[2], 0, INT64_MAX, step.n);
    case Test::ITEM:
      return has(4) && read_number(parts[2], 0, INT64_MAX, step.n) && sets(parts[3]);
    case Test::KEYS:
      if (!has(4) || !PyTuple_Check(parts[2])) return PyErr_Occurred() ? false : refuse("keys must be a tuple");
      step.object = Ref::borrowed(parts[2]);
      step.call = Ref::borrowed(parts[3]);
      return true;
    case Test::KEY:
    case Test::ATTRIBUTE:
      if (!has(4)) return false;
      if (step.test == Test::ATTRIBUTE && !PyUnicode_Check(parts[2])) return refuse("an attribute's name must be text");
      step.object = Ref::borrowed(parts[2]);
      return sets(parts[3]);
    case Test::ARRAY:
    case Test::ROWS: {
      if (!has(4) || !PyUnicode_Check(parts[2]) || !PyTuple_Check(parts[3]))
        return PyErr_Occurred() ? false : refuse("an array in a form must have kinds and a shape");
      const char* kinds = PyUnicode_AsUTF8(parts[2]);
      for (; kinds && *kinds; kinds++)
        if (*kinds >= 'a' && *kinds <= 'z') step.kinds |= 1u << (*kinds - 'a');
      for (Py_ssize_t i = 0; kinds && i < PyTuple_GET_SIZE(parts[3]); i++) {
        int64_t length;
        if (!read_number(PyTuple_GET_ITEM(parts[3], i), 0, INT64_MAX, length)) return false;
        if (!step.shape.push(length)) return PyErr_NoMemory(), false;
      }
      return kinds != nullptr;
    }
    case Test::IS:
    case Test::EQUAL:
    case Test::PLAIN:
      if (!has(3)) return false;
      if (step.test == Test::PLAIN && !PyTuple_CheckExact(parts[2])) return refuse("a plain object must be a tuple");
      step.object = Ref::borrowed(parts[2]);
      return true;
    case Test::SAME:
      if (!has(4) || !PyCallable_Check(parts[2]))
        return PyErr_Occurred() ? false : refuse("a step that calls a function must have one");
      step.call = Ref::borrowed(parts[2]);
      step.object = Ref::borrowed(parts[3]);
      return true;
    case Test::EMPTY:
      return has(2);
    case Test::EACH: {
      int64_t n_registers;
      if (!has(4) || !read_number(parts[3], 1, MOST_REGISTERS, n_registers)) return false;
      if (is_element) return refuse("the elements of a list in a form must not hold lists");
      step.each = make<Program>();
      if (!step.each) return PyErr_NoMemory(), false;
      if (!read_program(parts[2], 1, n_registers, *step.each, true)) return false;
      return true;
    }
  }
  return false;
}

bool read_program(PyObject* steps, int32_t n_given, int64_t n_registers, Program& program, bool is_element) {
  Vec<uint8_t> is_set;
  if (!PyTuple_Check(steps)) return refuse("the steps of a form must be a tuple");
  if (n_given > n_registers || !is_set.assign((ptrdiff_t)n_registers, 0)) return refuse("a form has too few registers");
  for (int32_t i = 0; i < n_given; i++) is_set[i] = 1;
  program.n_registers = (int32_t)n_registers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
    Step* step = make<Step>();
    if (!step) return PyErr_NoMemory(), false;
    if (!program.steps.push(step)) return PyErr_NoMemory(), false;
    if (!read_step(PyTuple_GET_ITEM(steps, i), is_set, *step, is_element)) return false;
  }
  for (ptrdiff_t i = 0; i < is_set.size(); i++)
    if (!is_set[i]) return refuse("the steps of a form must set all registers");
  return true;
}

// Returns the program that tests the elements of the list in a register; null if there is none.
Program* program_of(const Form* form, int32_t from) {
  for (ptrdiff_t i = 0; i < form->program->steps.size(); i++)
    if (form->program->steps[i]->test == Test::EACH && form->program->steps[i]->from == from)
      return form->program->steps[i]->each;
  return nullptr;
}

// Returns whether a step ensures that a register holds a handle: a `RowsHandle` if `is_rows`, else a handle of a single
// value. Writers of refs cast registers to these types without a check.
bool holds_handle(const Program& program, int32_t from, bool is_rows) {
  for (ptrdiff_t i = 0; i < program.steps.size(); i++) {
    const Step& step = *program.steps[i];
    if (step.test == Test::CLASS && step.from == from && is_sealed(step.object.get()))
      return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(step.object.get()), &RowsType) == is_rows;
  }
  return false;
}

// Reads writers: (name,), (name, register), ("count", group), or (name, register, registers of an element).
bool read_writers(PyObject* tuple, Form* form, Vec<Writer*>& writers) {
  if (!PyTuple_Check(tuple)) return refuse("the writers of a form must be a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject** parts = parts_of(PyTuple_GET_ITEM(tuple, i), 1, 3);
    int what = parts ? number_of(WRITINGS, parts[0]) : -1;
    if (what < 0) return false;
    Writer* writer = make<Writer>();
    if (!writer) return PyErr_NoMemory(), false;
    if (!writers.push(writer)) return PyErr_NoMemory(), false;
    writer->what = (Writing)what;
    Py_ssize_t n_parts = PyTuple_GET_SIZE(PyTuple_GET_ITEM(tuple, i));
    if (writer->what == Writing::DRAW || writer->what == Writing::COUNT_DRAW) continue;
    int64_t number;
    if (n_parts < 2) return refuse("a writer of a form must name a register");
    int64_t most = writer->what == Writing::COUNT ? form->groups.size() : form->program->n_registers;
    if (!read_number(parts[1], 0, most, number)) return false;
    if (writer->what == Writing::COUNT) {
      if (!writer->registers.push((int32_t)number)) return PyErr_NoMemory(), false;
      continue;
    }
    writer->from = (int32_t)number;
    bool is_ref = writer->what == Writing::REF || writer->what == Writing::REFS;
    if (is_ref && !holds_handle(*form->program, writer->from, writer->what == Writing::REFS))
      return refuse("a writer of a form must log a value that a step has found");
    if (writer->what != Writing::EACH && writer->what != Writing::EACH_FLOATS) continue;
    writer->each = program_of(form, writer->from);
    if (n_parts != 3 || !writer->each || !PyTuple_Check(parts[2]))
      return refuse("a writer must log a list that is tested");
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(parts[2]); k++) {
      if (!read_number(PyTuple_GET_ITEM(parts[2], k), 0, writer->each->n_registers, number)) return false;
      if (!writer->registers.push((int32_t)number)) return PyErr_NoMemory(), false;
    }
  }
  return true;
}

// Reads groups: a register, or a tuple of parts (of, n, (start, stop, step), times) that refer to earlier groups.
bool read_groups(PyObject* tuple, Form* form) {
  if (!PyTuple_Check(tuple)) return refuse("the groups of a form must be a tuple");
  for (Py_ssize_t g = 0; g < PyTuple_GET_SIZE(tuple); g++) {
    PyObject* given = PyTuple_GET_ITEM(tuple, g);
    Group* group = make<Group>();
    if (!group) return PyErr_NoMemory(), false;
    if (!form->groups.push(group)) return PyErr_NoMemory(), false;
    int64_t number;
    if (PyLong_Check(given)) {
      if (!read_number(given, 0, form->program->n_registers, number)) return false;
      group->from = (int32_t)number;
      continue;
    }
    if (!PyTuple_Check(given)) return refuse("a group of a form must be a register or parts");
    for (Py_ssize_t p = 0; p < PyTuple_GET_SIZE(given); p++) {
      PyObject** parts = parts_of(PyTuple_GET_ITEM(given, p), 4, 4);
      PyObject** cut = parts ? parts_of(parts[2], 3, 3) : nullptr;
      LengthPart part;
      int64_t of, times;
      if (!cut || !read_number(parts[0], -1, g, of) || !read_number(parts[3], -1, g, times) ||
          !read_number(parts[1], 0, INT32_MAX, part.n))
        return false;
      part.of = (int32_t)of;
      part.times = (int32_t)times;
      PyObject* slice = PySlice_New(cut[0], cut[1], cut[2]);
      Py_ssize_t start, stop, step;
      int unpacked = slice ? PySlice_Unpack(slice, &start, &stop, &step) : -1;
      Py_XDECREF(slice);
      if (unpacked < 0) return false;
      part.start = start;
      part.stop = stop;
      part.step = step;
      if (!group->parts.push(part)) return PyErr_NoMemory(), false;
    }
  }
  return true;
}

// Reads bounds: (first, second, least, most); see `Bound`.
bool read_bounds(PyObject* tuple, Form* form) {
  if (!PyTuple_Check(tuple)) return refuse("the bounds of a form must be a tuple");
  int64_t n = form->groups.size();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject** parts = parts_of(PyTuple_GET_ITEM(tuple, i), 4, 4);
    int64_t first, second;
    Bound bound;
    if (!parts || !read_number(parts[0], 0, n, first) || !read_number(parts[1], -1, n, second) ||
        !read_number(parts[2], 0, INT64_MAX, bound.least) || !read_number(parts[3], 0, INT64_MAX, bound.most))
      return false;
    bound.first = (int32_t)first;
    bound.second = (int32_t)second;
    if (!form->bounds.push(bound)) return PyErr_NoMemory(), false;
  }
  return true;
}

bool is_structure(PyObject* structure, int64_t n_outputs, int depth = 0) {
  if (depth > MOST_DEPTH) return false;
  if (PyLong_Check(structure)) {
    long k = PyLong_AsLong(structure);
    return k >= 0 && k < n_outputs;
  }
  if (!PyTuple_CheckExact(structure)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(structure); i++)
    if (!is_structure(PyTuple_GET_ITEM(structure, i), n_outputs, depth + 1)) return false;
  return true;
}

// Reads outputs, each (class, group or -1).
bool read_outputs(PyObject* outputs, PyObject* structure, Form* form) {
  if (!PyTuple_Check(outputs)) return refuse("the outputs of a form must be a tuple");
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(outputs); k++) {
    PyObject** parts = parts_of(PyTuple_GET_ITEM(outputs, k), 2, 2);
    int64_t group;
    if (!parts || !read_number(parts[1], -1, form->groups.size(), group)) return false;
    if (!is_sealed(parts[0]) ||
        (bool)PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(parts[0]), &RowsType) != (group >= 0))
      return refuse("an output of a form must have a class of its kind");
    if (!form->outputs.push({reinterpret_cast<PyTypeObject*>(parts[0]), (int32_t)group}))
      return PyErr_NoMemory(), false;
  }
  form->kinds = Py_NewRef(outputs);
  form->structure = Py_NewRef(structure);
  return PyTuple_CheckExact(structure) || PyLong_Check(structure)
             ? is_structure(structure, form->outputs.size()) ||
                   refuse("a structure must have the numbers of the outputs")
             : PyCallable_Check(structure) || refuse("a structure must be tuples of numbers, or a function");
}

bool read_walked(PyObject* walked, PyObject* lengths, Form* form) {
  if (!PyTuple_Check(walked) || !PyAnySet_Check(lengths)) return refuse("walked groups must be a tuple, with a set");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(walked); i++) {
    int64_t group;
    if (!read_number(PyTuple_GET_ITEM(walked, i), 0, form->groups.size(), group)) return false;
    if (!form->walked.push((int32_t)group)) return PyErr_NoMemory(), false;
  }
  form->lengths = Py_NewRef(lengths);
  return true;
}

PyObject* make_form(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"log",    "number",  "n_arguments", "n_registers", "steps",   "groups",    "bounds",
                                "walked", "lengths", "ints",        "floats",      "outputs", "structure", nullptr};
  PyObject *log, *steps, *groups, *bounds, *walked, *lengths, *ints, *floats, *outputs, *structure;
  int number, n_arguments, n_registers;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iiiOOOOOOOOO:Form", const_cast<char**>(names), &LogType, &log,
                                   &number, &n_arguments, &n_registers, &steps, &groups, &bounds, &walked, &lengths,
                                   &ints, &floats, &outputs, &structure))
    return nullptr;
  Log* of = reinterpret_cast<Log*>(log);
  if (number < 0 || number >= of->code_ptr.size() - 1 || n_arguments < 0 || n_registers < n_arguments ||
      n_registers >= MOST_REGISTERS) {
    PyErr_SetString(PyExc_ValueError, "a form must have a number that the log knows, and registers for its arguments");
    return nullptr;
  }
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  PyObject_GC_UnTrack(made.get());  // until all members are set
  Form* form = reinterpret_cast<Form*>(made.get());
  new (&form->groups, At::PLACE) Vec<Group*>();
  new (&form->bounds, At::PLACE) Vec<Bound>();
  new (&form->walked, At::PLACE) Vec<int32_t>();
  new (&form->ints, At::PLACE) Vec<Writer*>();
  new (&form->floats, At::PLACE) Vec<Writer*>();
  new (&form->outputs, At::PLACE) Vec<Output>();
  form->program = make<Program>();
  if (!form->program) return PyErr_NoMemory();
  form->log = reinterpret_cast<Log*>(Py_NewRef(log));
  form->number = number;
  form->n_arguments = n_arguments;
  form->result_kind = Form::NOT_ASKED;
  if (!read_program(steps, n_arguments, n_registers, *form->program, false) || !read_groups(groups, form) ||
      !read_bounds(bounds, form) || !read_walked(walked, lengths, form) || !read_writers(ints, form, form->ints) ||
      !read_writers(floats, form, form->floats) || !read_outputs(outputs, structure, form))
    return nullptr;
  PyObject_GC_Track(made.get());
  return made.release();
}

int traverse_program(const Program* program, visitproc visit, void* arg) {
  for (ptrdiff_t i = 0; program && i < program->steps.size(); i++) {
    const Step* step = program->steps[i];
    Py_VISIT(step->object.get());
    Py_VISIT(step->call.get());
    int found = traverse_program(step->each, visit, arg);
    if (found) return found;
  }
  return 0;
}

int traverse_form(PyObject* self, visitproc visit, void* arg) {
  Form* form = reinterpret_cast<Form*>(self);
  Py_VISIT(reinterpret_cast<PyObject*>(form->log));
  Py_VISIT(form->lengths);
  Py_VISIT(form->kinds);
  Py_VISIT(form->structure);
  return traverse_program(form->program, visit, arg);
}

void free_form(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Form* form = reinterpret_cast<Form*>(self);
  Py_TRASHCAN_BEGIN(self, free_form)
  discard(form->program);
  free_all(form->groups);
  free_all(form->ints);
  free_all(form->floats);
  form->bounds.~Vec();
  form->walked.~Vec();
  form->outputs.~Vec();
  Py_XDECREF(form->lengths);
  Py_XDECREF(form->kinds);
  Py_XDECREF(form->structure);
  Py_XDECREF(reinterpret_cast<PyObject*>(form->log));
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

PyObject* get_number(PyObject* self, void*) { return PyLong_FromLong(reinterpret_cast<Form*>(self)->number); }

PyGetSetDef attributes[] = {{"number", get_number, nullptr, "The number of the form in its log.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject form_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Form";
  type.tp_basicsize = sizeof(Form);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "A recognized way to call a cell.";
  type.tp_traverse = traverse_form;
  type.tp_dealloc = free_form;
  type.tp_getset = attributes;
  type.tp_new = make_form;
  return type;
}

}  // namespace

PyTypeObject FormType = form_type();

bool Program::is_one_class() const { return steps.size() == 1 && steps[0]->test == Test::CLASS; }

Program::~Program() {
  for (ptrdiff_t i = 0; i < steps.size(); i++) {
    discard(steps[i]->each);
    discard(steps[i]);
  }
}

bool next_draw(Log* log, int64_t& number) {
  if (!log->draw) {
    number = log->n_draws++;
    return true;
  }
  Ref next = Ref::borrowed(log->draw), found(PyObject_CallNoArgs(next.get()));
  number = found ? PyLong_AsLongLong(found.get()) : -1;
  return found && !(number == -1 && PyErr_Occurred());
}

PyObject* record_call(Form* form, PyObject* const* arguments, Py_ssize_t n) {
  Log* log = form->log;
  Frame frame(*form->program);
  if (!frame.is_made()) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < n; i++) frame.registers[i] = arguments[i];
  if (run(*form->program, frame) != MATCHES) return nullptr;
  int64_t few[FEW];
  Vec<int64_t> many;
  if (form->groups.size() > FEW && !many.resize(form->groups.size())) return PyErr_NoMemory();
  int64_t* lengths = form->groups.size() > FEW ? many.data() : few;
  if (form->groups.size()) {
    find_lengths(form, frame.registers, lengths);
    if (test_lengths(form, lengths) != MATCHES) return nullptr;
  }
  ptrdiff_t n_ints = log->ints.size(), n_floats = log->floats.size();
  int64_t id = log->add_call(form->number);
  if (id < 0) return nullptr;
  bool is_written = true;
  log->busy.set();  // converting arrays may run Python code, which must not use the log in the middle of a call
  for (ptrdiff_t i = 0; is_written && i < form->ints.size(); i++)
    is_written = write(form, *form->ints[i], frame, lengths);
  for (ptrdiff_t i = 0; is_written && i < form->floats.size(); i++)
    is_written = write(form, *form->floats[i], frame, lengths);
  log->busy.remove();
  if (!is_written) {  // undo the call, which is still the last one, because the log was busy
    log->ints.resize(n_ints);
    log->floats.resize(n_floats);
    log->form_of.resize(id - log->n_forgotten);
    if (log->counts) log->alive.resize(id - log->n_forgotten);
    return nullptr;
  }
  return build_result(form, id << ID_SHIFT, lengths);
}

}  // namespace autobatch
