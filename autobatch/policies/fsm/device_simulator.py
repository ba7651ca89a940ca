"""Simulate state machines on a GPU: thousands of schedules in one launch, one warp each.

The kernel, in `device_simulator.cuh`, reads only ints: for every state of a table, the types ranked by the machine's
preference. The first permitted type runs. The batches are exactly those of `plan_by_machine`. Random numbers depend on
the seed, the episode, the step and the type, so an episode does not depend on the order of threads, and can be
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import Simulation
from autobatch.arrays import IntArray, LongArray
from autobatch.devices.device import Device, Launch
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, stack
from autobatch.policies.fsm.machine import Machine
from autobatch.policies.fsm.table import ENCODINGS, Table
from autobatch.policies.rules.rules import LEARNED, Weights

SOURCE = Path(__file__).with_suffix(".cuh")
KERNEL, ABOUT = "play_all", "the simulator of schedules"
WARP, MOST_WARPS = 32, 16  # threads per warp, and most warps per block: `THREADS` of the kernel
NONE = 0x7FFF  # the rank of a type that a machine does not choose
CHANCES = 1 << 32  # the kernel's integer for a probability of 1
KIND = 1  # the column of the type in `Played.steps`


class Ranked(NamedTuple):
    """A machine in the form that the kernel reads."""

    machine: Machine
    table: Table
    ranks: NDArray[np.int16]  # [S, T] the rank of each type in each state, 0 for the best; or NONE


def rank_tried(machine: Machine, table: Table) -> Ranked:
    """Rank the types that were tried in each state by value, the order in which `plan_by_machine` prefers them."""
    tried = table.updates[: table.n_states[0]] > 0
    return Ranked(machine, table, np.where(tried, _rank(table, tried), NONE).astype(np.int16))


def rank_all(machine: Machine, table: Table, optimism: bool) -> Ranked:
    """Rank all types; untried ones come last or, with `optimism`, rank as a value of zero."""
    tried = table.updates[: table.n_states[0]] > 0
    return Ranked(machine, table, _rank(table, tried | optimism).astype(np.int16))


def _rank(table: Table, first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rank by value, the types in `first` before the others; ties go to the lowest type id."""
    order = np.lexsort((-table.values[: len(first)], ~first), axis=-1)
    return np.argsort(order, axis=-1)


class Runs(NamedTuple):
    """R runs, each of a dag and a machine, by their numbers."""

    machines: Sequence[Ranked]
    dag_of: LongArray  # [R]
    machine_of: LongArray  # [R]


class Episodes(NamedTuple):
    """The exploration of runs. In unknown states the type with the lowest id runs, instead of the choice of the rule.

    Attributes:
        seed: the seed of the random numbers, an int of 63 bits.
        first: the number of the first run's episode.
        chances: int64[R], the probability of a random choice, in units of 1 / `CHANCES`.
    """

    seed: int
    first: int
    chances: LongArray


class Played(NamedTuple):
    """The results of R runs.

    Attributes:
        n_batches: [R]
        n_unseen: [R] batches that the rule decided.
        steps: [R, n, 4] the first n steps: the number of the state in the table, or -1 minus its index in `fresh`; the
            type that ran; the number of its ready nodes; and the size of its frontier if frontiers are maintained
            (`native/schedule/restricted.h`), else whether it was critical.
        fresh: [F, width] states met in episodes that are not in the table, unordered and with repetitions.
        n_fresh: the number of these states; `fresh` holds as many as there was room for.
    """

    n_batches: IntArray
    n_unseen: IntArray
    steps: IntArray
    fresh: NDArray[np.int16]
    n_fresh: int


class DeviceSimulator:
    """Schedule many dags by state machines on a GPU, all at once.

    Args:
        dags: G dags, at least one, of T types each.
        device: a device of the cuda backend.
        frontiers: maintain the frontiers of types, for the published reward; takes T + 1 more ints per node and warp.

    Raises:
        PolicyError: the device cannot hold so many types or nodes.
    """

    def __init__(self, dags: Sequence[Dag], device: Device, frontiers: bool = False) -> None:
        joined, node_ptr = stack(dags)
        reader_ptr, reader, ahead, height, segment, *frontiers_of = Simulation(joined, node_ptr).tables()
        self.device, self.n_dags, self.n_types = device, len(dags), dags[0].n_types
        self._n_nodes, self._frontiers = int(np.diff(node_ptr).max()), frontiers
        self._n_steps = self._n_fresh = 0  # the room for steps and fresh states; grows with need
        self._warp_bytes = 8 * -(-(2 * self.n_types * self.n_types + 11 * self.n_types + 1) // 2)  # see `Run`
        if self._warp_bytes > device.most_shared_bytes:
            raise PolicyError(
                f"simulating schedules on {device.name}: {self.n_types} types need {self._warp_bytes} bytes of shared "
                f"memory, but it has {device.most_shared_bytes}; simulate on the CPU."
            )
        type_ids = joined.type_id - np.repeat(np.arange(self.n_dags) * self.n_types, np.diff(node_ptr))
        columns = [type_ids, reader_ptr, reader, np.diff(joined.edge_ptr), ahead, height, segment, node_ptr]
        columns += frontiers_of if frontiers else []
        self._graphs = [self._put(column, np.int32) for column in columns]
        self._kernel = device.load(SOURCE.read_text(encoding="utf-8"), [KERNEL], ABOUT)[KERNEL]

    def run(self, machines: Sequence[Ranked], steps: bool = False) -> Played:
        """Schedule every dag with every machine; run m * G + g is that of machine m and dag g.

        Args:
            machines: at least one, of the T types.
            steps: also return the steps.

        Raises:
            PolicyError: the device has too little memory.
        """
        number = np.arange(len(machines) * self.n_dags)
        runs = Runs(machines, number % self.n_dags, number // self.n_dags)
        return self._play(runs, None) if steps else self._launch(runs, None, 0, 0)

    def play(self, machine: Ranked, episodes: Episodes) -> Played:
        """Play episodes of a machine, and return their steps; episode e plays dag e modulo G.

        Raises:
            PolicyError: the device has too little memory.
        """
        number = np.arange(episodes.chances.size)
        return self._play(Runs([machine], (number + episodes.first) % self.n_dags, 0 * number), episodes)

    def _play(self, runs: Runs, episodes: Episodes | None) -> Played:
        """Play the runs, and replay them with more room if some did not fit; the results are the same."""
        while True:
            room = self._n_steps, self._n_fresh
            played = self._launch(runs, episodes, *room)
            self._n_steps = max(self._n_steps, int(played.n_batches.max(initial=0)))
            self._n_fresh = max(self._n_fresh, played.n_fresh)
            if room == (self._n_steps, self._n_fresh):
                return played

    def _launch(self, runs: Runs, episodes: Episodes | None, n_steps: int, n_fresh: int) -> Played:
        """Play the runs, keeping at most `n_steps` steps of each and `n_fresh` fresh states in all."""
        machines, dag_of, machine_of = runs
        device, n_runs = self.device, dag_of.size
        n_warps = min(MOST_WARPS, device.most_shared_bytes // self._warp_bytes, -(-n_runs // device.n_processors))
        grid = min(device.n_processors, -(-n_runs // n_warps))
        seed, first, chances = episodes or Episodes(0, 0, np.zeros(n_runs, np.int64))
        columns = [self._put(dag_of, np.int32), self._put(machine_of, np.int32), self._put(chances, np.int64)]
        held = self._put_machines(machines)
        scratch = self._make_scratch(grid * n_warps)
        width = machines[0].machine.width(self.n_types)
        counts, steps = self._empty(2 * n_runs, np.int32), self._empty(4 * n_runs * n_steps, np.int32)
        fresh, found = self._empty(n_fresh * width, np.int16), self._put([0], np.uint32)
        job = self._put([
            *self._addresses(self._graphs, 10), self.n_types, *self._addresses(columns, 3), device.address(held[0]),
            n_runs, seed, first, episodes is not None, *self._addresses(scratch, 4), self._n_nodes,
            device.address(counts), device.address(steps), n_steps, device.address(fresh), n_fresh,
            device.address(found),
        ], np.int64)  # fmt: skip
        args = device.address(job), self._warp_bytes, 0
        device.launch(self._kernel, Launch(grid, WARP * n_warps, self._warp_bytes * n_warps, args))
        n_found = int(device.get(found)[0])
        n_batches, n_unseen = np.ascontiguousarray(self._get(counts, n_runs, 2).T)
        kept = self._get(fresh, min(n_fresh, n_found), width)
        return Played(n_batches, n_unseen, self._get(steps, n_runs, n_steps, 4), kept, n_found)

    def _put_machines(self, machines: Sequence[Ranked]) -> list[Any]:
        """Copy machines to the device: the kernel's struct `Machine` of each, and the arrays that it points to."""
        columns: list[list[NDArray[Any]]] = [
            [table.states[: len(ranks)].ravel() for _, table, ranks in machines],
            [ranks.ravel() for _, _, ranks in machines],
            [table.slots for _, table, _ in machines],
        ]
        there = [self._put(np.concatenate(parts), parts[0].dtype) for parts in columns]
        rows = np.empty((len(machines), 11), np.int64)
        for row, array, parts in zip(rows.T, there, columns, strict=False):
            row[:] = self.device.address(array) + np.cumsum([0, *(part.nbytes for part in parts[:-1])])
        for row, (machine, table, _) in zip(rows, machines, strict=True):
            row[3:7] = table.slots.size, ENCODINGS.index(machine.encoding), machine.critical, machine.mask
            row[7:] = np.array(_mask_weights(machine.mask)).view(np.int64)
        return [self._put(rows, np.int64), *there]

    def _make_scratch(self, n_warps: int) -> list[Any]:
        """Allocate scratch memory: two ints per node and warp; with frontiers, T + 1 more."""
        widths = (1, 1, 1, self.n_types) if self._frontiers else (1, 1)
        return [self._empty(n_warps * self._n_nodes * width, np.int32) for width in widths]

    def _addresses(self, arrays: Sequence[Any], n: int) -> list[int]:
        """Return n addresses: those of the arrays, then zeros."""
        return [*map(self.device.address, arrays), *[0] * (n - len(arrays))]

    def _put(self, values: Any, dtype: Any) -> Any:
        """Copy numbers to the device, as at least one element, so that they have an address."""
        flat = np.asarray(values, dtype).ravel()
        return self._fit(flat.nbytes, lambda: self.device.put(flat if flat.size else np.zeros(1, dtype)))

    def _empty(self, size: int, dtype: Any) -> Any:
        kind = np.dtype(dtype)
        return self._fit(size * kind.itemsize, lambda: self.device.empty(max(size, 1), kind))

    def _fit(self, n_bytes: int, make: Callable[[], Any]) -> Any:
        """Allocate an array on the device; raise a PolicyError if it does not fit."""
        try:
            return make()
        except MemoryError as error:
            raise PolicyError(
                f"simulating schedules on {self.device.name}: {n_bytes} more bytes do not fit, for {self.n_dags} "
                f"mini-batches of up to {self._n_nodes} nodes; give fewer or smaller ones, or fewer episodes at once."
            ) from error

    def _get(self, array: Any, *shape: int) -> NDArray[Any]:
        """Copy the first elements of a device array to the host, in this shape."""
        return self.device.get(array[: prod(shape)]).reshape(shape)


def _mask_weights(mask: bool) -> Weights:
    """Return the weights of the rule.

    With a mask, ready critical types score highest, as in `native/policies/machine.cpp`.
    """
    others = abs(LEARNED.ready) + abs(LEARNED.own) + abs(LEARNED.height)
    return LEARNED._replace(critical=1.0 + 2.0 * others) if mask else LEARNED
