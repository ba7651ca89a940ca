"""Ones in words: compiled, in Python, and counted one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.bits import count_ones
from autobatch.jit.loops import compiled


@compiled
def count_all(words: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    for i in range(words.size):
        counts[i] = count_ones(words[i])


def test_ones() -> None:
    drawn = np.random.default_rng(0).integers(0, 2**64 - 1, size=100, dtype=np.uint64)
    words = np.append(drawn, np.array([0, 1, 2**63, 2**64 - 1], np.uint64))
    counts = np.empty(words.size, np.int64)
    count_all(words, counts)
    expected = [bin(word).count("1") for word in words.tolist()]
    assert counts.tolist() == [count_ones(word) for word in words] == expected
