#include "graph/rewrite/draft.h"

namespace autobatch {

bool begin_graph(Draft& draft, Span<const int32_t> number, int64_t n_edges, Draft& next, NewGraph& parts) {
  const Graph& graph = draft.graph;
  ptrdiff_t n_nodes = graph.n_nodes();
  int32_t n_kept = number[n_nodes], a = 0, f = 0;
  if (!next.int_starts.resize(n_kept + 1) || !next.float_starts.resize(n_kept + 1)) return false;
  next.int_starts[0] = next.float_starts[0] = 0;
  for (ptrdiff_t node = 0; node < n_nodes; node++) {
    if (number[node] == number[node + 1]) continue;
    next.int_starts[number[node + 1]] = a += draft.int_starts[node + 1] - draft.int_starts[node];
    next.float_starts[number[node + 1]] = f += draft.float_starts[node + 1] - draft.float_starts[node];
  }
  next.sizes = {draft.sizes.instances, n_kept, n_edges, a, draft.sizes.outputs, f};
  draft.is_too_large = next.sizes.words() > INT32_MAX;
  if (draft.is_too_large || !next.words.resize((ptrdiff_t)next.sizes.words())) return false;
  parts = begin_words(next.words.data(), next.sizes);
  next.graph = parts_of<const int32_t>(next.words.data(), next.sizes);
  for (ptrdiff_t i = 0; i < graph.instance_ptr.size; i++) parts.instance_ptr[i] = number[graph.instance_ptr[i]];
  copy_attributes(graph.attr, parts.attr, draft.int_starts, number);
  next.floats = draft.floats;
  if (f == draft.sizes.floats) return true;
  if (!next.own_floats.resize(f)) return false;
  copy_attributes(draft.floats, Span<double>(next.own_floats), draft.float_starts, number);
  next.floats = next.own_floats;
  return true;
}

void replace(Draft& draft, Draft& next) {
  // If no floats were dropped, `next` still views those of the old draft, which is freed after this call.
  if (next.floats.data == draft.own_floats.data()) next.own_floats = static_cast<Vec<double>&&>(draft.own_floats);
  draft = static_cast<Draft&&>(next);
}

}  // namespace autobatch
