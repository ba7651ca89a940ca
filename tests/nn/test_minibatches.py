"""Test that mini-batches hold every instance once, buckets hold similar sizes, and draws of plain ones are stable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autobatch as ab
from autobatch.nn.minibatches import BucketBy
from helpers.programs.graphs import random_dag


@given(
    sizes=st.lists(st.integers(0, 9), max_size=60),
    size=st.integers(1, 9),
    window=st.none() | st.integers(1, 5),
    seed=st.none() | st.integers(0, 9),
    bucketed=st.booleans(),
)
def test_every_instance_comes_once_in_full_mini_batches_but_one(
    sizes: list[int], size: int, window: int | None, seed: int | None, bucketed: bool
) -> None:
    def cut() -> list[list[int]]:
        rng = None if seed is None else np.random.default_rng(seed)
        bucket_by = sizes if bucketed else None
        return list(ab.minibatches(range(len(sizes)), size, rng, bucket_by=bucket_by, window=window))

    batches = cut()
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    assert sorted(map(len, batches), reverse=True)[:-1] == [size] * (math.ceil(len(sizes) / size) - 1 if sizes else 0)
    assert batches == cut()


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=60), size=st.integers(1, 9), window=st.integers(1, 5))
def test_mini_batches_of_a_window_are_sorted_and_windows_are_the_shuffled_order(
    sizes: list[int], size: int, window: int
) -> None:
    """By definition: `window` plain mini-batches at a time are sorted and cut again, and all are shuffled."""
    plain = [i for batch in ab.minibatches(range(len(sizes)), size, np.random.default_rng(1)) for i in batch]
    expected = []
    for start in range(0, len(plain), size * window):
        part = sorted(plain[start : start + size * window], key=sizes.__getitem__)
        expected += [part[k : k + size] for k in range(0, len(part), size)]
    found = list(
        ab.minibatches(range(len(sizes)), size, np.random.default_rng(1), bucket_by=sizes.__getitem__, window=window)
    )
    assert sorted(found) == sorted(expected)
    unshuffled = list(ab.minibatches(range(len(sizes)), size, bucket_by=sizes, window=None))
    assert [sizes[i] for batch in unshuffled for i in batch] == sorted(sizes)


def test_plain_mini_batches_draw_one_permutation() -> None:
    """Checkpoints store the generator before an epoch, so its draws must not change."""
    rng, again = np.random.default_rng(7), np.random.default_rng(7)
    found = [i for batch in ab.minibatches(range(50), 8, rng) for i in batch]
    assert found == again.permutation(50).tolist()
    assert rng.bit_generator.state == again.bit_generator.state


def test_graphs_are_bucketed_by_their_nodes() -> None:
    graphs = [random_dag(seed, n_nodes=1 + seed * 7 % 40) for seed in range(40)]
    batches = list(ab.minibatches(graphs, 5, np.random.default_rng(0), bucket_by="nodes", window=None))
    spreads = [max(g.n_nodes for g in batch) - min(g.n_nodes for g in batch) for batch in batches]
    assert spreads == [4] * 8
    assert [batch[0].n_nodes for batch in batches] != sorted(batch[0].n_nodes for batch in batches)


@pytest.mark.parametrize(
    ("bucket_by", "window", "sentence"),
    [
        ("nodes", 2, "graphs from record_all, got 'nodes'."),
        ("words", 2, "graphs from record_all, got 'words'."),
        ([1, 2], 2, "sizes of shape (2,) and type int64 for 3 instances"),
        (str, 2, "for 3 instances"),
        ([1, 2, 3], 0, "for a single window, got 0."),
    ],
)
def test_bad_sizes_are_refused(bucket_by: BucketBy[Any], window: int, sentence: str) -> None:
    with pytest.raises(ab.DataError) as error:
        next(ab.minibatches([10, 20, 30], 2, bucket_by=bucket_by, window=window))
    assert sentence in str(error.value)
