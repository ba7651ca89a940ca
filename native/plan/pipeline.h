// Makes the plan and the tables of a graph: rewrites, schedules and places it, and lists its calls.

#pragma once

#include "graph/flows.h"
#include "graph/rewrite/rewrite.h"
#include "plan/placement.h"
#include "plan/plan_tables.h"
#include "policies/entries.h"

namespace autobatch {

// Reads a number of threads; false with an error if it is out of range.
bool read_threads(PyObject* number, int32_t& n_threads);

// The stages of planning after a graph was merged or emitted.
class Pipeline {
 public:
  // Reads the arguments (types, passes, rule, layout, sizes, n_threads). Types, layout and sizes are left to `take`.
  bool read(PyObject* const* arguments);
  // Takes a graph and its types, and checks that they fit the layout and the sizes; false with an error if not.
  bool take(const Merging::Part& part, PyObject* types);
  // Runs the stages; needs no interpreter lock.
  Problem run();
  // Makes a tuple: the words, floats and changes of the rewritten graph; its schedule; the parts of a plan; the parts
  // of its tables, or None if a type of the plan has no sizes yet; and the seconds that rewriting, scheduling and
  // placing took. Null with an error if there is a problem.
  Ref to_python(Problem problem);

  TypedGraph graph;  // the rewritten one
  Placement placement;

 private:
  int32_t passes_, n_threads_;
  DirectedRule rule_;
  PyObject *layout_given_, *sizes_given_;  // borrowed
  Rewriting rewriting_;
  Batches batches_;
  CellSizes sizes_;
  PlanArrays plan_;
  PlanTables tables_;
  bool has_tables_ = false;
  double times_[4];  // when each stage begins, and when all are done
};

// The slot of a loss, and the paths along which its gradients flow.
struct Loss {
  Flows flows;
  int32_t slot = -1;

  // Reads both; a negative slot means that there is no loss, and then the paths are not read.
  bool read(PyObject* flows_given, PyObject* slot_given, const Placement& placement);
  // Finds whether the loss depends on all nodes of a graph; false without a loss.
  Problem find_whole(const Graph& graph, ptrdiff_t n_slots, bool& is_whole) const;
};

}  // namespace autobatch
