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

// Reads a graph to rewrite; checks no more than the survey needs.
bool read_given(PyObject* words, PyObject* floats, PyObject* types, TypedGraph& given, Draft& draft) {
  if (!read_graph_and_types(words, types, given) || !read<double>(floats, "floats", draft.floats)) return false;
  if (draft.floats.size != given.sizes.floats) {
    PyErr_Format(PyExc_ValueError, "floats must be as many as words say, %lld, got %zd", (long long)given.sizes.floats,
                 draft.floats.size);
    return false;
  }
  return check_work(given.types, given.graph.n_nodes());
}

// Begins the draft, after all checks.
Problem begin_draft(TypedGraph& given, Draft& draft) {
  if (Problem problem = check_types(given)) return problem;
  draft.graph = given.graph;
  draft.sizes = given.sizes;
  draft.int_starts = static_cast<Vec<int32_t>&&>(given.int_starts);
  draft.float_starts = static_cast<Vec<int32_t>&&>(given.float_starts);
  return nullptr;
}

// Runs the chosen passes that may apply.
Problem run_passes(TypedGraph& given, Draft& draft, long chosen, Changes& done) {
  const Types& types = given.types;
  Survey found;
  if (!survey(given.graph, types, found)) return NO_MEMORY;
  bool forwards = found.may_forward && chosen & FORWARD, may_drop = found.may_drop, may_take = found.may_take;
  bool by_rule = !(chosen & SHARE_ALL), shares = !by_rule || (found.may_share && chosen & SHARE_PRODUCTS);
  bool may_shrink = (may_drop && chosen & DEAD) || ((may_take || found.may_widen) && chosen & SUMS);
  if (!forwards && !may_shrink && !(may_take && chosen & FOLD) && !shares) return nullptr;
  if (Problem problem = begin_draft(given, draft)) return problem;
  if (forwards) {
    if (!forward(draft, types, found.ports, done.forwarded)) return NO_MEMORY;
    may_drop |= done.forwarded > 0;
    may_take |= done.forwarded > 0;
  }
  bool dead = may_drop && chosen & DEAD, sums = (may_take || found.may_widen) && chosen & SUMS;
  if ((dead || sums) && !shrink(draft, types, dead, sums, done.shrunk)) return NO_MEMORY;
  if (may_take && chosen & FOLD && !fold(draft, types, found.ports, done.folded)) return NO_MEMORY;
  return shares && !share(draft, types, by_rule, done.shared) ? NO_MEMORY : nullptr;
}

// Looks for equal nodes; by the rule, only if enough nodes multiply matrices.
Problem look_up(TypedGraph& given, Draft& draft, bool by_rule, Found& found) {
  ptrdiff_t n_types = given.types.n_types();
  if (Problem problem = begin_draft(given, draft)) return problem;
  bool is_done =
      by_rule && count_products(draft.graph, given.types) < FEW
          ? found.tried.assign(n_types, 0) && found.equal.assign(n_types, 0) && found.chosen.assign(n_types, false)
          : find_shared(draft, given.types, by_rule, found);
  return is_done ? nullptr : NO_MEMORY;
}

// Sets the error of a failed pass.
PyObject* refuse(Problem problem, const Draft& draft) {
  if (!draft.is_too_large) return set_problem(problem), nullptr;
  PyErr_SetString(PyExc_OverflowError, "a rewritten graph is too large: positions are int32");
  return nullptr;
}

}  // namespace

// rewrite_words(words, floats, types, passes): the new words and floats, and the numbers of changes.
PyObject* rewrite_words(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph given;
  Draft draft;
  if (!takes("rewrite_words", n, 4) || !read_given(arguments[0], arguments[1], arguments[2], given, draft))
    return nullptr;
  long chosen = PyLong_AsLong(arguments[3]);
  if (chosen == -1 && PyErr_Occurred()) return nullptr;
  const double* own_floats = draft.floats.data;
  Changes done;
  Problem problem;
  {
    Unlocked unlocked;
    problem = run_passes(given, draft, chosen, done);
  }
  if (problem) return refuse(problem, draft);
  Ref words = draft.words.size() ? to_array<int32_t>(draft.words) : Ref::borrowed(arguments[0]);
  Ref floats = draft.floats.data != own_floats ? to_array<double>(draft.floats) : Ref::borrowed(arguments[1]);
  if (!words || !floats) return nullptr;
  return Py_BuildValue("NN(LLLLLLLL)", words.release(), floats.release(), (long long)done.forwarded,
                       (long long)done.shrunk.dropped, (long long)done.shrunk.widened, (long long)done.shrunk.taking,
                       (long long)done.shrunk.dissolved, (long long)done.folded.sums, (long long)done.folded.made,
                       (long long)done.shared);
}

// count_shared(words, floats, types, by_rule): by type: nodes looked up, equal ones, and whether these are shared.
PyObject* count_shared(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  TypedGraph given;
  Draft draft;
  if (!takes("count_shared", n, 4) || !read_given(arguments[0], arguments[1], arguments[2], given, draft))
    return nullptr;
  int by_rule = PyObject_IsTrue(arguments[3]);
  if (by_rule < 0) return nullptr;
  Found found;
  Problem problem;
  {
    Unlocked unlocked;
    problem = look_up(given, draft, by_rule, found);
  }
  if (problem) return refuse(problem, draft);
  Ref tried = to_array<int64_t>(found.tried), equal = to_array<int64_t>(found.equal),
      chosen = to_array<bool>(found.chosen);
  if (!tried || !equal || !chosen) return nullptr;
  return Py_BuildValue("NNN", tried.release(), equal.release(), chosen.release());
}

}  // namespace autobatch
