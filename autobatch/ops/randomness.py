"""Random numbers that depend on their place in the program, not on the time of the draw.

A mask depends on (seed, step, key of the instance, draw, site, element). `draw` numbers the calls in an instance's
program that draw random numbers, in program order, and `site` numbers the places within one call. A mask is therefore
the same in eager mode and batched, under every policy and backend, and in every composition of mini-batches.

The function is SplitMix64's finalizer (Steele, Lea, Flood 2014) over a running combination of the numbers. It works on
unsigned 64-bit integers, which wrap around in NumPy and CuPy.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from autobatch.arguments import show
from autobatch.errors import DataError
from autobatch.keywords import checked

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the multipliers of SplitMix64
MASK = 2**64 - 1
BITS = 32  # of a random number
FIRST_FORK = 2**24  # smaller draws belong to code outside branches


class DrawCount:
    """A counter of the draws of a program, or of one branch of it.

    Concurrent branches count from starts that depend only on their place in the program. The starts are hashed over all
    31-bit ints, so two branches of an instance overlap with a probability of about their length / 2**31.
    """

    __slots__ = ("_forks", "_next", "_start")

    def __init__(self, start: int = 0) -> None:
        self._start = self._next = start  # no itertools.count, which cannot be copied from Python 3.14 on
        self._forks = 0

    def __next__(self) -> int:
        self._next += 1
        return self._next - 1

    def fork(self, n: int) -> list[DrawCount]:
        self._forks += 1
        place = _mix_int(self._start + (self._forks << 32))
        # Starts end FIRST_FORK below 2**31, so that the draws of a branch fit a 31-bit int.
        return [DrawCount(FIRST_FORK + _mix_int(place + k & MASK) % (2**31 - 2 * FIRST_FORK)) for k in range(n)]


@dataclass
class Randomness:
    """The source of random numbers: the numbers that the caller sets, and the counter of an instance's draws.

    Attributes:
        seed, step, key: any ints; the key may be an array on any device, one per row of a batch.
        training: whether dropout is on.
        edges: the edges of each row (`autobatch.ops.variadic.Segments`), if the result has a row per edge. The edges of
            a node then count as one array, as in eager mode.
    """

    seed: int = 0
    step: int = 0
    key: Any = 0
    training: bool = True
    edges: Any = None

    def __post_init__(self) -> None:
        if not type(self.seed) is type(self.step) is int:
            self.seed, self.step = _to_int("seed", self.seed), _to_int("step", self.step)
        if not getattr(self.key, "ndim", 0):
            self.key = _to_int("key", self.key) & MASK

    @cached_property
    def draws(self) -> DrawCount:
        return DrawCount()

    def key_of(self, draw: int) -> int:
        """Return the key with which seed 0, step 0 and draw 0 give the numbers of a draw, as an int64."""
        start = _mix_int(_mix_int(self.seed & MASK) + self.step & MASK)
        row = _mix_int(int(self.key) + start - GOLDEN & MASK) + draw
        found = _unmix_int(row & MASK) + GOLDEN - _mix_int(_mix_int(0)) & MASK
        return found - (found >> 63 << 64)

    def uniform(self, xp: Any, draw: Any, site: int, shape: tuple[int, ...]) -> Any:
        """Draw numbers of `BITS` bits, uint64 `(rows, *shape)`, for rows whose draws are `draw` (rows,)."""
        start = _mix_int(_mix_int(self.seed & MASK) + self.step & MASK)
        key = xp.atleast_1d(xp.asarray(self.key)).astype(xp.int64).view(xp.uint64)
        rows = mix(xp, key + xp.uint64(start))
        rows = mix(xp, rows + xp.atleast_1d(xp.asarray(draw)).astype(xp.int64).view(xp.uint64))
        size = int(np.prod(shape, dtype=np.int64))
        elements = xp.arange(size, dtype=xp.uint64) + xp.uint64((site + 1 << 40) & MASK)  # 2**40 elements a site
        if self.edges is not None:
            # The elements of an edge follow those of the edges before it, as if they were one array.
            rows, first = rows[self.edges.rows], self.edges.places.astype(xp.uint64) * xp.uint64(size)
            elements = first.reshape(-1, 1) + elements
        numbers = mix(xp, rows.reshape(-1, 1) + elements * xp.uint64(GOLDEN))
        return (numbers >> xp.uint64(64 - BITS)).reshape(-1, *shape)


def _to_int(name: str, x: Any) -> int:
    """Convert any kind of int to a Python int, which does not wrap around; DataError for other values."""
    try:
        return operator.index(x)
    except TypeError:
        raise DataError(f"the {name} of random numbers must be an int, got {show(x)}.") from None


def mix(xp: Any, x: Any) -> Any:
    """Mix the bits of each element bijectively; arithmetic wraps around at 64 bits."""
    x = (x ^ (x >> xp.uint64(30))) * xp.uint64(MIX[0])
    x = (x ^ (x >> xp.uint64(27))) * xp.uint64(MIX[1])
    return x ^ (x >> xp.uint64(31))


def _mix_int(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * MIX[0]) & MASK
    x = ((x ^ (x >> 27)) * MIX[1]) & MASK
    return x ^ (x >> 31)


def _unmix_int(x: int) -> int:
    """Return the int that `_mix_int` turns into `x`."""
    for shift, multiplier in ((31, MIX[1]), (27, MIX[0]), (30, 1)):
        x ^= x >> shift ^ x >> 2 * shift
        x = x * pow(multiplier, -1, 2**64) & MASK
    return x - GOLDEN & MASK


class _Eager(threading.local):
    """The source of eager mode's random numbers in this thread, and the draw and sites of the current cell call."""

    def __init__(self) -> None:
        self.source = Randomness()
        self.depth = 0
        self.draw: int | None = None
        self.sites = 0


EAGER = _Eager()


@checked(seed=None, step=None, key=None)
@contextmanager
def randomness(seed: int = 0, step: int = 0, key: int = 0, training: bool = True) -> Iterator[None]:
    """Give eager mode, within the context, the random numbers that an instance gets when batched.

    Args:
        seed: the seed of `ab.batched`.
        step: the number of the training step, from 0.
        key: the key of the instance; batched, it is by default the position in the mini-batch.
        training: whether dropout is on outside cells, where eager mode has no module.

    >>> import autobatch as ab
    >>> with randomness(seed=1):
    ...     first = ab.dropout(np.ones(4), 0.5)
    >>> with randomness(seed=1):
    ...     again = ab.dropout(np.ones(4), 0.5)
    >>> bool((first == again).all())
    True
    """
    before, EAGER.source = EAGER.source, Randomness(seed, step, key, training)
    try:
        yield
    finally:
        EAGER.source = before


def check_generator(rng: Any) -> None:
    """Raise a DataError unless `rng` is a random number generator of NumPy."""
    if not isinstance(rng, np.random.Generator | np.random.RandomState):
        raise DataError(f"rng must be a NumPy random generator, got {rng!r}; give np.random.default_rng(seed).")


@contextmanager
def cell_call(training: bool | None) -> Iterator[None]:
    """Make all sites within the context share a draw, as in one call of a cell; nested calls belong to the outer one.

    Args:
        training: whether dropout is on; None for the current setting.
    """
    if EAGER.depth:
        yield
        return
    before = EAGER.source.training
    EAGER.depth, EAGER.draw, EAGER.sites = 1, None, 0
    EAGER.source.training = before if training is None else training
    try:
        yield
    finally:
        EAGER.depth, EAGER.draw = 0, None
        EAGER.source.training = before


def next_site() -> tuple[int, int]:
    """Return the draw and the next site of the current call in an eager program."""
    if EAGER.depth == 0:
        return next(EAGER.source.draws), 0
    if EAGER.draw is None:
        EAGER.draw = next(EAGER.source.draws)
    EAGER.sites += 1
    return EAGER.draw, EAGER.sites - 1
