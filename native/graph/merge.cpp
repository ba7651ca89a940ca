// Merging the graphs of instances into the graph of a mini-batch.

#include "graph/graph.h"
#include "graph/words.h"

namespace autobatch {

// merge_words(parts): merges encoded graphs that follow one another, and numbers their nodes, edges and outputs anew.
PyObject* merge_words(PyObject*, PyObject* argument) {
  Span<const int32_t> parts;
  if (!read<int32_t>(argument, "parts", parts)) return nullptr;
  Sizes total, sizes;
  Graph part;
  for (ptrdiff_t at = 0; at < parts.size; at += (ptrdiff_t)sizes.words()) {
    if (!sizes_of(parts.part(at, parts.size), sizes)) {
      PyErr_SetString(PyExc_ValueError, "parts must be encoded graphs one after the other, got a part that is none");
      return nullptr;
    }
    if (!view_graph(parts.part(at, at + (ptrdiff_t)sizes.words()), part, sizes)) return nullptr;
    total.instances += sizes.instances;
    total.nodes += sizes.nodes;
    total.edges += sizes.edges;
    total.attr += sizes.attr;
    total.outputs += sizes.outputs;
    total.floats += sizes.floats;
  }
  NewGraph whole;
  Ref merged = make_words(total, whole);
  if (!merged) return nullptr;
  Unlocked unlocked;
  int32_t b = 0, n = 0, e = 0, a = 0, o = 0;
  for (ptrdiff_t at = 0; at < parts.size; at += (ptrdiff_t)sizes.words()) {
    sizes_of(parts.part(at, parts.size), sizes);
    part = parts_of(parts.data + at, sizes);
    copy_shifted(whole.instance_ptr, b, part.instance_ptr, n);
    copy_shifted(whole.output_ptr, b, part.output_ptr, o);
    copy_shifted(whole.type_id, n, part.type_id, 0);
    copy_shifted(whole.edge_ptr, n, part.edge_ptr, e);
    copy_shifted(whole.edge_src, e, part.edge_src, n);
    copy_shifted(whole.edge_out, e, part.edge_out, 0);
    copy_shifted(whole.edge_in, e, part.edge_in, 0);
    copy_shifted(whole.attr, a, part.attr, 0);
    copy_shifted(whole.out_node, o, part.out_node, n);
    copy_shifted(whole.out_port, o, part.out_port, 0);
    copy_shifted(whole.out_slot, o, part.out_slot, 0);
    b += (int32_t)sizes.instances;
    n += (int32_t)sizes.nodes;
    e += (int32_t)sizes.edges;
    a += (int32_t)sizes.attr;
    o += (int32_t)sizes.outputs;
  }
  return merged.release();
}

}  // namespace autobatch
