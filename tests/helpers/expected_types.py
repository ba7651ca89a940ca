"""The static types of cells and of `value_and_grad`, checked by mypy."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import autobatch as ab
from autobatch.api import Array
from autobatch.params.gradients import Gradients


class Net(ab.Module):
    @ab.cell
    def leaf(self, word: int, scale: float = 1.0) -> tuple[str, int]:
        return "leaf", word

    @ab.cell(static=("times",))
    def repeat(self, x: str, *, times: int) -> list[str]:
        return [x] * times

    def loss(self, word: int) -> Any:
        return self.leaf(word)


@ab.cell
def free(x: str) -> int:
    return len(x)


def check(net: Net) -> None:
    """Assert types; mypy checks this, and nothing calls it."""
    assert_type(net.leaf(1), tuple[str, int])
    assert_type(net.leaf(1, scale=2.0), tuple[str, int])
    assert_type(net.repeat("x", times=2), list[str])
    assert_type(free("x"), int)
    net.leaf("word")  # type: ignore[arg-type]
    net.repeat("x")  # type: ignore[call-arg]
    free()  # type: ignore[call-arg]
    loss = ab.batched(net.loss)
    assert_type(loss.value_and_grad([1]), tuple[np.floating[Any], dict[str, Any]])
    assert_type(loss.value_and_grad([1], reduce="sum"), tuple[np.floating[Any], dict[str, Any]])
    assert_type(loss.value_and_grad([1], has_aux=True), tuple[tuple[np.floating[Any], Any], dict[str, Any]])
    assert_type(loss.value_and_grad([1], inputs=True), tuple[np.floating[Any], dict[str, Any], list[Any]])
    assert_type(loss.value_and_grad([1], reduce="none"), tuple[Array, dict[str, Array]])
    assert_type(loss.value_and_grad([1], clip="per-instance"), tuple[np.floating[Any], Gradients])
