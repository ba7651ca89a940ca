#include "record/fold.h"

#include "record/forms.h"
#include "record/stage.h"
#include "support/arrays.h"

namespace autobatch {

// The source of one number that a call logs.
struct Source {
  enum What : uint8_t { REF, INT, FLOAT, CONSTANT, REAL, DRAW } what;
  int32_t at = 0;      // the input, or the field
  int64_t number = 0;  // the output of an input, or a constant
  double real = 0;
};

// The numbers that calls of a function log if their arguments have these kinds.
struct CallTemplate {
  Form* form = nullptr;  // borrowed from the function; null if such calls must go through the function
  int32_t result = -1;   // the kind of the result, in `Log::result_kinds`
  uint64_t fields = 0;   // two bits for each field: its `Field`
  bool is_list = false;  // whether the first argument is the list of inputs; else each input is an argument
  bool draws = false;
  Vec<int32_t> inputs;  // the kind of each input, in `Log::result_kinds`; NOTHING for None
  Vec<Source> ints, floats;
};

namespace {

constexpr int32_t NOTHING = -2;
constexpr int MOST_FIELDS = 32, MOST_TEMPLATES = 256;

// The result of a function for a node: the result of a call of a cell if its kind is known, or any object.
struct State {
  int32_t kind = -1;           // in `Log::result_kinds`; -1 for an object
  int64_t ref = 0;             // of the first output
  PyObject* object = nullptr;  // owned
};

// The symbolic content of a form's register.
struct Symbol {
  enum What : uint8_t { UNKNOWN, LIST, PART, FIELD, OBJECT } what = UNKNOWN;
  int32_t at = 0;              // the input that contains it, or the field
  PyObject* object = nullptr;  // borrowed: the structure of a part, or an object that is the same in all calls
};

// Finds the kind of a form's results; -1 unless they are values or nested tuples of values, none of which has rows.
// Also returns -1 with an error.
int32_t find_kind(Log* log, Form* form) {
  if (form->result_kind != Form::NOT_ASKED) return form->result_kind;
  bool is_plain = PyTuple_CheckExact(form->structure) || PyLong_Check(form->structure);
  for (ptrdiff_t k = 0; is_plain && k < form->outputs.size(); k++) is_plain = form->outputs[k].group < 0;
  if (!is_plain) return form->result_kind = -1;
  for (ptrdiff_t i = 0; i < log->result_kinds.size(); i++) {
    const ResultKind& known = *log->result_kinds[i];
    int is_same = PyObject_RichCompareBool(known.classes.get(), form->kinds, Py_EQ);
    if (is_same > 0) is_same = PyObject_RichCompareBool(known.structure.get(), form->structure, Py_EQ);
    if (is_same < 0) return -1;
    if (is_same) return form->result_kind = (int32_t)i;
  }
  ResultKind* kind = make<ResultKind>();
  if (!kind || !log->result_kinds.push(kind)) return discard(kind), PyErr_NoMemory(), -1;
  kind->classes = Ref::borrowed(form->kinds);
  kind->structure = Ref::borrowed(form->structure);
  return form->result_kind = (int32_t)log->result_kinds.size() - 1;
}

PyTypeObject* class_of(const ResultKind& kind, long output) {
  return reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(PyTuple_GET_ITEM(kind.classes.get(), output), 0));
}

// Makes the handles of a structure of outputs.
PyObject* make_handles(Log* log, const ResultKind& kind, PyObject* structure, int64_t first) {
  if (!PyTuple_CheckExact(structure)) {
    long output = PyLong_AsLong(structure);
    return make_handle(log, class_of(kind, output), first + output);
  }
  Ref made(PyTuple_New(PyTuple_GET_SIZE(structure)));
  for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(structure); i++) {
    PyObject* part = make_handles(log, kind, PyTuple_GET_ITEM(structure, i), first);
    if (!part) return nullptr;
    PyTuple_SET_ITEM(made.get(), i, part);
  }
  return made.release();
}

// Returns whether an object is the complete result of a call, whose first output has the ref `first`.
bool is_result(Log* log, const ResultKind& kind, PyObject* structure, int64_t first, PyObject* object) {
  if (!PyTuple_CheckExact(structure)) {
    long output = PyLong_AsLong(structure);
    Handle* handle = reinterpret_cast<Handle*>(object);
    return Py_TYPE(object) == class_of(kind, output) && handle->session == log->session && handle->slot == log->slot &&
           handle->ref == first + output && !handle->is_row;
  }
  bool is_same = PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == PyTuple_GET_SIZE(structure);
  for (Py_ssize_t i = 0; is_same && i < PyTuple_GET_SIZE(structure); i++)
    is_same = is_result(log, kind, PyTuple_GET_ITEM(structure, i), first, PyTuple_GET_ITEM(object, i));
  return is_same;
}

// A function that is called for nodes: the first arguments are states, the others fields of the node.
class Callee {
 public:
  PyObject* callable = nullptr;  // borrowed
  Vec<const Column*> columns;
  Vec<uint8_t> is_required;
  Ref function;  // the function that records the cell in the open log; empty if templates must not be used
  PyObject *cell = nullptr, *owner = nullptr;  // borrowed from `callable`; null if it is not a cell

  Callee() = default;
  Callee(const Callee&) = delete;
  Callee& operator=(const Callee&) = delete;
  ~Callee() {
    for (ptrdiff_t i = 0; i < names_.size(); i++) Py_DECREF(names_[i].names);
  }

  // Reads (function, columns, whether each is required).
  bool read(PyObject* given, const Forest* forest) {
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 3)
      return refuse_type("a callee", "a tuple of 3", given);
    callable = PyTuple_GET_ITEM(given, 0);
    PyObject *of = PyTuple_GET_ITEM(given, 1), *required = PyTuple_GET_ITEM(given, 2);
    if (!PyCallable_Check(callable)) return refuse_type("a callee", "callable", callable);
    if (!PyTuple_CheckExact(of) || !PyTuple_CheckExact(required) || PyTuple_GET_SIZE(of) != PyTuple_GET_SIZE(required))
      return refuse_type("columns", "as many as the flags", of);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(of); k++) {
      int32_t column;
      if (!read_int(PyTuple_GET_ITEM(of, k), "a column", column)) return false;
      if (column < 0 || column >= forest->columns.size()) return refuse_value("a column must be of the forest"), false;
      int flag = PyObject_IsTrue(PyTuple_GET_ITEM(required, k));
      if (flag < 0) return false;
      if (!columns.push(forest->columns[column]) || !is_required.push((uint8_t)flag)) return PyErr_NoMemory(), false;
    }
    bool is_bound = Py_TYPE(callable) == &BoundCellType;
    if (is_bound || PyObject_TypeCheck(callable, &CellType)) {
      cell = is_bound ? reinterpret_cast<BoundCell*>(callable)->cell : callable;
      owner = is_bound ? reinterpret_cast<BoundCell*>(callable)->owner : nullptr;
    }
    return true;
  }

  // Returns a borrowed tuple of the names of the fields that a node has; null with an error.
  PyObject* names_of(uint64_t present) {
    for (ptrdiff_t i = 0; i < names_.size(); i++)
      if (names_[i].present == present) return names_[i].names;
    Ref found(PyList_New(0));
    for (ptrdiff_t k = 0; found && k < columns.size(); k++)
      if (is_present(present, k) && PyList_Append(found.get(), columns[k]->name.get()) < 0) return nullptr;
    PyObject* names = found ? PyList_AsTuple(found.get()) : nullptr;
    if (names && !names_.push({present, names})) return Py_DECREF(names), PyErr_NoMemory();
    return names;
  }

  static bool is_present(uint64_t fields, ptrdiff_t k) { return fields >> (2 * k) & 3; }

 private:
  struct Names {
    uint64_t present;
    PyObject* names;
  };
  Vec<Names> names_;
};

// Derives a template from the form of a call.
class Derivation {
 public:
  Derivation(const Log* log, const Function* function, const Form* form, const Callee& callee, CallTemplate* made)
      : log_(log), function_(function), form_(form), callee_(callee), made_(made) {}

  // Returns false without an error if the form tests or logs something that a template cannot express.
  bool run() {
    if (form_->n_arguments != PyTuple_GET_SIZE(function_->names) || !set_arguments()) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(function_->forms); i++)
      if (tests_numbers(*reinterpret_cast<Form*>(PyTuple_GET_ITEM(function_->forms, i))->program)) return false;
    if (!follow(*form_->program, symbols_)) return false;
    for (ptrdiff_t i = 0; i < form_->ints.size(); i++)
      if (!add(*form_->ints[i], made_->ints)) return false;
    for (ptrdiff_t i = 0; i < form_->floats.size(); i++)
      if (!add(*form_->floats[i], made_->floats)) return false;
    return true;
  }

 private:
  Field field(ptrdiff_t k) const { return (Field)(made_->fields >> (2 * k) & 3); }

  // Sets the symbols of the arguments: inputs, fields of the node, or defaults.
  bool set_arguments() {
    Py_ssize_t n = PyTuple_GET_SIZE(function_->names), n_defaults = PyTuple_GET_SIZE(function_->defaults);
    Py_ssize_t n_first = made_->is_list ? 1 : made_->inputs.size();
    if (n != n_first + callee_.columns.size() || !symbols_.assign(form_->program->n_registers, Symbol())) return false;
    for (Py_ssize_t p = 0; p < n_first; p++) {
      if (made_->is_list)
        symbols_[p] = {Symbol::LIST};
      else if (made_->inputs[p] == NOTHING)
        symbols_[p] = {Symbol::OBJECT, 0, Py_None};
      else
        symbols_[p] = {Symbol::PART, (int32_t)p, structure_of((int32_t)p)};
    }
    for (Py_ssize_t p = n_first; p < n; p++) {
      if (PyTuple_GET_ITEM(function_->names, p) != callee_.columns[p - n_first]->name.get()) return false;
      Py_ssize_t k = p - (n - n_defaults);
      if (field(p - n_first) != Field::ABSENT)
        symbols_[p] = {Symbol::FIELD, (int32_t)(p - n_first)};
      else if (k >= 0)
        symbols_[p] = {Symbol::OBJECT, 0, PyTuple_GET_ITEM(function_->defaults, k)};
      else
        return false;
    }
    return true;
  }

  PyObject* structure_of(int32_t input) const { return log_->result_kinds[made_->inputs[input]]->structure.get(); }

  // Returns whether a form tests the number in a field: calls whose arguments have equal kinds may then have different
  // forms.
  bool tests_numbers(const Program& program) const {
    for (ptrdiff_t i = 0; i < program.steps.size(); i++) {
      const Step& step = *program.steps[i];
      bool is_field = step.from < form_->n_arguments && symbols_[step.from].what == Symbol::FIELD;
      if (is_field && step.test != Test::CLASS) return true;
    }
    return false;
  }

  // Runs the steps of a matching program on symbols. Returns false if the outcome of a step may depend on more than the
  // kinds of the arguments.
  bool follow(const Program& program, Vec<Symbol>& symbols) const {
    for (ptrdiff_t i = 0; i < program.steps.size(); i++) {
      const Step& step = *program.steps[i];
      const Symbol from = symbols[step.from];
      switch (step.test) {
        case Test::CLASS:
        case Test::SIZE:
        case Test::EMPTY:
        case Test::EACH:
          break;
        case Test::ITEM:
          if (from.what == Symbol::LIST && step.n < made_->inputs.size() && made_->inputs[step.n] != NOTHING)
            symbols[step.to] = {Symbol::PART, (int32_t)step.n, structure_of((int32_t)step.n)};
          else if (from.what == Symbol::PART && PyTuple_CheckExact(from.object) &&
                   step.n < PyTuple_GET_SIZE(from.object))
            symbols[step.to] = {Symbol::PART, from.at, PyTuple_GET_ITEM(from.object, step.n)};
          else
            return false;
          break;
        case Test::IS:
        case Test::EQUAL:
        case Test::PLAIN:
        case Test::SAME:
          if (from.what != Symbol::OBJECT) return false;
          break;
        default:
          return false;
      }
    }
    return true;
  }

  bool add_ref(const Symbol& symbol, Vec<Source>& found) const {
    if (symbol.what != Symbol::PART || !PyLong_Check(symbol.object)) return false;
    return found.push({Source::REF, symbol.at, PyLong_AsLong(symbol.object)});
  }

  bool add(const Writer& writer, Vec<Source>& found) {
    const Symbol& from = symbols_[writer.from];
    switch (writer.what) {
      case Writing::REF:
        return add_ref(from, found);
      case Writing::COUNT: {
        const Group& group = *form_->groups[writer.registers[0]];
        bool is_list = group.from >= 0 && symbols_[group.from].what == Symbol::LIST;
        return is_list && found.push({Source::CONSTANT, 0, made_->inputs.size()});
      }
      case Writing::EACH:
        return from.what == Symbol::LIST && add_each(writer, found);
      case Writing::INT:
        if (from.what == Symbol::FIELD && field(from.at) == Field::INT) return found.push({Source::INT, from.at});
        if (from.what == Symbol::OBJECT && PyLong_CheckExact(from.object)) {
          int overflow;
          int64_t number = PyLong_AsLongLongAndOverflow(from.object, &overflow);
          return !overflow && found.push({Source::CONSTANT, 0, number});
        }
        return false;
      case Writing::FLOAT:
        if (from.what == Symbol::FIELD && field(from.at) == Field::FLOAT) return found.push({Source::FLOAT, from.at});
        return from.what == Symbol::OBJECT && PyFloat_CheckExact(from.object) &&
               found.push({Source::REAL, 0, 0, PyFloat_AS_DOUBLE(from.object)});
      case Writing::DRAW:
        made_->draws = true;
        return found.push({Source::DRAW});
      case Writing::COUNT_DRAW:
        return made_->draws = true;
      default:
        return false;
    }
  }

  // Adds the writer's registers of each element of the list of inputs.
  bool add_each(const Writer& writer, Vec<Source>& found) const {
    for (int32_t input = 0; input < made_->inputs.size(); input++) {
      Vec<Symbol> element;
      if (made_->inputs[input] == NOTHING) return false;
      if (!element.assign(writer.each->n_registers, Symbol())) return false;
      element[0] = {Symbol::PART, input, structure_of(input)};
      if (!follow(*writer.each, element)) return false;
      for (ptrdiff_t k = 0; k < writer.registers.size(); k++)
        if (!add_ref(element[writer.registers[k]], found)) return false;
    }
    return true;
  }

  const Log* log_;
  const Function* function_;
  const Form* form_;
  const Callee& callee_;
  CallTemplate* made_;
  Vec<Symbol> symbols_;
};

class Fold {
 public:
  explicit Fold(Forest* forest) : forest_(forest) {}
  Fold(const Fold&) = delete;
  Fold& operator=(const Fold&) = delete;
  ~Fold() {
    for (ptrdiff_t i = 0; i < states_.size(); i++) Py_XDECREF(states_[i].object);
  }

  // Folds the forest. `initial` is the state before the first node of a chain, or null. `node` takes a list of states,
  // or one argument for each if `is_spread`. `leaf`, unless it is None, is called for nodes without children.
  PyObject* run(PyObject* node, PyObject* leaf, PyObject* each, PyObject* where, PyObject* initial, bool is_spread) {
    int32_t column, before = forest_->n;
    bool has_list = each != Py_None, has_each = has_list && each != Py_True, has_leaf = leaf != Py_None;
    if (has_leaf && !leaf_.read(leaf, forest_)) return nullptr;
    if (!node_.read(node, forest_) || (has_each && !each_.read(each, forest_)) || !read_int(where, "where", column))
      return nullptr;
    if (column < -1 || column >= forest_->columns.size())
      return refuse_value("where must be a column of the forest, or -1");
    if (!has_list && !initial && forest_->roots.size() != 1) {
      set_data_error("a fold without each= must have one root, got %zd; pass each= for the results of nodes.",
                     forest_->roots.size());
      return nullptr;
    }
    if (Log* log = current_log()) {
      log_ = Ref::borrowed(reinterpret_cast<PyObject*>(log));
      session_ = log->session;
    }
    if (!states_.assign((ptrdiff_t)forest_->n + 1, State())) return PyErr_NoMemory();
    states_[before].object = Py_XNewRef(initial);  // the state before a chain comes after the states of all nodes
    find_functions();
    Vec<int32_t> place;
    Ref results = has_list ? select(column, place) : Ref();
    if (has_list && !results) return nullptr;
    for (int32_t i : Span<const int32_t>(forest_->order)) {
      Span<const int32_t> inputs = forest_->children(i);
      if (initial && !inputs.size) inputs = {&before, 1};
      bool is_leaf = has_leaf;
      for (int32_t input : inputs) is_leaf = is_leaf && input < 0;
      if (!(is_leaf ? call(leaf_, i, {}, false, states_[i]) : call(node_, i, inputs, !is_spread, states_[i])))
        return nullptr;
      if (!has_list || place[i] < 0) continue;
      State found;
      bool is_called = !has_each || call(each_, i, {&i, 1}, false, found);
      PyObject* result = is_called ? object_of(has_each ? found : states_[i]) : nullptr;
      Py_XDECREF(found.object);
      if (!result) return nullptr;
      PyList_SET_ITEM(results.get(), place[i], result);
    }
    if (has_list) return results.release();
    return object_of(states_[forest_->n ? forest_->roots[0] : before]);
  }

 private:
  // Makes the list of results, and finds the place of each node in it, -1 for none. It has all nodes, or the nodes
  // where a field is true.
  Ref select(int32_t column, Vec<int32_t>& place) const {
    int32_t n = 0;
    if (!place.resize(forest_->n)) return Ref(PyErr_NoMemory());
    for (int32_t i = 0; i < forest_->n; i++) {
      int is_chosen = column < 0 ? 1 : forest_->columns[column]->is_true(i);
      if (is_chosen < 0) return Ref();
      place[i] = is_chosen ? n++ : -1;
    }
    return Ref(PyList_New(n));
  }

  // Returns the current log of this thread if calls may be logged from templates; else null.
  Log* open_log() const {
    Log* log = current_log();
    bool is_same = log && reinterpret_cast<PyObject*>(log) == log_.get() && log->session == session_;
    return is_same && !log->is_watched && !log->is_wrapped ? log : nullptr;
  }

  // Finds the functions that record cells. Must be repeated after Python code has run, which may change them.
  void find_functions() {
    Log* log = open_log();
    find_function(node_, log);
    find_function(leaf_, log);
    find_function(each_, log);
  }

  void find_function(Callee& callee, Log* log) const {
    PyObject* found = log && callee.cell ? log->cells.find(callee.cell, callee.owner) : nullptr;
    Function* function = reinterpret_cast<Function*>(found);
    bool is_plain = found && Py_TYPE(found) == &FunctionType && function->takes == PLAIN && function->log == log;
    callee.function = Ref::borrowed(is_plain ? found : nullptr);
  }

  // Calls a function for a node, with the states of its inputs in a list, or as an argument each.
  bool call(Callee& callee, int32_t node, Span<const int32_t> inputs, bool is_list, State& result) {
    uint64_t fields = 0;
    bool has_objects = callee.columns.size() > MOST_FIELDS;
    for (ptrdiff_t k = 0; k < callee.columns.size(); k++) {
      uint64_t kind = callee.columns[k]->kinds[node];
      if (!kind && callee.is_required[k]) {
        Ref name(PyObject_GetAttrString(callee.cell ? callee.cell : callee.callable, "__name__"));
        PyErr_Clear();
        set_data_error("node %d must have a field %R, which %S() takes.", node, callee.columns[k]->name.get(),
                       name ? name.get() : callee.callable);
        return false;
      }
      has_objects |= kind == (uint64_t)Field::OBJECT;
      if (k < MOST_FIELDS) fields |= kind << (2 * k);
    }
    CallTemplate* known = has_objects ? nullptr : find(callee, fields, inputs, is_list);
    Log* log = reinterpret_cast<Log*>(log_.get());
    bool draws_in_python = known && known->draws && log->draw;  // Python code might change the templates
    if (known && known->form && !draws_in_python) return log_call(*known, log, callee, node, inputs, result);
    return call_function_of(callee, node, inputs, is_list, fields, known != nullptr, result);
  }

  CallTemplate* find(const Callee& callee, uint64_t fields, Span<const int32_t> inputs, bool is_list) const {
    if (!callee.function) return nullptr;
    Vec<CallTemplate*>& templates = reinterpret_cast<Function*>(callee.function.get())->templates;
    for (ptrdiff_t i = 0; i < templates.size(); i++) {
      CallTemplate* known = templates[i];
      bool is_like = known->fields == fields && known->is_list == is_list && known->inputs.size() == inputs.size;
      for (ptrdiff_t k = 0; is_like && k < inputs.size; k++) is_like = known->inputs[k] == kind_of(inputs[k]);
      if (!is_like) continue;
      if (i) templates[i] = templates[i - 1], templates[i - 1] = known;  // so that frequent ones come first
      return known;
    }
    return nullptr;
  }

  // Logs a call from a template. Nothing can fail after `add_call`: memory is reserved before, and `next_draw` only
  // counts, because draws in Python do not use templates.
  bool log_call(const CallTemplate& known, Log* log, const Callee& callee, int32_t node, Span<const int32_t> inputs,
                State& result) {
    if (refuse_if_busy(log)) return false;
    if (!log->ints.reserve(known.ints.size() + 1) || !log->floats.reserve(known.floats.size()))
      return PyErr_NoMemory(), false;
    int64_t id = log->add_call(known.form->number), draw = 0;
    if (id < 0 || (known.draws && !next_draw(log, draw))) return false;
    for (const Source& source : Span<const Source>(known.ints)) {
      int64_t number = source.number;
      if (source.what == Source::REF)
        number += states_[inputs[source.at]].ref;
      else if (source.what == Source::INT)
        number = callee.columns[source.at]->words[node];
      else if (source.what == Source::DRAW)
        number = draw;
      log->ints.append(number);
    }
    for (const Source& source : Span<const Source>(known.floats))
      log->floats.append(source.what == Source::REAL ? source.real : callee.columns[source.at]->float_at(node));
    result = {known.result, id << ID_SHIFT, nullptr};
    return true;
  }

  // Calls the function with Python objects, and learns a template from the call if possible.
  bool call_function_of(Callee& callee, int32_t node, Span<const int32_t> inputs, bool is_list, uint64_t fields,
                        bool is_known, State& result) {
    ptrdiff_t n = callee.columns.size();
    uint64_t present = 0;
    Vec<PyObject*> args;
    ptrdiff_t n_first = is_list ? 1 : inputs.size;
    if (!args.reserve(n_first + n)) return PyErr_NoMemory(), false;
    bool is_made = true;
    for (ptrdiff_t k = 0; is_made && k < n_first; k++) {
      PyObject* state = is_list ? list_of(inputs).release() : input_of(inputs[k]);
      is_made = state != nullptr;
      if (is_made) args.append(state);
    }
    for (ptrdiff_t k = 0; is_made && k < n; k++) {
      const Column& column = *callee.columns[k];
      PyObject* value = column.value(node);
      is_made = value || !PyErr_Occurred();
      if (value) args.append(value);
    }
    for (ptrdiff_t k = 0; k < n && k < MOST_FIELDS; k++)
      if (Callee::is_present(fields, k)) present |= uint64_t(1) << (2 * k);
    Ref names = is_made ? names_of(callee, node, present) : Ref();
    Log* log = open_log();
    int64_t id = log ? log->next_id() : 0;
    Ref made(names ? PyObject_Vectorcall(callee.callable, args.data(), (size_t)n_first, names.get()) : nullptr);
    for (ptrdiff_t i = 0; i < args.size(); i++) Py_DECREF(args[i]);
    if (!made) return false;
    find_functions();
    result = {-1, 0, nullptr};
    if (log && log == open_log() && log->next_id() == id + 1 &&
        !learn(callee, log, id, inputs, is_list, fields, is_known, made.get(), result))
      return false;
    if (result.kind < 0) result.object = made.release();
    return true;
  }

  Ref names_of(Callee& callee, int32_t node, uint64_t present) const {
    if (callee.columns.size() <= MOST_FIELDS) return Ref::borrowed(callee.names_of(present));
    Ref found(PyList_New(0));
    for (ptrdiff_t k = 0; found && k < callee.columns.size(); k++) {
      const Column& column = *callee.columns[k];
      if (column.kinds[node] && PyList_Append(found.get(), column.name.get()) < 0) return Ref();
    }
    return Ref(found ? PyList_AsTuple(found.get()) : nullptr);
  }

  // Sets `result` if an object is the complete result of the call `id`, the only one that the function has logged, and
  // makes a template of such calls if possible. Returns false with an error.
  bool learn(const Callee& callee, Log* log, int64_t id, Span<const int32_t> inputs, bool is_list, uint64_t fields,
             bool is_known, PyObject* made, State& result) {
    if (!callee.function) return true;
    Function* function = reinterpret_cast<Function*>(callee.function.get());
    Form* form = nullptr;
    for (Py_ssize_t i = 0; !form && i < PyTuple_GET_SIZE(function->forms); i++) {
      Form* one = reinterpret_cast<Form*>(PyTuple_GET_ITEM(function->forms, i));
      if (one->number == log->form_at(id)) form = one;
    }
    int32_t kind = form ? find_kind(log, form) : -1;
    if (PyErr_Occurred()) return false;
    if (kind < 0 ||
        !is_result(log, *log->result_kinds[kind], log->result_kinds[kind]->structure.get(), id << ID_SHIFT, made))
      return true;
    result = {kind, id << ID_SHIFT, nullptr};
    bool can_be_known = callee.columns.size() <= MOST_FIELDS && function->templates.size() < MOST_TEMPLATES;
    for (ptrdiff_t k = 0; can_be_known && k < callee.columns.size(); k++)
      can_be_known = (fields >> (2 * k) & 3) != (uint64_t)Field::OBJECT;
    for (ptrdiff_t k = 0; can_be_known && k < inputs.size; k++) can_be_known = kind_of(inputs[k]) != -1;
    if (is_known || !can_be_known || find(callee, fields, inputs, is_list)) return true;
    CallTemplate* found = make<CallTemplate>();
    if (!found || !function->templates.reserve(1) || !found->inputs.reserve(inputs.size))
      return discard(found), PyErr_NoMemory(), false;
    for (int32_t input : inputs) found->inputs.append(kind_of(input));
    found->result = kind, found->fields = fields, found->is_list = is_list;
    // A template without a form is kept as well, so that the derivation is not tried again.
    if (Derivation(log, function, form, callee, found).run()) found->form = form;
    function->templates.append(found);
    return true;
  }

  // Returns the kind of an input, which is a node, or -1 for None.
  int32_t kind_of(int32_t input) const { return input < 0 ? NOTHING : states_[input].kind; }

  PyObject* input_of(int32_t input) const { return input < 0 ? Py_NewRef(Py_None) : object_of(states_[input]); }

  // Returns the result for a node as an object; null with an error.
  PyObject* object_of(const State& state) const {
    if (state.kind < 0) return Py_XNewRef(state.object);
    Log* log = reinterpret_cast<Log*>(log_.get());
    const ResultKind& kind = *log->result_kinds[state.kind];
    if (log->session == session_) return make_handles(log, kind, kind.structure.get(), state.ref);
    return PyErr_SetString(PyExc_RuntimeError, "the recording ended while a fold called its functions"), nullptr;
  }

  Ref list_of(Span<const int32_t> nodes) const {
    Ref made(PyList_New(nodes.size));
    for (ptrdiff_t i = 0; made && i < nodes.size; i++) {
      PyObject* state = input_of(nodes[i]);
      if (!state) return Ref();
      PyList_SET_ITEM(made.get(), i, state);
    }
    return made;
  }

  Forest* forest_;
  Callee node_, leaf_, each_;
  Ref log_;  // the log of this thread when the fold began; empty outside recordings
  uint32_t session_ = 0;
  Vec<State> states_;
};

}  // namespace

PyObject* fold_forest(Forest* forest, PyObject* node, PyObject* leaf, PyObject* each, PyObject* where, bool is_spread) {
  return Fold(forest).run(node, leaf, each, where, nullptr, is_spread);
}

PyObject* scan_chain(Forest* forest, PyObject* step, PyObject* each, PyObject* where, PyObject* initial) {
  return Fold(forest).run(step, Py_None, each, where, initial, true);
}

void forget_templates(Function* function) {
  while (function->templates.size()) discard(function->templates.pop());
}

}  // namespace autobatch
