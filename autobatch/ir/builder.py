"""Build programs: a builder holds the values of a program, and ops on its symbols append instructions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np

from autobatch.errors import GraphError, ShapeError
from autobatch.ir.program import (
    DRAW,
    NODE,
    SHARED,
    Attribute,
    CellProgram,
    Constant,
    Instruction,
    Source,
    Var,
    Weight,
    cone,
    int_limit,
    origin,
    renumber,
    show_var,
)
from autobatch.ops.conditions import Condition, gives_condition
from autobatch.ops.define import MOST_INTS, Op, Shape, check_index, first_symbol, known_shape
from autobatch.ops.eager import plain_array, to_number, unwrap
from autobatch.ops.operators import Operators, Symbol


class NeedsNumber(Exception):
    """The body of a cell needs the value of a number that is an input of the program."""


class NeedsData(GraphError):
    """The body of a cell needs numbers of its data, which are then part of the type.

    Attributes:
        leaves: the data, by `Attribute.leaf`; None if they are unknown.
    """

    def __init__(self, message: str, leaves: set[int] | None = None) -> None:
        super().__init__(message)
        self.leaves = leaves


def data_behind(values: Iterable[Traced]) -> set[int]:
    """Return, by `leaf`, the data of the node that these values are computed from.

    The set is empty if the values also depend on anything else.
    """
    values = list(values)
    sources = [x.builder.vars[i].source for x in values for i in cone(x.builder.vars, [x.index])]
    given = [s for s in sources if not isinstance(s, (Instruction, Constant))]
    leaves = {s.leaf for s in given if isinstance(s, Attribute)}
    return leaves if all(isinstance(s, Attribute) for s in given) else set()


class Traced(Symbol):
    """A value inside a cell while its body is traced."""

    __slots__ = ("builder", "index")
    _stage = "traced"

    def __init__(self, builder: Builder, index: int) -> None:
        self.builder, self.index = builder, index

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the class that `isinstance` finds; `type(x)` gives the true one."""
        return self.builder.class_of(self, sys._getframe(1))

    def __getattr__(self, name: str) -> Any:
        if name[:2] != "__" and self.builder.live and self.is_known():
            raise NeedsNumber(f"the attribute {name!r}")
        raise AttributeError(self.lacks(name))

    @property
    def var(self) -> Var:
        return self.builder.vars[self.index]

    @property
    def shape(self) -> Shape:
        return self.var.shape

    @property
    def size(self) -> int:
        """Return the number of elements; raise a ShapeError if the value has any number of rows."""
        return math.prod(known_shape(self, "size"))

    def again(self) -> Traced:
        """Return another symbol of the same value."""
        return type(self)(self.builder, self.index)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        return self.builder.apply(op, args, static)

    def _refuse(self, what: str) -> Exception:
        source = self.var.source
        if self.is_known():
            return NeedsNumber(what)
        given = [self.builder.vars[i].source for i in cone(self.builder.vars, [self.index])]
        data = [s for s in given if isinstance(s, Attribute)]
        if data and all(isinstance(s, (Attribute, Constant, Instruction)) for s in given):
            source, argument = data[0], data[0].name.split(".")[0]
            return GraphError(
                f"{what} needs the number {source.name!r}, which differs between the nodes of a batch; to make it part "
                f"of the type, so that the body may depend on it, mark the cell with @ab.cell(static=({argument!r},))."
            )
        return super()._refuse(what)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.var.source, Attribute):
            numbers, _, number = self.var.source.name.rpartition(".")
            if self.var.domain >= 0:  # an element of a list
                numbers = self.var.source.name.partition(".")[0]
            what = f"the numbers in {numbers!r}, which differ" if numbers else f"the number {number!r}, which differs"
            raise GraphError(
                f"a cell must not make an array of {what} between the nodes of a batch; make it before the call, with "
                f"np.array, and pass it as {numbers or number!r}."
            )
        return super().__array__(dtype, copy)

    def is_known(self) -> bool:
        """Return whether this value is computed from live numbers of the model alone; mark these as needed if so."""
        vars = self.builder.vars
        sources = [vars[i].source for i in cone(vars, [self.index])]
        given = [source for source in sources if not isinstance(source, (Instruction, Constant))]
        live = {id(s.parameter) for s in given if isinstance(s, Weight)} & self.builder.live
        # A program has one value per parameter, so these are equally many if all of them are live numbers.
        if not given or len(live) < len(given):
            return False
        self.builder.needed |= live
        return True

    def __repr__(self) -> str:
        return f"<traced {show_var(self.builder.vars, self.index)}>"


class TracedCondition(Condition, Traced):
    """The result of a comparison while a cell's body is traced."""

    __slots__ = ()


class Builder:
    """Build the list of values of a program; give it a finished program to continue.

    Attributes:
        live: the `id`s of parameters that stand for numbers of the model, see `autobatch.trace.guards`.
        needed: the `id`s of those whose value the body itself needs.
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
        self._noted: list[int] = []
        self._weights = {id(v.source.parameter): i for i, v in enumerate(start) if isinstance(v.source, Weight)}

    def add(self, source: Source, shape: Shape, domain: int) -> Traced:
        self.vars.append(Var(source, shape, domain))
        return Traced(self, len(self.vars) - 1)

    def value(self, index: int) -> Traced:
        return Traced(self, index)

    def class_of(self, x: Traced, frame: FrameType) -> type:
        """Return the class of a value for the code in a frame."""
        return type(x)

    def wrap(self, x: Any) -> Traced:
        """Turn any argument of an op into a value of this program."""
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
        x = to_number(x)
        data = unwrap(x)
        if data.dtype.kind not in "fiub":
            raise GraphError(f"{self.name} must compute with numbers, got {x!r} ({type(x).__name__}).")
        number = x if isinstance(x, (int, float)) else plain_array(data).copy()  # an array may be changed in place
        return self.add(Constant(number), data.shape, SHARED)

    def _weight(self, parameter: Any) -> Traced:
        # The `id` stays unique, because the `Weight` keeps its parameter alive.
        if id(parameter) not in self._weights:
            name = self.weight_names.get(id(parameter), "without a name")
            self._weights[id(parameter)] = self.add(Weight(parameter, name), parameter.shape, SHARED).index
        return self.value(self._weights[id(parameter)])

    @contextmanager
    def replacing(self, parameters: Mapping[int, int]) -> Iterator[None]:
        """Replace some parameters, by their `id`s, by other values within the context."""
        before = {key: self._weights[key] for key in parameters}
        self._weights |= parameters
        try:
            yield
        finally:
            self._weights |= before

    def replace(self, others: Mapping[int, int]) -> None:
        """Replace some values, by their numbers, in the arguments of all instructions."""
        for index, var in enumerate(self.vars):
            if isinstance(var.source, Instruction) and not others.keys().isdisjoint(var.source.args):
                args = tuple(others.get(arg, arg) for arg in var.source.args)
                self.vars[index] = replace(var, source=replace(var.source, args=args))

    def next_draw(self) -> tuple[Traced, int]:
        """Return the attribute that numbers a node's draw, and the number of the next random op in the cell."""
        if self._draw is None:
            self._draw = self.add(Attribute("draw", DRAW, is_float=False), (), NODE)
        self.n_sites += 1
        return self._draw, self.n_sites - 1

    def note_draw(self) -> None:
        """Keep the attribute that numbers a node's draw even if the body draws nothing now."""
        if not self.n_sites:
            # `next_draw` also counts a site, which marks the program as one that draws.
            self._noted.append(self.next_draw()[0].index)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Traced:
        """Append `op` of `args`; raise a ShapeError if their shapes do not fit."""
        result = self._append(op, [self.wrap(a) for a in args], static)
        return TracedCondition(self, result.index) if gives_condition(op, args) else result

    def _append(self, op: Op, values: list[Traced], static: dict[str, Any]) -> Traced:
        option = first_symbol(list(static.values()))
        if isinstance(option, Traced) and option.is_known():
            raise NeedsNumber(f"an option of {op.name}")
        shapes = [v.shape for v in values]
        shape = op.shape(*shapes, **static)
        op.limit(shapes, static)
        if op.index_axis is not None:
            ids = self._ids(op, values[1], values[0].shape[op.index_axis], static.get("ignore"))
            values = [values[0], ids, *values[2:]]
        domain = self._domain(op, values, static)
        return self.add(Instruction(op, tuple(v.index for v in values), static), shape, domain)

    def _ids(self, op: Op, ids: Traced, size: int, ignore: int | None) -> Traced:
        """Check ids: they must be int data of the node, or ints that a cell computed or constants, both in range."""
        limit, source = int_limit(self.vars, ids.index), self.check_ints(op, ids)
        if limit > size:
            found = f"computed by a cell and in 0..{limit - 1}; choose among {size} elements"
            if limit == MOST_INTS:
                found = "positions among n rows, where n differs between nodes; look them up in a value of n rows"
            raise ShapeError(f"{op.name} takes ids in 0..{size - 1}, but these are {found}.")
        if not limit and isinstance(source, Constant):
            numbers = check_index(op.name, np.asarray(source.data), size, ignore)
            return self.add(Constant(numbers), ids.shape, SHARED)
        return ids

    def positions(self, op: Op, ids: Traced) -> tuple[Traced, bool]:
        """Check ids into any number of rows.

        Returns:
            The ids, and whether their range is checked when instances are merged, as for data.
        """
        source = self.check_ints(op, ids)
        if isinstance(source, Constant) and not int_limit(self.vars, ids.index):
            numbers = check_index(op.name, np.asarray(source.data), MOST_INTS)
            ids = self.add(Constant(numbers), ids.shape, SHARED)
        return ids, isinstance(source, Attribute)

    def check_ints(self, op: Op, ids: Traced) -> Source:
        """Return the source of ids, which must be int data, computed ints, or constants."""
        source = origin(self.vars, ids.index).source
        if int_limit(self.vars, ids.index) or isinstance(source, Constant):
            return source
        if not isinstance(source, Attribute) or source.is_float:
            if ids.is_known():
                raise NeedsNumber(f"an id of {op.name}")
            raise GraphError(
                f"the ids of {op.name} must be int arguments of the cell, constants, or results of ab.argmax, ab.top_k "
                f"or ab.categorical; compute other ids with plain ints, and pass them to the cell."
            )
        return source

    def _domain(self, op: Op, values: list[Traced], static: Mapping[str, Any]) -> int:
        domains = [v.var.domain for v in values]
        if op.domain is not None:
            return op.domain(domains, **static)
        if op.random and domains[0] >= 0:
            return domains[0]  # the attribute that numbers the draw has the node's domain
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
                f"{op.name} in {self.name} mixes values per edge and per node; this is a bug in autobatch; please "
                f"report it."
            )
        return groups[0] if groups else max(domains, default=SHARED)  # NODE > SHARED

    def finish(self, outputs: Sequence[Any], also: Sequence[int] = ()) -> CellProgram:
        """Return the program that computes `outputs`, reduced to the values that these or the values `also` need."""
        roots = [self.wrap(o).index for o in outputs]
        keep = sorted(cone(self.vars, [*roots, *also, *self._noted]))
        number = {old: new for new, old in enumerate(keep)}
        return CellProgram(
            self.name,
            tuple(renumber(self.vars, keep, number)),
            tuple(number[r] for r in roots),
            tuple(sorted(self.ties)),
            draws=self.n_sites > 0,
        )
