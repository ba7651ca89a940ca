#include "graph/merge.h"

#include "graph/graph.h"

namespace autobatch {
namespace {

enum Slot { WORDS, FLOATS, STRUCTURES, KEYS, TYPES, IN_RANGE, N_SLOTS };
constexpr const char* NAMES[N_SLOTS] = {"words", "floats", "structures", "keys", "types", "in_range"};

// Returns the offset of an attribute in the objects of a class with `__slots__`; -1 with an error if the class has no
// such slot.
Py_ssize_t find_slot(PyTypeObject* type, const char* name) {
  Ref found(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name));
  if (!found && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  PyErr_Clear();
  if (found && Py_IS_TYPE(found.get(), &PyMemberDescr_Type)) {
    PyMemberDescrObject* slot = reinterpret_cast<PyMemberDescrObject*>(found.get());
    if (slot->d_member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(slot)))
      return slot->d_member->offset;
  }
  PyErr_Format(PyExc_TypeError, "graphs must be a list of Graphs, got a %.80s in it", type->tp_name);
  return -1;
}

// Reads attributes of graphs directly from their slots, without calling Python for each.
class GraphReader {
 public:
  // Selects the graph to read; false with an error if the object is not a graph.
  bool enter(PyObject* graph) {
    graph_ = reinterpret_cast<char*>(graph);
    if (Py_TYPE(graph) == type_) return true;
    for (int slot = 0; slot < N_SLOTS; slot++)
      if ((offset_[slot] = find_slot(Py_TYPE(graph), NAMES[slot])) < 0) return false;
    type_ = Py_TYPE(graph);
    return true;
  }
  // Returns a borrowed attribute; null with an error if it was deleted.
  PyObject* get(Slot slot) const {
    PyObject* found = *reinterpret_cast<PyObject**>(graph_ + offset_[slot]);
    if (!found) PyErr_Format(PyExc_TypeError, "graphs must have an attribute %s, got one without", NAMES[slot]);
    return found;
  }

 private:
  PyTypeObject* type_ = nullptr;
  Py_ssize_t offset_[N_SLOTS];
  char* graph_ = nullptr;
};

// Copies a list of graphs to a tuple, because the list might change.
Ref to_tuple(PyObject* list) {
  if (PyList_Check(list)) return Ref(PyList_AsTuple(list));
  refuse_type("graphs", "a list of Graphs", list);
  return Ref();
}

// Joins the structures and the keys of the instances of graphs.
bool join(PyObject* graphs, GraphReader& reader, Ref& structures, Ref& keys) {
  Py_ssize_t n_structures = 0, at = 0;
  ptrdiff_t n_keys = 0;
  Span<const int64_t> own;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(graphs); i++) {
    if (!reader.enter(PyTuple_GET_ITEM(graphs, i))) return false;
    PyObject *tuple = reader.get(STRUCTURES), *array = tuple ? reader.get(KEYS) : nullptr;
    if (!array || !read<int64_t>(array, "keys", own)) return false;
    if (!PyTuple_Check(tuple)) return refuse_type("structures", "a tuple", tuple);
    n_structures += PyTuple_GET_SIZE(tuple);
    n_keys += own.size;
  }
  Span<int64_t> all;
  structures = Ref(PyTuple_New(n_structures));
  keys = make_array<int64_t>(n_keys, all);
  if (!structures || !keys) return false;
  int64_t* next = all.data;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(graphs); i++) {  // runs no Python code, so the counts still hold
    reader.enter(PyTuple_GET_ITEM(graphs, i));
    PyObject* tuple = reader.get(STRUCTURES);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++)
      PyTuple_SET_ITEM(structures.get(), at++, Py_NewRef(PyTuple_GET_ITEM(tuple, k)));
    read<int64_t>(reader.get(KEYS), "keys", own);
    for (int64_t key : own) *next++ = key;
  }
  return true;
}

}  // namespace

Merging::~Merging() {
  for (const Part& part : Span<Part>(parts)) {
    Py_DECREF(part.words_array);
    Py_DECREF(part.floats_array);
  }
}

bool Merging::Part::read(PyObject* words, PyObject* floats) {
  Span<const int32_t> ints;
  if (!autobatch::read<int32_t>(words, "words", ints) || !autobatch::read<double>(floats, "floats", this->floats) ||
      !view_graph(ints, graph, sizes))
    return false;
  words_array = words;
  floats_array = floats;
  if (this->floats.size == sizes.floats) return true;
  PyErr_Format(PyExc_ValueError, "floats must be as many as words say, %lld, got %zd", (long long)sizes.floats,
               this->floats.size);
  return false;
}

bool Merging::read(PyObject* list) {
  graphs_ = to_tuple(list);
  if (!graphs_) return false;
  GraphReader reader;
  Py_ssize_t n = PyTuple_GET_SIZE(graphs_.get());
  if (!parts.reserve(n)) return PyErr_NoMemory(), false;
  PyObject* table = nullptr;
  for (Py_ssize_t i = 0; i < n; i++) {
    if (!reader.enter(PyTuple_GET_ITEM(graphs_.get(), i))) return false;
    PyObject *words = reader.get(WORDS), *floats = words ? reader.get(FLOATS) : nullptr,
             *types = floats ? reader.get(TYPES) : nullptr, *range = types ? reader.get(IN_RANGE) : nullptr;
    Part part;
    if (!range || !part.read(words, floats)) return false;
    Py_INCREF(words);
    Py_INCREF(floats);
    parts.append(part);
    total_.instances += part.sizes.instances;
    total_.nodes += part.sizes.nodes;
    total_.edges += part.sizes.edges;
    total_.attr += part.sizes.attr;
    total_.outputs += part.sizes.outputs;
    total_.floats += part.sizes.floats;
    table = i ? table : types;
    are_alike &= types == table;
    are_in_range &= range == Py_True;
  }
  return true;
}

bool Merging::make_arrays() {
  GraphReader reader;
  if (!join(graphs_.get(), reader, structures_, keys_)) return false;
  words_ = make_words(total_, written_);
  floats_ = words_ ? make_array<double>((ptrdiff_t)total_.floats, written_floats_) : Ref();
  if (!floats_) return false;
  const int32_t* words = written_.instance_ptr.data - HEADER;
  whole = {parts_of(words, total_), total_, written_floats_, words_.get(), floats_.get()};
  return true;
}

void Merging::write() {
  int32_t b = 0, n = 0, e = 0, a = 0, o = 0;
  double* next = written_floats_.data;
  for (const Part& one : Span<Part>(parts)) {
    const Graph& part = one.graph;
    copy_shifted(written_.instance_ptr, b, part.instance_ptr, n);
    copy_shifted(written_.output_ptr, b, part.output_ptr, o);
    copy_shifted(written_.type_id, n, part.type_id, 0);
    copy_shifted(written_.edge_ptr, n, part.edge_ptr, e);
    copy_shifted(written_.edge_src, e, part.edge_src, n);
    copy_shifted(written_.edge_out, e, part.edge_out, 0);
    copy_shifted(written_.edge_in, e, part.edge_in, 0);
    copy_shifted(written_.attr, a, part.attr, 0);
    copy_shifted(written_.out_node, o, part.out_node, n);
    copy_shifted(written_.out_port, o, part.out_port, 0);
    copy_shifted(written_.out_slot, o, part.out_slot, 0);
    for (double number : one.floats) *next++ = number;
    b += (int32_t)one.sizes.instances;
    n += (int32_t)one.sizes.nodes;
    e += (int32_t)one.sizes.edges;
    a += (int32_t)one.sizes.attr;
    o += (int32_t)one.sizes.outputs;
  }
}

Ref Merging::to_python() const {
  return Ref(Py_BuildValue("OOOOOO", whole.words_array, whole.floats_array, structures_.get(), keys_.get(),
                           are_alike ? Py_True : Py_False, are_in_range ? Py_True : Py_False));
}

// merge_graphs(graphs): returns the words, floats, structures and keys of the merged graph; whether all graphs have the
// same table of types; and whether all are known to be in range.
PyObject* merge_graphs(PyObject*, PyObject* list) {
  Merging merging;
  if (!merging.read(list) || !merging.make_arrays()) return nullptr;
  {
    Unlocked unlocked;
    merging.write();
  }
  return merging.to_python().release();
}

// join_instances(graphs): returns the structures and keys of the instances of all graphs.
PyObject* join_instances(PyObject*, PyObject* list) {
  Ref graphs = to_tuple(list), structures, keys;
  GraphReader reader;
  if (!graphs || !join(graphs.get(), reader, structures, keys)) return nullptr;
  return Py_BuildValue("NN", structures.release(), keys.release());
}

}  // namespace autobatch
