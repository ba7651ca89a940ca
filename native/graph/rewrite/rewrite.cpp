// Rewriting a graph before it is scheduled, without changing what it computes: `autobatch.graph.rewrite.passes`.

#include "graph/graph.h"
#include "graph/rewrite/fold.h"
#include "graph/rewrite/share.h"
#include "graph/rewrite/shrink.h"
#include "graph/rewrite/survey.h"

namespace autobatch {
namespace {

enum Pass { FORWARD = 1, DEAD = 2, SUMS = 4, FOLD = 8, SHARE_PRODUCTS = 16, SHARE_ALL = 32 };

struct Changes {
  int64_t forwarded = 0, shared = 0;
  Shrunk shrunk;
  Folded folded;
};

bool points_forward(const Graph& graph) {
  bool falls = false;
  for (int32_t node = 0; node < graph.n_nodes(); node++)
    for (int32_t e = graph.edge_ptr[node]; e < graph.edge_ptr[node + 1]; e++) falls |= graph.edge_src[e] >= node;
  return !falls;
}

// Reads a graph that passes may rewrite: its edges point forward, and gains of nodes fit 64 bits.
bool read_draft(PyObject* words, PyObject* floats, PyObject* types, Draft& draft, Types& known) {
  TypedGraph given;
  if (!read_typed_graph(words, types, given) || !read<double>(floats, "floats", draft.floats)) return false;
  if (draft.floats.size != given.sizes.floats) {
    PyErr_Format(PyExc_ValueError, "floats must be as many as words say, %lld, got %zd", (long long)given.sizes.floats,
                 draft.floats.size);
    return false;
  }
  if (!points_forward(given.graph)) {
    PyErr_SetString(PyExc_ValueError, "words must encode a graph, got ones in which an edge points backwards");
    return false;
  }
  draft.graph = given.graph;
  draft.sizes = given.sizes;
  draft.int_starts = static_cast<Vec<int32_t>&&>(given.int_starts);
  draft.float_starts = static_cast<Vec<int32_t>&&>(given.float_starts);
  known = given.types;
  return check_work(known, draft.graph.n_nodes());
}

// Runs the passes that were chosen and may apply; false where there is no memory, or the graph is too large.
bool run_passes(Draft& draft, const Types& types, long chosen, Changes& done) {
  Survey found;
  if (!survey(draft.graph, types, found)) return false;
  bool may_drop = found.may_drop, may_take = found.may_take;
  if (found.may_forward && chosen & FORWARD) {
    if (!forward(draft, types, found.ports, done.forwarded)) return false;
    may_drop |= done.forwarded > 0;
    may_take |= done.forwarded > 0;
  }
  bool dead = may_drop && chosen & DEAD, sums = (may_take || found.may_widen) && chosen & SUMS;
  if ((dead || sums) && !shrink(draft, types, dead, sums, done.shrunk)) return false;
  if (may_take && chosen & FOLD && !fold(draft, types, found.ports, done.folded)) return false;
  bool by_rule = !(chosen & SHARE_ALL);
  if (by_rule && !(found.may_share && chosen & SHARE_PRODUCTS)) return true;
  return share(draft, types, by_rule, done.shared);
}

PyObject* refuse(const Draft& draft) {
  if (!draft.is_too_large) return PyErr_NoMemory();
  PyErr_SetString(PyExc_OverflowError, "a rewritten graph is too large: positions are int32");
  return nullptr;
}

}  // namespace

// rewrite_words(words, floats, types, passes): the words and float attributes, and the numbers of changes.
PyObject* rewrite_words(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Draft draft;
  Types types;
  if (!takes("rewrite_words", n, 4) || !read_draft(arguments[0], arguments[1], arguments[2], draft, types)) return nullptr;
  long chosen = PyLong_AsLong(arguments[3]);
  if (chosen == -1 && PyErr_Occurred()) return nullptr;
  const double* given = draft.floats.data;
  Changes done;
  bool is_done;
  {
    Unlocked unlocked;
    is_done = run_passes(draft, types, chosen, done);
  }
  if (!is_done) return refuse(draft);
  Ref words = draft.words.size() ? to_array<int32_t>(draft.words) : Ref::borrowed(arguments[0]);
  Ref floats = draft.floats.data != given ? to_array<double>(draft.floats) : Ref::borrowed(arguments[1]);
  if (!words || !floats) return nullptr;
  return Py_BuildValue("NN(LLLLLLLL)", words.release(), floats.release(), (long long)done.forwarded,
                       (long long)done.shrunk.dropped, (long long)done.shrunk.widened, (long long)done.shrunk.taking,
                       (long long)done.shrunk.dissolved, (long long)done.folded.sums, (long long)done.folded.made,
                       (long long)done.shared);
}

// count_shared(words, floats, types, by_rule): by type, nodes looked up, those that equal another, whether these are shared.
PyObject* count_shared(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Draft draft;
  Types types;
  if (!takes("count_shared", n, 4) || !read_draft(arguments[0], arguments[1], arguments[2], draft, types)) return nullptr;
  int by_rule = PyObject_IsTrue(arguments[3]);
  if (by_rule < 0) return nullptr;
  Found found;
  bool is_done;
  {
    Unlocked unlocked;
    ptrdiff_t n_types = types.n_types();
    bool few = by_rule && count_products(draft.graph, types) < FEW;
    is_done = few ? found.tried.assign(n_types, 0) && found.equal.assign(n_types, 0) && found.chosen.assign(n_types, false)
                  : find_shared(draft, types, by_rule, found);
  }
  if (!is_done) return refuse(draft);
  Ref tried = to_array<int64_t>(found.tried), equal = to_array<int64_t>(found.equal), chosen = to_array<bool>(found.chosen);
  if (!tried || !equal || !chosen) return nullptr;
  return Py_BuildValue("NNN", tried.release(), equal.release(), chosen.release());
}

}  // namespace autobatch
