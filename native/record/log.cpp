#include "record/log.h"

#include "record/decode.h"
#include "record/function.h"
#include "record/handles.h"
#include "record/programs.h"
#include "support/arrays.h"
#include "support/collection.h"

namespace autobatch {
namespace {

constexpr int N_SLOTS = 1 << 16;
constexpr int64_t COLLECT_AFTER = 1 << 16;  // ints logged between collections
constexpr Py_ssize_t COLLECT_EACH = 64;     // instances between collections
constexpr ptrdiff_t KEPT_ROOM = 1 << 12;    // elements for which a vector always keeps memory
// Handles refer to their log by slot and session instead of by pointer, so they neither keep it alive nor dangle.
Log* slots[N_SLOTS];
int next_slot = 0;
uint32_t last_session = 0;

Log* as_log(PyObject* self) { return reinterpret_cast<Log*>(self); }

// Empties a vector. Frees memory beyond four times its former size, but always keeps room for KEPT_ROOM elements.
template <class T>
void empty(Vec<T>& vec) {
  ptrdiff_t room = 4 * vec.size() > KEPT_ROOM ? 4 * vec.size() : KEPT_ROOM;
  vec.resize(0);
  vec.shrink(room);
}

PyObject* make_log(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* owner;
  static const char* names[] = {"owner", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Log", const_cast<char**>(names), &owner)) return nullptr;
  Ref sources(PyDict_New()), functions(PyDict_New()), treatments(PyDict_New());
  Log* log = sources && functions && treatments ? as_log(type->tp_alloc(type, 0)) : nullptr;
  if (!log) return nullptr;
  new (&log->cells, At::PLACE) CellFunctions();
  new (&log->ints, At::PLACE) Vec<int64_t>();
  new (&log->floats, At::PLACE) Vec<double>();
  new (&log->form_of, At::PLACE) Vec<int32_t>();
  new (&log->result_kinds, At::PLACE) Vec<ResultKind*>();
  new (&log->code, At::PLACE) Vec<int32_t>();
  new (&log->code_ptr, At::PLACE) Vec<int32_t>();
  new (&log->fixed, At::PLACE) Vec<FixedForm>();
  new (&log->fixed_edges, At::PLACE) Vec<FixedEdge>();
  new (&log->fixed_words, At::PLACE) Vec<int32_t>();
  new (&log->node_of, At::PLACE) Vec<int32_t>();
  new (&log->alive, At::PLACE) Vec<int32_t>();
  new (&log->survivors, At::PLACE) Vec<int32_t>();
  log->owner = Py_NewRef(owner);
  log->sources = sources.release();
  log->functions = functions.release();
  log->treatments = treatments.release();
  log->session = ++last_session;
  for (int tried = 0; tried < N_SLOTS; tried++) {
    int slot = next_slot;
    next_slot = (slot + 1) % N_SLOTS;
    if (slots[slot]) continue;
    log->slot = (uint16_t)slot;
    slots[slot] = log;
    return reinterpret_cast<PyObject*>(log);
  }
  Py_DECREF(reinterpret_cast<PyObject*>(log));
  return PyErr_Format(PyExc_RuntimeError, "there are more than %d logs", N_SLOTS);
}

int traverse_log(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_log(self)->owner);
  Py_VISIT(as_log(self)->draw);
  Py_VISIT(as_log(self)->sources);
  Py_VISIT(as_log(self)->source);
  Py_VISIT(as_log(self)->functions);
  Py_VISIT(as_log(self)->treatments);
  Py_VISIT(as_log(self)->treatment_of);
  return as_log(self)->cells.traverse(visit, arg);
}

// Breaks reference cycles. A log that is still in use stays valid, but nothing records there.
int clear_log(PyObject* self) {
  Py_XSETREF(as_log(self)->owner, Py_NewRef(Py_None));
  Py_CLEAR(as_log(self)->draw);
  PyDict_Clear(as_log(self)->sources);
  Py_CLEAR(as_log(self)->source);
  PyDict_Clear(as_log(self)->functions);
  PyDict_Clear(as_log(self)->treatments);
  Py_CLEAR(as_log(self)->treatment_of);
  as_log(self)->cells.clear();
  return 0;
}

void free_log(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Log* log = as_log(self);
  Py_TRASHCAN_BEGIN(self, free_log)
  if (slots[log->slot] == log) slots[log->slot] = nullptr;
  Py_XDECREF(log->owner);
  Py_XDECREF(log->draw);
  Py_XDECREF(log->sources);
  Py_XDECREF(log->source);
  Py_XDECREF(log->functions);
  Py_XDECREF(log->treatments);
  Py_XDECREF(log->treatment_of);
  log->cells.~CellFunctions();
  log->ints.~Vec();
  log->floats.~Vec();
  log->form_of.~Vec();
  free_all(log->result_kinds);
  log->code.~Vec();
  log->code_ptr.~Vec();
  log->fixed.~Vec();
  log->fixed_edges.~Vec();
  log->fixed_words.~Vec();
  log->node_of.~Vec();
  log->alive.~Vec();
  log->survivors.~Vec();
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

Py_ssize_t length(PyObject* self) { return as_log(self)->ints.size(); }

PyObject* begin(PyObject* self, PyObject* counts) {
  Log* log = as_log(self);
  int is_counting = PyObject_IsTrue(counts);
  if (is_counting < 0 || refuse_if_busy(log)) return nullptr;
  empty(log->ints);
  empty(log->floats);
  empty(log->form_of);
  empty(log->node_of);
  empty(log->alive);
  empty(log->survivors);
  log->first_id = log->swept = log->n_forgotten = log->n_nodes = log->n_instances = 0;
  log->counts = is_counting;
  log->session = ++last_session;
  Py_RETURN_NONE;
}

// Begins an instance: forgets the sources of the last one, and counts draws from 0.
void start_instance(Log* log) {
  PyDict_Clear(log->sources);
  log->begun_ints = log->ints.size();
  log->begun_floats = log->floats.size();
  log->n_instances++;
  log->n_draws = 0;
}

bool append_int(PyObject* list, int64_t number) {
  Ref x(PyLong_FromLongLong(number));
  return x && PyList_Append(list, x.get()) == 0;
}

// Reads the result of an instance, and returns its structure. Appends its ref and slot if its class is known; otherwise
// `read` appends the refs and slots that it finds.
Ref read_result(Log* log, PyObject* result, PyObject* known, PyObject* read, PyObject* refs, PyObject* slots) {
  PyObject* slot = PyDict_GetItemWithError(known, reinterpret_cast<PyObject*>(Py_TYPE(result)));
  if (!slot) return PyErr_Occurred() ? Ref() : Ref(PyObject_CallOneArg(read, result));
  if (!PyObject_TypeCheck(result, &HandleType) || !PyTuple_Check(slot) || PyTuple_GET_SIZE(slot) != 2) {
    PyErr_SetString(PyExc_TypeError, "known must have a slot and a structure for classes of handles");
    return Ref();
  }
  bool is_added = append_int(refs, ref_in(log, reinterpret_cast<Handle*>(result))) &&
                  PyList_Append(slots, PyTuple_GET_ITEM(slot, 0)) == 0;
  return is_added ? Ref::borrowed(PyTuple_GET_ITEM(slot, 1)) : Ref();
}

// run(function, instances, known, read, refs, slots, structures, log_ptr, output_ptr): calls the function on each
// instance, starting at the first one without a structure.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Log* log = as_log(self);
  if (n_args != 9) return PyErr_SetString(PyExc_TypeError, "run takes nine arguments"), nullptr;
  PyObject *function = args[0], *instances = args[1], *known = args[2], *read = args[3], *refs = args[4],
           *slots = args[5], *structures = args[6], *log_ptr = args[7], *output_ptr = args[8];
  if (!PyDict_Check(known)) return PyErr_SetString(PyExc_TypeError, "known must be a dict"), nullptr;
  for (Py_ssize_t k = 1; k < n_args; k += k == 1 ? 3 : 1)
    if (!PyList_Check(args[k])) return PyErr_SetString(PyExc_TypeError, "run takes lists"), nullptr;
  NoCollection none;  // a recording makes few cycles, but many objects, which every collection would visit again
  int64_t collected = 0;
  Py_ssize_t first = PyList_GET_SIZE(structures);  // the first instance after the last collection
  for (Py_ssize_t i = first; i < PyList_GET_SIZE(instances); i++) {
    Ref instance = Ref::borrowed(PyList_GET_ITEM(instances, i));
    start_instance(log);
    if (log->ints.size() - collected > COLLECT_AFTER || i - first >= COLLECT_EACH) {
      if (!none.collect_young()) return nullptr;
      collected = log->ints.size();
      first = i;
    }
    Ref result(PyObject_CallOneArg(function, instance.get()));
    if (!result) return nullptr;
    Ref structure = read_result(log, result.get(), known, read, refs, slots);
    if (!structure || PyList_Append(structures, structure.get()) < 0 || !append_int(log_ptr, log->ints.size()) ||
        !append_int(output_ptr, PyList_GET_SIZE(refs)))
      return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* clear(PyObject* self, PyObject*) {
  Log* log = as_log(self);
  if (refuse_if_busy(log)) return nullptr;
  empty(log->ints);
  empty(log->floats);
  log->first_id = log->next_id();
  if (log->counts) {  // calls logged since the last decoding never become nodes
    if (!log->node_of.reserve(log->form_of.size() - log->node_of.size())) return PyErr_NoMemory();
    while (log->node_of.size() < log->form_of.size()) log->node_of.append(-1);
  }
  Py_RETURN_NONE;
}

// Copies `numbers[start:stop]`; the arguments are start and stop.
template <class T>
bool copy_range(PyObject* const* args, Py_ssize_t n_args, const Vec<T>& numbers, Vec<T>& found) {
  Py_ssize_t start, stop;
  if (n_args != 2) return PyErr_SetString(PyExc_TypeError, "two positions must be given, start and stop"), false;
  start = PyNumber_AsSsize_t(args[0], PyExc_IndexError);
  if (start == -1 && PyErr_Occurred()) return false;
  stop = PyNumber_AsSsize_t(args[1], PyExc_IndexError);
  if (stop == -1 && PyErr_Occurred()) return false;
  if (start < 0 || stop < start || stop > numbers.size()) {
    PyErr_Format(PyExc_IndexError, "positions must lie within 0..%zd, got %zd:%zd", numbers.size(), start, stop);
    return false;
  }
  return found.copy(Span<const T>(numbers).part(start, stop)) || (PyErr_NoMemory(), false);
}

PyObject* ints_of(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Vec<int64_t> ints;
  return copy_range(args, n_args, as_log(self)->ints, ints) ? to_list(ints).release() : nullptr;
}

PyObject* floats_of(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Vec<double> floats;
  return copy_range(args, n_args, as_log(self)->floats, floats) ? to_array<double>(floats).release() : nullptr;
}

// add_form(code): adds a form with this code, which `decode.h` describes; returns its number.
PyObject* add_form(PyObject* self, PyObject* argument) {
  Log* log = as_log(self);
  Vec<int32_t> code;
  Ref items(PySequence_Tuple(argument));
  if (!items) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); i++) {
    long word = PyLong_AsLong(PyTuple_GET_ITEM(items.get(), i));
    if (word == -1 && PyErr_Occurred()) return nullptr;
    if (word < -1 || word > INT32_MAX) return PyErr_Format(PyExc_ValueError, "code must hold int32, got %ld", word);
    if (!code.push((int32_t)word)) return PyErr_NoMemory();
  }
  if (refuse_if_busy(log)) return nullptr;
  if (!is_code(code)) {
    PyErr_Format(PyExc_ValueError, "code must be a type and then the items of a form, got %zd ints", code.size());
    return nullptr;
  }
  if (!log->code_ptr.size() && !log->code_ptr.push(0)) return PyErr_NoMemory();
  // Memory is reserved first, so that nothing can fail once `add_fixed` has added the entry of this form.
  if (!log->code.reserve(code.size()) || !log->code_ptr.reserve(1) || !add_fixed(log, code)) return PyErr_NoMemory();
  for (ptrdiff_t i = 0; i < code.size(); i++) log->code.append(code[i]);
  log->code_ptr.append((int32_t)log->code.size());
  return PyLong_FromSsize_t(log->code_ptr.size() - 2);
}

// Reads a number from 0 to n - 1.
bool read_index(PyObject* x, const char* what, int64_t n, int64_t& index) {
  index = PyLong_AsLongLong(x);
  if (index == -1 && PyErr_Occurred()) return false;
  if (index >= 0 && index < n) return true;
  PyErr_Format(PyExc_IndexError, "%s must lie within 0..%lld, got %lld", what, (long long)n - 1, (long long)index);
  return false;
}

// add(form, ints, floats): logs a call; returns the ref of its first output.
PyObject* add(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Log* log = as_log(self);
  int64_t form;
  if (n_args != 3) return PyErr_SetString(PyExc_TypeError, "add takes a form, ints and floats"), nullptr;
  if (!read_index(args[0], "form", log->code_ptr.size() - 1, form)) return nullptr;
  Ref ints(PySequence_Tuple(args[1])), floats(ints ? PySequence_Tuple(args[2]) : nullptr);
  if (!floats) return nullptr;
  Py_ssize_t n_ints = PyTuple_GET_SIZE(ints.get()), n_floats = PyTuple_GET_SIZE(floats.get());
  Vec<int64_t> items;
  Vec<double> numbers;
  for (Py_ssize_t i = 0; i < n_ints; i++) {
    int64_t x = PyLong_AsLongLong(PyTuple_GET_ITEM(ints.get(), i));
    if (x == -1 && PyErr_Occurred()) return nullptr;
    if (!items.push(x)) return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < n_floats; i++) {
    double x = PyFloat_AsDouble(PyTuple_GET_ITEM(floats.get(), i));
    if (x == -1 && PyErr_Occurred()) return nullptr;
    if (!numbers.push(x)) return PyErr_NoMemory();
  }
  int64_t ref = log->add(form, items, numbers);
  return ref < 0 ? nullptr : PyLong_FromLongLong(ref);
}

// add_cell(cell, owner, function): lets a function record a cell's calls. `owner` is None unless the cell is a method.
PyObject* add_cell(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("add_cell", n_args, 3)) return nullptr;
  if (!PyObject_TypeCheck(args[0], &CellType) || Py_TYPE(args[2]) != &FunctionType)
    return PyErr_SetString(PyExc_TypeError, "add_cell takes a cell, an owner and a function"), nullptr;
  if (!as_log(self)->cells.add(args[0], args[1] == Py_None ? nullptr : args[1], args[2])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* forget_cells(PyObject* self, PyObject*) {
  as_log(self)->cells.clear();
  Py_RETURN_NONE;
}

// form_of(ref): returns the form of the call that made a value.
PyObject* form_of(PyObject* self, PyObject* ref) {
  Log* log = as_log(self);
  int64_t number = PyLong_AsLongLong(ref);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  int64_t id = id_of(number);
  if (number < 0 || !log->has(id)) return PyErr_Format(PyExc_IndexError, "no call made ref %lld", (long long)number);
  return PyLong_FromLong(log->form_at(id));
}

bool read_class(PyObject* kind, bool is_rows) {
  if (is_sealed(kind) && (bool)PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(kind), &RowsType) == is_rows)
    return true;
  PyErr_Format(PyExc_TypeError, "kind must be a sealed class of %s", is_rows ? "rows" : "values");
  return false;
}

// value(kind, ref, is_row): makes another handle of an output or of one of its rows.
PyObject* value(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (n_args != 3) return PyErr_SetString(PyExc_TypeError, "value takes a class, a ref and a bool"), nullptr;
  if (!read_class(args[0], false)) return nullptr;
  int64_t ref = PyLong_AsLongLong(args[1]);
  if (ref == -1 && PyErr_Occurred()) return nullptr;
  int is_row = PyObject_IsTrue(args[2]);
  if (is_row < 0) return nullptr;
  return make_handle(as_log(self), reinterpret_cast<PyTypeObject*>(args[0]), ref, is_row);
}

// Makes a value whose rows have these refs, a tuple of ints, which it takes over on success.
PyObject* rows_of(Log* log, PyTypeObject* kind, Ref& refs) {
  Py_ssize_t n = PyTuple_GET_SIZE(refs.get());
  int64_t first = n ? PyLong_AsLongLong(PyTuple_GET_ITEM(refs.get(), 0)) : STALE_REF;
  bool counts = log->counts;
  log->counts = false;  // each ref is counted below
  PyObject* made = make_rows(log, kind, first, n);
  log->counts = counts;
  if (!made) return nullptr;
  for (Py_ssize_t i = 0; counts && i < n; i++) log->count(PyLong_AsLongLong(PyTuple_GET_ITEM(refs.get(), i)), 1);
  reinterpret_cast<RowsHandle*>(made)->refs = refs.release();
  return made;
}

// rows(kind, refs): makes a value whose rows have these refs, in this order.
PyObject* rows(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Log* log = as_log(self);
  if (n_args != 2) return PyErr_SetString(PyExc_TypeError, "rows takes a class and refs"), nullptr;
  if (!read_class(args[0], true)) return nullptr;
  Ref refs(PySequence_Tuple(args[1]));
  if (!refs) return nullptr;
  Py_ssize_t n = PyTuple_GET_SIZE(refs.get());
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* ref = PyTuple_GET_ITEM(refs.get(), i);
    if (!PyLong_CheckExact(ref)) return PyErr_SetString(PyExc_TypeError, "refs must be ints"), nullptr;
    if (PyLong_AsLongLong(ref) == -1 && PyErr_Occurred()) return nullptr;
  }
  return rows_of(log, reinterpret_cast<PyTypeObject*>(args[0]), refs);
}

// stack(kind, values): makes a value with these rows; None unless they are handles of one class and of this session.
PyObject* stack(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Log* log = as_log(self);
  if (n_args != 2 || !PyList_Check(args[1]))
    return PyErr_SetString(PyExc_TypeError, "stack takes a class and a list"), nullptr;
  if (!read_class(args[0], true)) return nullptr;
  Py_ssize_t n = PyList_GET_SIZE(args[1]);
  PyTypeObject* kind = n ? Py_TYPE(PyList_GET_ITEM(args[1], 0)) : nullptr;
  if (!kind || !is_sealed(reinterpret_cast<PyObject*>(kind)) || PyType_IsSubtype(kind, &RowsType)) Py_RETURN_NONE;
  Ref refs(PyTuple_New(n));
  for (Py_ssize_t i = 0; refs && i < n; i++) {
    PyObject* value = PyList_GET_ITEM(args[1], i);
    Handle* handle = reinterpret_cast<Handle*>(value);
    if (Py_TYPE(value) != kind || handle->slot != log->slot || handle->session != log->session) Py_RETURN_NONE;
    PyObject* ref = PyLong_FromLongLong(handle->ref);
    if (!ref) return nullptr;
    PyTuple_SET_ITEM(refs.get(), i, ref);
  }
  return refs ? rows_of(log, reinterpret_cast<PyTypeObject*>(args[0]), refs) : nullptr;
}

// unstack(kind, rows): returns the rows of a value, as a list of handles of this class.
PyObject* unstack(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (n_args != 2 || !PyObject_TypeCheck(args[1], &RowsType))
    return PyErr_SetString(PyExc_TypeError, "unstack takes a class and a value of rows"), nullptr;
  if (!read_class(args[0], false)) return nullptr;
  RowsHandle* rows = reinterpret_cast<RowsHandle*>(args[1]);
  bool is_present = log_in(rows->handle.slot) == as_log(self) && rows->handle.session == as_log(self)->session;
  Ref refs = Ref::borrowed(is_present ? rows->refs : nullptr);
  Ref found(PyList_New(rows->n));
  for (Py_ssize_t i = 0; found && i < rows->n; i++) {
    int64_t ref = STALE_REF;
    if (refs)
      ref = PyLong_AsLongLong(PyTuple_GET_ITEM(refs.get(), i));
    else if (is_present)
      ref = rows->handle.ref + (int64_t(i) << ROW_SHIFT);
    PyObject* row = make_handle(as_log(self), reinterpret_cast<PyTypeObject*>(args[0]), ref, true);
    if (!row) return nullptr;
    PyList_SET_ITEM(found.get(), i, row);
  }
  return found.release();
}

// Makes an array of the nodes of these calls; calls without a node are left out.
Ref nodes_of(Log* log, const Vec<int32_t>& ids) {
  Vec<int32_t> found;
  if (!found.reserve(ids.size())) return Ref(PyErr_NoMemory());
  for (ptrdiff_t i = 0; i < ids.size(); i++) {
    int64_t at = ids[i] - log->n_forgotten;
    if (at < log->node_of.size() && log->node_of[at] >= 0) found.append(log->node_of[at]);
  }
  return to_array<int32_t>(found);
}

// sweep(): returns the nodes that came into use since the last sweep, and the nodes that went out of use.
PyObject* sweep(PyObject* self, PyObject*) {
  Log* log = as_log(self);
  if (refuse_if_busy(log)) return nullptr;
  Vec<int32_t> kept, gone, left;
  for (ptrdiff_t i = 0; i < log->survivors.size(); i++) {
    int32_t id = log->survivors[i];
    if (!(log->alive[id - log->n_forgotten] > 0 ? left : gone).push(id)) return PyErr_NoMemory();
  }
  // Calls made since the last sweep have higher ids than its survivors, so `left` is in ascending order.
  int64_t n = log->n_forgotten + log->alive.size();
  for (int64_t id = log->swept; id < n; id++)
    if (log->alive[id - log->n_forgotten] > 0 && (!kept.push((int32_t)id) || !left.push((int32_t)id)))
      return PyErr_NoMemory();
  if (!log->survivors.resize(left.size())) return PyErr_NoMemory();
  for (ptrdiff_t i = 0; i < left.size(); i++) log->survivors[i] = left[i];
  log->swept = n;
  Ref in_use = nodes_of(log, kept), unused = nodes_of(log, gone);
  if (!in_use || !unused) return nullptr;
  return PyTuple_Pack(2, in_use.get(), unused.get());
}

// uses_form(form): returns whether a value made by a call of this form is in use.
PyObject* uses_form(PyObject* self, PyObject* form) {
  Log* log = as_log(self);
  long number = PyLong_AsLong(form);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  for (ptrdiff_t at = 0; at < log->alive.size(); at++)
    if (log->alive[at] > 0 && log->form_of[at] == number) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// renumber(of_node): renumbers the nodes of earlier phases, -1 for dropped ones; then forgets the first calls that have
// neither a node nor a handle left.
PyObject* renumber(PyObject* self, PyObject* argument) {
  Log* log = as_log(self);
  Span<const int32_t> of_node;
  if (refuse_if_busy(log) || !read<int32_t>(argument, "of_node", of_node)) return nullptr;
  if (log->n_nodes > of_node.size) {
    PyErr_Format(PyExc_ValueError, "of_node must have a number for each of %lld nodes, got %zd",
                 (long long)log->n_nodes, of_node.size);
    return nullptr;
  }
  log->n_nodes = 0;
  for (ptrdiff_t at = 0; at < log->node_of.size(); at++) {
    int32_t& node = log->node_of[at];
    if (node >= 0) node = of_node[node];
    if (node >= log->n_nodes) log->n_nodes = int64_t(node) + 1;
  }
  log->forget_first();
  Py_RETURN_NONE;
}

PyObject* get_n_calls(PyObject* self, void*) { return PyLong_FromLongLong(as_log(self)->next_id()); }

PyObject* get_n_floats(PyObject* self, void*) { return PyLong_FromSsize_t(as_log(self)->floats.size()); }

PyObject* get_n_bytes(PyObject* self, void*) {
  Log* log = as_log(self);
  return PyLong_FromSsize_t(log->ints.n_bytes() + log->floats.n_bytes() + log->form_of.n_bytes() +
                            log->node_of.n_bytes() + log->alive.n_bytes() + log->survivors.n_bytes());
}

PyObject* get_draw(PyObject* self, void*) { return Py_NewRef(as_log(self)->draw ? as_log(self)->draw : Py_None); }

int set_draw(PyObject* self, PyObject* value, void*) {
  Py_XSETREF(as_log(self)->draw, value == Py_None ? nullptr : Py_XNewRef(value));
  return 0;
}

PyObject* get_begun(PyObject* self, void*) {
  Log* log = as_log(self);
  return Py_BuildValue("LL", (long long)log->begun_ints, (long long)log->begun_floats);
}

PyObject* get_n_instances(PyObject* self, void*) { return PyLong_FromLongLong(as_log(self)->n_instances); }

PyObject* get_sources(PyObject* self, void*) { return Py_NewRef(as_log(self)->sources); }

PyObject* get_functions(PyObject* self, void*) { return Py_NewRef(as_log(self)->functions); }

PyObject* get_source(PyObject* self, void*) { return Py_NewRef(as_log(self)->source ? as_log(self)->source : Py_None); }

PyObject* get_treatment_of(PyObject* self, void*) {
  PyObject* found = as_log(self)->treatment_of;
  return Py_NewRef(found ? found : Py_None);
}

int set_treatment_of(PyObject* self, PyObject* value, void*) {
  if (!value || !PyCallable_Check(value))
    return PyErr_SetString(PyExc_TypeError, "treatment_of must be a function"), -1;
  Py_XSETREF(as_log(self)->treatment_of, Py_NewRef(value));
  return 0;
}

int set_source(PyObject* self, PyObject* value, void*) {
  if (!value || Py_TYPE(value) != &FunctionType)
    return PyErr_SetString(PyExc_TypeError, "source must be a function"), -1;
  Py_XSETREF(as_log(self)->source, Py_NewRef(value));
  return 0;
}

PyMemberDef members[] = {
    {"is_watched", T_BOOL, offsetof(Log, is_watched), 0, "Whether Python counts the recorded calls."},
    {"is_wrapped", T_BOOL, offsetof(Log, is_wrapped), 0, "Whether Python changes the results of functions."},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef attributes[] = {
    {"n_bytes", get_n_bytes, nullptr, "The memory kept for calls.", nullptr},
    {"begun", get_begun, nullptr, "The numbers of ints and floats logged when the instance began.", nullptr},
    {"n_instances", get_n_instances, nullptr, "Number of instances begun.", nullptr},
    {"sources", get_sources, nullptr, "The values that represent arrays and parameters in this instance.", nullptr},
    {"functions", get_functions, nullptr, "The functions that record functions made of ops.", nullptr},
    {"treatment_of", get_treatment_of, set_treatment_of,
     "A function that returns how wrapping treats the class of an object.", nullptr},
    {"source", get_source, set_source, "The function that records an array.", nullptr},
    {"n_calls", get_n_calls, nullptr, "Number of calls in this session.", nullptr},
    {"n_floats", get_n_floats, nullptr, "Number of float attributes logged.", nullptr},
    {"draw", get_draw, set_draw, "A function that returns the number of the next draw.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {{"begin", begin, METH_O, nullptr},
                         {"clear", clear, METH_NOARGS, nullptr},
                         fast("run", run),
                         fast("advance", advance_programs),
                         fast("answer", answer_programs),
                         fast("read_request", read_request),
                         fast("ints", ints_of),
                         fast("floats", floats_of),
                         {"add_form", add_form, METH_O, nullptr},
                         fast("add", add),
                         fast("add_cell", add_cell),
                         {"forget_cells", forget_cells, METH_NOARGS, nullptr},
                         {"form_of", form_of, METH_O, nullptr},
                         fast("value", value),
                         fast("rows", rows),
                         fast("stack", stack),
                         fast("unstack", unstack),
                         {"sweep", sweep, METH_NOARGS, nullptr},
                         {"uses_form", uses_form, METH_O, nullptr},
                         {"renumber", renumber, METH_O, nullptr},
                         fast("decode", decode),
                         {nullptr, nullptr, 0, nullptr}};

PySequenceMethods as_sequence = [] {
  PySequenceMethods found = {};
  found.sq_length = length;
  return found;
}();

PyTypeObject log_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Log";
  type.tp_basicsize = sizeof(Log);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "The calls of a recording, as ints and floats.";
  type.tp_traverse = traverse_log;
  type.tp_clear = clear_log;
  type.tp_dealloc = free_log;
  type.tp_as_sequence = &as_sequence;
  type.tp_getset = attributes;
  type.tp_members = members;
  type.tp_methods = methods;
  type.tp_new = make_log;
  return type;
}

}  // namespace

PyTypeObject LogType = log_type();

Log* log_in(uint16_t slot) { return slots[slot]; }

bool refuse_if_busy(Log* log) {
  if (!log->busy.is_set()) return false;
  PyErr_SetString(PyExc_RuntimeError, "a log must not be used while it is decoded, or while a call is written to it");
  return true;
}

void Log::forget_first() {
  // Survivors are in ascending order. A survivor without handles must be kept until the next sweep has reported it.
  int64_t end = survivors.size() ? survivors[0] : swept, n = 0;
  if (end > n_forgotten + node_of.size()) end = n_forgotten + node_of.size();
  while (n_forgotten + n < end && node_of[n] < 0 && alive[n] <= 0) n++;
  form_of.drop_first(n);
  node_of.drop_first(n);
  alive.drop_first(n);
  n_forgotten += n;
}

int64_t Log::add_call(int32_t form) {
  int64_t id = next_id();
  if (refuse_if_busy(this)) return -1;
  if (id >= INT32_MAX || !form_of.reserve(1) || (counts && !alive.reserve(1)) || !ints.reserve(1)) {
    if (id >= INT32_MAX)
      PyErr_SetString(PyExc_OverflowError, "a recording has more calls than int32 can number");
    else
      PyErr_NoMemory();
    return -1;
  }
  form_of.append(form);
  if (counts) alive.append(0);
  ints.append(id << ID_SHIFT);
  return id;
}

int64_t Log::add(int64_t form, Span<const int64_t> items, Span<const double> numbers) {
  if (form < 0 || form >= code_ptr.size() - 1 || !fits_code(this, (int32_t)form, items)) {
    PyErr_Format(PyExc_ValueError, "ints must be those that form %lld (of %zd forms) logs, got %zd ints",
                 (long long)form, code_ptr.size() ? code_ptr.size() - 1 : 0, items.size);
    return -1;
  }
  if (!ints.reserve(items.size + 1) || !floats.reserve(numbers.size)) return PyErr_NoMemory(), -1;
  int64_t id = add_call((int32_t)form);
  if (id < 0) return -1;
  for (int64_t item : items) ints.append(item);
  for (double number : numbers) floats.append(number);
  return id << ID_SHIFT;
}

void Log::count(int64_t ref, int by) {
  int64_t at = id_of(ref) - n_forgotten;
  if (at >= 0 && at < alive.size()) alive[at] += by;
}

}  // namespace autobatch
