// Rewriting a graph before it is scheduled, without changing what it computes: `autobatch.graph.rewrite`.

#pragma once

#include "graph/merge.h"
#include "graph/rewrite/draft.h"
#include "graph/rewrite/fold.h"
#include "graph/rewrite/shrink.h"

namespace autobatch {

// The graph of a mini-batch, before and after the passes.
class Rewriting {
 public:
  // Reads a graph; checks only that offsets are in order and that node numbers exist.
  bool read(PyObject* words, PyObject* floats, PyObject* types);
  // Takes a graph that was read or merged.
  bool take(const Merging::Part& part, PyObject* types);
  // Begins the draft, after checking the graph against its types, whose ids must be checked already. Like the next two
  // functions, it needs no interpreter lock.
  Problem begin_draft();
  // Runs the passes that may apply, of those whose bits of `Pass` are set; begins the draft if there are any.
  Problem run(int32_t passes);
  // Passes on the rewritten graph, as views of the draft, which must outlive them.
  Problem finish(TypedGraph& graph);

  // Return the words, the floats and the counts of changes. Arrays that no pass changed are the given ones; the others
  // take over memory of the draft, so call each function at most once.
  Ref words();
  Ref floats();
  Ref changes() const;
  // Sets the error for a problem; returns null.
  PyObject* refuse(Problem problem) const;

  TypedGraph given;
  Draft draft;

 private:
  Ref given_words_, given_floats_;
  bool has_begun_ = false;
  int64_t forwarded_ = 0, shared_ = 0;
  Shrunk shrunk_;
  Folded folded_;
};

}  // namespace autobatch
