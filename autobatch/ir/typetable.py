"""The table of node types: only nodes of one type may run in one batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, Self

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, ShownKey
from autobatch.ir.flows import singular_outputs, stop_outputs
from autobatch.ir.program import NODE, SHARED, Attribute, CellProgram, Instruction, Port, RowSlice, Var, origin
from autobatch.ir.type_arrays import TypeArrays, extended
from autobatch.ops.choosing import choose_rows
from autobatch.ops.linear import affine, matmul
from autobatch.ops.operators import OPS
from autobatch.ops.pairs import pick_pairs
from autobatch.params.module import Module
from autobatch.system.locks import RenewedLock

MOST_MADE = 64  # types with stopped outputs that are kept, those of earlier traces included


@dataclass(frozen=True, eq=False)
class NodeType:
    """The nodes that may run in one batch: one traced cell, with its parameters and static arguments.

    Attributes:
        number: the type id.
        name: the name of the cell.
        program: the computation of a node.
        structure: the structure of the result, over output numbers.
        arguments: the keys of the arguments, by name.
        owner: the module that the cell is a method of; it determines whether dropout is on.
        sum_type: id of the variadic sum that computes the same (its own, if it is one), or -1.
        trace: number of the trace, over all types; a type that is traced again keeps its id if its graphs stay valid.
    """

    number: int
    name: str
    program: CellProgram
    structure: Any
    arguments: tuple[tuple[str, Key], ...]
    sum_type: int = -1
    owner: Module | None = None
    trace: int = 0

    @cached_property
    def singular(self) -> tuple[int, ...]:
        """Return the outputs, if there are several, whose gradient may be infinite or NaN."""
        return singular_outputs(self.program) if len(self.program.outputs) > 1 else ()

    @property
    def signature(self) -> str:
        """Return the signature: `merge(left: tuple(value[64], value[64]), ...)`."""
        return f"{self.name}({', '.join(f'{name}: {key}' for name, key in self.arguments)})"

    @property
    def outline(self) -> str:
        """Return the signature without sizes: `merge(left: tuple(value, value), ...)`."""
        return f"{self.name}({', '.join(f'{name}: {key.text(sizes=False)}' for name, key in self.arguments)})"


class TypeTable:
    """All types of one batched function; an id is an index into `types`.

    Args:
        make_portable: makes the object that is pickled in place of the table; without it, pickling raises an error.

    Attributes:
        outdated: the types whose cells have another signature since they were traced again, and the reasons.
        state: the trace of each type.
        of_one_length: for cells with a type for each length of an argument, by name: the argument, the reason, and
            advice.
        forgotten: traces that no type will use again. Owners of per-trace caches read and clear it.
        growing: a lock, held while a type gets a number and is put into the table.
    """

    def __init__(self, make_portable: Callable[[], Any] | None = None) -> None:
        self.types: list[NodeType] = []
        self._make_portable = make_portable
        self.outdated: dict[int, str] = {}
        self.state: tuple[Any, ...] = ()
        self.of_one_length: dict[str, str] = {}
        self.forgotten = set[int]()
        self.growing = RenewedLock()
        self._stopped: dict[int, dict[tuple[int, ...], int]] = {}
        self._traces = count(-1, -1)  # below those of traced bodies
        self._made: dict[tuple[int, tuple[int, ...]], NodeType] = {}
        self._arrays: TypeArrays | None = None

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, number: int) -> NodeType:
        return self.types[number]

    def __deepcopy__(self, memo: object) -> Self:
        """Return the table itself: copies of graphs are graphs of the same function."""
        return self

    def __reduce__(self) -> Any:
        if self._make_portable is None:
            raise GraphError("a table of types must belong to a batched function to be pickled.")
        return _itself, (self._make_portable(),)

    def put(self, node_type: NodeType) -> None:
        """Append a type, whose number is its index, or replace the type of that number by another trace of it."""
        with self.growing.lock:
            if node_type.number == len(self.types):
                self._append(node_type)
                return
            self.types[node_type.number : node_type.number + 1] = [node_type]
            self.outdated.pop(node_type.number, None)
            for outputs, number in self._stopped.get(node_type.number, {}).items():
                self.types[number] = self._stop(node_type, outputs, number)
            self._changed()

    def stopped(self, type_id: int, outputs: tuple[int, ...]) -> int:
        """Return the number of the type that equals this one except that gradients stop at these outputs.

        It is made once, and again whenever the original type is traced again.
        """
        with self.growing.lock:
            numbers = self._stopped.setdefault(type_id, {})
            if outputs not in numbers:
                numbers[outputs] = len(self.types)
                self._append(self._stop(self.types[type_id], outputs, len(self.types)))
            return numbers[outputs]

    def _stop(self, node_type: NodeType, outputs: tuple[int, ...], number: int) -> NodeType:
        # A type may return to an earlier trace; its stopped type then returns to the one made for that trace. Taking it
        # out and putting it back makes it the last to be deleted.
        key = node_type.trace, outputs
        made = self._made.pop(key, None)
        if made is None:
            program = stop_outputs(node_type.program, outputs)
            made = replace(node_type, number=number, program=program, trace=next(self._traces))
        self._made[key] = made
        if len(self._made) > MOST_MADE:
            del self._made[next(iter(self._made))]
        return made

    def retire(self, number: int, why: str) -> None:
        """Reject graphs with this type until it is restored.

        Meanwhile the table holds no object of its program and arguments, but still names it as before.
        """
        with self.growing.lock:
            self.outdated[number] = why
            arguments = tuple((name, ShownKey.of(key)) for name, key in self.types[number].arguments)
            for n in (number, *self._stopped.get(number, {}).values()):
                self.types[n] = replace(
                    self.types[n], program=_RETIRED, structure=None, arguments=arguments, trace=next(self._traces),
                    owner=None,
                )  # fmt: skip
            self._changed()

    def forget(self, traces: set[int]) -> None:
        """Drop what types with stopped outputs keep of these traces, which no type will use again."""
        with self.growing.lock:
            made = [key for key in self._made if key[0] in traces]
            self.forgotten |= traces.union([self._made.pop(key).trace for key in made])

    def check(self, type_ids: IntArray) -> None:
        """Raise a GraphError if one of these types, those of a recorded graph, is outdated."""
        if self.outdated:
            for number, why in self.outdated.items():
                if np.isin(type_ids, [number, *self._stopped.get(number, {}).values()]).any():
                    raise GraphError(f"running recorded graphs: {why}; record the instances again.")

    def _append(self, node_type: NodeType) -> None:
        """Add a type; keep cached properties of the others."""
        self.types.append(node_type)
        self.state = (*self.state, node_type.trace)

    def _changed(self) -> None:
        self.state = tuple(t.trace for t in self.types)
        self._arrays = None

    @property
    def names(self) -> list[str]:
        """Return a name for each type: the name of its cell, with a number if the cell has several types."""
        total, seen, names = Counter(t.name for t in self.types), Counter[str](), []
        for t in self.types:
            seen[t.name] += 1
            names.append(t.name if total[t.name] == 1 else f"{t.name}#{seen[t.name]}")
        return names

    @property
    def outlines(self) -> list[str]:
        return [t.outline for t in self.types]

    def arrays(self) -> TypeArrays:
        """Return the properties of all present types, for the core; another thread may add types meanwhile."""
        arrays = self._arrays  # read once, because another thread may reset it
        if arrays is None or arrays.int_width.size < len(self.types):
            with self.growing.lock:
                known = self._arrays
                more = make_arrays(self.types[0 if known is None else known.int_width.size :])
                arrays = self._arrays = more if known is None else extended(known, more)
        return arrays

    def describe_range(self, r: int) -> str:
        flat = [(t.name, limited.name) for t in self.types for limited in index_ranges(t.program)]
        return "{} argument {!r}".format(*flat[r])


_RETIRED = CellProgram("retired", (Var(Port("x", 0, 0), (), NODE),), (0,))
"""A placeholder for a program that must not run."""


def _itself(x: Any) -> Any:
    return x


def group_by_shape(types: Sequence[NodeType]) -> dict[int, int]:
    """Map each type, by number, to the first type that differs from it in shapes only, or to itself."""
    alike: dict[Any, list[NodeType]] = defaultdict(list)
    for node_type in types:
        alike[node_type.name, node_type.outline, id(node_type.owner)].append(node_type)
    # Types with equal signatures differ in more than shapes, so a group with such types is not joined.
    return {
        node_type.number: group[0].number if len({t.signature for t in group}) == len(group) else node_type.number
        for group in alike.values()
        for node_type in group
    }


def name_group(names: Sequence[str]) -> str:
    """Return the common name of a group of types, with their number; a single type keeps its name.

    >>> name_group(["merge#1", "merge#4"]), name_group(["merge#2"])
    ('merge, 2 shapes', 'merge#2')
    """
    return names[0] if len(names) == 1 else f"{names[0].partition('#')[0]}, {len(names)} shapes"


def make_arrays(types: Sequence[NodeType]) -> TypeArrays:
    """Make the arrays of these types."""
    ranges = [list(index_ranges(t.program)) for t in types]
    passed = [list(pass_through(t.program)) for t in types]
    return TypeArrays(
        int_width=_ints([t.program.words(is_float=False) for t in types]),
        float_width=_ints([t.program.words(is_float=True) for t in types]),
        data_ptr=_ptr([len(t.program.data_groups) for t in types]),
        data_group=_ints([group for t in types for group in t.program.data_groups]),
        data_ints=_ints([t.program.words(False, group) for t in types for group in t.program.data_groups]),
        data_floats=_ints([t.program.words(True, group) for t in types for group in t.program.data_groups]),
        out_ptr=_ptr([len(p) for p in passed]),
        pass_port=_ints([port for p in passed for port in p]),
        port_ptr=_ptr([len(t.program.ports) for t in types]),
        port_plain=_ints([int(t.program.vars[port].domain == NODE) for t in types for port in t.program.ports]),
        port_group=_ints([group for t in types for group in _leading_ports(t.program)]),
        group_ptr=_ptr([t.program.n_groups for t in types]),
        part_ptr=_ptr([len(list(_parts_of(t.program))) for t in types]),
        part_group=_ints([group for t in types for group, _ in _parts_of(t.program)]),
        part_times=_ints([part.times for t in types for _, part in _parts_of(t.program)]),
        part_of=_ints([part.group for t in types for _, part in _parts_of(t.program)]),
        part_cut=np.array([(p.n, *p.cut) for t in types for _, p in _parts_of(t.program)], np.int64).reshape(-1, 4),
        sum_type=_ints([t.sum_type for t in types]),
        range_ptr=_ptr([len(r) for r in ranges]),
        range_data=_ints([limited.data for r in ranges for limited in r]),
        range_column=_ints([limited.column for r in ranges for limited in r]),
        range_size=_ints([limited.size for r in ranges for limited in r]),
        range_ignore=_ints([limited.ignore for r in ranges for limited in r]),
        random=_ints([int(is_random(t.program)) for t in types]),
        product_work=np.array([product_work(t.program) for t in types], np.int64),
    )


def _leading_ports(program: CellProgram) -> list[int]:
    """Return, per port, the variadic group that it is the first port of, or -1."""
    groups = [program.vars[port].domain for port in program.ports]
    return [group if group != NODE and group not in groups[:k] else -1 for k, group in enumerate(groups)]


def _parts_of(program: CellProgram) -> Iterator[tuple[int, RowSlice]]:
    """Return the slices that derived groups are joined from, each with the group."""
    return ((group, part) for group, parts in program.derived.items() for part in parts)


class Range(NamedTuple):
    """An int attribute that indexes something.

    Attributes:
        data: the number of the data of any length that it is a column of; -1 if it belongs to the node.
        column: the column of its word.
        size: the size of the indexed axis; -1 - g for the rows that the node has of group g.
        ignore: a number that is allowed outside, or 0.
        name: the name of the argument.
    """

    data: int
    column: int
    size: int
    ignore: int
    name: str


def index_ranges(program: CellProgram) -> Iterator[Range]:
    """Yield the int attribute words that index something."""
    for i in program.instructions:
        source = program.vars[i].source
        if isinstance(source, Instruction) and (
            source.op.index_axis is not None or source.op in (choose_rows, pick_pairs)
        ):
            table, ids = source.args[:2]
            data = origin(program.vars, ids)
            if isinstance(data.source, Attribute):
                number = -1 if data.domain == NODE else program.data_groups.index(data.domain)
                var, axis = program.vars[table], source.op.index_axis
                group = source.static["of"][1] if source.op is pick_pairs else var.domain
                size = -1 - group if axis is None else var.shape[axis]
                ignore = source.static.get("ignore") or 0
                for column in _columns(program, ids).ravel().tolist():
                    yield Range(number, column, size, ignore, data.source.name)


def _columns(program: CellProgram, index: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the int attribute words of a view of an attribute, in its shape."""
    var = program.vars[index]
    if isinstance(var.source, Instruction):
        # The view is applied to the numbers of the words instead of the words.
        shown: np.ndarray[Any, np.dtype[np.int64]]
        shown = var.source.op.kernel(np, _columns(program, var.source.args[0])[None], **var.source.static)[0]
        return shown
    assert isinstance(var.source, Attribute)
    return var.source.column + np.arange(var.size).reshape(var.shape)


def pass_through(program: CellProgram) -> Iterator[int]:
    """Yield for each output the port that it equals if that port has one edge, or -1.

    A sum of one value is that value.
    """
    for output in program.outputs:
        var = program.vars[output]
        source, has_rows = var.source, var.domain >= 0
        if isinstance(source, Instruction) and source.op is OPS["sum_n"]:
            source = program.vars[source.args[0]].source
        yield source.number if isinstance(source, Port) and not has_rows else -1


def is_random(program: CellProgram) -> bool:
    """Return whether the result of a program depends on random numbers."""
    return any(isinstance(var.source, Instruction) and var.source.op.random for var in program.vars)


def product_work(program: CellProgram) -> int:
    """Count the multiply-adds of a node's products with matrices, taking one edge in each group."""
    work = 0
    for var in program.vars:
        if isinstance(var.source, Instruction) and var.source.op in (matmul, affine) and var.domain != SHARED:
            work += var.size * program.vars[var.source.args[0]].shape[-1]
    return work


def _ints(values: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def _ptr(counts: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
