"""`ab.testing.check_batched` on functions that await values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.programs.waiting_programs import Model, items


@ab.cell
def thin(x: Any, rate: float) -> Any:
    return ab.dropout(x, 0.25) * rate


@ab.cell
def total(x: Any) -> Any:
    return ab.sum(x)


async def noisy(x: Any) -> Any:
    """Halve x until it is small, with dropout."""
    x, n = thin(x, 1.0), 0
    while await ab.value(total(x * x)) > 0.5:
        x, n = thin(x, 0.5), n + 1
    return total(x), n


def test_async_functions_are_checked() -> None:
    model = Model()
    loss = ab.batched(model.loop, module=model)
    ab.testing.check_batched(model.loop, loss, items(3, 0, 2), 1e-6)
    given = list(np.random.default_rng(0).standard_normal((6, 3)))
    ab.testing.check_batched(noisy, ab.batched(noisy, seed=3), given, 1e-6)


def test_an_async_function_that_differs_is_told() -> None:
    async def other(x: Any) -> Any:
        loss, n = await noisy(x)
        return 2.0 * loss, n

    given = list(np.random.default_rng(0).standard_normal((6, 3)))
    with pytest.raises(ab.NumericError, match="batched differs from eager"):
        ab.testing.check_batched(other, ab.batched(noisy), given, 1e-6)
