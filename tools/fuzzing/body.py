"""The body of a drawn function: every line is evaluated on examples at once, so that it is valid and tame."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import autobatch as ab
from fuzzing.drawing import MAX_ELEMENTS, Drawing, is_tame, pick
from fuzzing.program import Line
from fuzzing.specs import Data, Shape, Spec, Tree, Use, Value, parts_of, uses_in


class Body:
    """The lines of a function so far, and the values that they may read."""

    def __init__(self, drawing: Drawing, prefix: str = "v") -> None:
        self.drawing, self.rng, self.smooth, self.prefix = drawing, drawing.rng, drawing.smooth, prefix
        self.lines: list[Line] = []
        self.known: list[Use] = []  # values, and structures of them
        self.data: list[Use] = []  # ids, floats, flags and words
        self.samples: dict[str, Any] = {}

    @property
    def in_cell(self) -> bool:
        """Return whether it is, or is within, the body of a cell."""
        return self.prefix.startswith("v")

    @property
    def values(self) -> list[Use]:
        return [use for use in self.known if isinstance(use.spec, Value)]

    def take(self, name: str, spec: Spec, example: Any) -> None:
        """Add an argument, and all its parts, to the known values."""
        self.samples[name] = example
        for use in (Use(name, spec), *parts_of(Use(name, spec))):
            if isinstance(use.spec, Data):
                self.data.append(use)
            elif use not in self.known:
                self.known.append(use)

    def evaluate(self, text: str) -> Any:
        """Evaluate a text on the examples."""
        with np.errstate(all="ignore"):
            return eval(text, self.drawing.globals | self.samples)

    def add(self, form: str, *args: Tree, spec: Spec | None = None) -> Use | None:
        """Add a line, unless it raises an error or its values are too large. Return the use of its value."""
        target = f"{self.prefix}{len(self.lines)}"
        line = Line(target, form, args, spec or Value(()))
        try:
            result = self.evaluate(line.expression)
        except (ab.GraphError, ab.ShapeError, ValueError, IndexError):  # our errors, and NumPy's if all are arrays
            return None
        if spec is None:
            if not is_tame(result):
                return None
            line = Line(target, form, args, Value(np.shape(result)))
        self.lines.append(line)
        self.take(target, line.spec, result)
        return Use(target, line.spec)

    def value(self, *shapes: Shape) -> Use:
        """Draw a value, with one of these shapes if any are given; late ones are more likely."""
        fitting = [use for use in self.values if not shapes or use.shape in shapes]
        if fitting and self.rng.random() < 0.85:
            return fitting[-min(len(fitting), int(self.rng.geometric(0.35)))]
        return self.source(pick(self.rng, shapes) if shapes else self.drawing.shape())

    def result(self) -> Use:
        """Draw a value to return; those that nothing reads yet are more likely."""
        read = {use.text for line in self.lines for tree in line.trees() for use in uses_in(tree)}
        unread = [use for use in self.values if use.text not in read and use.text.startswith(self.prefix)]
        return pick(self.rng, unread) if unread and self.rng.random() < 0.75 else self.value()

    def source(self, shape: Shape) -> Use:
        """Draw a value that reads none: a parameter, an array, or a constant."""
        chance = self.rng.random()
        if chance < 0.6:
            return self.drawing.weight(shape)
        if chance < 0.85:
            return self.drawing.data(shape)
        return Use(pick(self.rng, (f"np.ones({shape})", f"np.full({shape}, -0.5)", f"np.zeros({shape})")), Value(shape))

    def shaped(self, shape: Shape) -> Use:
        """Draw a value of a shape, made from known values."""
        fitting = [use for use in self.values if use.shape == shape]
        if fitting and self.rng.random() < 0.5:
            return pick(self.rng, fitting)
        made, size = self.value(), math.prod(shape)
        n = math.prod(made.shape)
        if self.rng.random() < 0.2 or n * size > MAX_ELEMENTS:
            found = self.add("ab.sum({0}) * {1}", made, self.source(shape))
        else:
            found = self.add(
                f"ab.reshape({{1}} @ ab.reshape({{0}}, ({n},)), {shape})", made, self.drawing.weight((size, n))
            )
        return found or self.source(shape)
