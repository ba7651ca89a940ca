"""The state that a program is drawn from: sizes, parameters, arrays and known cells, eager."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

import autobatch as ab
from fuzzing.forms import COMPUTED, VIEWS
from fuzzing.program import Function, Numbers, numbers
from fuzzing.specs import Pair, Shape, State, Use, Value

Rng = np.random.Generator
T = TypeVar("T")
MAX_ELEMENTS, MAX_NUMBER = 60, 30.0


def pick(rng: Rng, choices: Sequence[T]) -> T:
    """Draw one of the choices."""
    return choices[int(rng.integers(len(choices)))]


class Scope:
    """The object that stands for `self` while a program is drawn: eager parameters and cells by name."""


@dataclass
class Drawing:
    """A program so far, and everything that it runs on."""

    rng: Rng
    smooth: bool
    sizes: tuple[int, ...]
    derivatives: bool = False
    scope: Any = field(default_factory=Scope)
    parameters: list[Numbers] = field(default_factory=list)
    cells: list[Function] = field(default_factory=list)
    n_numbers: int = 1000

    def __post_init__(self) -> None:
        self.globals: dict[str, Any] = {
            "np": np, "ab": ab, "numbers": numbers, "Pair": Pair, "State": State, "self": self.scope,
            "model": self.scope,
        }  # fmt: skip
        self.parameter(())

    def shape(self, ndim: int | None = None) -> Shape:
        ndim = int(self.rng.choice(4, p=(0.15, 0.5, 0.3, 0.05))) if ndim is None else ndim
        return tuple(pick(self.rng, self.sizes) for _ in range(ndim))

    def parameter(self, shape: Shape) -> Numbers:
        made = Numbers(f"p{len(self.parameters)}", shape, trainable=bool(self.rng.random() < 0.93))
        self.parameters.append(made)
        setattr(self.scope, made.name, ab.Parameter(numbers(int(made.name[1:]), shape)).astype("float64"))
        return made

    def weight(self, shape: Shape) -> Use:
        """Draw a parameter of a shape, a part of one, or a value computed from one."""
        rng, chance = self.rng, self.rng.random()
        form, wanted = "{0}", shape
        if chance < 0.25:
            fitting = [(view, of(shape)) for view, ndim, of in VIEWS if len(shape) >= ndim]
            form, wanted = pick(rng, fitting)
        elif chance < 0.32:
            form = pick(rng, COMPUTED)
        if math.prod(wanted) > MAX_ELEMENTS:
            form, wanted = "{0}", shape
        known = [p for p in self.parameters if p.shape == wanted]
        chosen = pick(rng, known) if known and rng.random() < 0.6 else self.parameter(wanted)
        return Use(form.format(f"self.{chosen.name}"), Value(shape))

    def data(self, shape: Shape) -> Use:
        self.n_numbers += 1
        return Use(f"numbers({self.n_numbers}, {shape})", Value(shape))

    def define(self, function: Function) -> None:
        """Add a cell, for later lines to call."""
        self.cells.append(function)
        text = "\n".join(function.text(is_cell=False))
        exec(compile(text, "<drawn cell>", "exec"), self.globals)
        made = self.globals[function.name]
        if function.is_method:
            setattr(self.scope, function.name, partial(made, self.scope))


def is_tame(result: Any) -> bool:
    """Return whether these are finite numbers, not too large and not too many."""
    array = np.asarray(getattr(result, "data", result) if isinstance(result, ab.Parameter) else result)
    small = array.size <= MAX_ELEMENTS and array.ndim <= 3
    return bool(small and np.all(np.isfinite(array)) and np.max(np.abs(array), initial=0.0) < MAX_NUMBER)
