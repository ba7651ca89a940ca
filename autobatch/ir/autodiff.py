"""Derive the backward stages of a cell by tracing the pullbacks of its ops in reverse.

Values of the forward program keep their numbers and new ones follow, so one list serves three stages:

- *forward*, per batch, which also fills the saved values;
- *backward*, per batch in reverse: gradients of the outputs in, gradients of the ports out;
- *weights*, once per type over the rows of all its batches: the gradients of the parameters. A gradient that sums
  over rows is not summed batch by batch: its operands are kept, so each weight costs one matrix product per step.
  The gradient of a parameter that only `lookup` reads is not an array: the derivative lists its rows and their ids.

The saved values (residuals) are the values of one stage that a later one reads; views of them are recomputed.
Backward may also rematerialise values of the forward program instead of reading them
(`autobatch.memplan.cell.rematerialisation`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.derivative import Derivative, ScatteredRows
from autobatch.ir.program import NODE, SHARED, CellProgram, Incoming, Instruction, Var, Weight
from autobatch.ir.program_check import check_values
from autobatch.ops.define import Op, Shape
from autobatch.ops.elementwise import add
from autobatch.ops.indexing import scatter
from autobatch.ops.operators import OPS
from autobatch.ops.reduction import unbroadcast
from autobatch.ops.shaping import assemble
from autobatch.system.unchecked import checking


def differentiate(program: CellProgram, kept: frozenset[int] = frozenset()) -> Derivative:
    """Derive the backward stages of `program`.

    Every port and every trainable parameter gets a gradient. Cost: linear in the instructions.

    Args:
        program: the program of a cell.
        kept: values that lie in the inputs, which all stages can read, so that they need not be saved.
    """
    reverse = _Reverse(program)
    incoming = reverse.seed()
    reverse.run()
    ports = tuple(reverse.gradient(p) for p in program.ports)
    gradients = [(i, g) for i in reverse.weights if (g := reverse.gradient(i)) is not None]
    scattered = {i: _scatters(reverse.builder.vars, g) for i, g in gradients}
    parameters = tuple((i, g) for i, g in gradients if not scattered[i])
    tables = tuple((i, scatters) for i, scatters in scattered.items() if scatters)
    vars = tuple(reverse.builder.vars)
    if checking():
        check_values(program.name, vars, program.ties)
    return _divide(Derivative(program, vars, (), (), (), incoming, ports, parameters, tables, kept))


def with_values(derivative: Derivative, vars: tuple[Var, ...], number: Mapping[int, int]) -> Derivative:
    """Return the derivative over other values, divided into stages again.

    Args:
        derivative: its program's values keep their numbers.
        vars: the new values.
        number: the new number of each incoming gradient and each root.
    """
    moved = replace(
        derivative,
        vars=vars,
        incoming=tuple(number[i] for i in derivative.incoming),
        ports=tuple(None if g is None else number[g] for g in derivative.ports),
        parameters=tuple((i, number[g]) for i, g in derivative.parameters),
        tables=tuple(
            (i, tuple(ScatteredRows(number[values], number[ids]) for values, ids in scatters))
            for i, scatters in derivative.tables
        ),
    )
    return _divide(moved)


def compute_again(derivative: Derivative, again: Iterable[int]) -> Derivative:
    """Return the derivative with some values of the program rematerialised in the backward stage.

    Their operands are saved unless backward has them anyway. Values that the weight stage reads stay saved.
    """
    return _divide(replace(derivative, again=frozenset(again)))


def _divide(derivative: Derivative) -> Derivative:
    """Assign instructions to stages, and find the values that are saved between them."""
    stages = _Stages(derivative)
    scattered = (value for _, scatters in derivative.tables for scatter in scatters for value in scatter)
    for gradient in (*(g for _, g in derivative.parameters), *scattered):
        stages.need_for_weights(gradient)
    # Backward must compute those of its own values that are saved for the weight stage. The loop adds to `saved`, hence
    # the copy.
    new = (i for i in stages.saved.copy() if i >= stages.n_forward)
    for gradient in (*new, *(g for g in derivative.ports if g is not None)):
        stages.need_for_backward(gradient)
    return replace(
        derivative,
        saved=tuple(sorted(stages.saved)),
        backward=tuple(sorted(stages.backward)),
        weights=tuple(sorted(stages.weights)),
        again=derivative.again & stages.backward,
    )


def _scatters(vars: Sequence[Var], index: int) -> tuple[ScatteredRows, ...]:
    """Return the scattered rows that add up to a gradient; () if it has other terms."""
    source = vars[index].source
    if not isinstance(source, Instruction):
        return ()
    if source.op is add:
        left, right = (_scatters(vars, arg) for arg in source.args)
        return left + right if left and right else ()
    return (ScatteredRows(*source.args),) if source.op in (scatter, _row_sum_of(scatter)) else ()


class Sweep:
    """One reverse sweep over the values of a builder, which collects the parts of each value's gradient.

    Args:
        builder: continues the values that are differentiated.
        wanted: the values whose gradients are wanted.
    """

    def __init__(self, builder: Builder, wanted: Iterable[int]) -> None:
        self.builder = builder
        self.contributions: dict[int, list[Traced]] = defaultdict(list)
        self.differentiable = {*wanted}
        # Listed now, because the sweep appends instructions that it must not pull back.
        self._instructions = [i for i, v in enumerate(builder.vars) if isinstance(v.source, Instruction)]
        for i in self._instructions:
            source = builder.vars[i].source
            if isinstance(source, Instruction) and source.op.pullback and self.differentiable.intersection(source.args):
                self.differentiable.add(i)

    def run(self) -> None:
        """Pull gradients back through the instructions, last first."""
        for index in reversed(self._instructions):
            source = self.builder.vars[index].source
            if index not in self.contributions or not isinstance(source, Instruction) or source.op.pullback is None:
                continue
            # All readers of a value come after it, so its gradient has all of its parts by now.
            g = self.builder.value(self._total(index))
            args = [self.builder.value(a) for a in source.args]
            self.check(source.op)
            pulled = source.op.pullback(g, self.builder.value(index), *args, **source.static)
            for arg, part in zip(source.args, pulled, strict=True):
                if part is not None and arg in self.differentiable:
                    self.contribute(arg, part)

    def check(self, op: Op) -> None:
        """Raise a GraphError if an op has no gradient inside programs."""
        if op.once:
            raise GraphError(op.once)

    def contribute(self, index: int, part: Traced) -> None:
        """Fit `part` to the shape of value `index`, and add it to the value's gradient."""
        self.contributions[index].append(unbroadcast(part, self.builder.vars[index].shape))

    def gradient(self, index: int) -> int | None:
        """Return the value that is the whole gradient of `index`; None if nothing depends on it."""
        return self._total(index) if index in self.contributions else None

    def _total(self, index: int) -> int:
        """Return the sum of the parts of a gradient.

        Parts of a node and of its edges may meet at a shared value.
        """
        parts = self.contributions[index]
        if self.builder.vars[index].domain == SHARED and len({part.var.domain for part in parts}) > 1:
            parts = [of_node(part) for part in parts]
        return int(reduce(add, _assemble(parts)).index)


class _Reverse(Sweep):
    """The sweep over a whole program for its backward stages: gradients of shared values are sums over all rows."""

    def __init__(self, program: CellProgram) -> None:
        self.program = program
        self.weights = [
            i for i, v in enumerate(program.vars) if isinstance(v.source, Weight) and v.source.parameter.trainable
        ]
        super().__init__(Builder(program.name, program.vars), (*program.ports, *self.weights))

    def check(self, op: Op) -> None:
        """Accept any op."""

    def seed(self) -> tuple[int, ...]:
        """Add the gradients of the outputs as inputs of the backward stage."""
        seeds = []
        for number, index in enumerate(self.program.outputs):
            seed = incoming(self.builder, index, number)
            seeds.append(seed.index)
            if index in self.differentiable:
                self.contribute(index, seed)
        return tuple(seeds)

    def contribute(self, index: int, part: Traced) -> None:
        """Fit `part` to the shape and domain of value `index`, and add it to the value's gradient."""
        var = self.builder.vars[index]
        part = unbroadcast(part, var.shape)
        if var.domain == SHARED and part.var.domain != SHARED:
            part = self._row_sum(part)
        self.contributions[index].append(part)

    def _row_sum(self, part: Traced) -> Traced:
        source = part.var.source
        if isinstance(source, Instruction) and source.op.row_sum is not None:
            # The sum takes the arguments of the op, so the result of the op itself need not be computed.
            args = tuple(self.builder.value(a) for a in source.args)
            return self.builder.apply(_row_sum_of(source.op), args, source.static)
        return self.builder.apply(ROW_SUM, (part,), {})


def incoming(builder: Builder, index: int, number: int) -> Traced:
    """Append the gradient of a value, which is output `number`."""
    var = builder.vars[index]
    # Each node contributes a gradient, also to an output that all nodes share.
    return builder.add(Incoming(number), var.shape, NODE if var.domain == SHARED else var.domain)


def of_node(part: Traced) -> Traced:
    """Sum a value with rows of edges over the edges of each node; return others unchanged."""
    return part.builder.apply(OPS["sum_n"], (part,), {}) if part.var.domain >= 0 else part


def pull_back(builder: Builder, gradients: Iterable[tuple[int, Traced]], wanted: Sequence[int]) -> list[Traced | None]:
    """Return the gradients of some values, for one node, from the gradients of values computed from them.

    Args:
        builder: the builder of all these values.
        gradients: values, each with its gradient.
        wanted: the values whose gradients are wanted; one without any gives None. The gradient of a shared value is the
            contribution of the node, or of each of its edges.
    """
    sweep = Sweep(builder, wanted)
    for index, gradient in gradients:
        if index in sweep.differentiable:
            sweep.contribute(index, gradient)
    sweep.run()
    found = [sweep.gradient(index) for index in wanted]
    return [None if index is None else builder.value(index) for index in found]


def push_forward(
    builder: Builder, tangents: Iterable[tuple[int, Traced]], outputs: Sequence[int]
) -> list[Traced | None]:
    """Return the tangents of some values, for one node, from the tangents of values that they are computed from.

    A pullback is linear in its gradients, so its own pullback, with respect to them, is the derivative itself. No op
    needs another rule, and dead-code elimination leaves nothing of the gradients in between.

    Args:
        builder: the builder of all these values.
        tangents: values, each with its tangent.
        outputs: the values whose tangents are wanted; one that depends on no tangent gives None.
    """
    given = list(tangents)
    seeds = [incoming(builder, index, number) for number, index in enumerate(outputs)]
    gradients = pull_back(builder, zip(outputs, seeds, strict=True), [index for index, _ in given])
    pairs = zip(gradients, given, strict=True)
    linear = [(gradient.index, _at(tangent, gradient)) for gradient, (_, tangent) in pairs if gradient is not None]
    found = pull_back(builder, linear, [seed.index for seed in seeds])
    # The seeds have no values, because the program that is built here has no incoming gradients. They may remain as
    # arguments that an op reads for their rows alone.
    _forget_rows_of(builder, {seed.index for seed in seeds})
    return found


def _at(tangent: Traced, gradient: Traced) -> Traced:
    """Spread a node's tangent over its edges if the gradient has rows of edges, as for a shared value."""
    if gradient.var.domain < 0 or tangent.var.domain != NODE:
        return tangent
    return tangent.builder.apply(OPS["spread"], (tangent, gradient), {})


def _forget_rows_of(builder: Builder, seeds: set[int]) -> None:
    """Replace arguments that depend on the seeds, if an op needs only their rows, by values that do not."""
    depending, first = set(seeds), dict[Any, int]()
    for index, var in enumerate(builder.vars):
        source = var.source
        if not isinstance(source, Instruction) or depending.isdisjoint(source.args):
            if index not in depending:
                first.setdefault(_rows_like(var), index)
            continue
        read = source.args if source.op.like is None else source.args[: source.op.like]
        if not depending.isdisjoint(read):
            depending.add(index)
        else:
            args = (first.get(_rows_like(builder.vars[arg]), arg) if arg in depending else arg for arg in source.args)
            builder.vars[index] = replace(var, source=replace(source, args=tuple(args)))


def _rows_like(var: Var) -> Any:
    """Return a key that is equal for values of the same rows: of edges, or of a node value's first axis."""
    return var.domain if var.domain >= 0 else var.shape


def _assemble(parts: list[Traced]) -> list[Traced]:
    """Join the gradients of disjoint slices into one value instead of adding padded ones."""
    slices = [p for p in parts if _is(p, assemble)]
    if len(slices) < 2:
        return parts
    sources = [p.var.source for p in slices]
    args = [a for s in sources if isinstance(s, Instruction) for a in s.args]
    indices = [i for s in sources if isinstance(s, Instruction) for i in s.static["indices"]]
    if not _disjoint(indices, slices[0].shape):
        return parts
    builder = slices[0].builder
    whole = assemble(*(builder.value(a) for a in args), indices=tuple(indices), shape=slices[0].shape)
    return [whole, *(p for p in parts if not _is(p, assemble))]


def _disjoint(indices: list[Any], shape: Shape) -> bool:
    hits = np.zeros(shape, np.int32)
    for index in indices:
        hits[index] += 1
    return bool(hits.max(initial=0) <= 1)


def _is(part: Traced, op: Op) -> bool:
    source = part.var.source
    return isinstance(source, Instruction) and source.op is op


def _sum_rows(xp: Any, x: Any, out: Any) -> None:
    # x: (S, rows, *shape), out: (S, *shape), for S segments.
    out += x.sum(axis=1)


ROW_SUM = Op("row_sum", shape=lambda x: x, kernel=_sum_rows, sums_rows=True)


@cache  # ops are compared by identity
def _row_sum_of(op: Op) -> Op:
    """Return the op that adds the sum over all rows of `op`'s result to `out`, without storing the result."""
    assert op.row_sum is not None
    return Op(f"row_sum_{op.name}", shape=op.shape, kernel=op.row_sum, sums_rows=True)


class _Stages:
    """Divide the new instructions into the backward and the weight stage, and find the values saved for them."""

    def __init__(self, derivative: Derivative) -> None:
        self.vars, self.n_forward = derivative.vars, len(derivative.program.vars)
        self.kept, self.again = derivative.kept, derivative.again
        self.backward: set[int] = set()
        self.weights: set[int] = set()
        self.saved: set[int] = set()

    def need_for_weights(self, index: int) -> None:
        """Provide value `index` to the weight stage: compute it there if it has one row or is a view, else save it."""
        source = self.vars[index].source
        if isinstance(source, Incoming):
            self.saved.add(index)
        elif isinstance(source, Instruction) and index not in self.kept and index not in self.weights:
            if self._cheap(index, source):
                self.weights.add(index)
                for arg in source.args:
                    self.need_for_weights(arg)
            else:
                self.saved.add(index)

    def need_for_backward(self, index: int) -> None:
        """Provide value `index` to backward: compute it there if new, cheap, a view or rematerialised, else save it."""
        source = self.vars[index].source
        if not isinstance(source, Instruction) or index in self.backward or index in self.kept:
            return
        # The weight stage comes first: a value that it reads is saved already, and is not computed again.
        is_again = index in self.again and index not in self.saved
        if index >= self.n_forward or self._cheap(index, source) or is_again:
            self.backward.add(index)
            for arg in source.args:
                self.need_for_backward(arg)
        else:
            self.saved.add(index)

    def _cheap(self, index: int, source: Instruction) -> bool:
        return source.op.view or self.vars[index].domain == SHARED
