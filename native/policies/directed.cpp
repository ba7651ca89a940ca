#include "policies/directed.h"

#include "policies/sequences.h"

namespace autobatch {
namespace {

// Plans a DAG by a rule in one direction; false if memory runs out.
bool plan_in(const Dag& dag, const DirectedRule& by, bool is_backward, Batches& batches) {
  if (!is_backward) return plan_by_rule(dag, by.rule, by.weights, batches);
  OwnedDag reverse;
  if (!reverse.reverse(dag) || !plan_by_rule(reverse.view(), by.rule, by.weights, batches)) return false;
  batches.mirror();
  return true;
}

// Removes the superfluous batches of a schedule, if it has any; false if memory runs out.
bool compact_batches(const Dag& dag, Batches& batches) {
  Vec<int32_t> sequence, position;
  Stops stops;
  if (compact(dag, batches.batch_type, sequence) == Compacted::NO_MEMORY) return false;
  if (sequence.size() == batches.batch_type.size()) return true;
  if (!position.resize(dag.n_nodes()) || !stops.index(sequence, false, dag.n_types, dag.n_nodes())) return false;
  fill_early(dag, stops, position);
  return gather_batches(dag, sequence, position, batches) == -1;
}

}  // namespace

bool plan_best(const Dag& dag, const DirectedRule& by, Batches& best) {
  bool is_first = true;
  for (int direction = FORWARD; direction <= BACKWARD; direction++) {
    if (!(by.directions & direction)) continue;
    Batches batches;
    if (!plan_in(dag, by, direction == BACKWARD, batches) || (by.compacts && !compact_batches(dag, batches)))
      return false;
    if (is_first || dag.cost_of(batches.batch_type) < dag.cost_of(best.batch_type)) {
      best.batch_type = static_cast<Vec<int32_t>&&>(batches.batch_type);
      best.batch_ptr = static_cast<Vec<int32_t>&&>(batches.batch_ptr);
      best.order = static_cast<Vec<int32_t>&&>(batches.order);
    }
    is_first = false;
  }
  return true;
}

}  // namespace autobatch
