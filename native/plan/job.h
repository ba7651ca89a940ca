// A mini-batch to be planned: as a whole in one call, or ahead of time by another thread.

#pragma once

#include "plan/pipeline.h"

namespace autobatch {

extern PyTypeObject PlanJobType;

// The planning of a list of graphs.
class PlanJob {
 public:
  // Reads the arguments (graphs, types, passes, rule, layout, sizes, n_threads, flows, slot), which must outlive the
  // job.
  bool read(PyObject* const* arguments);
  // Merges and plans; needs no interpreter lock.
  void run();
  // Makes the result of `plan_graphs`, at most once.
  PyObject* to_python();

 private:
  Merging merging_;
  Pipeline pipeline_;
  Loss loss_;
  Problem problem_ = nullptr;
  bool merges_ = false, is_whole_ = false;
  double merge_seconds_ = 0;
};

// plan_graphs(graphs, types, passes, rule, layout, sizes, n_threads, flows, slot): returns the merged graph, or None
// for a single graph; the parts of a `Planned`; whether the loss in the slot depends on all nodes; and the seconds that
// merging took.
PyObject* plan_graphs(PyObject*, PyObject* const* arguments, Py_ssize_t n);

}  // namespace autobatch
