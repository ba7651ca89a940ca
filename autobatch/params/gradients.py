"""Gradient buffers: each step reuses the memory of the previous step's gradients.

Gradients are on the device of their parameters. They are reallocated when a parameter is moved, cast, frozen or
unfrozen, or when its gradient changes between an array and `Rows`. Otherwise they are cleared: adjacent arrays in one
operation, `Rows` by dropping their rows. The gradients that a call returns are valid until the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, is_
from typing import Any

from autobatch.params.parameter import FloatArray, Parameter
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.params.stacks import make_gradients

ARRAY = attrgetter("array")


class Gradients(dict[str, Any]):
    """A dict of gradients by parameter name: arrays, or `Rows`.

    Attributes:
        finite: on a device, an array of one bool: whether all losses, and all clipped gradients, are finite. If not,
            an optimizer step changes nothing. None on the host, which checks earlier.
        check: raises the pending error of gradients on a device, unless it has been raised already; None if they are
            not checked. Called by the next optimizer step.
        norms: norms of the B instances' gradients before clipping, float64 (B,), if `value_and_grad` clipped each
            instance; else None.
    """

    finite: Any = None
    check: Callable[[], None] | None = None
    norms: Any = None

    def copy(self) -> Gradients:
        """Return a shallow copy with the same attributes."""
        found = Gradients(self)
        found.finite, found.check, found.norms = self.finite, self.check, self.norms
        return found

    def __or__(self, other: Any) -> Any:
        found = self.copy()
        found.update(other)
        return found


class GradientBuffers:
    """Gradient memory that is reused by every step.

    >>> import autobatch as ab
    >>> parameters, buffers = {"bias": ab.Parameter([1.0, 2.0])}, GradientBuffers()
    >>> first = buffers.zeros(parameters, frozenset())["bias"]
    >>> first += 1.0
    >>> buffers.zeros(parameters, frozenset())["bias"] is first, first.tolist()
    (True, [0.0, 0.0])
    """

    def __init__(self) -> None:
        self._made: dict[str, Gradient] = {}
        self._parameters: list[Parameter] = []
        self._arrays: list[FloatArray] = []
        self._rows: frozenset[int] = frozenset()
        self._to_clear: list[Rows] = []
        self._wholes: list[FloatArray] = []

    def zeros(self, parameters: Mapping[str, Parameter], rows: frozenset[int]) -> Gradients:
        """Return a zero gradient for each parameter, and invalidate the gradients returned before.

        Args:
            parameters: the parameters, by name.
            rows: `id`s of the parameters whose gradient is `Rows`.
        """
        arrays = [*map(ARRAY, parameters.values())]
        if not (
            rows == self._rows
            and [*parameters] == [*self._made]
            # By identity: moving or casting a parameter gives it another array, and new gradients.
            and all(map(is_, parameters.values(), self._parameters))
            and all(map(is_, arrays, self._arrays))
        ):
            self._made, self._wholes = make_gradients(parameters, rows)
            self._parameters, self._rows = [*parameters.values()], rows
            self._arrays = [*map(ARRAY, self._parameters)]
            self._to_clear = [gradient for gradient in self._made.values() if isinstance(gradient, Rows)]
        for whole in self._wholes:
            whole.fill(0)
        for gradient in self._to_clear:
            gradient.clear()
        return Gradients(self._made)
