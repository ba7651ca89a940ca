"""A cell as data: a static single-assignment list of ops over per-node shapes, without a batch axis.

Every value has a *domain*, which says how many rows it has when a batch of N nodes runs: `NODE` values have N,
`SHARED` ones a single row (parameters, constants and what is computed from them alone), and the values of a
variadic port one row per edge; their domain is the number of the variadic group, 0 or above.

A program is built by a `Builder`, whose `Traced` values are symbols: applying an op to one appends an instruction.
The same builder continues a finished program, which is how differentiation derives the backward stages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from autobatch.errors import GraphError
from autobatch.ops.conditions import Condition, gives_condition
from autobatch.ops.define import Op, Shape, check_index, first_symbol
from autobatch.ops.eager import plain_array, unwrap
from autobatch.ops.operators import Operators, Symbol
from autobatch.params.parameter import Parameter

NODE, SHARED = -1, -2
DRAW = -1  # the leaf of the attribute that numbers a node's draw: no argument
LEAVES = 2**20  # more than the arguments of a cell hold


@dataclass(frozen=True)
class Port:
    """A value input: an edge of the graph, or any number of them where the port belongs to a variadic group.

    `leaf` is its place among the leaves of the cell's arguments, see `first_leaf`.
    """

    name: str
    leaf: int
    number: int = -1


@dataclass(frozen=True)
class Attribute:
    """Data of a node: `width` words from `column` on, in the int or the float attributes of the type."""

    name: str
    leaf: int
    is_float: bool
    column: int = 0


@dataclass(frozen=True)
class Weight:
    """A parameter that all nodes of the type read."""

    parameter: Parameter
    name: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A number or array written into the cell's body; arrays of ints stay ints, for they may be ids."""

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
    """One value of a program: where it comes from, its per-node shape and its domain."""

    source: Source
    shape: Shape
    domain: int

    @property
    def size(self) -> int:
        """Elements per row."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CellProgram:
    """A traced cell.

    Attributes:
        name: of the cell.
        vars: all values; an instruction reads only earlier ones.
        outputs: the values that other nodes may read, by output number.
        ties: pairs of variadic groups that must have equally many edges at a node.
        draws: whether the body draws random numbers (even where no output needs them: it is counted all the same).
    """

    name: str
    vars: tuple[Var, ...]
    outputs: tuple[int, ...]
    ties: tuple[tuple[int, int], ...] = ()
    draws: bool = False

    @functools.cached_property
    def ports(self) -> tuple[int, ...]:
        """The values that are ports, by port number."""
        found = [(v.source.number, i) for i, v in enumerate(self.vars) if isinstance(v.source, Port)]
        return tuple(i for _, i in sorted(found))

    @functools.cached_property
    def instructions(self) -> tuple[int, ...]:
        """The values that ops compute, in order."""
        return tuple(i for i, v in enumerate(self.vars) if isinstance(v.source, Instruction))

    @property
    def n_groups(self) -> int:
        """Variadic groups: list arguments of any length."""
        return 1 + max((self.vars[p].domain for p in self.ports), default=NODE)

    @functools.cached_property
    def weights(self) -> tuple[Weight, ...]:
        """The parameters that the cell reads, with the names that they had when it was traced."""
        return tuple(v.source for v in self.vars if isinstance(v.source, Weight))

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that the cell reads."""
        return [weight.parameter for weight in self.weights]

    def words(self, is_float: bool) -> int:
        """Attribute words per node."""
        sizes = [v.size for v in self.vars if isinstance(v.source, Attribute) and v.source.is_float == is_float]
        return sum(sizes)

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(show_var(self.vars, i) for i in self.ports)})"
        lines = show_lines(self.vars, range(len(self.vars)))
        result = ", ".join(f"%{o}" for o in self.outputs)
        return "\n".join([head, *lines, f"  return {result}"])


def show_var(vars: Sequence[Var], index: int) -> str:
    """`%3: (128,)`, with the edges of a variadic port marked by a star."""
    var = vars[index]
    star = "*" if var.domain >= 0 else ""
    name = f" {var.source.name}" if isinstance(var.source, (Port, Attribute)) else ""
    return f"%{index}{name}: {star}{var.shape}"


def show_lines(vars: Sequence[Var], indices: Iterable[int]) -> list[str]:
    """One line per value that is not a port."""
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


class NeedsNumber(Exception):
    """The body of a cell wants a number that was offered as an input of the program."""


class Traced(Symbol):
    """A value inside a cell while its body is traced."""

    __slots__ = ("builder", "index")
    _stage = "traced"

    def __init__(self, builder: Builder, index: int) -> None:
        self.builder, self.index = builder, index

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self.lacks(name))

    @property
    def var(self) -> Var:
        """What the builder knows of this value."""
        return self.builder.vars[self.index]

    @property
    def shape(self) -> Shape:
        """Per-node shape."""
        return self.var.shape

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Append an instruction."""
        return self.builder.apply(op, args, static)

    def _refuse(self, what: str) -> Exception:
        source = self.var.source
        if self.is_known():
            return NeedsNumber(what)
        if isinstance(source, Attribute):
            argument = source.name.split(".")[0]
            return GraphError(
                f"{what} needs the number {source.name!r}, which differs between the nodes of a batch; to make it part "
                f"of the type, so that the body may depend on it, mark the cell with @ab.cell(static=({argument!r},))."
            )
        return super()._refuse(what)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.var.source, Attribute):
            argument = self.var.source.name.split(".")[0]
            raise GraphError(
                f"an array is made of the number {self.var.source.name!r}, which differs between the nodes of a batch; "
                f"make it before the call, and pass an array as {argument!r}."
            )
        return super().__array__(dtype, copy)

    def is_known(self) -> bool:
        """Whether this value is computed from live numbers alone, which are then noted as needed."""
        vars = self.builder.vars
        sources = [vars[i].source for i in cone(vars, [self.index])]
        given = [source for source in sources if not isinstance(source, (Instruction, Constant))]
        live = {id(s.parameter) for s in given if isinstance(s, Weight)} & self.builder.live
        if not given or len(live) < len(given):
            return False
        self.builder.needed |= live
        return True

    def __repr__(self) -> str:
        return f"<traced {show_var(self.builder.vars, self.index)}>"


class TracedCondition(Condition, Traced):
    """What a comparison gives while a cell's body is traced."""

    __slots__ = ()


class Builder:
    """Grows the list of values of a program; give it a finished program to continue.

    Attributes:
        live: the `id`s of parameters that stand for numbers of the model, see `autobatch.trace.live`.
        needed: those of which the body wants the number.
    """

    def __init__(self, name: str, start: Sequence[Var] = (), weight_names: Mapping[int, str] | None = None) -> None:
        self.name = name
        self.weight_names = weight_names or {}
        self.vars: list[Var] = list(start)
        self.ties: set[tuple[int, int]] = set()
        self.n_sites = 0
        self.live: set[int] = set()
        self.needed: set[int] = set()
        self._draw: Traced | None = None
        self._weights = {id(v.source.parameter): i for i, v in enumerate(start) if isinstance(v.source, Weight)}

    def add(self, source: Source, shape: Shape, domain: int) -> Traced:
        """Append a value."""
        self.vars.append(Var(source, shape, domain))
        return Traced(self, len(self.vars) - 1)

    def value(self, index: int) -> Traced:
        """The value of this number, as a symbol."""
        return Traced(self, index)

    def wrap(self, x: Any) -> Traced:
        """Any argument of an op as a value of this program."""
        if isinstance(x, Traced):
            if x.builder is not self:
                raise GraphError(
                    f"{self.name} uses a value traced in {x.builder.name}; pass it as an argument instead."
                )
            return x
        if isinstance(x, Symbol):
            raise GraphError(
                f"the body of {self.name} uses a value that another node computed; pass it as an argument."
            )
        if isinstance(x, Operators):
            return self._weight(x)
        data = unwrap(x)
        if data.dtype.kind not in "fiub":
            raise GraphError(f"{self.name} computes with {x!r} ({type(x).__name__}), which is no number; leave it out.")
        number = x if isinstance(x, (int, float)) else plain_array(data).copy()  # an array may be changed in place
        return self.add(Constant(number), data.shape, SHARED)

    def _weight(self, parameter: Any) -> Traced:
        if id(parameter) not in self._weights:
            name = self.weight_names.get(id(parameter), "without a name")
            self._weights[id(parameter)] = self.add(Weight(parameter, name), parameter.shape, SHARED).index
        return self.value(self._weights[id(parameter)])

    def next_draw(self) -> tuple[Traced, int]:
        """The data that numbers a node's draw, and the number of the place in the cell that draws now."""
        if self._draw is None:
            self._draw = self.add(Attribute("draw", DRAW, is_float=False), (), NODE)
        self.n_sites += 1
        return self._draw, self.n_sites - 1

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Traced:
        """Append `op` of `args`; ShapeError if their shapes do not fit."""
        option = first_symbol(list(static.values()))
        if isinstance(option, Traced) and option.is_known():
            raise NeedsNumber(f"an option of {op.name}")
        values = [self.wrap(a) for a in args]
        shape = op.shape(*(v.shape for v in values), **static)
        if op.index_axis is not None:
            values[1] = self._ids(op, *values[:2])
        result = self.add(Instruction(op, tuple(v.index for v in values), static), shape, self._domain(op, values))
        return TracedCondition(self, result.index) if gives_condition(op, args) else result

    def _ids(self, op: Op, table: Traced, ids: Traced) -> Traced:
        """Ids, refused unless they are int data of the node, or constants in their range."""
        source = origin(self.vars, ids.index).source
        if isinstance(source, Constant):
            numbers = check_index(op.name, np.asarray(source.data), table.shape[op.index_axis or 0])
            return self.add(Constant(numbers), ids.shape, SHARED)
        if not isinstance(source, Attribute) or source.is_float:
            if ids.is_known():
                raise NeedsNumber(f"an id of {op.name}")
            raise GraphError(
                f"{op.name} takes ids that are int arguments of the cell, or constants, and not other values, be they "
                f"computed from ints; compute the id with plain ints and pass it to the cell."
            )
        return ids

    def _domain(self, op: Op, values: list[Traced]) -> int:
        domains = [v.var.domain for v in values]
        groups = sorted({d for d in domains if d >= 0})
        if op.segments == "reduce":
            return NODE
        if op.segments == "spread":
            return domains[1]
        if op.sums_rows:
            return SHARED
        for first, second in pairwise(groups):
            self.ties.add((first, second))
        if groups and NODE in domains:
            raise GraphError(
                f"{op.name} in {self.name} mixes values per edge and per node; this is a defect of autobatch."
            )
        return groups[0] if groups else max(domains, default=SHARED)

    def finish(self, outputs: Sequence[Any]) -> CellProgram:
        """The program that computes `outputs`, without what they do not need."""
        roots = [self.wrap(o).index for o in outputs]
        keep = sorted(cone(self.vars, roots))
        number = {old: new for new, old in enumerate(keep)}
        return CellProgram(
            self.name,
            tuple(renumber(self.vars, keep, number)),
            tuple(number[r] for r in roots),
            tuple(sorted(self.ties)),
            draws=self.n_sites > 0,
        )


def first_leaf(domain: int) -> int:
    """The number of the first leaf of the arguments in a domain.

    Leaves are numbered per domain, because an empty list does not say how many its elements would have.
    """
    return (domain - NODE) * LEAVES


def origin(vars: Sequence[Var], index: int) -> Var:
    """What a value is a view of: itself, if it is none."""
    source = vars[index].source
    return origin(vars, source.args[0]) if isinstance(source, Instruction) and source.op.view else vars[index]


def cone(vars: Sequence[Var], roots: Iterable[int]) -> set[int]:
    """All values that `roots` are computed from, themselves included."""
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
    """The kept values with new numbers; ports and attribute columns close up too."""
    n_ports, columns = 0, {False: 0, True: 0}
    for index in keep:
        var = vars[index]
        source = var.source
        if isinstance(source, Instruction):
            source = replace(source, args=tuple(number[a] for a in source.args))
        elif isinstance(source, Port):
            source = replace(source, number=n_ports)
            n_ports += 1
        elif isinstance(source, Attribute):
            source = replace(source, column=columns[source.is_float])
            columns[source.is_float] += var.size
        yield Var(source, var.shape, var.domain)
