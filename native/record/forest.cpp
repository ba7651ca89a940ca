#include "record/forest.h"

#include "record/fold.h"
#include "support/arrays.h"
#include "support/ints.h"

namespace autobatch {
namespace {

constexpr int64_t MOST_NODES = INT32_MAX;

// Returns the first value outside low..high - 1; 0 if there is none.
long long first_outside(Span<const int64_t> values, int64_t low, int64_t high) {
  for (int64_t value : values)
    if (value < low || value >= high) return value;
  return 0;
}

Forest* as_forest(PyObject* self) { return reinterpret_cast<Forest*>(self); }

Ref make_forest() {
  Ref made(ForestType.tp_alloc(&ForestType, 0));
  if (!made) return made;
  Forest* forest = as_forest(made.get());
  new (&forest->order, At::PLACE) Vec<int32_t>();
  new (&forest->child_ptr, At::PLACE) Vec<int32_t>();
  new (&forest->child, At::PLACE) Vec<int32_t>();
  new (&forest->roots, At::PLACE) Vec<int32_t>();
  new (&forest->columns, At::PLACE) Vec<Column*>();
  return made;
}

// Adds an empty column for each name of a tuple.
bool add_columns(Forest* forest, PyObject* names) {
  if (!PyTuple_CheckExact(names)) return refuse_type("names", "a tuple", names);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); k++) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    if (!PyUnicode_CheckExact(name)) return refuse_type("a name", "a str", name);
    Column* column = make<Column>();
    if (!column) return PyErr_NoMemory(), false;
    if (!forest->columns.push(column)) return discard(column), PyErr_NoMemory(), false;
    PyObject* interned = Py_NewRef(name);  // calls compare names by identity
    PyUnicode_InternInPlace(&interned);
    column->name = Ref(interned);
  }
  return true;
}

// Looks up a field of objects: a key of a dict, an attribute of any other object. Slots are read directly, because an
// attribute look-up of an empty slot raises an exception, which costs a microsecond.
class FieldReader {
 public:
  explicit FieldReader(PyObject* name) : name_(name) {}

  // Returns the field of an object; empty without an error if the object lacks it.
  Ref find(PyObject* object) {
    if (PyDict_Check(object)) return Ref::borrowed(PyDict_GetItemWithError(object, name_));
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type_.get() && !look_at(Py_TYPE(object))) return Ref();
    if (offset_ >= 0) return Ref::borrowed(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_));
    PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject_GetOptionalAttr(object, name_, &found);
#else
    _PyObject_LookupAttr(object, name_, &found);
#endif
    return Ref(found);
  }

 private:
  // Finds the offset of the slot with this name in instances of a class, -1 if there is none; returns false with an
  // error.
  bool look_at(PyTypeObject* type) {
    offset_ = -1;
    type_ = Ref::borrowed(reinterpret_cast<PyObject*>(type));
    if (type->tp_getattro != PyObject_GenericGetAttr) return true;
    Ref found(PyObject_GetAttr(type_.get(), name_));
    if (!found && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    if (!found || Py_TYPE(found.get()) != &PyMemberDescr_Type) return true;
    PyMemberDescrObject* slot = reinterpret_cast<PyMemberDescrObject*>(found.get());
    bool is_own = PyType_IsSubtype(type, slot->d_common.d_type);
    if (is_own && slot->d_member->type == T_OBJECT_EX && !(slot->d_member->flags & ~READONLY))
      offset_ = slot->d_member->offset;
    return true;
  }

  PyObject* name_;  // borrowed
  Ref type_;        // the class of the last object
  Py_ssize_t offset_ = -1;
};

// Nested objects.

constexpr ptrdiff_t USUAL = 64;  // nodes for which memory is reserved at once

// A node whose children are being visited.
struct Visit {
  PyObject* node;         // owned
  ptrdiff_t first, next;  // the first child, and the next to visit, in `Walk::waiting_`
  int32_t slot;           // in `Walk::index_of_`
  ptrdiff_t first_child;  // the first finished child, in `Walk::found_`
};

// A depth-first walk over nested objects, without recursion. An object that is reached twice becomes one node.
class Walk {
 public:
  Walk(Forest* forest, PyObject* children) : forest_(forest), children_(children) {}
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() {
    while (path_.size()) leave();
    for (ptrdiff_t i = 0; i < waiting_.size(); i++) Py_DECREF(waiting_[i]);
    for (ptrdiff_t i = 0; i < nodes_.size(); i++) Py_DECREF(nodes_[i]);
    for (ptrdiff_t i = 0; i < readers_.size(); i++) discard(readers_[i]);
  }

  bool run(PyObject* root) {
    n_names_ = PyTuple_CheckExact(children_) ? PyTuple_GET_SIZE(children_) : PyUnicode_CheckExact(children_) ? 1 : 0;
    for (Py_ssize_t k = 0; k < n_names_; k++)
      if (!add_reader(PyTuple_CheckExact(children_) ? PyTuple_GET_ITEM(children_, k) : children_)) return false;
    for (ptrdiff_t k = 0; k < forest_->columns.size(); k++)
      if (!add_reader(forest_->columns[k]->name.get())) return false;
    bool has_room = forest_->order.reserve(USUAL) && forest_->child_ptr.reserve(USUAL) &&
                    forest_->child.reserve(USUAL) && index_of_.reserve(USUAL) && nodes_.reserve(USUAL);
    for (ptrdiff_t k = 0; has_room && k < forest_->columns.size(); k++)
      has_room = forest_->columns[k]->kinds.reserve(USUAL) && forest_->columns[k]->words.reserve(USUAL);
    if (!has_room || !forest_->child_ptr.push(0)) return PyErr_NoMemory(), false;
    if (!enter(root)) return false;
    while (path_.size()) {
      Visit& visit = path_.back();  // invalid after `enter`, which may move the path
      if (visit.next < waiting_.size()) {
        Ref child = Ref::borrowed(waiting_[visit.next++]);
        bool is_missing = child.get() == Py_None && PyTuple_CheckExact(children_);
        if (is_missing && !found_.push(-1)) return PyErr_NoMemory(), false;
        if (!is_missing && !enter(child.get())) return false;
      } else if (!finish(visit)) {
        return false;
      }
    }
    return forest_->roots.push(forest_->n - 1) || (PyErr_NoMemory(), false);
  }

 private:
  bool add_reader(PyObject* name) {
    void* place = malloc(sizeof(FieldReader));
    FieldReader* reader = place ? new (place, At::PLACE) FieldReader(name) : nullptr;
    if (reader && readers_.push(reader)) return true;
    return discard(reader), PyErr_NoMemory(), false;
  }

  // Begins to visit an object; if it is a node already, appends that to the found children.
  bool enter(PyObject* object) {
    int32_t slot = slot_of_.find((int64_t)(uintptr_t)object);
    if (slot >= 0 && index_of_[slot] < 0) {
      set_data_error("a node must not be among its own descendants.");
      return false;
    }
    if (slot >= 0) return found_.push(index_of_[slot]) || (PyErr_NoMemory(), false);
    ptrdiff_t first = waiting_.size();
    if (!list_children(object)) return false;
    if (!nodes_.reserve(1) || !index_of_.reserve(1) || !path_.reserve(1) || nodes_.size() >= MOST_NODES ||
        !slot_of_.insert((int64_t)(uintptr_t)object, (int32_t)nodes_.size()))
      return PyErr_NoMemory(), false;
    path_.append({Py_NewRef(object), first, first, (int32_t)nodes_.size(), found_.size()});
    nodes_.append(Py_NewRef(object));  // while it lives, no other object has its address
    index_of_.append(-1);
    return true;
  }

  // Appends the children of an object to `waiting_`. If fields have one child each, a missing child is None.
  bool list_children(PyObject* object) {
    for (Py_ssize_t k = 0; k < n_names_ && PyTuple_CheckExact(children_); k++) {
      Ref child = readers_[k]->find(object);
      if (!child && PyErr_Occurred()) return false;
      if (!wait(child ? child.get() : Py_None)) return false;
    }
    if (PyTuple_CheckExact(children_)) return true;
    Ref found = n_names_ ? readers_[0]->find(object) : Ref(PyObject_CallOneArg(children_, object));
    if (!found || found.get() == Py_None) return !PyErr_Occurred();
    if (!PyList_Check(found.get()) && !PyTuple_Check(found.get())) {
      set_data_error("the children of a node must be a list or a tuple, got %.80s.", Py_TYPE(found.get())->tp_name);
      return false;
    }
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(found.get()); k++)
      if (!wait(PySequence_Fast_GET_ITEM(found.get(), k))) return false;
    return true;
  }

  bool wait(PyObject* child) {
    if (!waiting_.reserve(1)) return PyErr_NoMemory(), false;
    waiting_.append(Py_NewRef(child));
    return true;
  }

  // Numbers a node, whose children are all numbered, and reads its fields.
  bool finish(const Visit& visit) {
    int32_t node = forest_->n;
    for (ptrdiff_t k = 0; k < forest_->columns.size(); k++) {
      Ref value = readers_[n_names_ + k]->find(visit.node);
      if ((!value && PyErr_Occurred()) || !forest_->columns[k]->add(value.get())) return false;
    }
    ptrdiff_t n_children = found_.size() - visit.first_child;
    bool has_room = forest_->child.reserve(n_children) && forest_->child_ptr.reserve(1) && found_.reserve(1) &&
                    forest_->order.reserve(1) && forest_->child.size() + n_children <= MOST_NODES;
    if (!has_room) return PyErr_NoMemory(), false;
    Span<const int32_t> children = Span<const int32_t>(found_).part(visit.first_child, found_.size());
    for (int32_t child : children) forest_->child.append(child);
    forest_->child_ptr.append((int32_t)forest_->child.size());
    forest_->order.append(node);
    index_of_[visit.slot] = forest_->n++;
    found_.resize(visit.first_child);
    found_.append(node);
    leave();
    return true;
  }

  void leave() {
    Visit visit = path_.pop();
    Py_DECREF(visit.node);
    while (waiting_.size() > visit.first) Py_DECREF(waiting_.pop());
  }

  Forest* forest_;
  PyObject* children_;
  Vec<FieldReader*> readers_;  // for the names of children, then for all columns
  Py_ssize_t n_names_ = 0;     // number of names of children
  Vec<Visit> path_;
  Vec<PyObject*> waiting_;  // owned: the children of each node on the path, one node after another
  Vec<int32_t> found_;      // the numbers of the finished children of the nodes on the path
  IntMap slot_of_;          // by the address of an object
  Vec<int32_t> index_of_;   // by slot: the node, or -1 while it is visited
  Vec<PyObject*> nodes_;    // by slot, owned
};

// from_nested(root, children, names): reads nested objects. `children` is the name of a field that lists children, a
// tuple of names of fields with one child each, or a function.
PyObject* from_nested(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("from_nested", n_args, 3)) return nullptr;
  bool are_names = PyTuple_CheckExact(args[1]);
  for (Py_ssize_t k = 0; are_names && k < PyTuple_GET_SIZE(args[1]); k++)
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(args[1], k)))
      return refuse_type("children", "names of fields", args[1]), nullptr;
  if (!are_names && !PyUnicode_CheckExact(args[1]) && !PyCallable_Check(args[1]))
    return refuse_type("children", "names of fields or a function", args[1]), nullptr;
  Ref made = make_forest();
  if (!made || !add_columns(as_forest(made.get()), args[2])) return nullptr;
  return Walk(as_forest(made.get()), args[1]).run(args[0]) ? made.release() : nullptr;
}

// Arrays.

// Reads an array of ints with this number of dimensions as int64; empty with an error.
Ref read_int64(PyObject* x, const char* what, int ndim) {
  Ref array(PyArray_FROM_OF(x, NPY_ARRAY_CARRAY_RO));
  if (!array && PyErr_ExceptionMatches(PyExc_ValueError)) {  // lists that differ in length
    PyErr_Clear();
    set_data_error("%s must be an array of ints with %d dimension%s, got lists that differ in length.", what, ndim,
                   ndim == 1 ? "" : "s");
  }
  if (!array) return array;
  PyArrayObject* given = reinterpret_cast<PyArrayObject*>(array.get());
  bool is_empty = PyArray_SIZE(given) == 0;
  char kind = PyArray_DESCR(given)->kind;
  if ((PyArray_NDIM(given) != ndim && !is_empty) || (kind != 'i' && kind != 'u' && !is_empty)) {
    set_data_error("%s must be an array of ints with %d dimension%s, got one of dtype %S with %d.", what, ndim,
                   ndim == 1 ? "" : "s", reinterpret_cast<PyObject*>(PyArray_DESCR(given)), PyArray_NDIM(given));
    return Ref();
  }
  return Ref(PyArray_FROMANY(array.get(), NPY_INT64, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
}

Span<const int64_t> ints_in(const Ref& array) {
  PyArrayObject* given = reinterpret_cast<PyArrayObject*>(array.get());
  return {static_cast<const int64_t*>(PyArray_DATA(given)), PyArray_SIZE(given)};
}

// Fills a column with the items of an array, a list or a tuple; None leaves the field absent.
bool fill(Column* column, PyObject* values, int64_t n) {
  if (values == Py_None)
    return (column->kinds.assign(n, (uint8_t)Field::ABSENT) && column->words.assign(n, 0)) || (PyErr_NoMemory(), false);
  bool is_array = PyArray_Check(values), is_list = PyList_Check(values) || PyTuple_Check(values);
  int64_t size = is_list                                                                  ? PySequence_Size(values)
                 : is_array && PyArray_NDIM(reinterpret_cast<PyArrayObject*>(values)) > 0 ? PyObject_Size(values)
                                                                                          : -1;
  if (size < 0 && !PyErr_Occurred())
    set_data_error("field %R must be an array or a list, got %.80s.", column->name.get(), Py_TYPE(values)->tp_name);
  else if (size != n)
    set_data_error("field %R must have an item for each of the %lld nodes, got %lld.", column->name.get(), (long long)n,
                   (long long)size);
  if (size != n) return false;
  if (!column->kinds.reserve(n) || !column->words.reserve(n)) return PyErr_NoMemory(), false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(values);
  bool is_flat = is_array && PyArray_NDIM(array) == 1;
  char kind = is_flat ? PyArray_DESCR(array)->kind : 'O';
  bool is_int = kind == 'i' || (kind == 'u' && PyArray_ITEMSIZE(array) < 8);
  if (is_int || (kind == 'f' && PyArray_ITEMSIZE(array) <= 8)) {
    Ref plain(
        PyArray_FROMANY(values, is_int ? NPY_INT64 : NPY_FLOAT64, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
    if (!plain) return false;
    if (n) memcpy(column->words.data(), PyArray_DATA(reinterpret_cast<PyArrayObject*>(plain.get())), (size_t)n * 8);
    column->words.resize(n);
    return column->kinds.assign(n, (uint8_t)(is_int ? Field::INT : Field::FLOAT));
  }
  for (int64_t i = 0; i < n; i++) {
    Ref item(PySequence_GetItem(values, i));
    // Elements of an array become Python numbers, as in `array[i].item()`; rows stay arrays.
    if (item && is_flat && kind != 'O') item = Ref(PyObject_CallMethod(item.get(), "item", nullptr));
    if (!item || !column->add(item.get())) return false;
  }
  return true;
}

bool fill_columns(Forest* forest, PyObject* values, int64_t n) {
  if (!PyTuple_CheckExact(values)) return refuse_type("values", "a tuple", values);
  if (PyTuple_GET_SIZE(values) != forest->columns.size())
    return refuse_value("names and values must be as many"), false;
  for (ptrdiff_t k = 0; k < forest->columns.size(); k++)
    if (!fill(forest->columns[k], PyTuple_GET_ITEM(values, k), n)) return false;
  return true;
}

// Lists the children of each node in the order of the edges, which are pairs of a child and its parent. It is a
// counting sort by parent: counts, prefix sums, then one pass that places the children.
bool list_children(Forest* forest, Span<const int64_t> edges, Vec<int32_t>& n_parents) {
  ptrdiff_t m = edges.size / 2;
  Vec<int32_t> at;
  if (!forest->child_ptr.assign(forest->n + 1, 0) || !forest->child.resize(m) || !n_parents.assign(forest->n, 0) ||
      !at.resize(forest->n))
    return PyErr_NoMemory(), false;
  for (ptrdiff_t e = 0; e < m; e++) forest->child_ptr[edges[2 * e + 1] + 1]++, n_parents[edges[2 * e]]++;
  for (int32_t i = 0; i < forest->n; i++) at[i] = forest->child_ptr[i], forest->child_ptr[i + 1] += at[i];
  for (ptrdiff_t e = 0; e < m; e++) forest->child[at[edges[2 * e + 1]]++] = (int32_t)edges[2 * e];
  return true;
}

// Orders nodes by a depth-first walk from each root, so that children come before parents; sets a DataError if there is
// a cycle.
bool order_nodes(Forest* forest, const Vec<int32_t>& n_parents) {
  enum : uint8_t { NEW, OPEN, DONE };
  Vec<uint8_t> state;
  Vec<int32_t> path, next;
  if (!state.assign(forest->n, NEW) || !next.resize(forest->n) || !forest->order.reserve(forest->n))
    return PyErr_NoMemory(), false;
  for (int32_t i = 0; i < forest->n; i++) next[i] = forest->child_ptr[i];
  for (int32_t root = 0; root < forest->n; root++) {
    if (n_parents[root]) continue;
    if (!forest->roots.push(root) || !path.push(root)) return PyErr_NoMemory(), false;
    while (path.size()) {
      int32_t node = path.back();
      state[node] = OPEN;
      if (next[node] == forest->child_ptr[node + 1]) {
        state[node] = DONE;
        forest->order.append(node);
        path.pop();
        continue;
      }
      int32_t child = forest->child[next[node]++];
      if (state[child] == OPEN) break;
      if (state[child] == NEW && !path.push(child)) return PyErr_NoMemory(), false;
    }
    if (path.size()) break;
  }
  if (forest->order.size() == forest->n) return true;  // never if there is a cycle, even one that no root reaches
  // The walk ends at the first node whose child is on its path. Without one, no root reaches the cycle or what leads to
  // it.
  int32_t node = path.size() ? path.back() : 0;
  while (state[node] == DONE) node++;
  set_data_error("the nodes must not form a cycle, but node %d is on one or leads to one.", node);
  return false;
}

// from_arrays(n, edges, names, values): reads arrays. `edges` has the child and the parent of each edge, `values` an
// array or a list for each name.
PyObject* from_arrays(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("from_arrays", n_args, 4)) return nullptr;
  int64_t n = PyLong_AsLongLong(args[0]);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  if (n < 0 || n >= MOST_NODES) return refuse_value("the number of nodes must be at least 0 and below 2^31");
  Ref array = read_int64(args[1], "edges", 2);
  if (!array) return nullptr;
  Span<const int64_t> edges = ints_in(array);
  bool are_pairs = !edges.size || PyArray_DIM(reinterpret_cast<PyArrayObject*>(array.get()), 1) == 2;
  if (!are_pairs || edges.size / 2 > MOST_NODES)
    return set_data_error("edges must have the shape (edges, 2)."), nullptr;
  if (!within(edges, 0, n))
    return set_data_error("edges must join nodes 0..%lld, got %lld.", (long long)n - 1, first_outside(edges, 0, n)),
           nullptr;
  Ref made = make_forest();
  if (!made || !add_columns(as_forest(made.get()), args[2])) return nullptr;
  Forest* forest = as_forest(made.get());
  forest->n = (int32_t)n;
  Vec<int32_t> n_parents;
  if (!list_children(forest, edges, n_parents) || !order_nodes(forest, n_parents)) return nullptr;
  return fill_columns(forest, args[3], n) ? made.release() : nullptr;
}

// from_sequence(n, is_reverse, names, values): makes a chain of n nodes that begins at the first item, or at the last.
PyObject* from_sequence(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("from_sequence", n_args, 4)) return nullptr;
  int64_t n;
  int is_reverse = PyObject_IsTrue(args[1]);
  if (is_reverse < 0 || !read_long(args[0], "n", n)) return nullptr;
  if (n < 0 || n >= MOST_NODES) return refuse_value("the number of items must be at least 0 and below 2^31");
  Ref made = make_forest();
  if (!made || !add_columns(as_forest(made.get()), args[2])) return nullptr;
  Forest* forest = as_forest(made.get());
  if (!fill_columns(forest, args[3], n)) return nullptr;
  bool has_room = forest->order.reserve(n) && forest->child_ptr.reserve(n + 1) && forest->child.reserve(n) &&
                  forest->roots.reserve(1);
  if (!has_room) return PyErr_NoMemory();
  forest->n = (int32_t)n;
  forest->is_chain = true;
  forest->child_ptr.append(0);
  for (int32_t i = 0; i < n; i++) {
    bool is_first = i == (is_reverse ? n - 1 : 0);
    forest->order.append(is_reverse ? (int32_t)n - 1 - i : i);
    if (!is_first) forest->child.append(is_reverse ? i + 1 : i - 1);
    forest->child_ptr.append((int32_t)forest->child.size());
  }
  if (n) forest->roots.append(is_reverse ? 0 : (int32_t)n - 1);
  return made.release();
}

// edges_of(parents): returns an array with the child and the parent of each edge; the parent of a root is -1.
PyObject* edges_of(PyObject*, PyObject* parents) {
  Ref array = read_int64(parents, "parents", 1);
  if (!array) return nullptr;
  Span<const int64_t> of = ints_in(array);
  if (!within(of, -1, of.size))
    return set_data_error("parents must be nodes 0..%zd, or -1 for roots, got %lld.", of.size - 1,
                          first_outside(of, -1, of.size)),
           nullptr;
  ptrdiff_t n_roots = 0;
  for (int64_t parent : of) n_roots += parent < 0;
  Table<int64_t> edges;
  Ref made = make_table<int64_t>(of.size - n_roots, 2, edges);
  if (!made) return nullptr;
  int64_t* at = edges.data;
  for (ptrdiff_t i = 0; i < of.size; i++)
    if (of[i] >= 0) *at++ = i, *at++ = of[i];
  return made.release();
}

// count_nodes(edges): returns one more than the greatest node in the edges.
PyObject* count_nodes(PyObject*, PyObject* edges) {
  Ref array = read_int64(edges, "edges", 2);
  if (!array) return nullptr;
  int64_t greatest = -1;
  for (int64_t node : ints_in(array)) greatest = node > greatest ? node : greatest;
  if (greatest >= MOST_NODES)
    return set_data_error("edges must join nodes below 2^31, got %lld.", (long long)greatest), nullptr;
  return PyLong_FromLongLong(greatest + 1);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  for (ptrdiff_t k = 0; k < as_forest(self)->columns.size(); k++) {
    const Column& column = *as_forest(self)->columns[k];
    for (ptrdiff_t i = 0; i < column.words.size(); i++)
      if (column.kinds[i] == (uint8_t)Field::OBJECT) Py_VISIT(reinterpret_cast<PyObject*>(column.words[i]));
  }
  return 0;
}

void free_forest(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Forest* forest = as_forest(self);
  Py_TRASHCAN_BEGIN(self, free_forest)
  forest->order.~Vec();
  forest->child_ptr.~Vec();
  forest->child.~Vec();
  forest->roots.~Vec();
  free_all(forest->columns);
  Py_TYPE(self)->tp_free(self);
  Py_TRASHCAN_END
}

PyObject* get_roots(PyObject* self, void*) {
  Forest* forest = as_forest(self);
  Ref found(PyList_New(forest->roots.size()));
  for (ptrdiff_t i = 0; found && i < forest->roots.size(); i++) {
    PyObject* root = PyLong_FromLong(forest->roots[i]);
    if (!root) return nullptr;
    PyList_SET_ITEM(found.get(), i, root);
  }
  return found.release();
}

// value(node, column): returns the value of a field; raises a KeyError if the node lacks it.
PyObject* value(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Forest* forest = as_forest(self);
  if (!takes("value", n_args, 2)) return nullptr;
  int32_t node, column;
  if (!read_int(args[0], "node", node) || !read_int(args[1], "column", column)) return nullptr;
  if (node < 0 || node >= forest->n || column < 0 || column >= forest->columns.size())
    return refuse_value("node and column must be of the forest");
  PyObject* found = forest->columns[column]->value(node);
  if (!found && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, forest->columns[column]->name.get());
  return found;
}

// scan(node, each, where, initial): folds a chain from an initial state.
PyObject* scan(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("scan", n_args, 4)) return nullptr;
  if (!as_forest(self)->is_chain) return refuse_value("the forest must be a chain to be scanned");
  return scan_chain(as_forest(self), args[0], args[1], args[2], args[3]);
}

PyObject* fold(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  if (!takes("fold", n_args, 5)) return nullptr;
  int is_spread = PyObject_IsTrue(args[4]);
  return is_spread < 0 ? nullptr : fold_forest(as_forest(self), args[0], args[1], args[2], args[3], is_spread);
}

Py_ssize_t length(PyObject* self) { return as_forest(self)->n; }

PySequenceMethods as_sequence = [] {
  PySequenceMethods found = {};
  found.sq_length = length;
  return found;
}();

PyGetSetDef attributes[] = {{"roots", get_roots, nullptr, "The nodes without parents.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef as_static(PyMethodDef method) {
  method.ml_flags |= METH_STATIC;
  return method;
}

PyMethodDef methods[] = {as_static(fast("from_nested", from_nested)),
                         as_static(fast("from_arrays", from_arrays)),
                         as_static(fast("from_sequence", from_sequence)),
                         as_static({"edges_of", edges_of, METH_O, nullptr}),
                         as_static({"count_nodes", count_nodes, METH_O, nullptr}),
                         fast("value", value),
                         fast("fold", fold),
                         fast("scan", scan),
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject forest_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "autobatch._native.Forest";
  type.tp_basicsize = sizeof(Forest);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_doc = "The nodes of trees or a DAG as arrays, children first.";
  type.tp_traverse = traverse;
  type.tp_dealloc = free_forest;
  type.tp_as_sequence = &as_sequence;
  type.tp_getset = attributes;
  type.tp_methods = methods;
  return type;
}

}  // namespace

PyTypeObject ForestType = forest_type();

Column::~Column() {
  for (ptrdiff_t i = 0; i < words.size(); i++)
    if (kinds[i] == (uint8_t)Field::OBJECT) Py_DECREF(reinterpret_cast<PyObject*>(words[i]));
}

bool Column::add(PyObject* value) {
  if (!kinds.reserve(1) || !words.reserve(1)) return PyErr_NoMemory(), false;
  Field kind = !value ? Field::ABSENT : PyFloat_CheckExact(value) ? Field::FLOAT : Field::OBJECT;
  int64_t word = 0;
  if (value && PyLong_CheckExact(value)) {
    int overflow;
    word = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow) kind = Field::INT;
  }
  if (kind == Field::FLOAT) {
    double number = PyFloat_AS_DOUBLE(value);
    memcpy(&word, &number, sizeof word);
  } else if (kind == Field::OBJECT) {
    word = (int64_t)(uintptr_t)Py_NewRef(value);
  }
  kinds.append((uint8_t)kind);
  words.append(word);
  return true;
}

PyObject* Column::value(int32_t node) const {
  switch ((Field)kinds[node]) {
    case Field::ABSENT:
      return nullptr;
    case Field::INT:
      return PyLong_FromLongLong(words[node]);
    case Field::FLOAT:
      return PyFloat_FromDouble(float_at(node));
    case Field::OBJECT:
      return Py_NewRef(reinterpret_cast<PyObject*>(words[node]));
  }
  return nullptr;
}

int Column::is_true(int32_t node) const {
  switch ((Field)kinds[node]) {
    case Field::ABSENT:
      return 0;
    case Field::INT:
      return words[node] != 0;
    case Field::FLOAT:
      return float_at(node) != 0;
    case Field::OBJECT:
      return PyObject_IsTrue(reinterpret_cast<PyObject*>(words[node]));
  }
  return 0;
}

}  // namespace autobatch
