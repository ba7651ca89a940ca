#include "plan/pipeline.h"

#include "graph/marks.h"
#include "support/clock.h"

namespace autobatch {

bool read_threads(PyObject* number, int32_t& n_threads) {
  constexpr int32_t MOST_THREADS = 1 << 16;
  if (!read_int(number, "n_threads", n_threads)) return false;
  if (n_threads >= 1 && n_threads <= MOST_THREADS) return true;
  return PyErr_Format(PyExc_ValueError, "n_threads must lie in 1..%d, got %d", MOST_THREADS, n_threads), false;
}

bool Pipeline::read(PyObject* const* arguments) {
  layout_given_ = arguments[3];
  sizes_given_ = arguments[4];
  return read_int(arguments[1], "passes", passes_) && read_directed_rule(arguments[2], rule_) &&
         read_threads(arguments[5], n_threads_);
}

bool Pipeline::take(const Merging::Part& part, PyObject* types) {
  return rewriting_.take(part, types) && placement.read_layout(layout_given_, rewriting_.given.types) &&
         placement.fits(rewriting_.given, rewriting_.draft.floats) &&
         (sizes_given_ == Py_None || read_cell_sizes(sizes_given_, placement.n_types(), placement.n_blocks(), sizes_));
}

Problem Pipeline::run() {
  times_[0] = seconds_now();
  Problem problem = rewriting_.run(passes_);
  if (!problem) problem = rewriting_.finish(graph);
  times_[1] = seconds_now();
  const Graph& parts = graph.graph;
  Dag dag{parts.type_id, parts.edge_ptr, parts.edge_src, (int32_t)graph.types.n_types()};
  if (!problem && !plan_best(dag, rule_, batches_)) problem = NO_MEMORY;
  times_[2] = seconds_now();
  BatchSpans scheduled{batches_.batch_type, batches_.batch_ptr, batches_.order};
  if (!problem) problem = placement.place(graph, rewriting_.draft.floats, scheduled);
  if (!problem) {
    placement.list_arrays(scheduled, plan_);
    has_tables_ = sizes_.scratch.rows && fit(sizes_, plan_);
    if (has_tables_) problem = tables_.make(plan_, sizes_, n_threads_);
  }
  times_[3] = seconds_now();
  return problem;
}

Ref Pipeline::to_python(Problem problem) {
  if (problem) return Ref(rewriting_.refuse(problem));
  Ref floats = rewriting_.floats(), words = rewriting_.words(), changes = rewriting_.changes(),
      schedule(autobatch::to_python(batches_)), parts = placement.to_python(plan_);
  if (!words || !floats || !changes || !schedule || !parts) return Ref();
  Ref listed = has_tables_ ? tables_.to_python(plan_) : Ref::borrowed(Py_None);
  if (!listed) return Ref();
  return Ref(Py_BuildValue("NNNNNN(ddd)", words.release(), floats.release(), changes.release(), schedule.release(),
                           parts.release(), listed.release(), times_[1] - times_[0], times_[2] - times_[1],
                           times_[3] - times_[2]));
}

bool Loss::read(PyObject* flows_given, PyObject* slot_given, const Placement& placement) {
  if (!read_int(slot_given, "slot", slot) || slot < 0) return !PyErr_Occurred();
  if (!read_flows(flows_given, flows)) return false;
  if (slot < placement.n_slots() && flows.n_types() == placement.n_types()) return true;
  return PyErr_Format(PyExc_ValueError, "slot must lie below %zd and flows have %d types, got slot %d and %zd types",
                      placement.n_slots(), placement.n_types(), slot, flows.n_types()),
         false;
}

Problem Loss::find_whole(const Graph& graph, ptrdiff_t n_slots, bool& is_whole) const {
  is_whole = false;
  if (slot < 0) return nullptr;
  ptrdiff_t width = 1;  // the first column stands for the nodes themselves
  for (int32_t n_outputs : flows.n_outputs) width = n_outputs >= width ? n_outputs + ptrdiff_t(1) : width;
  Vec<uint8_t> marks, wanted;
  if (!marks.resize(graph.n_nodes() * width) || !wanted.assign(n_slots, 0)) return NO_MEMORY;
  wanted[slot] = 1;
  Marked marked = mark_all(graph, flows, wanted, {marks.data(), graph.n_nodes(), width});
  is_whole = marked == Marked::WHOLE;
  return marked == Marked::WRONG ? "a slot, an output or a port does not exist" : nullptr;
}

}  // namespace autobatch
