"""Dataflow graphs: the recorded calls of one instance, or of a whole mini-batch, as flat arrays of ints.

A graph holds nodes (calls of cells) in topological order, the edges between them, the int and float data of the calls,
and the outputs that the user's function returned. Types are numbers; a `Types` table names them. All of it lives in one
int32 array (`autobatch.graph.words` has the layout), so that merging a mini-batch costs one native pass.
`autobatch.graph.build` makes, merges and splits graphs, and checks ranges; `autobatch.graph.graph_check` checks the
rest.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch._native import data_starts, join_instances
from autobatch.arrays import FloatArray, IntArray, LongArray
from autobatch.errors import GraphError
from autobatch.graph.words import OUTPUT, OUTPUT_BITS, Encoded
from autobatch.ir.type_arrays import TypeArrays

MAX_WORDS = 2**31 - 1  # positions are int32
MAX_LINES = 60  # of a printed graph
DIGEST = attrgetter("_digest")
PER_NODE = 2e3  # time of a node besides its products, in multiply-adds


class Types(Protocol):
    """The table that a graph's type ids refer to."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the types, by id."""

    @property
    def outlines(self) -> Sequence[str]:
        """Return a text for each type that distinguishes it from the others.

        It does not depend on the model's width or the process.
        """

    def __len__(self) -> int:
        """Count the types."""

    def arrays(self) -> TypeArrays:
        """Return the properties of the types as arrays, for the core."""

    def describe_range(self, r: int) -> str:
        """Name the cell and the argument that range `r` limits."""


@dataclass(frozen=True)
class NamedTypes:
    """Types with a name, one output and no attributes: enough to study schedules on hand-made graphs."""

    names: tuple[str, ...]
    costs: tuple[float, ...] | None = None  # of a batch of each type, see `autobatch.graph.dag`

    def __post_init__(self) -> None:
        twice = sorted(name for name, n in Counter(self.names).items() if n > 1)
        if twice:
            raise GraphError(f"naming types: the names must differ, got {', '.join(map(repr, twice))} more than once.")

    @property
    def outlines(self) -> tuple[str, ...]:
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def arrays(self) -> TypeArrays:
        """Return the properties of the types as arrays: one output each, no attributes, ports unknown."""
        n = len(self.names)
        zeros, unset, none = np.zeros(n + 1, np.int32), np.full(n, -1, np.int32), np.empty(0, np.int32)
        known: dict[str, Any] = {name: zeros for name in TypeArrays._fields if name.endswith("_ptr")}
        known |= dict.fromkeys(("int_width", "float_width", "random"), zeros[:n])
        known |= {"pass_port": unset, "sum_type": unset, "out_ptr": np.arange(n + 1, dtype=np.int32)}
        known |= {"part_cut": np.zeros((0, 4), np.int64), "product_work": np.zeros(n, np.int64)}
        return TypeArrays(**dict.fromkeys(TypeArrays._fields, none) | known)

    def describe_range(self, r: int) -> str:
        """Raise an IndexError: types without attributes have no ranges."""
        raise IndexError(f"range {r} of types without attributes")


class Graph(Encoded):
    """Nodes in topological order, their inputs, and the returned outputs; of one instance or of many.

    Attributes, besides the views of `Encoded`:
        floats: float64[F], the float attributes in node order, as many per node as its type has.
        types: the table that names the types.
        structures: per instance, the structure of the value that the user's function returned; opaque here.
        keys: int64[B], the keys of the random numbers of each instance; by default the positions of the instances.
        in_range: whether `check_ranges` has passed; the content of a graph does not change.
        state: number of the module state at the time of recording, see `autobatch.trace.record.Recorder`.
    """

    __slots__ = ("_digest", "floats", "in_range", "keys", "state", "structures", "types")

    def __init__(
        self,
        words: IntArray,
        floats: FloatArray,
        types: Types,
        structures: tuple[Any, ...],
        keys: LongArray | None = None,
    ) -> None:
        self.words, self._sections = words, None
        self.keys = np.arange(words[0]) if keys is None else keys
        self.floats = floats
        self.types = types
        self.structures = structures
        self.in_range = False
        self.state = 0
        self._digest = b""

    def of_instances(self, graphs: list[Graph]) -> Graph:
        """Return a graph with these nodes and the structures and keys of `graphs`, whose merge has equal content."""
        # The range check and the digest depend on words, floats and types alone, so both carry over.
        found = object.__new__(Graph)
        found.words, found.floats, found.types, found.state = self.words, self.floats, self.types, 0
        found.structures, found.keys = join_instances(graphs)
        found._sections, found.in_range, found._digest = self._sections, self.in_range, self._digest
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.words, self.floats, self.types, self.structures, self.keys)

    @property
    def key(self) -> int:
        """Return the key of a graph of one instance."""
        return int(self.keys[0])

    @key.setter
    def key(self, key: int) -> None:
        self.keys = np.array([key], np.int64)

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the words and floats, computed once. Graphs with equal digests have equal plans."""
        if not self._digest:
            # Structures and keys are left out, because plans do not depend on them.
            self._digest = hashlib.sha256(self.words.tobytes() + self.floats.tobytes()).digest()
        return self._digest

    @property
    def _dag_(self) -> NoReturn:
        """Raise a GraphError: the core reads this property where it gets a graph instead of a dag."""
        refuse_graph()

    @property
    def n_types(self) -> int:
        """Return the number of types in the table; some may have no node here."""
        return len(self.types)

    def type_of(self, node: int) -> str:
        """Return the name of the type of `node`, an id from 0."""
        return self.types.names[int(self.type_id[node])]

    def inputs_of(self, node: int) -> list[int]:
        """List the nodes that `node` reads, in port order."""
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


def digests_of(graphs: Sequence[Graph]) -> tuple[bytes, ...]:
    """Return the digest of each graph."""
    # An empty digest has not been computed yet. Reading the attribute avoids a Python call of the property per graph.
    found = tuple(map(DIGEST, graphs))
    return found if all(found) else tuple([graph.digest for graph in graphs])


def refuse_graph() -> NoReturn:
    """Raise a GraphError for a graph that is given instead of a dag."""
    raise GraphError("dag must be a Dag of types and edges, got a Graph; give autobatch.policies.to_dag(graph).")


def _instance_lines(graph: Graph) -> Iterator[str]:
    starts, _ = data_starts(graph.type_id, graph.attr, graph.types.arrays())
    for i in range(graph.n_instances):
        o0, o1 = graph.output_ptr[i : i + 2]
        returned = [_value_text(*value) for value in zip(graph.out_node[o0:o1], graph.out_port[o0:o1], strict=True)]
        yield f"instance {i} returns {', '.join(returned) or 'nothing'}"
        for node in range(graph.instance_ptr[i], graph.instance_ptr[i + 1]):
            data = graph.attr[starts[node] : starts[node + 1]].tolist()
            yield f"  {node} = {graph.type_of(node)}({_inputs_text(graph, node)})" + (f" of {data}" if data else "")


def _inputs_text(graph: Graph, node: int) -> str:
    """Format a node's ports in order: several values of a plain port as their sum, of other ports in brackets."""
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


def _value_text(node: int, word: int) -> str:
    output, row = word & OUTPUT, word >> OUTPUT_BITS
    return f"{node}{f'.{output}' if output else ''}{f'[{row}]' if row else ''}"


def work_of(type_id: IntArray, types: Types) -> NDArray[np.float64]:
    """Return the predicted work of nodes of these types in multiply-adds.

    The time of a batch is nearly proportional to it.
    """
    found: NDArray[np.float64] = PER_NODE + types.arrays().product_work[type_id].astype(np.float64)
    return found
