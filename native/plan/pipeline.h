// From a graph to its plan and tables: rewrite, schedule, place, and make the tables of calls.

#pragma once

#include "graph/flows.h"
#include "graph/rewrite/rewrite.h"
#include "plan/placement.h"
#include "plan/plan_tables.h"
#include "policies/entries.h"

namespace autobatch {

// Reads a number of threads; an error if it is out of range.
bool read_threads(PyObject* number, int32_t& n_threads);

// The stages that follow once a graph is merged or emitted.
class Pipeline {
 public:
  // Reads types, passes, rule, layout, sizes and n_threads.
  bool read(PyObject* const* arguments);
  // Takes a graph, and checks that it fits the layout of its types.
  bool take(const Merging::Part& part, PyObject* types);
  // Runs the stages; needs no interpreter lock.
  Problem run();
  // Returns, if there is no problem, the words, floats and changes of the rewritten graph; its schedule; the parts of a
  // plan; those of its tables, or None if a type of the plan has no sizes yet; and the seconds that rewriting,
  // scheduling and placing took.
  Ref to_python(Problem problem);

  TypedGraph graph;  // rewritten
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

// A loss, by the paths of its gradients.
struct Loss {
  Flows flows;
  int32_t slot = -1;

  // Reads both; the paths may be None if there is no slot.
  bool read(PyObject* flows_given, PyObject* slot_given, const Placement& placement);
  // Finds whether the loss depends on all nodes of a graph; false without a loss.
  Problem find_whole(const Graph& graph, ptrdiff_t n_slots, bool& is_whole) const;
};

}  // namespace autobatch
