#include "record/rule.h"

#include "graph/words.h"
#include "record/decode.h"

namespace autobatch {
namespace {

Rule* as_rule(PyObject* self) { return reinterpret_cast<Rule*>(self); }

// Reads the columns of items to log: the number of items and, for each, its index, the number of columns (-1 for all),
// and the columns.
bool read_columns(IntReader& given, const Vec<LogItem>& items, Vec<Columns*>& found) {
  for (int64_t n = given.next(0, items.size()), i = 0; i < n && !given.has_failed(); i++) {
    Columns* columns = make<Columns>();
    if (!columns || !found.push(columns)) return discard(columns), PyErr_NoMemory(), false;
    columns->item = given.next_int(0, items.size() - 1);
    int64_t n_columns = given.next(-1, INT32_MAX);
    columns->are_all = n_columns < 0;
    for (int64_t k = 0; k < n_columns && !given.has_failed(); k++)
      if (!columns->columns.push(given.next_int(0))) return PyErr_NoMemory(), false;
    if (!given.has_failed() && !columns->fits(items))
      return PyErr_SetString(PyExc_ValueError, "columns must be those of an item with rows"), false;
  }
  return !given.has_failed();
}

// Reads a count, then that many numbers.
bool read_numbers(IntReader& given, int64_t most, Vec<int32_t>& found) {
  for (int64_t n = given.next(0, INT32_MAX), i = 0; i < n && !given.has_failed(); i++)
    if (!found.push(given.next_int(0, most))) return PyErr_NoMemory(), false;
  return !given.has_failed();
}

bool read_results(IntReader& given, Rule* rule) {
  for (int64_t n = given.next(0, OUTPUT + 1), i = 0; i < n && !given.has_failed(); i++) {
    DerivedResult result;
    result.kind = (Derived)given.next_int(0, (int64_t)Derived::OF_OUTPUT);
    result.name = given.next(INT64_MIN, INT64_MAX);
    result.given = given.next_int(-1, rule->n_given - 1);
    result.output = (int32_t)i;
    result.group = given.next_int(-1);
    rule->is_recorded |= result.given < 0;
    if (!rule->results.push(result)) return PyErr_NoMemory(), false;
  }
  return !given.has_failed();
}

PyObject* make_rule(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"base", "form", "n_given", "code", "asks_each_time", "serves", "count_rows", nullptr};
  int form, n_given, asks_each_time;
  PyObject *base, *code, *serves, *count_rows;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iiOpOO:Rule", const_cast<char**>(names), &LayoutType, &base, &form,
                                   &n_given, &code, &asks_each_time, &serves, &count_rows))
    return nullptr;
  if (form < 0 || n_given < 0 || !PyCallable_Check(serves) || !PyCallable_Check(count_rows))
    return PyErr_Format(
               PyExc_ValueError,
               "form and n_given must be at least 0, and serves and count_rows callable, got form=%d and n_given=%d",
               form, n_given),
           nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  PyObject_GC_UnTrack(made.get());  // until all members are set
  Rule* rule = as_rule(made.get());
  const Layout* layout = reinterpret_cast<Layout*>(base);
  rule->base = layout->form;
  rule->form = form;
  rule->n_given = n_given;
  new (&rule->ints, At::PLACE) Vec<Columns*>();
  new (&rule->floats, At::PLACE) Vec<Columns*>();
  new (&rule->kept, At::PLACE) Vec<int32_t>();
  new (&rule->own, At::PLACE) Vec<int32_t>();
  new (&rule->results, At::PLACE) Vec<DerivedResult>();
  rule->asks_each_time = asks_each_time;
  rule->serves = Py_NewRef(serves);
  rule->count_rows = Py_NewRef(count_rows);
  IntReader given;
  if (!given.read(code, "code") || !read_columns(given, layout->ints, rule->ints) ||
      !read_columns(given, layout->floats, rule->floats) || !read_numbers(given, OUTPUT, rule->kept) ||
      !read_numbers(given, n_given - 1, rule->own) || !read_results(given, rule) || !given.is_done())
    return nullptr;
  PyObject_GC_Track(made.get());
  return made.release();
}

int traverse_rule(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_rule(self)->serves);
  Py_VISIT(as_rule(self)->count_rows);
  return 0;
}

void free_rule(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Rule* rule = as_rule(self);
  free_all(rule->ints);
  free_all(rule->floats);
  rule->kept.~Vec();
  rule->own.~Vec();
  rule->results.~Vec();
  Py_XDECREF(rule->serves);
  Py_XDECREF(rule->count_rows);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject rule_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Rule";
  type.tp_basicsize = sizeof(Rule);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "A rule to record the derivatives of the calls of one form.";
  type.tp_traverse = traverse_rule;
  type.tp_dealloc = free_rule;
  type.tp_new = make_rule;
  return type;
}

}  // namespace

PyTypeObject RuleType = rule_type();

bool Columns::fits(const Vec<LogItem>& items) const {
  if (item >= items.size()) return false;
  for (ptrdiff_t k = 0; k < columns.size(); k++)
    if (columns[k] >= items[item].size) return false;
  return are_all || items[item].kind == ROWS;
}

}  // namespace autobatch
