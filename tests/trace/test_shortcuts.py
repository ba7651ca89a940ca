"""Test ops, operators and functions of ops outside cells: the core records the same calls as Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import ops
from autobatch.errors import AutobatchError

N_STEPS, N_FUNCTIONS, WIDTH = 120, 3, 3  # few functions, so that calls of one differ in their operands
NOT_CALLED = {"Op", "define_op", "each", "normal", "dropout", "categorical"}  # not ops, or random
OPERATORS = ("add", "sub", "mul", "truediv", "pow", "neg", "abs", "matmul", "lt", "le", "eq", "ne", "getitem")
NUMBERS = (0, 1, 0.0, -0.0, -2.5, True, False, np.float32(2), np.float64(0), np.int64(3), np.bool_(True))
KINDS = ("value",) * 12 + ("number",) * 4 + ("array",) * 2 + ("ints", "parameter", "list", "tuple", "none")
SHAPES = ((), (WIDTH,), (WIDTH,), (WIDTH, WIDTH), (1, WIDTH), (2, WIDTH))
KEYWORDS: dict[str, tuple[Any, ...]] = {
    "axis": (0, -1, None, (0,)),
    "keepdims": (True,),
    "shape": ((WIDTH,), (), None, WIDTH, WIDTH, 1, WIDTH + 1, np.int64(WIDTH), True, -1, 2**70, (2**70,)),
}


class Cells(ab.Module):
    """Cells that return values and ragged values."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.vector, self.matrix = (ab.Parameter(rng.standard_normal(shape)) for shape in ((WIDTH,), (WIDTH, WIDTH)))

    @ab.cell
    def value(self, x: Any) -> Any:
        return x + 1.0

    @ab.cell(ragged=("x",))
    def rows(self, x: Any) -> Any:
        return x * 2.0


Step = Callable[[list[Any]], Any]


class Programs:
    """Draws the calls of a program; each may use any value recorded earlier."""

    def __init__(self, rng: np.random.Generator, cells: Cells) -> None:
        self.rng, self.cells = rng, cells
        functions = [getattr(ops, name) for name in ops.__all__ if name not in NOT_CALLED]
        operators = [getattr(operator, name) for name in OPERATORS]
        self.functions = [self.one_of(group) for group in (functions, operators) for _ in range(N_FUNCTIONS)]

    def one_of(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def operand(self, depth: int = 0) -> Callable[[list[Any]], Any]:
        """Draw an argument, most often a value."""
        kind = self.one_of(KINDS)
        if kind == "value" or (depth > 1 and kind in ("list", "tuple")):
            at = int(self.rng.integers(1 << 30))
            return lambda values: values[at % len(values)]
        if kind in ("list", "tuple"):
            parts = [self.operand(depth + 1) for _ in range(int(self.rng.integers(4)))]
            make = list if kind == "list" else tuple
            return lambda values: make(part(values) for part in parts)
        fixed = self.fixed(kind)
        return lambda values: fixed

    def fixed(self, kind: str) -> Any:
        """Draw an argument that is not a value."""
        if kind == "number":
            return self.one_of(NUMBERS)
        if kind == "parameter":
            return self.one_of((self.cells.vector, self.cells.matrix))
        if kind == "ints":
            return np.zeros(WIDTH, int)  # valid ids for any table
        if kind == "array":
            array = self.rng.standard_normal(self.one_of(SHAPES)).astype(self.one_of(("f4", "f8", "f2", ">f8")))
            return array if self.rng.random() < 0.7 else array.T
        return None

    def step(self) -> Step:
        """Draw a call; most have as many arguments as the function needs."""
        function, kwargs = self.one_of(self.functions), {}
        parameters = signature(function).parameters.values()
        n = sum(p.default is p.empty for p in parameters)
        if self.rng.random() < 0.15:
            n += int(self.rng.integers(-1, 2))
        for name in KEYWORDS.keys() & {p.name for p in parameters}:
            if self.rng.random() < 0.3:
                kwargs[name] = self.one_of(KEYWORDS[name])
        operands = [self.operand() for _ in range(max(n, 0))]
        return lambda values: function(*(operand(values) for operand in operands), **kwargs)


def run(steps: list[Step], cells: Cells, arrays: list[Any], refusals: list[str]) -> list[Any]:
    """Record the steps and append the messages of refused ones to `refusals`."""
    values = [cells.value(np.arange(WIDTH)), *(cells.value(array) for array in arrays if array.shape)]
    values += [cells.rows(array) for array in arrays if array.ndim == 2]
    for step in steps:
        try:
            made = step(values)
        except (AutobatchError, TypeError, ValueError, IndexError, RuntimeWarning) as error:
            refusals.append(f"{type(error).__name__}: {error}")
        else:
            values += made if isinstance(made, tuple) else [made]
    return values


@pytest.mark.parametrize("seed", range(24))
def test_shortcuts_record_what_python_records(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells, refusals = Cells(rng), list[str]()
    programs = Programs(rng, cells)
    steps = [programs.step() for _ in range(N_STEPS)]
    instances = [[rng.standard_normal(programs.one_of(SHAPES)) for _ in SHAPES] for _ in range(4)]
    recorder = ab.batched(lambda arrays: run(steps, cells, arrays, refusals), module=cells).recorder
    found = []
    for is_watched in (False, False, True, False):
        recorder.calls.log.is_watched = is_watched  # if the log is watched, Python takes all calls
        refusals.clear()
        graph = recorder.record(instances)
        found.append((graph.words.tolist(), graph.floats.tolist(), [*refusals]))
    assert found[0][0][1] > len(instances)  # number of nodes
    assert all(other == found[0] for other in found[1:])
