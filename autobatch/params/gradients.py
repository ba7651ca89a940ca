"""Gradient buffers: the gradients of each step reuse the memory of the step before.

They lie on the device of the parameters. They are allocated again when a parameter was moved, cast, made trainable or
left out, or when its gradient changes between an array and `Rows`. Otherwise they are cleared: adjacent arrays in one
operation, `Rows` by dropping their rows. The gradients that a call returns are valid until then.
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
    """Gradients by the names of parameters: arrays, or `Rows`.

    Attributes:
        finite: on a device, an array of one bool: whether all losses, and their gradients where these were clipped, are
            finite; if not, the step of an optimizer changes nothing. None on the host, which knows before there are
            gradients.
        check: raises the error that was found in the gradients on a device, unless it has been read; None if they are
            not checked. The next step of an optimizer calls it.
        norms: where `value_and_grad` has clipped the gradient of each instance, their norms before: float64 (B,).
    """

    finite: Any = None
    check: Callable[[], None] | None = None
    norms: Any = None

    def copy(self) -> Gradients:
        """Another dict of the same gradients, of which the same is known."""
        found = Gradients(self)
        found.finite, found.check, found.norms = self.finite, self.check, self.norms
        return found

    def __or__(self, other: Any) -> Any:
        found = self.copy()
        found.update(other)
        return found


class GradientBuffers:
    """Memory for gradients that every step reuses.

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
        """Zeros for the gradient of each parameter.

        Args:
            parameters: by name.
            rows: the `id`s of those whose gradient is `Rows`.
        """
        arrays = [*map(ARRAY, parameters.values())]
        if not (
            rows == self._rows
            and [*parameters] == [*self._made]
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
