"""A cell as data: a static single-assignment list of ops over per-node shapes, without a batch axis.

Every value has a *domain*, which determines its number of rows when a batch of N nodes runs. `NODE` values have N rows.
`SHARED` values have a single row: parameters, constants and values computed from these alone. The values of a variadic
port have one row per edge, and data of any length one row per element, which is called an edge as well; their domain is
the number of the variadic group, 0 or above.

A program is built by a `Builder` (`autobatch.ir.builder`), whose `Traced` values are symbols: applying an op to one
appends an instruction. The same builder continues a finished program, which is how differentiation derives the backward
stages.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch.ops.define import Op, Shape, static_key
from autobatch.ops.rows import Cut, as_cut, count_rows, put_rows, take_part, take_rows
from autobatch.ops.shaping import stand_for
from autobatch.params.parameter import Parameter
from autobatch.params.stacks import Stack

NODE, SHARED = -1, -2
DRAW = -1  # the leaf of the attribute that numbers a node's draw, which is not an argument
LEAVES = 2**20  # above the number of leaves that the arguments of a cell can have
FLOATS = "float", "bfloat", "complex"  # prefixes of dtypes that have derivatives


@dataclass(frozen=True)
class Port:
    """A value input: an edge of the graph, or any number of edges if the port belongs to a variadic group.

    `leaf` is its place among the leaves of the cell's arguments, see `first_leaf`; `below` is the exclusive upper bound
    of its ints, 0 for floats; `dtype` is the dtype that its numbers stand for, see `dtype_of`.
    """

    name: str
    leaf: int
    number: int = -1
    below: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Attribute:
    """Data of a node, or of an edge of a group that is data: words from `column` on, of ints or of floats.

    `dtype` is "bool" for ints that are only 0 and 1.
    """

    name: str
    leaf: int
    is_float: bool
    column: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Weight:
    """A parameter that all nodes of the type read."""

    parameter: Parameter
    name: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A number or array written into the cell's body; arrays of ints stay ints, since they may be ids."""

    data: Any


@dataclass(frozen=True)
class Incoming:
    """The gradient of the cell's output of this number; only in the backward stage."""

    output: int


@dataclass(frozen=True, eq=False)
class Instruction:
    """An op applied to earlier values."""

    op: Op
    args: tuple[int, ...]
    static: dict[str, Any] = field(default_factory=dict)


Source: TypeAlias = Port | Attribute | Weight | Constant | Incoming | Instruction


@dataclass(frozen=True, eq=False)
class Var:
    """One value of a program: its source, its per-node shape and its domain."""

    source: Source
    shape: Shape
    domain: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CellProgram:
    """A traced cell.

    Attributes:
        name: the name of the cell.
        vars: all values; an instruction reads only earlier ones.
        outputs: the values that other nodes may read, by output number.
        ties: pairs of variadic groups that must have equally many edges at a node.
        draws: whether the body draws random numbers, including draws that no output needs.
        n_kept: the number of outputs at the end that no call returns, because only derivatives of the cell read them.
    """

    name: str
    vars: tuple[Var, ...]
    outputs: tuple[int, ...]
    ties: tuple[tuple[int, int], ...] = ()
    draws: bool = False
    n_kept: int = 0

    @functools.cached_property
    def ports(self) -> tuple[int, ...]:
        """Return the values that are ports, by port number."""
        found = [(v.source.number, i) for i, v in enumerate(self.vars) if isinstance(v.source, Port)]
        return tuple(i for _, i in sorted(found))

    @functools.cached_property
    def leaves(self) -> dict[int, int]:
        """Return the port number of each leaf of the arguments that the program reads; -1 for data."""
        sources = (v.source for v in self.vars)
        return {s.leaf: s.number if isinstance(s, Port) else -1 for s in sources if isinstance(s, (Port, Attribute))}

    @functools.cached_property
    def float_leaves(self) -> frozenset[int]:
        """Return the leaves of the arguments that are values of floats, and may have derivatives."""
        sources = {i: self.vars[i].source for i in self.ports if is_float(self.vars, i)}
        return frozenset(source.leaf for source in sources.values() if isinstance(source, Port))

    @property
    def results(self) -> tuple[int, ...]:
        return self.outputs[: len(self.outputs) - self.n_kept]

    @functools.cached_property
    def float_outputs(self) -> tuple[int, ...]:
        """Return the numbers of the outputs that are floats."""
        return tuple(number for number, index in enumerate(self.outputs) if is_float(self.vars, index))

    def row_counts(self, lengths: Sequence[int]) -> dict[int, int]:
        """Return the number of rows of each variadic group, given the numbers for the groups that are not derived."""
        counts = dict(enumerate(lengths))
        # In this order, the counts of the groups that a group is derived from are known.
        for group, parts in self.derived.items():
            known = [part.n if part.group < 0 else counts[part.group] for part in parts]
            times = [1 if part.times < 0 else counts[part.times] for part in parts]
            counts[group] = sum(count_rows(n, part.cut) * m for n, m, part in zip(known, times, parts, strict=True))
        return counts

    @functools.cached_property
    def instructions(self) -> tuple[int, ...]:
        """Return the values that ops compute, in order."""
        return tuple(i for i, v in enumerate(self.vars) if isinstance(v.source, Instruction))

    @property
    def n_groups(self) -> int:
        """Count the variadic groups: lists of any length, data of any length, and groups derived from them."""
        given = (v.domain for v in self.vars if isinstance(v.source, (Port, Attribute)))
        # NODE twice, because `max` of a single argument would iterate over it.
        return 1 + max(*self.derived, *given, NODE, NODE)

    @functools.cached_property
    def least(self) -> dict[int, tuple[int, str]]:
        """Return the minimum number of rows per group, with the name of the op that requires it."""
        found: dict[int, tuple[int, str]] = {}
        for index in self.instructions:
            source = self.vars[index].source
            if isinstance(source, Instruction) and source.op.least is not None:
                group, n = self.vars[source.args[0]].domain, source.op.least(**source.static)
                if n > found.get(group, (0, ""))[0]:
                    found[group] = n, source.op.name.removesuffix("_n")
        return found

    @property
    def ones(self) -> tuple[int, ...]:
        """Return the derived groups that must have exactly one row."""
        return tuple(dict.fromkeys(taking["group"] for taking, _ in self._taking if taking["is_one"]))

    @functools.cached_property
    def derived(self) -> dict[int, tuple[RowSlice, ...]]:
        """Return the groups whose rows are slices, joins or pairs of rows of other groups.

        They are ordered so that lengths can be computed: a group has a larger number than its sources. Any op that
        moves the rows defines the group, because gradients may be read where the rows themselves are not.
        """
        found: dict[int, tuple[RowSlice, ...]] = {}
        for index in self.instructions:
            source = self.vars[index].source
            if isinstance(source, Instruction) and source.op.segments == "pairs":
                first, second = source.static["of"]
                found[source.static["group"]] = (RowSlice(first, 0, as_cut(slice(None)), second),)
        for static, args in self._taking:
            parts = [
                RowSlice(-1, arg.shape[0], cut) if fixed else RowSlice(arg.domain, 0, cut)
                for arg, cut, fixed in zip(args, static["cuts"], static["fixed"], strict=True)
            ]
            found.setdefault(static["group"], tuple(parts))
        return dict(sorted(found.items()))

    @property
    def _taking(self) -> Iterator[tuple[dict[str, Any], list[Var]]]:
        """Yield the static arguments of each op that makes rows of a derived group, and the values with these rows."""
        for var in self.vars:
            if isinstance(var.source, Instruction) and var.source.op in (take_rows, take_part, put_rows):
                # The first argument of the other two ops is the value that is moved; those of `take_rows` follow it.
                args = var.source.args if var.source.op is take_rows else var.source.args[1:]
                yield var.source.static, [self.vars[arg] for arg in args]

    @functools.cached_property
    def data_groups(self) -> tuple[int, ...]:
        """Return the variadic groups whose edges are elements of data."""
        return tuple(sorted({v.domain for v in self.vars if isinstance(v.source, Attribute)} - {NODE}))

    @functools.cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Return the parameters that the cell reads, with their names at the time of tracing."""
        return tuple(v.source for v in self.vars if isinstance(v.source, Weight))

    @property
    def parameters(self) -> list[Parameter]:
        return [weight.parameter for weight in self.weights]

    def words(self, is_float: bool, domain: int = NODE) -> int:
        """Return the number of attribute words per node, or per edge of a group."""
        data = [v for v in self.vars if isinstance(v.source, Attribute) and v.domain == domain]
        return sum(v.size for v in data if isinstance(v.source, Attribute) and v.source.is_float == is_float)

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(show_var(self.vars, i) for i in self.ports)})"
        lines = show_lines(self.vars, range(len(self.vars)))
        result = ", ".join(f"%{o}" for o in self.outputs)
        return "\n".join([head, *lines, f"  return {result}"])


class RowSlice(NamedTuple):
    """A slice of the rows of a group or, if `group` is -1, of `n` rows; `autobatch.ops.rows` defines the cut.

    If `times` is not -1, the rows are pairs: each row counts once per row of the group `times`.
    """

    group: int
    n: int
    cut: Cut
    times: int = -1


def show_var(vars: Sequence[Var], index: int) -> str:
    """Format a value as `%3: (128,)`, with a star if it has a row per edge."""
    var = vars[index]
    star = "*" if var.domain >= 0 else ""
    name = f" {var.source.name}" if isinstance(var.source, (Port, Attribute)) else ""
    return f"%{index}{name}: {star}{var.shape}"


def show_lines(vars: Sequence[Var], indices: Iterable[int]) -> list[str]:
    """Format each value that is not a port as a line."""
    return [
        f"  {show_var(vars, i)} = {_show_source(vars[i].source)}"
        for i in indices
        if not isinstance(vars[i].source, Port)
    ]


def _show_source(source: Source) -> str:
    match source:
        case Instruction(op, args, static):
            extra = "".join(f", {key}={value}" for key, value in static.items() if value is not None)
            return f"{op.name}({', '.join(f'%{a}' for a in args)}{extra})"
        case Weight(name=name):
            return f"parameter {name}"
        case Constant(data):
            return f"constant {data!r}" if np.ndim(data) == 0 else f"constant of shape {np.shape(data)}"
        case Incoming(output):
            return f"gradient of output {output}"
        case Attribute(is_float=is_float, column=column):
            return f"{'float' if is_float else 'int'} attribute at {column}"
        case _:
            return "port"


def is_float(vars: Sequence[Var], index: int) -> bool:
    """Return whether a value is floats or complex numbers, not ints or bools stored as floats."""
    dtype = dtype_of(vars, index)
    return not int_limit(vars, index) and (not dtype or dtype.startswith(FLOATS))


def source_key(source: Source) -> Hashable:
    """Return a key that is equal for sources of equal values."""
    match source:
        case Instruction(op, args, static):
            return op, args, static_key(static)
        case Weight(parameter, name):
            return "parameter", id(parameter), name
        case Constant(data):
            array = np.asarray(data)
            return "constant", type(data), array.dtype.str, array.shape, array.tobytes()
    return source


def first_leaf(domain: int) -> int:
    """Return the number of the first leaf of the arguments in a domain.

    Leaves are numbered per domain, because the number of leaves of an empty list's elements is unknown.
    """
    return (domain - NODE) * LEAVES


def origin(vars: Sequence[Var], index: int) -> Var:
    """Return the value that a value is a view of, or the value itself if it is not a view."""
    source = vars[index].source
    return origin(vars, source.args[0]) if isinstance(source, Instruction) and source.op.view else vars[index]


def int_limit(vars: Sequence[Var], index: int) -> int:
    """Return the exclusive upper bound of ints that a cell computed, here or before a port; 0 for other values.

    Such ints are stored as floats of the model, which hold them exactly.
    """
    source = origin(vars, index).source
    if isinstance(source, Instruction):
        return source.op.limit((vars[arg].shape for arg in source.args), source.static)
    return source.below if isinstance(source, Port) else 0


def dtype_of(vars: Sequence[Var], index: int) -> str:
    """Return the dtype that a value's numbers stand for where they are stored as floats; "" for floats.

    It is "bool", "complex64" and so on. Ints that our own ops compute have a limit instead, see `int_limit`.
    """
    source = vars[index].source
    while isinstance(source, Instruction) and source.op.view:
        if source.op is stand_for:
            return str(source.static["dtype"])
        source = vars[source.args[0]].source
    return source.dtype if isinstance(source, (Port, Attribute)) else ""


def draws_of(vars: Sequence[Var]) -> list[int]:
    """Return the attribute that numbers a node's draw, if there is one, as a list."""
    return [i for i, var in enumerate(vars) if isinstance(var.source, Attribute) and var.source.leaf == DRAW]


def cone(vars: Sequence[Var], roots: Iterable[int]) -> set[int]:
    """Return all values that `roots` are computed from, themselves included."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            source = vars[index].source
            if isinstance(source, Instruction):
                stack.extend(source.args)
    return seen


def renumber(vars: Sequence[Var], keep: Sequence[int], number: dict[int, int]) -> Iterable[Var]:
    """Yield the kept values with new numbers; ports and attribute columns are renumbered without gaps."""
    n_ports, columns = 0, Counter[tuple[bool, int]]()
    for index in keep:
        var = vars[index]
        source = var.source
        if isinstance(source, Instruction):
            source = replace(source, args=tuple(number[a] for a in source.args))
        elif isinstance(source, Port):
            source = replace(source, number=n_ports)
            n_ports += 1
        elif isinstance(source, Attribute):
            source = replace(source, column=columns[source.is_float, var.domain])
            columns[source.is_float, var.domain] += var.size
        yield Var(source, var.shape, var.domain)


def stacks_in(vars: Iterable[Var]) -> Iterator[Stack]:
    """Yield the stacks that a program reads."""
    for var in vars:
        parameter = getattr(var.source, "parameter", None)
        if isinstance(parameter, Stack):
            yield parameter
