#include "graph/rewrite/rewrite.h"

#include "graph/graph.h"
#include "graph/rewrite/share.h"
#include "graph/rewrite/survey.h"

namespace autobatch {
namespace {

enum Pass { FORWARD_PASS = 1, DEAD = 2, SUMS = 4, FOLD = 8, SHARE_PRODUCTS = 16, SHARE_ALL = 32 };

// Looks for equal nodes; by the rule, it does so only if enough nodes multiply matrices.
Problem look_up(Rewriting& rewriting, bool by_rule, Found& found) {
  Draft& draft = rewriting.draft;
  const Types& types = rewriting.given.types;
  ptrdiff_t n_types = types.n_types();
  if (Problem problem = check_type_ids(rewriting.given)) return problem;
  if (Problem problem = rewriting.begin_draft()) return problem;
  bool is_done =
      by_rule && count_products(draft.graph, types) < FEW
          ? found.tried.assign(n_types, 0) && found.equal.assign(n_types, 0) && found.chosen.assign(n_types, false)
          : find_shared(draft, types, by_rule, found);
  return is_done ? nullptr : NO_MEMORY;
}

}  // namespace

bool Rewriting::read(PyObject* words, PyObject* floats, PyObject* types) {
  Merging::Part part;
  return part.read(words, floats) && take(part, types);
}

bool Rewriting::take(const Merging::Part& part, PyObject* types) {
  given.graph = part.graph;
  given.sizes = part.sizes;
  draft.floats = part.floats;
  given_words_ = Ref::borrowed(part.words_array);
  given_floats_ = Ref::borrowed(part.floats_array);
  return read_types(types, given.types) && check_work(given.types, given.graph.n_nodes());
}

Problem Rewriting::begin_draft() {
  if (has_begun_) return nullptr;
  if (Problem problem = check_types(given)) return problem;
  draft.graph = given.graph;
  draft.sizes = given.sizes;
  draft.int_starts = static_cast<Vec<int32_t>&&>(given.int_starts);
  draft.float_starts = static_cast<Vec<int32_t>&&>(given.float_starts);
  has_begun_ = true;
  return nullptr;
}

Problem Rewriting::run(int32_t passes) {
  const Types& types = given.types;
  if (Problem problem = check_type_ids(given)) return problem;
  Survey found;
  if (!survey(given.graph, types, found)) return NO_MEMORY;
  bool forwards = found.may_forward && passes & FORWARD_PASS, may_drop = found.may_drop, may_take = found.may_take;
  bool by_rule = !(passes & SHARE_ALL), shares = !by_rule || (found.may_share && passes & SHARE_PRODUCTS);
  bool may_shrink = (may_drop && passes & DEAD) || ((may_take || found.may_widen) && passes & SUMS);
  if (!forwards && !may_shrink && !(may_take && passes & FOLD) && !shares) return nullptr;
  if (Problem problem = begin_draft()) return problem;
  if (forwards) {
    if (!forward(draft, types, found.ports, forwarded_)) return NO_MEMORY;
    // Pass-through nodes may now be unread, and sums that were returned may not be returned any more.
    may_drop |= forwarded_ > 0;
    may_take |= forwarded_ > 0;
  }
  bool dead = may_drop && passes & DEAD, sums = (may_take || found.may_widen) && passes & SUMS;
  if ((dead || sums) && !shrink(draft, types, dead, sums, shrunk_)) return NO_MEMORY;
  if (may_take && passes & FOLD && !fold(draft, types, found.ports, folded_)) return NO_MEMORY;
  return shares && !share(draft, types, by_rule, shared_) ? NO_MEMORY : nullptr;
}

Problem Rewriting::finish(TypedGraph& graph) {
  if (Problem problem = begin_draft()) return problem;
  graph.graph = draft.graph;
  graph.sizes = draft.sizes;
  graph.types = given.types;
  graph.int_starts = static_cast<Vec<int32_t>&&>(draft.int_starts);
  graph.float_starts = static_cast<Vec<int32_t>&&>(draft.float_starts);
  return nullptr;
}

Ref Rewriting::words() { return draft.words.size() ? adopt(draft.words) : Ref::borrowed(given_words_.get()); }

Ref Rewriting::floats() {
  bool is_given = draft.floats.data == PyArray_DATA(reinterpret_cast<PyArrayObject*>(given_floats_.get()));
  return is_given ? Ref::borrowed(given_floats_.get()) : adopt(draft.own_floats);
}

Ref Rewriting::changes() const {
  return Ref(Py_BuildValue("LLLLLLLL", (long long)forwarded_, (long long)shrunk_.dropped, (long long)shrunk_.widened,
                           (long long)shrunk_.taking, (long long)shrunk_.dissolved, (long long)folded_.sums,
                           (long long)folded_.made, (long long)shared_));
}

PyObject* Rewriting::refuse(Problem problem) const {
  if (!draft.is_too_large) return set_problem(problem), nullptr;
  PyErr_SetString(PyExc_OverflowError, "a rewritten graph is too large: positions are int32");
  return nullptr;
}

// rewrite_words(words, floats, types, passes): returns the new words and floats, and the counts of changes.
PyObject* rewrite_words(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Rewriting rewriting;
  int32_t passes;
  if (!takes("rewrite_words", n, 4) || !read_int(arguments[3], "passes", passes) ||
      !rewriting.read(arguments[0], arguments[1], arguments[2]))
    return nullptr;
  Problem problem;
  {
    Unlocked unlocked;
    problem = rewriting.run(passes);
  }
  if (problem) return rewriting.refuse(problem);
  Ref floats = rewriting.floats(), words = rewriting.words(), changes = rewriting.changes();
  if (!words || !floats || !changes) return nullptr;
  return Py_BuildValue("NNN", words.release(), floats.release(), changes.release());
}

// count_shared(words, floats, types, by_rule): counts, by type, nodes looked up and equal ones; and says whether the
// equal ones are shared.
PyObject* count_shared(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Rewriting rewriting;
  if (!takes("count_shared", n, 4) || !rewriting.read(arguments[0], arguments[1], arguments[2])) return nullptr;
  int by_rule = PyObject_IsTrue(arguments[3]);
  if (by_rule < 0) return nullptr;
  Found found;
  Problem problem;
  {
    Unlocked unlocked;
    problem = look_up(rewriting, by_rule, found);
  }
  if (problem) return rewriting.refuse(problem);
  Ref tried = to_array<int64_t>(found.tried), equal = to_array<int64_t>(found.equal),
      chosen = to_array<bool>(found.chosen);
  if (!tried || !equal || !chosen) return nullptr;
  return Py_BuildValue("NNN", tried.release(), equal.release(), chosen.release());
}

}  // namespace autobatch
