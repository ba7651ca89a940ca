"""Test `table[i]` with an index from the program, from the data, or an array of such: equal eagerly and batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError, ShapeError
from helpers.runs.recorded import types_of
from helpers.runs.ways import each


class Table(ab.Module):
    """A table whose rows are looked up by number."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows, self.bias = ab.Parameter(rng.standard_normal((5, 3))), ab.Parameter(rng.standard_normal(5))
        self.line = ab.Parameter(rng.standard_normal((1, 5)))
        self.astype("float64")

    @ab.cell
    def by_word(self, word: int) -> Any:
        return self.rows[word] * self.bias[word]

    @ab.cell
    def by_words(self, words: Any) -> Any:
        return ab.sum(self.rows[words] * self.bias[words][:, None], axis=0) + self.rows[words[0]]

    @ab.cell
    def of_value(self, x: Any, i: int) -> Any:
        return x[i] * x[-1] + x[np.array([0, 1])].sum() * ab.tanh(self.rows[2])

    @ab.cell
    def of_views(self, i: int) -> Any:
        columns = ab.lookup(ab.reshape(self.rows, (15, 1)), i) * ab.lookup(ab.transpose(self.line[::-1]), i)
        return columns * ab.lookup(self.rows.T, i)[:3] + ab.lookup(ab.reshape(self.rows, (3, 5)), i)[2:]


TABLE = Table()


def in_cell(words: list[int]) -> Any:
    return ab.sum_n([TABLE.by_word(word) for word in words])


def arrays(words: list[int]) -> Any:
    return TABLE.by_words(np.array(words))


def values(words: list[int]) -> Any:
    return ab.sum_n([TABLE.of_value(TABLE.by_word(word), word % 3) for word in words])


def views(words: list[int]) -> Any:
    return ab.sum_n([TABLE.of_views(word % 3) for word in words])


def outside(words: list[int]) -> Any:
    return ab.sum_n([TABLE.rows[word] * TABLE.bias[word - 5] + TABLE.rows[-1] for word in words])


@pytest.mark.slow
@each("function", [in_cell, arrays, values, views, outside])
@each("backend", ["reference", "cpu"])
def test_rows_are_those_of_the_numbers(backend: str, function: Any) -> None:
    def loss(words: list[int]) -> Any:
        return ab.sum(ab.tanh(function(words)))

    batched = ab.batched(loss, module=TABLE, backend=backend)
    instances = [[1, 4], [0], [3, 3, 2], [4, 0, 1, 2]]
    ab.testing.check_batched(loss, batched, instances, 1e-10)
    ab.testing.check_grads(batched, instances, TABLE, np.random.default_rng(1))


def test_rows_by_number_outside_of_cells_are_one_type() -> None:
    batched = ab.batched(lambda word: TABLE.rows[word], module=TABLE)
    np.testing.assert_array_equal(batched([3, 0, -1, np.int64(2)]), TABLE.rows.data[[3, 0, -1, 2]])
    assert len(types_of(batched)) == 1


@each("index", [5, -6])
def test_a_row_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(ShapeError, match=f"slice of a value of shape \\(5, 3\\): index {index} is out of bounds"):
        ab.batched(lambda word: TABLE.rows[word], module=TABLE)([index])
    with pytest.raises(DataError, match=r"which takes 0\.\.4"):
        ab.batched(TABLE.by_word)([index])
