// Rewriting a graph before it is scheduled, without changing what it computes: `autobatch.graph.rewrite.passes`.

#pragma once

#include "graph/merge.h"
#include "graph/rewrite/draft.h"
#include "graph/rewrite/fold.h"
#include "graph/rewrite/shrink.h"

namespace autobatch {

// The graph of a mini-batch, before and after the passes.
class Rewriting {
 public:
  // Reads a graph, and checks no more than that node numbers exist.
  bool read(PyObject* words, PyObject* floats, PyObject* types);
  // Takes a graph that was read or merged.
  bool take(const Merging::Part& part, PyObject* types);
  // Begins the draft, after all checks but that of the type ids. Needs no interpreter lock, as the next two.
  Problem begin_draft();
  // Runs those of some passes, bits of `Pass`, that may apply; begins the draft if any may.
  Problem run(int32_t passes);
  // Returns the graph after the passes.
  Problem finish(TypedGraph& graph);

  // Make the arrays of the result, in this order: the words, the floats and the numbers of changes. Arrays that no pass
  // changed are the given ones.
  Ref words();
  Ref floats();
  Ref changes() const;
  // Sets the error of a problem.
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
