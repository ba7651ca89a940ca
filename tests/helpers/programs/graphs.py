"""Abstract graphs for tests: chains, trees, random DAGs, and a table with all features of types."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.ir.type_arrays import TypeArrays

LETTERS = NamedTypes(("a", "b", "c", "d"))
TREE = NamedTypes(("leaf", "inner_a", "inner_b", "output", "loss"))


@dataclass(frozen=True)
class ToyType:
    """One type: `passes` maps outputs to the port they pass through, `sum_type` names the equivalent variadic sum.

    `ports` has a letter for each port: p for plain, v for variadic. `work` is that of its products.
    """

    name: str
    ports: str = ""
    n_outputs: int = 1
    n_ints: int = 0
    n_floats: int = 0
    passes: dict[int, int] = field(default_factory=dict)
    sum_type: str | None = None
    ranges: dict[int, int] = field(default_factory=dict)
    random: bool = False
    work: int = 0


@dataclass(frozen=True)
class ToyTypes:
    types: tuple[ToyType, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.types)

    @property
    def outlines(self) -> tuple[str, ...]:
        return self.names

    def __len__(self) -> int:
        return len(self.types)

    def arrays(self) -> TypeArrays:
        ranges = [pair for kind in self.types for pair in kind.ranges.items()]
        return TypeArrays(
            int_width=_ints([kind.n_ints for kind in self.types]),
            float_width=_ints([kind.n_floats for kind in self.types]),
            data_ptr=_ints([0] * (len(self.types) + 1)),
            data_group=_ints([]),
            data_ints=_ints([]),
            data_floats=_ints([]),
            out_ptr=_ints(np.cumsum([0, *(kind.n_outputs for kind in self.types)])),
            pass_port=_ints([kind.passes.get(o, -1) for kind in self.types for o in range(kind.n_outputs)]),
            port_ptr=_ints(np.cumsum([0, *(len(kind.ports) for kind in self.types)])),
            port_plain=_ints([port == "p" for kind in self.types for port in kind.ports]),
            port_group=_ints(
                [
                    kind.ports[:k].count("v") if port == "v" else -1
                    for kind in self.types
                    for k, port in enumerate(kind.ports)
                ]
            ),
            group_ptr=_ints(np.cumsum([0, *(kind.ports.count("v") for kind in self.types)])),
            part_ptr=_ints([0] * (len(self.types) + 1)),
            part_group=_ints([]),
            part_times=_ints([]),
            part_of=_ints([]),
            part_cut=np.zeros((0, 4), np.int64),
            sum_type=_ints([self.names.index(kind.sum_type) if kind.sum_type else -1 for kind in self.types]),
            range_ptr=_ints(np.cumsum([0, *(len(kind.ranges) for kind in self.types)])),
            range_data=_ints([-1 for _ in ranges]),
            range_column=_ints([column for column, _ in ranges]),
            range_size=_ints([size for _, size in ranges]),
            range_ignore=_ints([0 for _ in ranges]),
            random=_ints([kind.random for kind in self.types]),
            product_work=np.array([kind.work for kind in self.types], np.int64),
        )

    def describe_range(self, r: int) -> str:
        limited = [(kind.name, column) for kind in self.types for column in kind.ranges]
        return "argument {1} of cell {0!r}".format(*limited[r])


def _ints(values: object) -> np.ndarray:
    return np.asarray(values, np.int32)


TOYS = ToyTypes(
    (
        ToyType("word", n_ints=1, ranges={0: 100}),
        ToyType("cell", "pv", n_outputs=2, n_ints=2, n_floats=1, ranges={1: 5}),
        ToyType("swap", "pp", n_outputs=3, passes={0: 1, 1: 0}),
        ToyType("add", "pp", sum_type="sum_n"),
        ToyType("sum_n", "v", sum_type="sum_n"),
        ToyType("add_wide", "pp", sum_type="sum_n_wide"),
        ToyType("sum_n_wide", "v", sum_type="sum_n_wide"),
        ToyType("identity", "p", passes={0: 0}),
    )
)
WORD, CELL, SWAP, ADD, SUM_N, ADD_WIDE, SUM_N_WIDE, IDENTITY = range(8)


def chain(*names: str) -> Graph:
    """Return a chain of nodes of the named types; the last one is the output."""
    types = NamedTypes(tuple(dict.fromkeys(names)))
    edges = [(node, node + 1) for node in range(len(names) - 1)]
    return make_graph(types, [types.names.index(name) for name in names], edges, [len(names) - 1] if names else [])


def random_dag(seed: int, n_nodes: int | None = None, types: NamedTypes = LETTERS) -> Graph:
    """Draw nodes of random types that read up to three earlier, mostly recent nodes, some of them twice."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30)) if n_nodes is None else n_nodes
    edges = [
        (max(0, node - 1 - int(rng.geometric(0.3) - 1)), node, 0, port)
        for node in range(1, n)
        for port in range(rng.integers(0, 4))
    ]
    outputs = rng.integers(0, n, size=rng.integers(0, 3)).tolist() if n else []
    return make_graph(types, rng.integers(0, len(types.names), size=n).tolist(), edges, outputs)


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 12, types: NamedTypes = LETTERS) -> Graph:
    """Draw a graph like `random_dag` with Hypothesis, which shrinks failing graphs."""
    type_id = draw(st.lists(st.integers(0, len(types.names) - 1), max_size=max_nodes))
    edges = [
        (source, node, 0, port)
        for node in range(1, len(type_id))
        for port, source in enumerate(draw(st.lists(st.integers(0, node - 1), max_size=3)))
    ]
    return make_graph(types, type_id, edges)


def random_tree(seed: int, n_leaves: int | None = None) -> Graph:
    """Draw a binary tree with two types of inner nodes, and an output and a loss at its root."""
    rng = np.random.default_rng(seed)
    type_id: list[int] = []
    edges: list[tuple[int, int, int, int]] = []

    def node(kind: int, *inputs: int) -> int:
        edges.extend((source, len(type_id), 0, port) for port, source in enumerate(inputs))
        type_id.append(kind)
        return len(type_id) - 1

    def tree(size: int) -> int:
        if size == 1:
            return node(0)
        left = int(rng.integers(1, size))
        return node(int(rng.integers(1, 3)), tree(left), tree(size - left))

    root = tree(int(rng.integers(1, 12)) if n_leaves is None else n_leaves)
    return make_graph(TREE, type_id, edges, [node(4, node(3, root))])


def random_batch(seed: int) -> Graph:
    """Draw up to six random DAGs, one of them empty."""
    rng = np.random.default_rng(seed)
    dags = [random_dag(int(s)) for s in rng.integers(0, 1000, size=rng.integers(0, 6))]
    return merge_graphs([*dags, random_dag(0, n_nodes=0)])


def random_toys(seed: int, n_nodes: int | None = None) -> Graph:
    """Draw nodes of all toy types, with attributes, which read random outputs of earlier nodes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40)) if n_nodes is None else n_nodes
    type_id = [0, *rng.choice(len(TOYS.types), size=n - 1, p=[0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1]).tolist()]
    edges: list[tuple[int, int, int, int]] = []
    for node in range(1, n):
        for port, n_values in enumerate(_port_sizes(type_id[node], rng)):
            for source in node - np.minimum(node, rng.geometric(0.4, size=n_values)):
                output = rng.integers(0, TOYS.types[type_id[source]].n_outputs)
                edges.append((int(source), node, int(output), port))
    return make_graph(
        TOYS,
        type_id,
        edges,
        rng.integers(0, n, size=rng.integers(1, 4)).tolist(),
        [int(rng.integers(0, 5)) for kind in type_id for _ in range(TOYS.types[kind].n_ints)],
        [float(rng.random()) for kind in type_id for _ in range(TOYS.types[kind].n_floats)],
    )


def _port_sizes(kind: int, rng: np.random.Generator) -> list[int]:
    """Draw the number of values that each port of a node reads."""
    if kind in (SUM_N, SUM_N_WIDE):
        return [int(rng.integers(0, 5))]
    return {WORD: [], CELL: [1, int(rng.integers(0, 4))], IDENTITY: [1]}.get(kind, [1, 1])


def same_graph(first: Graph, second: Graph) -> bool:
    return (
        first.words.tolist() == second.words.tolist()
        and first.floats.tolist() == second.floats.tolist()
        and first.types == second.types
        and first.structures == second.structures
    )
