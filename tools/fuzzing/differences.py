"""Compare the derivatives that programs ask for with finite differences of their functions, in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import EAGER
from autobatch.trace.inputs import Held, is_float_array
from fuzzing.specs import State

STEP, RELATIVE = 1e-5, 1e-6
NAMES = ("grad", "value_and_grad", "vjp", "jvp", "hvp")


@contextmanager
def checked_derivatives(error: type[Exception]) -> Iterator[None]:
    """Check derivatives within the context, except those within another one; the error names the wrong one."""
    originals = {name: getattr(ab, name) for name in NAMES}
    checked = _Checked(originals, error)
    for name in NAMES:
        setattr(ab, name, getattr(checked, name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ab, name, original)


class _Checked:
    """Replaces the functions that make derivatives, in eager mode."""

    def __init__(self, originals: dict[str, Any], error: type[Exception]) -> None:
        self._original, self._error = originals, error
        self._is_off = False

    def grad(self, function: Any, wrt: Any = None, has_aux: bool = False) -> Any:
        def derived(*args: Any, **kwargs: Any) -> Any:
            value, gradients = self.value_and_grad(function, wrt, has_aux)(*args, **kwargs)
            return (gradients, value[1]) if has_aux else gradients

        return derived

    def value_and_grad(self, function: Any, wrt: Any = None, has_aux: bool = False) -> Any:
        def derived(*args: Any, **kwargs: Any) -> Any:
            point = None if self._is_inside() else _Point(function, wrt, args, kwargs, has_aux)
            found = self._original["value_and_grad"](function, wrt, has_aux)(*args, **kwargs)
            if point:
                with self._off():
                    self._compare("value", found[0][0] if has_aux else found[0], point.value())
                    self._compare("gradient", point.along(found[1]), sum(point.slope(), np.zeros(())))
            return found

        return derived

    def vjp(self, function: Any, *primals: Any, wrt: Any = None) -> Any:
        point = None if self._is_inside() else _Point(function, wrt or _all, primals, {})
        value, pull = self._original["vjp"](function, *primals, wrt=wrt)

        def pulled(given: Any) -> Any:
            found = pull(given)
            if point:
                with self._off():
                    pairs = zip(leaves(given), point.slope(), strict=True)
                    self._compare("product", point.along(found), sum((np.sum(g * s) for g, s in pairs), np.zeros(())))
            return found

        return value, pulled

    def jvp(self, function: Any, primals: Any, tangents: Any, wrt: Any = None) -> Any:
        point = None if self._is_inside() else _Point(function, wrt or _all, tuple(primals), {})
        value, found = self._original["jvp"](function, primals, tangents, wrt)
        if point:
            with self._off():
                self._compare("value", value, point.value())
                self._compare("tangents", found, point.slope(leaves(tangents)))
        return value, found

    def hvp(self, function: Any, primals: Any, tangents: Any, wrt: Any = None) -> Any:
        """Compute the product as `autobatch.hvp` does."""
        by = wrt or _all
        return self.jvp(self._original["grad"](function, by), primals, tangents, by)

    def _is_inside(self) -> bool:
        return self._is_off or STAGE.current is not None

    @contextmanager
    def _off(self) -> Iterator[None]:
        self._is_off, source = True, EAGER.source
        kept = source.draws, EAGER.draw, EAGER.sites
        try:
            yield
        finally:
            self._is_off = False
            source.draws, EAGER.draw, EAGER.sites = kept

    def _compare(self, what: str, found: Any, expected: Any) -> None:
        pairs = list(zip(leaves(found), leaves(expected), strict=True))
        scale = 1.0 + max((float(np.max(np.abs(y), initial=0.0)) for _, y in pairs), default=0.0)
        for x, y in pairs:
            if x.shape != y.shape or not np.all(np.abs(x - y) <= RELATIVE * scale):
                raise self._error(f"the {what} of an eager derivative is {x}, by differences {y}")


class _Point:
    """Where a function is differentiated, with a random direction; it draws the same random numbers as the call."""

    def __init__(self, function: Any, wrt: Any, args: Any, kwargs: Any, has_aux: bool = False) -> None:
        self._function, self._args, self._kwargs, self._has_aux = function, args, kwargs, has_aux
        if wrt is None and type(args[0]) is float:
            self._args = (np.asarray(args[0]), *args[1:])
        chosen = self._args[0] if wrt is None else wrt(*args, **kwargs)
        self._chosen = Held((chosen,), lambda x: isinstance(x, (ab.Parameter, np.floating)) or is_float_array(x))
        self._variables = self._chosen.arrays
        wanted = {id(x) for x in self._variables}
        self._held = Held((self._args, kwargs), lambda x: id(x) in wanted)
        rng = np.random.default_rng(0)
        self._direction = [rng.standard_normal(x.shape) for x in self._variables]
        self._draws = copy.deepcopy(EAGER.source.draws), EAGER.draw, EAGER.sites

    def value(self) -> list[Any]:
        """Return the function's value."""
        return self._at(0.0, self._direction)

    def along(self, gradients: Any) -> Any:
        """Return the product of gradients and the direction."""
        places = self._chosen.rebuild([np.asarray(k) for k in range(len(self._direction))], lambda part: None)
        first = {int(place): g for place, g in reversed(list(zip(leaves(places), leaves(gradients), strict=True)))}
        return sum((np.sum(first[k] * v) for k, v in enumerate(self._direction)), np.zeros(()))

    def slope(self, direction: Any = None) -> list[Any]:
        """Return the slope of the function's value along a direction, by Richardson's extrapolation."""
        direction = self._direction if direction is None else direction
        once, twice = (
            [(a - b) / (2 * h) for a, b in zip(self._at(h, direction), self._at(-h, direction), strict=True)]
            for h in (STEP, 2 * STEP)
        )
        return [(4.0 * x - y) / 3.0 for x, y in zip(once, twice, strict=True)]

    def _at(self, step: float, direction: Any) -> list[Any]:
        moved = {
            id(x): np.asarray(x.data if isinstance(x, ab.Parameter) else x) + step * v
            for x, v in zip(self._variables, direction, strict=True)
        }
        parameters = [x for x in self._variables if isinstance(x, ab.Parameter)]
        kept = [p.data.copy() for p in parameters]
        args, kwargs = self._held.rebuild(
            [x if isinstance(x, ab.Parameter) else moved[id(x)] for x in self._held.arrays], lambda part: part
        )
        draws, EAGER.draw, EAGER.sites = self._draws
        EAGER.source.draws = copy.deepcopy(draws)
        for p in parameters:
            p.data = moved[id(p)]
        try:
            found = self._function(*args, **kwargs)
            return [x.copy() for x in leaves(found[0] if self._has_aux else found)]
        finally:
            for p, data in zip(parameters, kept, strict=True):
                p.data = data


def _all(*args: Any) -> tuple[Any, ...]:
    return args


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in a structure."""
    if isinstance(tree, State):
        return leaves((tree.h, tree.c))
    if isinstance(tree, dict):
        return leaves(list(tree.values()))
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in leaves(part)]
    return [] if tree is None else [np.asarray(tree.data if isinstance(tree, ab.Parameter) else tree)]
