"""Random types with all features of types, and random graphs of them: with data, groups, parts and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autobatch.graph.build import make_graph
from autobatch.graph.graph import Graph
from autobatch.ir.type_arrays import TypeArrays
from autobatch.ops.rows import as_cut

Rng = np.random.Generator
ENDS = (None, -3, -2, -1, 0, 1, 2, 3)
STEPS = (None, 1, 2, -1, -2)


@dataclass(frozen=True)
class Data:
    """Data of any length: the group with the number of elements, and the numbers per element."""

    group: int
    n_ints: int
    n_floats: int


@dataclass(frozen=True)
class Part:
    """Rows of a derived group: a slice of another group or of a fixed number of rows, each possibly paired."""

    group: int
    of: int
    n_rows: int
    cut: slice
    times: int


@dataclass(frozen=True)
class Limit:
    """The range of an int of the node (data -1) or of each element of some data: a size, or the rows of a group."""

    data: int
    column: int
    size: int
    ignore: int


@dataclass(frozen=True)
class Kind:
    """A type. A port is plain (-2), the first of a group (its number), or another one of a group (-1)."""

    n_ints: int
    n_floats: int
    n_outputs: int
    ports: tuple[int, ...]
    n_groups: int
    data: tuple[Data, ...]
    parts: tuple[Part, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True)
class Kinds:
    kinds: tuple[Kind, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"type_{number}" for number in range(len(self.kinds)))

    @property
    def outlines(self) -> tuple[str, ...]:
        return self.names

    def __len__(self) -> int:
        return len(self.kinds)

    def describe_range(self, r: int) -> str:
        return f"range {r}"

    def arrays(self) -> TypeArrays:
        kinds = self.kinds
        data = [one for kind in kinds for one in kind.data]
        parts = [one for kind in kinds for one in kind.parts]
        limits = [one for kind in kinds for one in kind.limits]
        ports = [port for kind in kinds for port in kind.ports]
        n_outputs = [kind.n_outputs for kind in kinds]
        return TypeArrays(
            int_width=_ints([kind.n_ints for kind in kinds]),
            float_width=_ints([kind.n_floats for kind in kinds]),
            data_ptr=_ptr([len(kind.data) for kind in kinds]),
            data_group=_ints([one.group for one in data]),
            data_ints=_ints([one.n_ints for one in data]),
            data_floats=_ints([one.n_floats for one in data]),
            out_ptr=_ptr(n_outputs),
            pass_port=_ints([-1] * sum(n_outputs)),
            port_ptr=_ptr([len(kind.ports) for kind in kinds]),
            port_plain=_ints([port == -2 for port in ports]),
            port_group=_ints([max(port, -1) for port in ports]),
            group_ptr=_ptr([kind.n_groups for kind in kinds]),
            part_ptr=_ptr([len(kind.parts) for kind in kinds]),
            part_group=_ints([one.group for one in parts]),
            part_times=_ints([one.times for one in parts]),
            part_of=_ints([one.of for one in parts]),
            part_cut=np.array([(one.n_rows, *as_cut(one.cut)) for one in parts], np.int64).reshape(-1, 4),
            sum_type=_ints([-1] * len(kinds)),
            range_ptr=_ptr([len(kind.limits) for kind in kinds]),
            range_data=_ints([one.data for one in limits]),
            range_column=_ints([one.column for one in limits]),
            range_size=_ints([one.size for one in limits]),
            range_ignore=_ints([one.ignore for one in limits]),
            random=_ints([0] * len(kinds)),
            product_work=np.zeros(len(kinds), np.int64),
        )


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def _ptr(sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *sizes]).astype(np.int32)


def draw_kinds(rng: Rng) -> Kinds:
    """Draw up to five types, of which the first reads nothing."""
    return Kinds(tuple(_draw_kind(rng, reads=number > 0) for number in range(rng.integers(1, 6))))


def _draw_kind(rng: Rng, reads: bool) -> Kind:
    n_int = int(rng.integers(0, 3))
    ports, n_groups = list[int](), 0
    for _ in range(rng.integers(0, 4) if reads else 0):
        if rng.random() < 0.4:
            ports.append(-2)
        else:  # a group whose elements are pairs has two ports
            ports.extend([n_groups, *[-1] * int(rng.random() < 0.3)])
            n_groups += 1
    data = list[Data]()
    for _ in range(rng.integers(0, 3)):
        fresh = n_groups == 0 or rng.random() < 0.5
        data.append(Data(n_groups if fresh else int(rng.integers(n_groups)), *map(int, rng.integers(0, 3, 2))))
        n_groups += fresh
    parts = list[Part]()
    for _ in range(rng.integers(0, 3)):
        for _ in range(rng.integers(1, 3)):
            of, times = (int(rng.integers(-1, n_groups)) for _ in range(2))
            start, stop = (ENDS[int(k)] for k in rng.integers(0, len(ENDS), 2))
            cut = slice(start, stop, STEPS[int(rng.integers(len(STEPS)))])
            parts.append(Part(n_groups, of, int(rng.integers(0, 5)), cut, times))
        n_groups += 1
    limits = list[Limit]()
    for number, width in enumerate([n_int, *(one.n_ints for one in data)], -1):
        for column in range(width):
            if rng.random() < 0.5:
                size = -1 - int(rng.integers(n_groups)) if n_groups and rng.random() < 0.4 else int(rng.integers(0, 6))
                limits.append(Limit(number, column, size, int(rng.integers(-1, 8))))
    order = rng.permutation(len(limits))
    return Kind(
        n_int, int(rng.integers(0, 3)), int(rng.integers(1, 4)), tuple(ports), n_groups, tuple(data), tuple(parts),
        tuple(limits[k] for k in order),
    )  # fmt: skip


def draw_instance(rng: Rng, types: Kinds, wrong: float = 0.02) -> Graph:
    """Draw a graph of one instance; each int is out of range with probability `wrong`."""
    n_nodes = int(rng.integers(0, 12))
    type_id = [0, *rng.integers(0, len(types), max(n_nodes - 1, 0)).tolist()][:n_nodes]
    edges, attr, n_floats = list[tuple[int, int, int, int]](), list[int](), 0
    for node, number in enumerate(type_id):
        kind = types.kinds[number]
        if node == 0 and any(port == -2 for port in kind.ports):
            return draw_instance(rng, types, wrong)
        for port, group in enumerate(kind.ports):
            for _ in range(1 if group == -2 else rng.integers(0, 4) if node else 0):
                source = int(rng.integers(node))
                edges.append((source, node, int(rng.integers(types.kinds[type_id[source]].n_outputs)), port))
        attr.extend(_draw_ints(rng, kind.n_ints, wrong))
        n_floats += kind.n_floats
        for one in kind.data:
            length = int(rng.integers(0, 4))
            attr.extend([length, *_draw_ints(rng, length * one.n_ints, wrong)])
            n_floats += length * one.n_floats
    outputs = rng.integers(0, n_nodes, rng.integers(0, 4)).tolist() if n_nodes else []
    return make_graph(types, type_id, edges, outputs, attr, rng.random(n_floats).tolist())


def _draw_ints(rng: Rng, n: int, wrong: float) -> list[int]:
    return np.where(rng.random(n) < wrong, rng.integers(-2, 9, n), 0).tolist()  # type: ignore[no-any-return]
