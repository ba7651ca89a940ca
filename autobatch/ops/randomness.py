"""Random numbers that depend on their place in the program, not on when they are drawn.

A mask depends on (seed, step, key of the instance, draw, site, element): `draw` numbers the calls of an instance's
program that draw at all, in the order of the program, and `site` the places within one call. A mask is therefore the
same in eager mode and batched, under every policy and backend, and in every composition of mini-batches.

The function is SplitMix64's finaliser (Steele, Lea, Flood 2014) over a running combination of the numbers. It works on
unsigned 64-bit integers, which NumPy and CuPy wrap around.
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
FIRST_FORK = 2**24  # the draws before belong to what no branch draws


class DrawCount:
    """Numbers the draws of a program, or of one branch of it.

    Branches that run side by side count from starts that depend on their place in the program alone. The starts are
    spread over all ints of 31 bits, and two branches of an instance are as likely to overlap as that is long.
    """

    __slots__ = ("_forks", "_next", "_start")

    def __init__(self, start: int = 0) -> None:
        self._start = self._next = start  # not of itertools, whose counts cannot be copied from Python 3.14 on
        self._forks = 0

    def __next__(self) -> int:
        """Number the next draw."""
        self._next += 1
        return self._next - 1

    def fork(self, n: int) -> list[DrawCount]:
        """The draws of n branches."""
        self._forks += 1
        place = _mix_int(self._start + (self._forks << 32))
        return [DrawCount(FIRST_FORK + _mix_int(place + k & MASK) % (2**31 - 2 * FIRST_FORK)) for k in range(n)]


@dataclass
class Randomness:
    """The source of random numbers: the numbers that the caller sets, and a count of an instance's draws.

    Attributes:
        seed, step, key: any ints; the key may be an array of any device, one for each row of a batch.
        training: whether dropout is on.
        edges: the edges of each row (`autobatch.ops.variadic.Segments`), if what is drawn has a row per edge: those of
            a node together are one array, as in eager mode.
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
        """The numbers of the next draws."""
        return DrawCount()

    def uniform(self, xp: Any, draw: Any, site: int, shape: tuple[int, ...]) -> Any:
        """Draw numbers of `BITS` bits, uint64 `(rows, *shape)`, for rows whose draws are `draw` (rows,)."""
        start = _mix_int(_mix_int(self.seed & MASK) + self.step & MASK)
        key = xp.atleast_1d(xp.asarray(self.key)).astype(xp.int64).view(xp.uint64)
        rows = mix(xp, key + xp.uint64(start))
        rows = mix(xp, rows + xp.atleast_1d(xp.asarray(draw)).astype(xp.int64).view(xp.uint64))
        size = int(np.prod(shape, dtype=np.int64))
        elements = xp.arange(size, dtype=xp.uint64) + xp.uint64((site + 1 << 40) & MASK)
        if self.edges is not None:
            rows, first = rows[self.edges.rows], self.edges.places.astype(xp.uint64) * xp.uint64(size)
            elements = first.reshape(-1, 1) + elements
        numbers = mix(xp, rows.reshape(-1, 1) + elements * xp.uint64(GOLDEN))
        return (numbers >> xp.uint64(64 - BITS)).reshape(-1, *shape)


def _to_int(name: str, x: Any) -> int:
    """Any kind of int as Python's int, which does not wrap around."""
    try:
        return operator.index(x)
    except TypeError:
        raise DataError(f"{name} of random numbers must be an int, got {show(x)}.") from None


def mix(xp: Any, x: Any) -> Any:
    """Spread the bits of each element, one to one; wraps around at 64 bits."""
    x = (x ^ (x >> xp.uint64(30))) * xp.uint64(MIX[0])
    x = (x ^ (x >> xp.uint64(27))) * xp.uint64(MIX[1])
    return x ^ (x >> xp.uint64(31))


def _mix_int(x: int) -> int:
    """`mix` of one Python int."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * MIX[0]) & MASK
    x = ((x ^ (x >> 27)) * MIX[1]) & MASK
    return x ^ (x >> 31)


class _Eager(threading.local):
    """The source of eager mode's random numbers in this thread, and the draw and sites of the present cell call."""

    def __init__(self) -> None:
        self.source = Randomness()
        self.depth = 0
        self.draw: int | None = None
        self.sites = 0


EAGER = _Eager()


@checked(seed=None, step=None, key=None)
@contextmanager
def randomness(seed: int = 0, step: int = 0, key: int = 0, training: bool = True) -> Iterator[None]:
    """Within the context, give eager mode the random numbers that an instance gets batched.

    Args:
        seed: that of `ab.batched`.
        step: the number of the training step, from 0.
        key: that of the instance, by default its position in the mini-batch.
        training: turns dropout on or off outside cells, where eager mode has no module.

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
    """Refuse what is no generator of random numbers; DataError."""
    if not isinstance(rng, np.random.Generator | np.random.RandomState):
        raise DataError(f"rng={rng!r} is no generator of random numbers; give np.random.default_rng(seed).")


@contextmanager
def cell_call(training: bool | None) -> Iterator[None]:
    """Within the context, all sites share a draw, as in one call of a cell. A call inside a call is part of it."""
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
    """The draw and the next site of the present call in an eager program."""
    if EAGER.depth == 0:
        return next(EAGER.source.draws), 0
    if EAGER.draw is None:
        EAGER.draw = next(EAGER.source.draws)
    EAGER.sites += 1
    return EAGER.draw, EAGER.sites - 1
