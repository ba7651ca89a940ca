"""What runs before what: one instance's recorded calls, or a whole mini-batch of them, as flat arrays of ints.

A graph holds nodes (calls of cells) in topological order, the edges between them, the int and float data that
the calls were given, and what the user asked for. It knows types by number only; a `Types` table names them.
All of it lives in one int32 array (`autobatch.graph.words` has the layout), so that merging a mini-batch costs one
concatenation and one compiled pass. Here graphs are made by hand, merged, split, range-checked and printed;
`check_graph` comes from `autobatch.graph.graph_check`.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import DataError, GraphError
from autobatch.graph.graph_check import check_graph, checking, refuse_backward_edges
from autobatch.graph.words import (
    Encoded,
    FloatArray,
    IntArray,
    LongArray,
    crossing_node,
    merge_words,
    split_words,
    value_starts,
    words_size,
    write_header,
)
from autobatch.jit.loops import compiled

__all__ = [
    "Graph",
    "NamedTypes",
    "TypeArrays",
    "Types",
    "check_graph",
    "check_ranges",
    "checking",
    "make_graph",
    "merge_graphs",
    "of_instances",
    "split_graph",
]

MAX_WORDS = 2**31 - 1  # positions are int32
MAX_LINES = 60  # of a printed graph
NO_FLOATS: FloatArray = np.empty(0)


class TypeArrays(NamedTuple):
    """What loops need to know of T types, as int32 arrays."""

    int_width: IntArray  # [T] int attributes per node
    float_width: IntArray  # [T] float attributes per node
    out_ptr: IntArray  # [T+1] outputs of type t: out_ptr[t]:out_ptr[t+1]
    pass_port: IntArray  # [outputs] the port that the output is whenever that has one edge, or -1
    port_ptr: IntArray  # [T+1] ports of type t: port_ptr[t]:port_ptr[t+1]; none at all where ports are not known
    port_plain: IntArray  # [ports] 1 for a plain port, 0 for one of a variadic group
    sum_type: IntArray  # [T] the variadic sum that computes the same (for such a sum its own id), or -1
    range_ptr: IntArray  # [T+1] ranges of type t: range_ptr[t]:range_ptr[t+1]
    range_column: IntArray  # [ranges] the int attribute that is limited ...
    range_size: IntArray  # [ranges] ... to 0..size-1
    random: IntArray  # [T] 1 if the cell draws random numbers


class Types(Protocol):
    """The table that gives a graph's type ids their meaning."""

    @property
    def names(self) -> Sequence[str]:
        """The types' names, by id."""

    @property
    def outlines(self) -> Sequence[str]:
        """What tells the types apart, and is the same for a model of other widths and in other processes."""

    def __len__(self) -> int:
        """Count the types."""

    def arrays(self) -> TypeArrays:
        """Give what loops need to know of the types."""

    def describe_range(self, r: int) -> str:
        """Name the cell and the argument that range `r` limits."""


@dataclass(frozen=True)
class NamedTypes:
    """Types that have a name, one output and no attributes: enough to study schedules on hand-made graphs."""

    names: tuple[str, ...]

    @property
    def outlines(self) -> tuple[str, ...]:
        """Nothing but the names tells these types apart."""
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def arrays(self) -> TypeArrays:
        """Give what loops need to know of the types."""
        n = len(self.names)
        zeros, unset, none = np.zeros(n + 1, np.int32), np.full(n, -1, np.int32), np.empty(0, np.int32)
        no = zeros[:n]
        return TypeArrays(
            int_width=no,
            float_width=no,
            out_ptr=np.arange(n + 1, dtype=np.int32),
            pass_port=unset,
            port_ptr=zeros,
            port_plain=none,
            sum_type=unset,
            range_ptr=zeros,
            range_column=none,
            range_size=none,
            random=no,
        )

    def describe_range(self, r: int) -> str:
        """Refuse: types without attributes limit none."""
        raise IndexError(f"range {r} of types without attributes")


class Graph(Encoded):
    """Nodes in topological order, what they read, and what the user asked for; of one instance or of many.

    Attributes, beside the views of `Encoded`:
        floats: float64[F], the float attributes in node order, as many per node as its type has.
        types: the table that names the types.
        structures: per instance, how to rebuild what the user's function returned; opaque here.
        keys: int64[B], what tells the instances' random numbers apart; by default their positions.
        in_range: whether `check_ranges` has found nothing wrong; what is in a graph does not change.
    """

    __slots__ = ("_digest", "floats", "in_range", "keys", "structures", "types")

    def __init__(
        self,
        words: IntArray,
        floats: FloatArray,
        types: Types,
        structures: tuple[Any, ...],
        keys: LongArray | None = None,
    ) -> None:
        super().__init__(words)
        self.keys = np.arange(self.n_instances) if keys is None else keys
        self.floats = floats
        self.types = types
        self.structures = structures
        self.in_range = False
        self._digest = b""

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.words, self.floats, self.types, self.structures, self.keys)

    @property
    def key(self) -> int:
        """The key of a graph of one instance."""
        return int(self.keys[0])

    @key.setter
    def key(self, key: int) -> None:
        self.keys = np.array([key], np.int64)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the words and floats, computed once: equal for graphs that are planned alike, attributes too."""
        if not self._digest:
            self._digest = hashlib.sha256(self.words.tobytes() + self.floats.tobytes()).digest()
        return self._digest

    @property
    def n_types(self) -> int:
        """Count the types of the table; some may have no node here."""
        return len(self.types)

    def type_of(self, node: int) -> str:
        """Name the type of a node."""
        return self.types.names[int(self.type_id[node])]

    def inputs_of(self, node: int) -> list[int]:
        """List the nodes that a node reads, in port order."""
        start, stop = self.edge_ptr[node : node + 2]
        sources: list[int] = self.edge_src[start:stop].tolist()
        return sources

    def __repr__(self) -> str:
        return (
            f"Graph(instances={self.n_instances}, nodes={self.n_nodes}, edges={self.n_edges}, "
            f"types={self.n_types}, outputs={self.n_outputs})"
        )

    def __str__(self) -> str:
        lines = [repr(self), *islice(_instance_lines(self), MAX_LINES)]
        return "\n".join(lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "  ..."])


def make_graph(
    types: Types,
    type_id: Sequence[int],
    edges: Iterable[Sequence[int]],
    outputs: Iterable[int] = (),
    attr: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> Graph:
    """Make the graph of one instance by hand.

    Args:
        types: names the types.
        type_id: the type of each node; nodes are numbered in topological order.
        edges: (source, reader), (source, reader, output) or (source, reader, output, port), output and port
            0 where absent; in any order, but the edges of one port in the order in which it reads them.
        outputs: the nodes whose first output is asked for.
        attr, floats: the int and float attributes of all nodes, in node order.

    Raises:
        GraphError: a type, node or output that does not exist, a number that is no integer, an edge that points
            backwards (the message says whether the nodes are misnumbered or form a cycle), attributes that do
            not fit the types.

    >>> print(make_graph(NamedTypes(("cell", "add")), [0, 0, 1], [(0, 2), (1, 2)], outputs=[2]))
    Graph(instances=1, nodes=3, edges=2, types=2, outputs=1)
    instance 0 returns 2
      0 = cell()
      1 = cell()
      2 = add([0, 1])
    """
    ids = _ids("type", type_id, len(types))
    n_nodes = len(ids)
    rows = [_edge(edge, n_nodes) for edge in edges]
    wanted = _ids("output node", outputs, n_nodes)
    refuse_backward_edges([types.names[t] for t in ids], [row[:2] for row in rows])
    rows.sort(key=lambda row: (row[1], row[3]))
    table = np.array(rows, np.int32).reshape(-1, 4)
    words = np.empty(words_size.python(1, n_nodes, len(rows), len(attr), len(wanted)), np.int32)
    parts = write_header.python(words, 1, n_nodes, len(rows), len(attr), len(wanted), len(floats))
    parts.instance_ptr[1], parts.output_ptr[1] = n_nodes, len(wanted)
    parts.type_id[:] = ids
    parts.edge_ptr[:] = np.searchsorted(table[:, 1], np.arange(n_nodes + 1))
    parts.edge_src[:], parts.edge_out[:], parts.edge_in[:] = table[:, 0], table[:, 2], table[:, 3]
    parts.attr[:] = _integers("attribute", attr)
    parts.out_node[:], parts.out_port[:], parts.out_slot[:] = wanted, 0, np.arange(len(wanted))
    graph = Graph(words, np.array(floats, np.float64), types, (None,))
    check_graph(graph)
    return graph


def merge_graphs(graphs: Sequence[Graph], types: Types | None = None) -> Graph:
    """Merge graphs into one, their nodes numbered through in the order given.

    Args:
        graphs: of one `types` table; each may itself hold any number of instances.
        types: the table, needed only where `graphs` may be empty.

    Raises:
        GraphError: graphs of different tables, or more than 2**31 - 1 words in all.
        DataError: an int attribute out of its range, see `check_ranges`.

    Cost: one concatenation and one compiled pass over the words; about 100 ns per graph in Python.
    """
    types = _common_types(graphs, types)
    parts = join_arrays([graph.words for graph in graphs], np.int32)
    filled = [graph.floats for graph in graphs if graph.floats.size]
    floats = np.concatenate(filled) if filled else NO_FLOATS
    if max(parts.size, floats.size) > MAX_WORDS:
        raise GraphError(
            f"merging {len(graphs)} graphs gives {parts.size} words and {floats.size} float attributes, but positions "
            f"are int32, so {MAX_WORDS} is the most; merge fewer instances at a time."
        )
    merged = of_instances(graphs, merge_words(parts), floats, types)
    if not all(graph.in_range for graph in graphs):
        check_ranges(merged)
        for graph in graphs:
            graph.in_range = True
    merged.in_range = True
    if checking():
        check_graph(merged)
    return merged


def of_instances(graphs: Sequence[Graph], words: IntArray, floats: FloatArray, types: Types) -> Graph:
    """Make a graph of what graphs became when merged, with the structures and keys of their instances."""
    structures = tuple(chain.from_iterable([graph.structures for graph in graphs]))
    keys = join_arrays([graph.keys for graph in graphs], np.int64) if graphs else None
    return Graph(words, floats, types, structures, keys)


def join_arrays(arrays: Sequence[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Concatenate many small arrays of one type, in half the time that `np.concatenate` takes."""
    return np.frombuffer(bytearray().join(arrays), dtype)


def split_graph(graph: Graph) -> list[Graph]:
    """Give the instances of a graph as graphs of their own: the reverse of merging single instances.

    Their words are views of one new buffer, their floats views of `graph.floats`.

    Raises:
        GraphError: an instance reads or returns a node of another.
    """
    stranger = crossing_node(graph.words)
    if stranger >= 0:
        raise GraphError(
            f"splitting {graph!r} by instance: node {stranger} ({graph.type_of(stranger)!r}) is used by another "
            f"instance than its own; split before nodes are shared between instances."
        )
    arrays = graph.types.arrays()
    float_starts = value_starts(graph.type_id, arrays.float_width)
    buffer, ptr = split_words(graph.words, value_starts(graph.type_id, arrays.int_width), float_starts)
    ends = ptr.tolist()
    cuts = float_starts[graph.instance_ptr].tolist()
    split = [
        Graph(
            buffer[ends[i] : ends[i + 1]],
            graph.floats[cuts[i] : cuts[i + 1]],
            graph.types,
            (structure,),
            graph.keys[i : i + 1],
        )
        for i, structure in enumerate(graph.structures)
    ]
    for part in split:
        part.in_range = graph.in_range
    return split


def check_ranges(graph: Graph) -> None:
    """Check that every limited int attribute (word id, label) lies within its range.

    Raises:
        DataError: names the first that does not.
    """
    arrays = graph.types.arrays()
    node, r, value = _first_out_of_range(graph.type_id, graph.attr, arrays) if arrays.range_size.size else (-1, -1, 0)
    if node < 0:
        graph.in_range = True
        return
    instance = int(np.searchsorted(graph.instance_ptr, node, side="right")) - 1
    raise DataError(
        f"merging instances: instance {instance}, node {node - graph.instance_ptr[instance]} ({graph.type_of(node)!r}) "
        f"gives {value} as {graph.types.describe_range(r)}, which takes 0..{arrays.range_size[r] - 1}; "
        f"map unknown ids to one in that range, or enlarge what they index."
    )


@compiled
def _first_out_of_range(type_id: IntArray, attr: IntArray, types: TypeArrays) -> tuple[int, int, int]:
    """Find (node, range, value) of the first attribute outside its range, or (-1, -1, 0)."""
    at = 0
    for node in range(type_id.size):
        kind = type_id[node]
        for r in range(types.range_ptr[kind], types.range_ptr[kind + 1]):
            value = int(attr[at + types.range_column[r]])
            if value < 0 or value >= types.range_size[r]:
                return node, r, value
        at += types.int_width[kind]
    return -1, -1, 0


def _common_types(graphs: Sequence[Graph], types: Types | None) -> Types:
    if types is None:
        types = graphs[0].types if graphs else NamedTypes(())
    for i, graph in enumerate(graphs):
        if graph.types is not types and graph.types != types:
            ours, theirs = list(types.names), list(graph.types.names)
            how = f"numbers its types by {theirs}, but the batch by {ours}"
            if ours in ([], theirs):
                how = "was recorded by another batched function, or by what this one is a copy of"
            raise GraphError(
                f"merging {len(graphs)} graphs: graph {i} {how}; record all instances with the same batched function."
            )
    return types


def _edge(edge: Sequence[int], n_nodes: int) -> tuple[int, int, int, int]:
    """Read one edge as (source, reader, output, port)."""
    if not 2 <= len(edge) <= 4:
        raise GraphError(
            f"making a graph: edge {edge!r} has {len(edge)} parts; give (source, reader), and where they are not 0 "
            f"the source's output and the reader's port."
        )
    source, reader = _ids(f"node in edge {edge!r}", edge[:2], n_nodes)
    output, port = _integers(f"part of edge {edge!r}", [*edge[2:], 0, 0][:2])
    return source, reader, output, port


def _ids(what: str, values: Iterable[SupportsIndex], n_known: int) -> list[int]:
    """Convert to ints within 0..n_known-1, or say which one is not."""
    numbers = _integers(what, values)
    for number in numbers:
        if not 0 <= number < n_known:
            raise GraphError(
                f"making a graph: {what}: {number} does not exist; there are {n_known}, numbered from 0 on."
            )
    return numbers


def _integers(what: str, values: Iterable[SupportsIndex]) -> list[int]:
    numbers = []
    for value in values:
        try:
            numbers.append(operator.index(value))
        except TypeError:
            raise GraphError(f"making a graph: {what}: {value!r} is not an integer; give it as an int.") from None
    return numbers


def _instance_lines(graph: Graph) -> Iterator[str]:
    starts = np.concatenate(([0], np.cumsum(graph.types.arrays().int_width[graph.type_id])))
    for i in range(graph.n_instances):
        o0, o1 = graph.output_ptr[i : i + 2]
        returned = [_value_text(*value) for value in zip(graph.out_node[o0:o1], graph.out_port[o0:o1], strict=True)]
        yield f"instance {i} returns {', '.join(returned) or 'nothing'}"
        for node in range(graph.instance_ptr[i], graph.instance_ptr[i + 1]):
            data = graph.attr[starts[node] : starts[node + 1]].tolist()
            yield f"  {node} = {graph.type_of(node)}({_inputs_text(graph, node)})" + (f" of {data}" if data else "")


def _inputs_text(graph: Graph, node: int) -> str:
    """Write a node's ports in order: several values of a plain port as their sum, of other ports in brackets."""
    arrays = graph.types.arrays()
    edges = range(graph.edge_ptr[node], graph.edge_ptr[node + 1])
    ports = []
    for port, group in groupby(edges, key=lambda e: int(graph.edge_in[e])):
        values = [_value_text(graph.edge_src[e], graph.edge_out[e]) for e in group]
        if arrays.port_plain.size and arrays.port_plain[arrays.port_ptr[graph.type_id[node]] + port]:
            ports.append(" + ".join(values))
        else:
            ports.append(values[0] if len(values) == 1 else f"[{', '.join(values)}]")
    return ", ".join(ports)


def _value_text(node: int, output: int) -> str:
    return f"{node}.{output}" if output else f"{node}"
