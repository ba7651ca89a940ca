"""Gradient buffers: the gradients of each step reuse the memory of the step before.

Buffers are allocated again when a parameter was moved, cast, made trainable or left out, or when its gradient changes
between an array and `Rows`. Otherwise they are cleared: adjacent arrays in one operation, `Rows` by dropping their
rows. The gradients that a call returns are valid until then.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autobatch.params.parameter import FloatArray, Parameter
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.params.stacks import make_gradients


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
        self._served: list[tuple[str, Parameter, FloatArray]] = []
        self._rows: frozenset[int] = frozenset()
        self._wholes: list[FloatArray] = []

    def zeros(self, parameters: Mapping[str, Parameter], rows: frozenset[int]) -> dict[str, Gradient]:
        """Zeros for the gradient of each parameter.

        Args:
            parameters: by name.
            rows: the `id`s of those whose gradient is `Rows`.
        """
        if not self._serves(parameters, rows):
            self._made = make_gradients(parameters, rows, self._made)
            self._served = [(name, parameter, parameter.array) for name, parameter in parameters.items()]
            self._rows = rows
            wholes = [whole for whole in map(_whole, self._made.values()) if whole is not None]
            self._wholes = list({id(whole): whole for whole in wholes}.values())
        for whole in self._wholes:
            whole.fill(0)
        for gradient in self._made.values():
            if isinstance(gradient, Rows):
                gradient.clear()
        return dict(self._made)

    def _serves(self, parameters: Mapping[str, Parameter], rows: frozenset[int]) -> bool:
        if len(parameters) != len(self._served) or rows != self._rows:
            return False
        served = zip(parameters.items(), self._served, strict=True)
        return all(name == n and p is q and p.array is data for (name, p), (n, q, data) in served)


def _whole(gradient: Gradient) -> FloatArray | None:
    """The array of which a gradient and its neighbours are views; None for rows."""
    if isinstance(gradient, Rows):
        return None
    return gradient.base if isinstance(gradient.base, np.ndarray) else gradient
