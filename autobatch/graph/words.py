"""The encoding of a graph as one int32 array.

B instances, N nodes, E edges, A attribute words, O outputs and F float attributes are laid out as

    words = [B, N, E, A, O, F | instance_ptr[B+1] | output_ptr[B+1] | type_id[N] | edge_ptr[N+1]
             | edge_src[E] | edge_out[E] | edge_in[E] | attr[A] | out_node[O] | out_port[O] | out_slot[O]]

so that merging graphs reads one array of each and adds offsets, and splitting is the reverse. A node's
int attributes are those of fixed width; then, for each of its data of any length, the number of elements and their
ints. The floats of such data follow the other float attributes of the node.
Only `sections` depends on this order; all other code reads and writes through its views, which `Encoded` offers as
properties. The loops over words are in `native/graph/`.
"""

from __future__ import annotations

from typing import NamedTuple

from autobatch.arrays import IntArray

HEADER = 6
OUTPUT_BITS = 8  # the low bits of a word are an output of a node, the others a row of it
MOST_OUTPUTS = 1 << OUTPUT_BITS
MOST_ROWS = 1 << (31 - OUTPUT_BITS)
OUTPUT = MOST_OUTPUTS - 1  # the mask of the low bits


class Sections(NamedTuple):
    """Views of the parts of `words`, by name; `Encoded` describes them."""

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


def words_size(n_instances: int, n_nodes: int, n_edges: int, n_attr: int, n_outputs: int) -> int:
    """Count the words of a graph of these sizes, header included."""
    return HEADER + 2 * (n_instances + 1) + 2 * n_nodes + 1 + 3 * n_edges + n_attr + 3 * n_outputs


def encoded_size(words: IntArray) -> int:
    """Count the words of the graph at the beginning of `words`, from its header."""
    return words_size(*words[: HEADER - 1].tolist())


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


def write_header(
    words: IntArray, n_instances: int, n_nodes: int, n_edges: int, n_attr: int, n_outputs: int, n_floats: int
) -> Sections:
    """Write the sizes and the leading zero pointers to `words`; return the views, which the caller fills."""
    words[0], words[1], words[2] = n_instances, n_nodes, n_edges
    words[3], words[4], words[5] = n_attr, n_outputs, n_floats
    views = sections(words)
    views.instance_ptr[0] = views.output_ptr[0] = views.edge_ptr[0] = 0
    return views


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
        if self._sections is None:
            self._sections = sections(self.words)
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
