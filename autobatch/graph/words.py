"""The encoding of a graph as one int32 array, and the compiled loops that read and write it.

B instances, N nodes, E edges, A attribute words, O outputs and F float attributes are laid out as

    words = [B, N, E, A, O, F | instance_ptr[B+1] | output_ptr[B+1] | type_id[N] | edge_ptr[N+1]
             | edge_src[E] | edge_out[E] | edge_in[E] | attr[A] | out_node[O] | out_port[O] | out_slot[O]]

so that merging graphs is one concatenation and one pass that adds offsets, and splitting them the reverse. The int
attributes of a node are as many as its type has, then for each of its data of any length the number of its elements and
their ints. The floats of such data follow the other float attributes of the node.
Only `sections` depends on this order; all other code reads and writes through its views, which `Encoded` offers as
properties.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import IntArray, indices
from autobatch.jit.loops import compiled

HEADER = 6
OUTPUT_BITS = 8  # of a word that names an output of a node; the others number a row of it
MOST_OUTPUTS = 1 << OUTPUT_BITS
MOST_ROWS = 1 << (31 - OUTPUT_BITS)
OUTPUT = MOST_OUTPUTS - 1  # these bits


class Sections(NamedTuple):
    """Views of the parts of `words`, by name; `Encoded` says what each holds."""

    instance_ptr: IntArray
    output_ptr: IntArray
    type_id: IntArray
    edge_ptr: IntArray
    edge_src: IntArray
    edge_out: IntArray
    edge_in: IntArray
    attr: IntArray
    out_node: IntArray
    out_port: IntArray
    out_slot: IntArray


@compiled
def words_size(n_instances: int, n_nodes: int, n_edges: int, n_attr: int, n_outputs: int) -> int:
    """Count the words that a graph of these sizes takes, header included."""
    return HEADER + 2 * (n_instances + 1) + 2 * n_nodes + 1 + 3 * n_edges + n_attr + 3 * n_outputs


@compiled
def encoded_size(words: IntArray) -> int:
    """Read from its header how many words the graph that starts `words` takes."""
    return words_size(int(words[0]), int(words[1]), int(words[2]), int(words[3]), int(words[4]))


@compiled
def sections(words: IntArray) -> Sections:
    """View one graph's `words` by parts; writing to a view writes to `words`."""
    b, n, e, a, o = int(words[0]), int(words[1]), int(words[2]), int(words[3]), int(words[4])
    outputs = HEADER + b + 1
    types = outputs + b + 1
    pointers = types + n
    edges = pointers + n + 1
    attributes = edges + 3 * e
    wanted = attributes + a
    return Sections(
        words[HEADER:outputs],
        words[outputs:types],
        words[types:pointers],
        words[pointers:edges],
        words[edges : edges + e],
        words[edges + e : edges + 2 * e],
        words[edges + 2 * e : attributes],
        words[attributes:wanted],
        words[wanted : wanted + o],
        words[wanted + o : wanted + 2 * o],
        words[wanted + 2 * o : wanted + 3 * o],
    )


@compiled
def write_header(
    words: IntArray, n_instances: int, n_nodes: int, n_edges: int, n_attr: int, n_outputs: int, n_floats: int
) -> Sections:
    """Write the sizes and the leading zero pointers to `words`; return the views, otherwise still to be filled."""
    words[0], words[1], words[2] = n_instances, n_nodes, n_edges
    words[3], words[4], words[5] = n_attr, n_outputs, n_floats
    views = sections(words)
    views.instance_ptr[0] = views.output_ptr[0] = views.edge_ptr[0] = 0
    return views


@compiled
def data_starts(type_ids: IntArray, attr: IntArray, types: TypeArrays) -> tuple[IntArray, IntArray]:
    """Find where the int attributes of each node start, and its float attributes: int32[N+1] each."""
    ints, floats = np.zeros(type_ids.size + 1, np.int32), np.zeros(type_ids.size + 1, np.int32)
    node_types, int_width, float_width = indices(type_ids), indices(types.int_width), indices(types.float_width)
    data_ptr, a, f = types.data_ptr, np.int64(0), np.int64(0)
    for node in range(node_types.size):
        type_id = node_types[node]
        a, f = a + np.int64(int_width[type_id]), f + np.int64(float_width[type_id])
        for number in range(data_ptr[type_id], data_ptr[type_id + 1]):
            length = np.int64(attr[a])
            a, f = a + 1 + length * types.data_ints[number], f + length * types.data_floats[number]
        ints[node + 1], floats[node + 1] = a, f
    return ints, floats


@compiled
def count_groups(graph: Sections, node: int, at: int, types: TypeArrays, lengths: NDArray[np.int64]) -> None:
    """Write to `lengths` the number of edges of each variadic group of a node, whose int attributes begin at `at`."""
    type_id = graph.type_id[node]
    for group in range(types.group_ptr[type_id + 1] - types.group_ptr[type_id]):
        lengths[group] = 0
    for e in range(graph.edge_ptr[node], graph.edge_ptr[node + 1]):
        group = types.port_group[types.port_ptr[type_id] + graph.edge_in[e]]
        if group >= 0:
            lengths[group] += 1
    at += types.int_width[type_id]
    for number in range(types.data_ptr[type_id], types.data_ptr[type_id + 1]):
        n = np.int64(graph.attr[at])
        lengths[types.data_group[number]] = n
        at += 1 + n * types.data_ints[number]
    for part in range(types.part_ptr[type_id], types.part_ptr[type_id + 1]):
        n, start, stop, step = types.part_cut[part]
        if types.part_of[part] >= 0:
            n = lengths[types.part_of[part]]
        count = np.int64(slice_length(n, start, stop, step))
        if types.part_times[part] >= 0:
            count *= lengths[types.part_times[part]]
        lengths[types.part_group[part]] += count


@compiled
def slice_length(n: int, start: int, stop: int, step: int) -> int:
    """Count the elements that Python's slice start:stop:step gives of n."""
    low, high = (0, n) if step > 0 else (-1, n - 1)
    first = min(max(start + n if start < 0 else start, low), high)
    last = min(max(stop + n if stop < 0 else stop, low), high)
    return max((last - first + step - (1 if step > 0 else -1)) // step, 0)


@compiled
def copy_shifted(target: IntArray, at: int, source: IntArray, shift: int) -> None:
    """Write `source + shift` into `target` from position `at` on."""
    part = target[at : at + source.size]
    for k in range(source.size):
        part[k] = source[k] + shift


@compiled
def copy_outputs(graph: Sections, result: Sections, number: IntArray) -> None:
    """Copy the returned outputs of a graph into one whose nodes are renumbered by `number[node]`."""
    for o in range(graph.out_node.size):
        result.out_node[o] = number[graph.out_node[o]]
    copy_shifted(result.output_ptr, 0, graph.output_ptr, 0)
    copy_shifted(result.out_port, 0, graph.out_port, 0)
    copy_shifted(result.out_slot, 0, graph.out_slot, 0)


@compiled
def copy_attributes(values: NDArray[Any], result: NDArray[Any], starts: IntArray, number: IntArray) -> None:
    """Copy the attributes, which start at `starts`, of the kept nodes: those after which `number` rises."""
    if values.size == result.size:
        for k in range(values.size):
            result[k] = values[k]
        return
    target = 0
    for node in range(starts.size - 1):
        if number[node] < number[node + 1]:
            for source in range(starts[node], starts[node + 1]):
                result[target] = values[source]
                target += 1


@compiled
def merge_words(parts: IntArray) -> IntArray:
    """Merge encoded graphs that follow one another in `parts`; nodes, edges and outputs are numbered consecutively.

    Cost: one sweep over the words.
    """
    total = np.zeros(HEADER, np.int64)
    at = 0
    while at < parts.size:
        for k in range(HEADER):
            total[k] += parts[at + k]
        at += encoded_size(parts[at : at + HEADER])
    merged = np.empty(words_size(total[0], total[1], total[2], total[3], total[4]), np.int32)
    whole = write_header(merged, total[0], total[1], total[2], total[3], total[4], total[5])
    at = b = n = e = a = o = 0
    while at < parts.size:
        size = encoded_size(parts[at : at + HEADER])
        part = sections(parts[at : at + size])
        copy_shifted(whole.instance_ptr, b, part.instance_ptr, n)
        copy_shifted(whole.output_ptr, b, part.output_ptr, o)
        copy_shifted(whole.type_id, n, part.type_id, 0)
        copy_shifted(whole.edge_ptr, n, part.edge_ptr, e)
        copy_shifted(whole.edge_src, e, part.edge_src, n)
        copy_shifted(whole.edge_out, e, part.edge_out, 0)
        copy_shifted(whole.edge_in, e, part.edge_in, 0)
        copy_shifted(whole.attr, a, part.attr, 0)
        copy_shifted(whole.out_node, o, part.out_node, n)
        copy_shifted(whole.out_port, o, part.out_port, 0)
        copy_shifted(whole.out_slot, o, part.out_slot, 0)
        at += size
        b += part.instance_ptr.size - 1
        n += part.type_id.size
        e += part.edge_src.size
        a += part.attr.size
        o += part.out_node.size
    return merged


@compiled
def split_words(words: IntArray, attr_starts: IntArray, float_starts: IntArray) -> tuple[IntArray, NDArray[np.int64]]:
    """Encode each instance of a graph as a graph of its own, all in one buffer.

    Args:
        words: a graph whose edges and outputs stay within their instance.
        attr_starts, float_starts: [N+1], from `data_starts`.

    Returns:
        The buffer, and ptr[B+1]: instance i is `buffer[ptr[i]:ptr[i + 1]]`.
    """
    whole = sections(words)
    ptr = _split_ptr(whole, attr_starts)
    buffer = np.empty(ptr[-1], np.int32)
    for i in range(ptr.size - 1):
        n0, n1 = whole.instance_ptr[i], whole.instance_ptr[i + 1]
        e0, e1 = whole.edge_ptr[n0], whole.edge_ptr[n1]
        a0, a1 = attr_starts[n0], attr_starts[n1]
        o0, o1 = whole.output_ptr[i], whole.output_ptr[i + 1]
        n_floats = float_starts[n1] - float_starts[n0]
        part = write_header(buffer[ptr[i] : ptr[i + 1]], 1, n1 - n0, e1 - e0, a1 - a0, o1 - o0, n_floats)
        part.instance_ptr[1] = n1 - n0
        part.output_ptr[1] = o1 - o0
        copy_shifted(part.type_id, 0, whole.type_id[n0:n1], 0)
        copy_shifted(part.edge_ptr, 0, whole.edge_ptr[n0 : n1 + 1], -e0)
        copy_shifted(part.edge_src, 0, whole.edge_src[e0:e1], -n0)
        copy_shifted(part.edge_out, 0, whole.edge_out[e0:e1], 0)
        copy_shifted(part.edge_in, 0, whole.edge_in[e0:e1], 0)
        copy_shifted(part.attr, 0, whole.attr[a0:a1], 0)
        copy_shifted(part.out_node, 0, whole.out_node[o0:o1], -n0)
        copy_shifted(part.out_port, 0, whole.out_port[o0:o1], 0)
        copy_shifted(part.out_slot, 0, whole.out_slot[o0:o1], 0)
    return buffer, ptr


@compiled
def _split_ptr(whole: Sections, attr_starts: IntArray) -> NDArray[np.int64]:
    ptr = np.zeros(whole.instance_ptr.size, np.int64)
    for i in range(ptr.size - 1):
        n0, n1 = whole.instance_ptr[i], whole.instance_ptr[i + 1]
        n_edges = whole.edge_ptr[n1] - whole.edge_ptr[n0]
        n_outputs = whole.output_ptr[i + 1] - whole.output_ptr[i]
        ptr[i + 1] = ptr[i] + words_size(1, n1 - n0, n_edges, attr_starts[n1] - attr_starts[n0], n_outputs)
    return ptr


@compiled
def crossing_node(words: IntArray) -> int:
    """Find the first node that another instance reads or returns; -1 if the instances are independent."""
    graph = sections(words)
    for i in range(graph.instance_ptr.size - 1):
        n0, n1 = graph.instance_ptr[i], graph.instance_ptr[i + 1]
        for e in range(graph.edge_ptr[n0], graph.edge_ptr[n1]):
            if not n0 <= graph.edge_src[e] < n1:
                return int(graph.edge_src[e])
        for o in range(graph.output_ptr[i], graph.output_ptr[i + 1]):
            if not n0 <= graph.out_node[o] < n1:
                return int(graph.out_node[o])
    return -1


class Encoded:
    """An encoded graph whose parts are read by name, as views.

    Attributes:
        words: int32, all of the below.
        instance_ptr, output_ptr: [B+1] the nodes and the outputs of each instance.
        type_id: [N].
        edge_ptr: [N+1]; node n reads edges edge_ptr[n]:edge_ptr[n+1].
        edge_src, edge_out, edge_in: [E] the node read, which of its outputs (the lowest bits, see `OUTPUT`) and which
            row of that (the others; 0 unless the output has any number of rows), and the port that reads it; ports
            do not decrease within a node. A variadic port has any number of edges, in sequence order; a plain one
            has one, or several after pass "fold", and then reads the sum of their values.
        attr: [A] the int attributes in node order: as many per node as its type has, then data of any length.
        out_node, out_port, out_slot: [O] the returned values: node, output and row of the node, place in the result.
    """

    __slots__ = ("_sections", "words")

    def __init__(self, words: IntArray) -> None:
        self.words = words
        self._sections: Sections | None = None

    @property
    def sections(self) -> Sections:
        """All views at once."""
        if self._sections is None:
            self._sections = sections.python(self.words)
        return self._sections

    def __len__(self) -> int:
        return self.n_nodes

    @property
    def n_instances(self) -> int:
        return int(self.words[0])

    @property
    def n_nodes(self) -> int:
        return int(self.words[1])

    @property
    def n_edges(self) -> int:
        return int(self.words[2])

    @property
    def n_outputs(self) -> int:
        return int(self.words[4])

    @property
    def instance_ptr(self) -> IntArray:
        return self.sections.instance_ptr

    @property
    def output_ptr(self) -> IntArray:
        return self.sections.output_ptr

    @property
    def type_id(self) -> IntArray:
        return self.sections.type_id

    @property
    def edge_ptr(self) -> IntArray:
        return self.sections.edge_ptr

    @property
    def edge_src(self) -> IntArray:
        return self.sections.edge_src

    @property
    def edge_out(self) -> IntArray:
        return self.sections.edge_out

    @property
    def edge_in(self) -> IntArray:
        return self.sections.edge_in

    @property
    def attr(self) -> IntArray:
        return self.sections.attr

    @property
    def out_node(self) -> IntArray:
        return self.sections.out_node

    @property
    def out_port(self) -> IntArray:
        return self.sections.out_port

    @property
    def out_slot(self) -> IntArray:
        return self.sections.out_slot
