#include "record/walk.h"

#include "graph/words.h"
#include "record/derivatives.h"
#include "record/handles.h"
#include "record/rule.h"

namespace autobatch {
namespace {

enum class Kind : int { GRADIENT = 0, TANGENT = 1 };

// A derivative that a recorded call takes or returns.
struct Given {
  enum { SUM, VALUE, ROWS, PARAMETER } kind;
  int64_t at;       // the number of the sum, the ref, or where the refs of the rows begin in `pool_`
  int64_t n;        // rows
  PyObject* shape;  // of the terms of a sum, or of the rows
  PyObject* parameter;
};

// A call to differentiate, and the range of its leaves with derivatives, in `Walk::leaves_`.
struct Reading {
  ptrdiff_t call, first_leaf, n_leaves;
};

uint64_t n_walks = 0;

int64_t address(PyObject* object) { return (int64_t)(intptr_t)object; }

class Walk {
 public:
  Walk(const Tape& tape, Kind kind, PyObject* parameters, PyObject* along, Derivatives& found)
      : tape_(tape),
        log_(*tape.log),
        kind_(kind),
        parameters_(parameters),
        along_(along),
        found_(found),
        reader_(tape) {}

  // Requests the derivatives of everything that depends on a value.
  bool want(int64_t ref) { return add_call(id_of(ref)); }

  bool run() {
    walk_ = ++n_walks;
    rules_ = Ref(PyObject_GetAttrString(log_.owner, "rules"));
    if (!rules_) return false;
    if (!PyDict_Check(rules_.get())) return PyErr_SetString(PyExc_TypeError, "rules must be a dict"), false;
    if (!find_own()) return false;
    // Tangents are recorded in the same pass, in the order of the calls. Gradients are recorded in reverse order, after
    // the forward pass has found all calls that depend on a wanted value or a parameter.
    for (ptrdiff_t i = 0; i < tape_.calls.size(); i++) {
      ptrdiff_t n = readings_.size();
      if (!find_reading(i)) return false;
      if (kind_ == Kind::TANGENT && readings_.size() > n && !differentiate(readings_[n])) return false;
    }
    for (ptrdiff_t i = kind_ == Kind::GRADIENT ? readings_.size() : 0; i-- > 0;)
      if (!differentiate(readings_[i])) return false;
    return true;
  }

 private:
  bool add_call(int64_t number) {
    return numbers_.find(number) >= 0 || numbers_.insert(number, 0) || (PyErr_NoMemory(), false);
  }

  // Finds, for each layout, which parameters of the walk its calls read.
  bool find_own() {
    IntMap known;
    for (Py_ssize_t p = 0; p < PyTuple_GET_SIZE(parameters_); p++) {
      int64_t key = address(PyTuple_GET_ITEM(parameters_, p));
      if (known.find(key) < 0 && !known.insert(key, (int32_t)p)) return PyErr_NoMemory(), false;
    }
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(tape_.layouts); k++) {
      PyObject* read = reinterpret_cast<Layout*>(PyList_GET_ITEM(tape_.layouts, k))->parameters;
      if (!own_ptr_.push((int32_t)own_.size())) return PyErr_NoMemory(), false;
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(read); i++) {
        int32_t p = known.find(address(PyTuple_GET_ITEM(read, i)));
        if (p >= 0 && !own_.push(p)) return PyErr_NoMemory(), false;
      }
    }
    return own_ptr_.push((int32_t)own_.size()) || (PyErr_NoMemory(), false);
  }

  Span<const int32_t> own(const TapedCall& call) const {
    return Span<const int32_t>(own_).part(own_ptr_[call.layout], own_ptr_[call.layout + 1]);
  }

  // Returns whether one of the refs at first, first + step, ... is the result of a call with derivatives.
  bool depends(Span<const int64_t> refs, ptrdiff_t first, ptrdiff_t step) const {
    for (ptrdiff_t at = first; at < refs.size; at += step)
      if (numbers_.find(id_of(refs[at])) >= 0) return true;
    return false;
  }

  // Finds the leaves and parameters of a call that have derivatives; adds a reading if there are any.
  bool find_reading(ptrdiff_t k) {
    const TapedCall& call = tape_.calls[k];
    Reading reading = {k, leaves_.size(), 0};
    if (!reader_.read(call)) return false;
    const Layout& layout = reader_.layout();
    for (ptrdiff_t i = 0; i < layout.ints.size(); i++) {
      const LogItem& item = layout.ints[i];
      for (int32_t p = 0; p < item.n_parts; p++) {
        const LogPart& part = layout.parts[item.first_part + p];
        bool is_list = item.kind == EACH;  // for a list, the refs of part p come after the length, n_parts apart
        if (!part.n_variables || !depends(reader_.item((int32_t)i), is_list + p, is_list ? item.n_parts : 1)) continue;
        for (int32_t at = part.first_leaf; at < part.first_leaf + part.n_leaves; at++)
          if (layout.leaves[at].variable >= 0 && !leaves_.push(layout.leaves[at].leaf)) return PyErr_NoMemory(), false;
      }
    }
    reading.n_leaves = leaves_.size() - reading.first_leaf;
    if (!reading.n_leaves && !own(call).size) return true;
    return add_call(call.number) && (readings_.push(reading) || (PyErr_NoMemory(), false));
  }

  // Records the derivative of a call.
  bool differentiate(const Reading& reading) {
    const TapedCall& call = tape_.calls[reading.call];
    outputs_.resize(0), given_.resize(0), results_.resize(0), pool_.resize(0);
    if (!reader_.read(call)) return false;
    if (!(kind_ == Kind::GRADIENT ? find_gradients(call) : find_tangents(call, reading))) return false;
    if (kind_ == Kind::GRADIENT && !given_.size()) return true;
    Ref rule = find_rule(call, reading);
    if (!rule || !record(*reinterpret_cast<Rule*>(rule.get()), call)) return false;
    for (ptrdiff_t k = 0; k < results_.size(); k++)
      if (!note(reinterpret_cast<Rule*>(rule.get())->results[k], results_[k], call)) return false;
    return true;
  }

  // Appends the derivatives of the rows of a value, with zeros where there are none.
  bool add_rows(const Refs& rows, PyObject* shape) {
    Given given = {Given::ROWS, pool_.size(), rows.n, shape, nullptr};
    for (int64_t row = 0; row < rows.n; row++) {
      int64_t ref;
      if (!found_.total_or_zeros(rows[row], shape, ref)) return false;
      if (!pool_.push(ref)) return PyErr_NoMemory(), false;
    }
    return given_.push(given) || (PyErr_NoMemory(), false);
  }

  // Finds the refs of the rows of an output; returns false with an error.
  bool find_rows(const Variable& output, const TapedCall& call, Refs& rows) {
    rows = {(call.number << ID_SHIFT) + output.output, 1};
    if (output.group >= 0) rows.n = count_rows(reader_.layout().count_rows, output.group, reader_.lengths());
    return rows.n >= 0;
  }

  // Finds the gradients of the results of a call.
  bool find_gradients(const TapedCall& call) {
    const Layout& layout = reader_.layout();
    for (ptrdiff_t k = 0; k < layout.outputs.size(); k++) {
      const Variable& output = layout.outputs[k];
      Refs rows;
      if (!find_rows(output, call, rows)) return false;
      int32_t sum = -1;
      for (int64_t row = 0; sum < 0 && row < rows.n; row++) sum = found_.of_value.find(rows[row]);
      if (sum < 0) continue;
      if (!outputs_.push(output.name)) return PyErr_NoMemory(), false;
      if (output.group >= 0 && !add_rows(rows, layout.shape(output))) return false;
      if (output.group < 0 && !given_.push({Given::SUM, sum, 0, layout.shape(output), nullptr}))
        return PyErr_NoMemory(), false;
    }
    return true;
  }

  // Finds the tangents of the parameters and leaves of a call.
  bool find_tangents(const TapedCall& call, const Reading& reading) {
    const Layout& layout = reader_.layout();
    for (ptrdiff_t k = 0; k < layout.outputs.size(); k++)
      if (!outputs_.push(layout.outputs[k].name)) return PyErr_NoMemory(), false;
    for (int32_t p : own(call)) {
      PyObject* tangent = PyTuple_GET_ITEM(along_, p);
      Given given = {Given::PARAMETER, 0, 0, nullptr, tangent};
      if (PyObject_TypeCheck(tangent, &HandleType))
        given = {Given::VALUE, ref_in(&log_, reinterpret_cast<Handle*>(tangent)), 0, nullptr, nullptr};
      if (!given_.push(given)) return PyErr_NoMemory(), false;
    }
    for (ptrdiff_t k = reading.first_leaf; k < reading.first_leaf + reading.n_leaves; k++) {
      const Leaf& leaf = *layout.find(leaves_[k]);
      const Variable& argument = layout.arguments[leaf.variable];
      if (!add_rows(reader_.refs_of(leaf), layout.shape(argument))) return false;
      if (argument.group >= 0) continue;
      Given& given = given_.back();  // a plain argument is the sum of the values that it reads
      given.kind = Given::VALUE;
      Span<const int64_t> terms = Span<const int64_t>(pool_).part(given.at, pool_.size());
      if (!found_.add_up(terms, given.shape, given.at)) return false;
    }
    return true;
  }

  // Makes the key of a rule: everything that it depends on, except the lengths of lists. Lists of numbers follow their
  // sizes, so that different inputs never make the same key.
  Ref make_key(const TapedCall& call, const Reading& reading) {
    Vec<int64_t>& key = key_;
    Span<const int32_t> parameters = own(call);
    key.resize(0);
    if (!key.reserve(4 + outputs_.size() + reading.n_leaves + 2 * parameters.size)) return Ref(PyErr_NoMemory());
    key.append(reader_.layout().form);
    key.append((int64_t)kind_);
    key.append(outputs_.size());
    for (ptrdiff_t k = 0; k < outputs_.size(); k++) key.append(outputs_[k]);
    key.append(reading.n_leaves);
    for (ptrdiff_t k = 0; k < reading.n_leaves; k++) key.append(leaves_[reading.first_leaf + k]);
    for (int32_t p : parameters) {
      key.append(address(PyTuple_GET_ITEM(parameters_, p)));
      if (kind_ == Kind::TANGENT) {
        PyObject* tangent = PyTuple_GET_ITEM(along_, p);
        key.append(PyObject_TypeCheck(tangent, &HandleType) ? 0 : address(tangent));
      }
    }
    return Ref(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(key.data()), key.size() * (ptrdiff_t)sizeof(int64_t)));
  }

  // Returns whether an object is a rule for calls like the current one.
  bool is_rule(PyObject* object) const {
    if (Py_TYPE(object) != &RuleType) return false;
    const Rule* rule = reinterpret_cast<Rule*>(object);
    return rule->base == reader_.layout().form && rule->n_given == given_.size();
  }

  // Finds the rule for a call, or asks Python for one; empty with an error. A known rule is asked whether it still
  // serves, once in each walk, or for each call if the answer depends on lengths of lists.
  Ref find_rule(const TapedCall& call, const Reading& reading) {
    Ref key = make_key(call, reading);
    if (!key) return Ref();
    Ref known = Ref::borrowed(PyDict_GetItemWithError(rules_.get(), key.get()));
    if (!known && PyErr_Occurred()) return Ref();
    if (known && is_rule(known.get())) {
      Rule* rule = reinterpret_cast<Rule*>(known.get());
      if (rule->served == walk_ && !rule->asks_each_time) return known;
      Ref lengths = to_list(reader_.lengths());
      Ref serves(lengths ? PyObject_CallOneArg(rule->serves, lengths.get()) : nullptr);
      int is_right = serves ? PyObject_IsTrue(serves.get()) : -1;
      if (is_right < 0) return Ref();
      rule->served = walk_;
      if (is_right) return known;
    }
    Ref made = make_rule(call, reading);
    if (made && PyDict_SetItem(rules_.get(), key.get(), made.get()) < 0) return Ref();
    return made;
  }

  Ref make_rule(const TapedCall& call, const Reading& reading) {
    PyObject* layout = PyList_GET_ITEM(tape_.layouts, call.layout);
    Span<const int32_t> parameters = own(call);
    Ref outputs = to_list(outputs_), lengths = to_list(reader_.lengths()), given(PyList_New(0)), own(PyList_New(0)),
        leaves = to_list(Span<const int64_t>(leaves_).part(reading.first_leaf, reading.first_leaf + reading.n_leaves));
    if (!outputs || !lengths || !given || !own || !leaves) return Ref();
    for (int32_t p : parameters)
      if (PyList_Append(own.get(), PyTuple_GET_ITEM(parameters_, p)) < 0) return Ref();
    for (ptrdiff_t k = 0; k < given_.size(); k++) {
      const Given& x = given_[k];
      long long n_rows = x.kind == Given::ROWS ? x.n : -1;
      Ref described(x.kind == Given::PARAMETER ? Py_NewRef(x.parameter)
                                               : Py_BuildValue("(OL)", x.shape ? x.shape : Py_None, n_rows));
      if (!described || PyList_Append(given.get(), described.get()) < 0) return Ref();
    }
    Ref made(PyObject_CallMethod(log_.owner, "make_rule", "OiOOOOO", layout, (int)kind_, outputs.get(), leaves.get(),
                                 own.get(), given.get(), lengths.get()));
    if (!made) return Ref();
    if (!is_rule(made.get()))
      return PyErr_SetString(PyExc_TypeError, "make_rule must return a rule for the call"), Ref();
    // Cells may have been traced again, so the walk gets a new number, and all other rules are asked once more.
    reinterpret_cast<Rule*>(made.get())->served = walk_ = ++n_walks;
    return made;
  }

  // Appends columns of an item that the original call logged.
  bool add_item(const Columns& columns) {
    if (!columns.fits(reader_.layout().ints)) return refuse();
    Span<const int64_t> item = reader_.item(columns.item);
    int64_t n_columns = reader_.layout().ints[columns.item].size;
    if (!ints_.reserve(item.size)) return PyErr_NoMemory(), false;
    if (columns.are_all) {
      for (int64_t x : item) ints_.append(x);
      return true;
    }
    ints_.append(item[0]);
    for (int64_t row = 0; row < item[0]; row++)
      for (ptrdiff_t k = 0; k < columns.columns.size(); k++)
        if (!ints_.push(item[1 + row * n_columns + columns.columns[k]])) return PyErr_NoMemory(), false;
    return true;
  }

  // Appends the floats of the original call that the rule needs; `rule.floats` is in the order of the items.
  bool add_floats(const Rule& rule) {
    const Layout& layout = reader_.layout();
    const double* floats = reader_.floats();
    ptrdiff_t next = 0;
    for (ptrdiff_t i = 0; i < layout.floats.size() && next < rule.floats.size(); i++) {
      int64_t n = reader_.n_floats_of(layout.floats[i]), n_columns = layout.floats[i].size;
      if (rule.floats[next]->item == i) {
        const Columns& columns = *rule.floats[next++];
        if (!columns.fits(layout.floats)) return refuse();
        int64_t n_rows = columns.are_all || !n_columns ? 0 : n / n_columns;
        for (int64_t k = 0; columns.are_all && k < n; k++)
          if (!floats_.push(floats[k])) return PyErr_NoMemory(), false;
        for (int64_t row = 0; row < n_rows; row++)
          for (ptrdiff_t k = 0; k < columns.columns.size(); k++)
            if (!floats_.push(floats[row * n_columns + columns.columns[k]])) return PyErr_NoMemory(), false;
      }
      floats += n;
    }
    return true;
  }

  // Appends a given derivative, as a list of values.
  bool add_given(const Given& given) {
    if (given.kind == Given::PARAMETER) return PyErr_SetString(PyExc_ValueError, "a parameter is not logged"), false;
    if (given.kind == Given::SUM && !found_.make_gatherable((int32_t)given.at, given.shape)) return false;
    int64_t n = given.kind == Given::VALUE ? 1 : given.kind == Given::ROWS ? given.n : found_.sums[given.at].n;
    if (!ints_.reserve(1 + n)) return PyErr_NoMemory(), false;
    ints_.append(n);
    if (given.kind == Given::VALUE) ints_.append(given.at);
    for (int64_t k = 0; given.kind == Given::ROWS && k < n; k++) ints_.append(pool_[given.at + k]);
    for (int32_t at = given.kind == Given::SUM ? found_.sums[given.at].first : -1; at >= 0; at = found_.terms[at].next)
      ints_.append(found_.terms[at].ref);
    return true;
  }

  // Records the derivative of a call by a rule, and finds its results.
  bool record(const Rule& rule, const TapedCall& call) {
    for (ptrdiff_t k = 0; k < rule.results.size(); k++) {
      Given result =
          rule.results[k].given < 0 ? Given{Given::VALUE, 0, 0, nullptr, nullptr} : given_[rule.results[k].given];
      if (result.kind == Given::SUM) {
        if (!found_.make_one((int32_t)result.at, result.shape, result.at)) return false;
        result.kind = Given::VALUE;
      }
      if (!results_.push(result)) return PyErr_NoMemory(), false;
    }
    if (!rule.is_recorded) return true;
    ints_.resize(0), floats_.resize(0);
    for (ptrdiff_t k = 0; k < rule.ints.size(); k++)
      if (!add_item(*rule.ints[k])) return false;
    for (ptrdiff_t k = 0; k < rule.kept.size(); k++)
      if (!ints_.push((call.number << ID_SHIFT) + rule.kept[k])) return PyErr_NoMemory(), false;
    for (ptrdiff_t k = 0; k < rule.own.size(); k++)
      if (!add_given(given_[rule.own[k]])) return false;
    if (!add_floats(rule)) return false;
    int64_t first = log_.add(rule.form, ints_, floats_);
    if (first < 0) return false;
    Vec<int64_t> lengths;
    for (ptrdiff_t k = 0; k < rule.results.size(); k++) {
      const DerivedResult& result = rule.results[k];
      if (result.given >= 0) continue;
      results_[k].at = first + result.output;
      if (result.group < 0) continue;
      if (!lengths.size() && !find_lengths(lengths)) return false;
      if (!list_rows(first + result.output, count_rows(rule.count_rows, result.group, lengths), results_[k]))
        return false;
    }
    return true;
  }

  // Finds the lengths of the call's lists and of the given rows.
  bool find_lengths(Vec<int64_t>& lengths) {
    if (!lengths.copy(reader_.lengths())) return PyErr_NoMemory(), false;
    for (ptrdiff_t k = 0; k < given_.size(); k++)
      if (given_[k].kind == Given::ROWS && !lengths.push(given_[k].n)) return PyErr_NoMemory(), false;
    return true;
  }

  bool list_rows(int64_t ref, int64_t n, Given& result) {
    result = {Given::ROWS, pool_.size(), n, nullptr, nullptr};
    if (n < 0) return false;
    if (!pool_.reserve(n)) return PyErr_NoMemory(), false;
    for (int64_t row = 0; row < n; row++) pool_.append(ref + (row << ROW_SHIFT));
    return true;
  }

  // Stores a result: the gradient of an argument, or the tangent of an output. A single value applies to all rows.
  bool note(const DerivedResult& of, const Given& result, const TapedCall& call) {
    const Layout& layout = reader_.layout();
    bool is_value = result.kind == Given::VALUE;
    if (of.kind == Derived::OF_PARAMETER) {
      Span<const int32_t> parameters = own(call);
      if (!is_value || of.name < 0 || of.name >= parameters.size) return refuse();
      return found_.add(found_.of_parameter, address(PyTuple_GET_ITEM(parameters_, parameters[of.name])), result.at);
    }
    Refs refs = {0, 0};
    const Leaf* leaf = of.kind == Derived::OF_LEAF ? layout.find(of.name) : nullptr;
    const Variable* output = of.kind == Derived::OF_OUTPUT ? layout.find_output(of.name) : nullptr;
    if (leaf && layout.is_value(*leaf))
      refs = reader_.refs_of(*leaf);
    else if (!output)
      return refuse();
    else if (!find_rows(*output, call, refs))
      return false;
    if (!is_value && (result.kind != Given::ROWS || result.n != refs.n)) return refuse();
    for (int64_t row = 0; row < refs.n; row++) {
      int64_t term = is_value ? result.at : pool_[result.at + row];
      if (!(leaf ? found_.add(found_.of_value, refs[row], term) : found_.set(refs[row], term))) return false;
    }
    return true;
  }

  static bool refuse() {
    PyErr_SetString(PyExc_ValueError, "the results of a rule must be those of the call");
    return false;
  }

  const Tape& tape_;
  Log& log_;
  Kind kind_;
  PyObject *parameters_, *along_;  // tuples
  Derivatives& found_;
  CallReader reader_;  // at the current call
  uint64_t walk_ = 0;
  Ref rules_;                   // a dict of the known rules
  IntMap numbers_;              // the calls whose results have derivatives
  Vec<int32_t> own_, own_ptr_;  // by layout: the parameters that its calls read
  Vec<int64_t> leaves_;         // the leaves of all readings
  Vec<Reading> readings_;
  Vec<int64_t> outputs_;        // names of the current call's outputs that have gradients, or of all outputs
  Vec<Given> given_, results_;  // derivatives that the recorded call takes, and its results
  Vec<int64_t> pool_;           // refs of the rows of these derivatives
  Vec<int64_t> key_, ints_;
  Vec<double> floats_;
};

PyObject* give(bool is_recorded, Ref& found) { return is_recorded ? found.release() : nullptr; }

}  // namespace

PyObject* record_gradients(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms,
                           Span<const int64_t> wanted, PyObject* parameters) {
  Derivatives* derivatives = make_derivatives(tape.log, parameters);
  Ref found(reinterpret_cast<PyObject*>(derivatives));
  if (!found) return nullptr;
  Walk walk(tape, Kind::GRADIENT, parameters, parameters, *derivatives);
  for (int64_t ref : wanted)
    if (!walk.want(ref)) return nullptr;
  for (ptrdiff_t k = 0; k < values.size; k++)
    if (!derivatives->add(derivatives->of_value, values[k], terms[k])) return nullptr;
  return give(walk.run(), found);
}

PyObject* record_tangents(const Tape& tape, Span<const int64_t> values, Span<const int64_t> terms, PyObject* parameters,
                          PyObject* along) {
  Derivatives* derivatives = make_derivatives(tape.log, parameters);
  Ref found(reinterpret_cast<PyObject*>(derivatives));
  if (!found) return nullptr;
  Walk walk(tape, Kind::TANGENT, parameters, along, *derivatives);
  for (ptrdiff_t k = 0; k < values.size; k++)
    if (!derivatives->set(values[k], terms[k]) || !walk.want(values[k])) return nullptr;
  return give(walk.run(), found);
}

}  // namespace autobatch
