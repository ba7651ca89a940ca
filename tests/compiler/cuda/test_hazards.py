"""Test barriers between the loops of a kernel: present wherever needed, and rarely elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from autobatch.compiler.cuda.mapping import Access, Hazards, Mapping, access, anywhere, whole
from autobatch.compiler.cuda.nest import CudaNest
from autobatch.compiler.cuda.source import print_stage
from helpers.checkers.touches import TEAMS, meet, touches, touches_of
from helpers.models.every_model import MODELS, models, stages_of

N_PAIRS = 4000
MOST_NEEDLESS = 0.18  # share of needless barriers between random loops; 0.16 was measured


class Drawn:
    """A random loop of a kernel that accesses an array: which thread touches what, and its `access`."""

    def __init__(self, rng: np.random.Generator, like: Drawn | None = None) -> None:
        n_axes = int(rng.integers(0, 4))
        sizes = tuple(int(n) for n in rng.integers(2, 5, n_axes))
        self.mapping = Mapping(sizes, tuple(axis for axis in range(n_axes) if rng.random() < 0.6))
        self.start, self.is_write = int(rng.integers(0, 12)), bool(rng.random() < 0.5)
        self.strides = self._draw_strides(rng, sizes)
        if like is not None and rng.random() < 0.6:
            self.mapping, self.strides = like.mapping, like.strides
            self.start = like.start if rng.random() < 0.7 else self.start
        self.access = access("array", self.start, self.mapping, self.strides, self.is_write)

    def touches(self, team: int) -> set[tuple[int, int]]:
        """Return pairs of thread and element."""
        return touches(self.mapping, self.start, self.strides, self.is_write, team)

    def _draw_strides(self, rng: np.random.Generator, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Draw strides of an array of these sizes; sometimes an axis is repeated, reversed or widened."""
        found, step = [], 1
        for size in reversed(sizes):
            found.append(step * int(rng.choice((1, 1, 1, 1, 0, -1, 2))))
            step *= size
        return tuple(reversed(found))


def test_a_barrier_is_wherever_two_threads_meet() -> None:
    """Two threads meet at an element that one of them writes, in a team of some size."""
    rng = np.random.default_rng(0)
    needed = needless = 0
    for _ in range(N_PAIRS):
        earlier = Drawn(rng)
        later = Drawn(rng, earlier)
        writes = earlier.is_write or later.is_write
        do_meet = writes and any(meet(earlier.touches(team), later.touches(team)) for team in TEAMS)
        found = later.access.needs_barrier(earlier.access)
        if do_meet:
            assert found, f"{earlier.access} and then {later.access}"
        needed += do_meet
        needless += found and not do_meet
    assert needed > N_PAIRS / 8
    assert needless < MOST_NEEDLESS * (needed + needless)


def test_what_an_access_says_is_what_the_loop_touches() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        drawn = Drawn(rng)
        first, end = drawn.access.bounds
        for team in TEAMS:
            assert touches_of(drawn.access, team) == drawn.touches(team)
            elements = {element for _, element in drawn.touches(team)}
            assert (min(elements), max(elements) + 1) == (first, end)


def test_adjacent_elements_and_any_element() -> None:
    for size in (1, 5, 40):
        for team in TEAMS:
            loop = {(lane, 3 + i) for lane in range(team) for i in range(lane, size, team)}
            assert touches_of(whole("array", 3, size, is_write=True), team) == loop
            assert touches_of(anywhere("array", 3, size), team) == {
                (lane, 3 + i) for lane in range(team) for i in range(size)
            }


def test_accesses_before_a_barrier_are_forgotten() -> None:
    """Those of several loops without a barrier in between are all remembered."""
    write, read = whole("array", 0, 8, is_write=True), anywhere("array", 0, 8)
    other = whole("other", 0, 8, is_write=True)
    hazards = Hazards()
    assert [hazards.need_barrier([x]) for x in (write, other, read, read, other, write, write)] == [
        False, False, True, False, False, True, False,
    ]  # fmt: skip
    one, another = Hazards(), Hazards()
    another.need_barrier([write])
    one.note(another)
    assert one.need_barrier([read])


@pytest.mark.cases(3, 24)
@models(MODELS, quick=("tree-lstm", "lattice-lstm", "neural turing machine"))
def test_the_barriers_of_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between loop nests. Within a nest, an element written by one thread is touched by no other thread."""
    asked: list[tuple[Access, Access]] = []
    nests: list[list[Access]] = []
    need_barrier, write = Hazards.need_barrier, CudaNest.write

    def note_pairs(self: Hazards, accesses: Iterable[Access]) -> bool:
        found = list(accesses)
        asked.extend((old, new) for new in found for old in self._pending)
        return need_barrier(self, found)

    def note_nest(self: CudaNest) -> Any:
        nests.append(self.accesses(is_store=False))
        return write(self)

    monkeypatch.setattr(Hazards, "need_barrier", note_pairs)
    monkeypatch.setattr(CudaNest, "write", note_nest)
    for stage in stages_of(name):
        print_stage(stage)
    assert asked
    assert nests

    def do_meet(one: Access, other: Access) -> bool:
        if one.region != other.region or not (one.is_write or other.is_write):
            return False
        return any(meet(touches_of(one, team), touches_of(other, team)) for team in TEAMS)

    apart = [(old, new) for old, new in dict.fromkeys(asked) if not new.needs_barrier(old)]
    assert [(old, new) for old, new in apart if do_meet(old, new)] == []
    for found in nests:
        assert not any(do_meet(one, other) for k, one in enumerate(found) for other in found[:k])
