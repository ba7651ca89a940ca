"""Threads that make the calls of a stage together: the tiles of a batch side by side, batch after batch.

The thread that asks for it works through all batches; others join it when they come, and take tiles that nobody has
taken yet. It waits for nobody who has not begun a tile, so where another process has their cores it does the work
alone; for a tile that is begun it waits, however long the core is somebody else's.

A sweep has an int64 of its own, the gate: the number of the sweep, how many threads are inside besides the one that
opened it, and whether it is open. A thread that wakes up late finds it closed, or the gate of another sweep, and goes
back to sleep without having touched anything.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cpu.atomic import exchange_if, fetch_add, load, store, yield_address
from autobatch.backends.cpu.steps import call_steps
from autobatch.backends.tiles import CallList
from autobatch.jit.addresses import address_of, call_at
from autobatch.jit.loops import compiled, compiled_at_once

Array = NDArray[Any]

OPEN, MEMBER, SWEEP = 1, 2, 1 << 16
"""What being open, each thread inside, and each sweep add to the gate, which is the first word of what is shared."""
FIRST, WORDS = 8, 16
"""Where the counters of parts begin, tiles taken and done, and how far apart they are: not in one cache line."""
PATIENCE = 2000
"""How often to look before letting other threads have the core: some microseconds."""


class Sweeps:
    """What the threads of one stage share: the gate, and counters for each part of the calls."""

    def __init__(self) -> None:
        self._state = np.zeros(FIRST, np.int64)
        self._number = 0

    def run(self, addresses: Array, calls: CallList, first: int, last: int) -> None:
        """Make the calls of some parts with as many threads as there are addresses for.

        Args:
            addresses: [threads, steps] `ADDRESSES` of each step; all are compiled.
            calls: see `autobatch.backends.tiles.CallList`.
            first, last: the first part, and the one behind the last.
        """
        needed = FIRST + WORDS * len(calls.ptr)
        if len(self._state) < needed:
            self._state = np.zeros(2 * needed, np.int64)
        self._number += 1
        state = address_of(self._state)
        gate = self._number * SWEEP + OPEN
        open_gate(state, gate, first, last)
        arguments = calls, first, last, state, yield_address()
        helpers: list[Helper] = []
        try:
            _borrow(len(addresses) - 1, helpers)
            for number, helper in enumerate(helpers, start=1):
                helper.start((self._state, addresses[number], *arguments, gate))
            work(addresses[0], *arguments, True)
        finally:  # be it by an interrupt: nobody is inside, and works on memory that is somebody else's next
            close_gate(state, yield_address())
            _idle.extend(helpers)


class Helper:
    """A thread that sleeps until there is work."""

    def __init__(self) -> None:
        self._work: tuple[Any, ...] = ()
        self._awake = threading.Lock()
        self._awake.acquire()
        threading.Thread(target=self._serve, name="autobatch helper", daemon=True).start()

    def start(self, work: tuple[Any, ...]) -> None:
        """Hand over work; what was handed over before is over, or refused."""
        self._work = work
        if self._awake.locked():
            self._awake.release()

    def _serve(self) -> None:
        while self._awake.acquire():
            _, *arguments = self._work
            join(*arguments)


_idle: list[Helper] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


def _borrow(n: int, helpers: list[Helper]) -> None:
    """Add `n` helpers to a list, or fewer where the system gives no more threads: the rest is done without them."""
    for _ in range(n):
        try:
            helpers.append(_idle.pop())
        except IndexError:
            try:
                helpers.append(Helper())
            except RuntimeError:
                return


@compiled_at_once
def open_gate(state: int, gate: int, first: int, last: int) -> None:
    """Set the counters of these parts to zero, and open the gate."""
    for part in range(first, last):
        store(part_at(state, part), 0)
        store(part_at(state, part) + 8, 0)
    store(state, gate)


@compiled_at_once
def close_gate(state: int, rest: int) -> None:
    """Close the gate, and wait until nobody is inside."""
    fetch_add(state, -OPEN)
    looks = 0
    while load(state) % SWEEP:
        looks = look_again(looks, rest)


@compiled_at_once
def join(addresses: Array, calls: CallList, first: int, last: int, state: int, rest: int, gate: int) -> None:
    """Go in if the gate of this sweep is open, and work until there is nothing left."""
    while True:
        seen = load(state)
        if seen // SWEEP != gate // SWEEP or seen % MEMBER == 0:
            return
        if exchange_if(state, seen, seen + MEMBER) == seen:
            break
    work(addresses, calls, first, last, state, rest, False)
    fetch_add(state, -MEMBER)


@compiled_at_once
def work(addresses: Array, calls: CallList, first: int, last: int, state: int, rest: int, leads: bool) -> None:
    """Take tiles of one part after the other; a part begins when the one before is done, or never if all is over."""
    listed, tile_ptr, ptr, is_serial = calls.calls, calls.tile_ptr, calls.ptr, calls.is_serial
    for part in range(first, last):
        begin, n = ptr[part], ptr[part + 1] - ptr[part]
        taken, done = part_at(state, part), part_at(state, part) + 8
        by_one = n == 1 or (0 < part <= is_serial.size and is_serial[part - 1])
        while leads or not by_one:
            tile = fetch_add(taken, 1)
            if tile >= n:
                break
            call_steps(addresses, listed, tile_ptr[begin + tile], tile_ptr[begin + tile + 1])
            fetch_add(done, 1)
        looks = 0
        while load(done) < n:
            if load(state) % MEMBER == 0:
                return
            looks = look_again(looks, rest)


@compiled
def part_at(state: int, part: int) -> int:
    """Where the counters of a part are."""
    return state + 8 * (FIRST + WORDS * part)


@compiled
def look_again(looks: int, rest: int) -> int:
    """Count looks; from some number on, let other threads run in between."""
    if looks < PATIENCE:
        return looks + 1
    call_at(rest, 0, 0, 0)
    return looks
