#include "schedule/simulator.h"

namespace autobatch {

void Batches::mirror() {
  int32_t n = (int32_t)order.size();
  turn<int32_t>(order);
  turn<int32_t>(batch_type);
  turn<int32_t>(batch_ptr);
  for (int32_t& node : Span<int32_t>(order)) node = n - 1 - node;
  for (int32_t& end : Span<int32_t>(batch_ptr)) end = n - end;
}

bool Simulator::find_readers() {
  int32_t n = dag.n_nodes();
  if (!reader_ptr_.assign(n + 1, 0) || !reader_.resize(dag.n_edges())) return false;
  for (int32_t source : dag.edge_src) reader_ptr_[source]++;
  int32_t end = 0;  // counts become the ends of lists, which the next loop moves down to their starts
  for (int32_t node = 0; node <= n; node++) reader_ptr_[node] = end += node < n ? reader_ptr_[node] : 0;
  for (int32_t node = n - 1; node >= 0; node--)  // backward: each list fills from its end, in node order
    for (ptrdiff_t e = dag.edge_ptr[node + 1] - 1; e >= dag.edge_ptr[node]; e--)
      reader_[--reader_ptr_[dag.edge_src[e]]] = node;
  return true;
}

bool Simulator::start(const Dag& of, Span<const int32_t> ranges) {
  dag = of;
  int32_t n = dag.n_nodes();
  if (ranges.size ? !node_ptr.copy(ranges) : !node_ptr.assign(2, 0)) return false;
  if (!ranges.size) node_ptr[1] = n;
  if (!find_readers() || !segment.assign((ptrdiff_t)dag.n_types + 1, 0) || !head.resize(dag.n_types) ||
      !tail.resize(dag.n_types) || !waiting_.resize(n) || !queue.resize(n) || !order.resize(n) ||
      !batch_type.resize(n) || !batch_end.resize(n) || !n_batches.resize(node_ptr.size() - 1))
    return false;
  for (int32_t type : dag.type_id) segment[type + 1]++;
  for (int32_t type = 0; type < dag.n_types; type++) segment[type + 1] += segment[type];
  for (ptrdiff_t g = 0; g + 1 < node_ptr.size(); g++) restart(g);
  return true;
}

void Simulator::restart(ptrdiff_t g) {
  int32_t first = (int32_t)g * n_types();
  n_batches[g] = 0;
  for (int32_t type = first; type < first + n_types(); type++) head[type] = tail[type] = segment[type];
  for (int32_t node = node_ptr[g]; node < node_ptr[g + 1]; node++) {
    waiting_[node] = dag.edge_ptr[node + 1] - dag.edge_ptr[node];
    if (waiting_[node] == 0) queue[tail[dag.type_id[node]]++] = node;
  }
}

Span<const int32_t> Simulator::step(int32_t type) {
  int32_t *waiting = waiting_.data(), *free = tail.data(), *queued = queue.data();
  const int32_t *type_of = dag.type_id.data, *reader = reader_.data(), *reader_ptr = reader_ptr_.data();
  int32_t first = head[type], end = tail[type];
  ptrdiff_t g = type / n_types();
  ptrdiff_t k = node_ptr[g] + n_batches[g];
  int32_t done = n_batches[g] ? batch_end[k - 1] : node_ptr[g];
  for (int32_t i = first; i < end; i++) order[done + i - first] = queued[i];
  for (int32_t i = first; i < end; i++) {
    int32_t node = queued[i];
    for (int32_t r = reader_ptr[node]; r < reader_ptr[node + 1]; r++) {
      int32_t freed = reader[r], other = type_of[freed];
      waiting[freed]--;
      // Always written, but counted only if no input is missing, which avoids a branch. The segment of its type has a
      // free place: at least `freed` itself is not queued yet.
      queued[free[other]] = freed;
      free[other] += waiting[freed] == 0;
    }
  }
  head[type] = end;
  batch_type[k] = type;
  batch_end[k] = done + end - first;
  n_batches[g]++;
  return Span<const int32_t>(queue).part(first, end);
}

bool Simulator::finish(Batches& batches) const {
  ptrdiff_t n = n_batches[0];
  if (!batches.batch_type.copy(Span<const int32_t>(batch_type).part(0, n)) || !batches.batch_ptr.assign(n + 1, 0))
    return false;
  for (ptrdiff_t k = 0; k < n; k++) batches.batch_ptr[k + 1] = batch_end[k];
  return batches.order.copy(Span<const int32_t>(order).part(0, batches.batch_ptr[n]));
}

}  // namespace autobatch
