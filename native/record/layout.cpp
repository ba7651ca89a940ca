#include "record/layout.h"

#include "graph/words.h"
#include "record/decode.h"
#include "record/handles.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_LISTS = 1 << 20;

Layout* as_layout(PyObject* self) { return reinterpret_cast<Layout*>(self); }

bool add_leaf(Layout* layout, Leaf leaf) {
  int32_t place = (int32_t)layout->leaves.size();
  return layout->leaves.push(leaf) &&
         (layout->place_of.find(leaf.leaf) >= 0 || layout->place_of.insert(leaf.leaf, place));
}

// Reads items: kind, group and size; if they have parts, the number of parts and, for each part, its number of leaves
// and these leaves.
bool read_items(IntReader& given, Layout* layout, bool has_parts, Vec<LogItem>& items) {
  for (int64_t n = given.next(0, INT32_MAX), i = 0; i < n && !given.has_failed(); i++) {
    LogItem item;
    item.kind = given.next_int(VALUE, ROWS);
    item.group = given.next_int(item.kind == ROWS ? 0 : -1, layout->n_lists - 1);
    item.size = given.next_int(0);
    item.first_part = (int32_t)layout->parts.size();
    item.n_parts = !has_parts ? 0 : item.kind == VALUE ? given.next_int(1, 1) : given.next_int(0);
    for (int32_t part = 0; part < item.n_parts && !given.has_failed(); part++) {
      LogPart own = {(int32_t)layout->leaves.size(), given.next_int(0), 0};
      for (int32_t k = 0; k < own.n_leaves && !given.has_failed(); k++)
        if (!add_leaf(layout, {given.next(INT64_MIN, INT64_MAX), (int32_t)i, part, k, -1}))
          return PyErr_NoMemory(), false;
      if (!layout->parts.push(own)) return PyErr_NoMemory(), false;
    }
    if (!items.push(item)) return PyErr_NoMemory(), false;
  }
  return !given.has_failed();
}

// Reads variables: name, output (not for arguments), group, shape.
bool read_variables(IntReader& given, Layout* layout, bool are_outputs, Vec<Variable>& variables) {
  for (int64_t n = given.next(0, INT32_MAX), i = 0; i < n && !given.has_failed(); i++) {
    Variable variable;
    variable.name = given.next(INT64_MIN, INT64_MAX);
    variable.output = are_outputs ? given.next_int(0, OUTPUT) : -1;
    variable.group = given.next_int(-1);
    variable.shape = given.next_int(0, PyTuple_GET_SIZE(layout->shapes) - 1);
    if (!variables.push(variable)) return PyErr_NoMemory(), false;
  }
  return !given.has_failed();
}

// Marks the leaves that are arguments with derivatives.
void find_variables(Layout* layout) {
  for (ptrdiff_t i = 0; i < layout->arguments.size(); i++) {
    int32_t place = layout->place_of.find(layout->arguments[i].name);
    if (place < 0 || layout->leaves[place].variable >= 0 || !layout->is_value(layout->leaves[place])) continue;
    Leaf& leaf = layout->leaves[place];
    leaf.variable = (int32_t)i;
    layout->parts[layout->ints[leaf.item].first_part + leaf.part].n_variables++;
  }
}

PyObject* make_layout(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"form", "n_lists", "code", "shapes", "parameters", "count_rows", nullptr};
  int form, n_lists;
  PyObject *code, *shapes, *parameters, *count_rows;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiOO!O!O:Layout", const_cast<char**>(names), &form, &n_lists, &code,
                                   &PyTuple_Type, &shapes, &PyTuple_Type, &parameters, &count_rows))
    return nullptr;
  if (form < 0 || n_lists < 0 || n_lists > MOST_LISTS || !PyCallable_Check(count_rows))
    return PyErr_SetString(PyExc_ValueError, "a layout must have a form, lists and a function that counts rows"),
           nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  PyObject_GC_UnTrack(made.get());  // until all members are set
  Layout* layout = as_layout(made.get());
  layout->form = form;
  layout->n_lists = n_lists;
  new (&layout->ints, At::PLACE) Vec<LogItem>();
  new (&layout->floats, At::PLACE) Vec<LogItem>();
  new (&layout->parts, At::PLACE) Vec<LogPart>();
  new (&layout->leaves, At::PLACE) Vec<Leaf>();
  new (&layout->place_of, At::PLACE) IntMap();
  new (&layout->outputs, At::PLACE) Vec<Variable>();
  new (&layout->arguments, At::PLACE) Vec<Variable>();
  layout->shapes = Py_NewRef(shapes);
  layout->parameters = Py_NewRef(parameters);
  layout->count_rows = Py_NewRef(count_rows);
  IntReader given;
  if (!given.read(code, "code") || !read_items(given, layout, true, layout->ints) ||
      !read_items(given, layout, false, layout->floats) || !read_variables(given, layout, true, layout->outputs) ||
      !read_variables(given, layout, false, layout->arguments) || !given.is_done())
    return nullptr;
  find_variables(layout);
  PyObject_GC_Track(made.get());
  return made.release();
}

int traverse_layout(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_layout(self)->shapes);
  Py_VISIT(as_layout(self)->parameters);
  Py_VISIT(as_layout(self)->count_rows);
  return 0;
}

void free_layout(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Layout* layout = as_layout(self);
  layout->ints.~Vec();
  layout->floats.~Vec();
  layout->parts.~Vec();
  layout->leaves.~Vec();
  layout->place_of.~IntMap();
  layout->outputs.~Vec();
  layout->arguments.~Vec();
  Py_XDECREF(layout->shapes);
  Py_XDECREF(layout->parameters);
  Py_XDECREF(layout->count_rows);
  Py_TYPE(self)->tp_free(self);
}

PyObject* get_form(PyObject* self, void*) { return PyLong_FromLong(as_layout(self)->form); }

PyGetSetDef attributes[] = {{"form", get_form, nullptr, "The number of the form.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

// Asks Python for the number of rows of a group; returns -1 with an error.
int64_t ask_rows(PyObject* count, int32_t group, Span<const int64_t> lengths) {
  Ref known = to_list(lengths), number(PyLong_FromLong(group));
  if (!known || !number) return -1;
  Ref found(PyObject_CallFunctionObjArgs(count, number.get(), known.get(), nullptr));
  return found ? PyLong_AsLongLong(found.get()) : -1;
}

PyTypeObject layout_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Layout";
  type.tp_basicsize = sizeof(Layout);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "The positions of the parts of a form's calls in the log.";
  type.tp_traverse = traverse_layout;
  type.tp_dealloc = free_layout;
  type.tp_getset = attributes;
  type.tp_new = make_layout;
  return type;
}

}  // namespace

PyTypeObject LayoutType = layout_type();

int64_t width(const LogItem& item, int64_t n) {
  if (item.kind == VALUE) return 1;
  if (item.kind == WORDS) return item.size;
  return 1 + n * (item.kind == ROWS ? item.size : item.n_parts);
}

bool Layout::is_value(const Leaf& leaf) const {
  int32_t kind = ints[leaf.item].kind;
  return kind == VALUE || kind == EACH;
}

const Variable* Layout::find_output(int64_t name) const {
  for (ptrdiff_t i = 0; i < outputs.size(); i++)
    if (outputs[i].name == name) return &outputs[i];
  return nullptr;
}

int64_t count_rows(PyObject* count, int32_t group, Span<const int64_t> lengths) {
  int64_t n = group < lengths.size ? lengths[group] : ask_rows(count, group, lengths);
  if (n >= 0 && n <= MOST_REF_ROWS) return n;
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a group must have 0..%lld rows", (long long)MOST_REF_ROWS);
  return -1;
}

}  // namespace autobatch
