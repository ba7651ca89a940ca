"""Add superfluous instructions to programs, which change no bit of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from autobatch.ir.builder import Builder, Traced
from autobatch.ir.program import NODE, SHARED, CellProgram, Constant, Instruction, Weight
from autobatch.ops import elementwise
from autobatch.ops.operators import OPS
from autobatch.ops.shaping import concat, reshape, slice_, transpose


def make_careless(program: CellProgram, rng: np.random.Generator) -> CellProgram:
    """Copy a cell with random recomputed values, and with arguments behind identities."""
    names = {id(w.parameter): w.name for w in program.weights}
    builder = Builder(program.name, weight_names=names)
    copies: dict[int, list[Traced]] = {}
    for index, var in enumerate(program.vars):
        source = var.source
        if isinstance(source, Weight):
            copies[index] = [builder.wrap(source.parameter)]
        elif not isinstance(source, Instruction):
            copies[index] = [builder.add(source, var.shape, var.domain)]
        else:
            again = 1 if source.op.random else 1 + int(rng.random() < 0.4)
            copies[index] = []
            for _ in range(again):
                args = [copies[arg][int(rng.integers(len(copies[arg])))] for arg in source.args]
                is_id = source.op.index_axis is not None
                args = [x if is_id and k == 1 else _wrap(x, rng) for k, x in enumerate(args)]
                numbers = tuple(x.index for x in args)
                copies[index].append(builder.add(replace(source, args=numbers), var.shape, var.domain))
    made = builder.finish([copies[output][-1] for output in program.outputs])
    return replace(made, ties=program.ties, draws=program.draws)


def _wrap(x: Traced, rng: np.random.Generator) -> Traced:
    """Put a computed value behind a random identity, or leave it; data and constants, which may be ints, stay."""
    source = x.var.source
    plain = isinstance(source, Constant) or x.var.domain == SHARED or not x.var.size
    if plain or rng.random() < 0.5 or not _is_computed(x):
        return x
    chosen: list[Callable[[Any], Any]] = list(ANY)
    if x.shape:
        chosen += WITH_AXES
    wrapped: Traced = chosen[int(rng.integers(len(chosen)))](x)
    return wrapped


def _is_computed(x: Traced) -> bool:
    source = x.var.source
    return x.var.domain >= NODE and isinstance(source, Instruction) and not source.op.view


def _cut_and_joined(x: Any) -> Any:
    at = x.shape[0] // 2
    parts = [slice_(x, index=(slice(0, at),)), slice_(x, index=(slice(at, None), ...))]
    return concat(parts, axis=0)


ANY: tuple[Callable[[Any], Any], ...] = (
    lambda x: x * 1.0,
    lambda x: 1 * x,
    lambda x: x / 1.0,
    lambda x: OPS["neg"](-x),
    lambda x: OPS["sub"](x, 0.0),
    lambda x: OPS["add"](-0.0, x),
    lambda x: x ** (2.0 - 1.0),
    lambda x: elementwise.where(x > 0.25, x, x),
    lambda x: reshape(reshape(x, (x.var.size,)), x.shape),
)
WITH_AXES: tuple[Callable[[Any], Any], ...] = (
    lambda x: transpose(transpose(x)),
    lambda x: slice_(slice_(x, index=(slice(None, None, -1),)), index=(slice(None, None, -1), ...)),
    _cut_and_joined,
    lambda x: slice_(concat([x, x * 3.0], axis=0), index=(slice(0, x.shape[0]),)),
)
