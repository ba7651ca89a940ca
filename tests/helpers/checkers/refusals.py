"""A model to misuse, and assertions about errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import autobatch as ab

DIM, N_WORDS, N_CLASSES = 3, 5, 2


class Model(ab.Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((N_WORDS, DIM)))
        self.weight = ab.Parameter(rng.standard_normal((N_CLASSES, DIM)))
        self.kept: list[Any] = []

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def leaves(self, words: Any) -> Any:
        return ab.sum(ab.lookup(self.table, words[1:]), axis=0)

    @ab.cell
    def choose(self, x: Any, label: int) -> Any:
        return ab.cross_entropy(self.weight @ x, label)

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(x)

    @ab.cell
    def attend(self, query: Any, keys: Any, values: Any) -> Any:
        return ab.attend(query, keys, values, shape=(DIM,))

    @ab.cell
    def label(self, x: Any, name: Any) -> Any:
        return x * (2.0 if name else 1.0)

    @ab.cell
    def weigh(self, x: Any, weights: Any) -> Any:
        return np.array(weights) * x

    @ab.cell(static=("tag",))
    def tagged(self, x: Any, tag: Any) -> Any:
        return x + (1.0 if tag else 0.0)

    @ab.cell
    def nothing(self, x: Any) -> None:
        ab.tanh(x)

    @ab.cell
    def body(self, x: Any, run: Any) -> Any:
        """Call `run`, a static argument, as the body."""
        return run(x)

    def loss(self, word: int) -> Any:
        return self.total(self.leaf(word))


@contextmanager
def refused(error: type[Exception], *texts: str) -> Iterator[None]:
    """Expect this error, with all texts in its message; messages of autobatch are one line that ends in a stop."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    for text in texts:
        assert text in message
    if isinstance(caught.value, ab.AutobatchError):
        assert message.endswith((".", ")"))
        assert "\n" not in message
