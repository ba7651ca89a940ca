"""List the steps of a stage in the order in which the device runs them, in as few launches as possible, and run them.

The end of each batch is read from the clock of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cuda.device_cell import ON_HOST, THREADS, WARP, DeviceStage, DeviceStageRun
from autobatch.backends.cuda.sums import Sums
from autobatch.backends.tables import CallList
from autobatch.compiler.cuda.source import ADD_UP, FIRST_KERNEL
from autobatch.devices.device import Device, Launch

LongArray = NDArray[np.int64]

FIELDS = "function", "memory", "descriptor", "tile", "team", "then", "arrived", "ended"
STEP = np.dtype([(name, np.int64) for name in FIELDS])
"""`Step` in `sweep.cuh`."""
WAIT, NOTE = 1, 2  # flags in "then": blocks wait for each other after the step; the device records the time


class PlannedStage(NamedTuple):
    """A stage of a type in a plan.

    Attributes:
        slots: the offset of its slots in the packed ints, in bytes.
    """

    stage: DeviceStage
    slots: int
    tiles: NDArray[Any]


class Launched(NamedTuple):
    """A range first:end of steps that one launch runs, or one step that the host runs.

    Attributes:
        blocks: the number of blocks that have work.
        host: the number of the host's step among the steps of all types, and the tile; None if the device runs it.
    """

    first: int
    end: int
    blocks: int
    host: tuple[int, int] | None


class Sweep:
    """The steps of a stage of a plan.

    Attributes:
        steps: [1 + n] `STEP`; addresses of slots are relative to the beginning of the packed ints. The first step does
            nothing: a timed run begins with it, to record the time of its start; and a run that moves rows, to do so.
        ptr: [parts + 1] part p has steps ptr[p]:ptr[p + 1]; see `autobatch.backends.tables.CallList`.
        ends: [parts] the last step of each part; for a part without steps, the last step before it.
        shared_bytes: shared memory per block.

    Args:
        kernels: the numbers of generated kernels, by name.
        sums: the sums to add up after each batch, and the offset of their slots in bytes; None for backward.
    """

    def __init__(
        self,
        calls: CallList,
        stages: Sequence[PlannedStage],
        kernels: Mapping[str, int],
        sums: tuple[Sums, int] | None,
    ) -> None:
        steps = [(step, planned) for planned in stages for step in planned.stage.steps]
        waits = [wait for planned in stages for wait in planned.stage.waits]
        self.shared_bytes = max((step.shared_bytes for step, _ in steps), default=0)
        known = [
            (_number(step.function, kernels), planned.slots, step.address, 0, step.team, wait, 0, 0)
            for (step, planned), wait in zip(steps, waits, strict=True)
        ]
        blocks = [step.blocks(planned.tiles) for step, planned in steps]
        first = np.cumsum([0, *(array.size for array in blocks)])
        number, tile = calls.calls.T
        self.steps = np.array(known, STEP)[number]
        self.steps["tile"] = tile
        self._blocks = np.concatenate([*blocks, np.zeros(0, np.int64)])[first[number] + tile]
        self._numbers = number
        self.ptr = calls.tile_ptr[calls.ptr]
        if sums is not None:
            self._insert(*sums)
        self._on_host = 1 + np.flatnonzero(self.steps["function"] == ON_HOST)
        self.steps = np.insert(self.steps, 0, np.array((ON_HOST, 0, 0, 0, WARP, WAIT, 0, 0), STEP))
        self._blocks, self._numbers = np.insert(self._blocks, 0, 1), np.insert(self._numbers, 0, ON_HOST)
        self.ptr = self.ptr + 1
        self.ends = self.ptr[1:] - 1

    def launches(self, first_part: int, end_part: int, from_start: bool = False) -> Iterator[Launched]:
        """Yield the launches and host steps of parts in order; with `from_start`, begin with the first step of all."""
        at, end = 0 if from_start else int(self.ptr[first_part]), int(self.ptr[end_part])
        for host in self._on_host[np.searchsorted(self._on_host, at) : np.searchsorted(self._on_host, end)].tolist():
            if at < host:
                yield Launched(at, host, int(self._blocks[at:host].max()), None)
            yield Launched(host, host + 1, 0, (int(self._numbers[host]), int(self.steps[host]["tile"])))
            at = host + 1
        if at < end:
            yield Launched(at, end, int(self._blocks[at:end].max()), None)

    def _insert(self, sums: Sums, slots: int) -> None:
        """Insert steps that add up values after the batches that leave some."""
        counts = np.diff(sums.ptr)
        batches = np.flatnonzero(counts)
        added = np.array([(ADD_UP, slots, 0, batch, WARP, WAIT, 0, 0) for batch in batches], STEP)
        places = self.ptr[batches + 2]  # the end of part batch + 1
        self.steps = np.insert(self.steps, places, added)
        self._blocks = np.insert(self._blocks, places, -(-counts[batches] * WARP // THREADS))
        self._numbers = np.insert(self._numbers, places, ON_HOST)
        self.ptr = self.ptr + np.searchsorted(batches + 2, np.arange(self.ptr.size), side="right")


def _number(function: str | int, kernels: Mapping[str, int]) -> int:
    """Return the number of a function; generated kernels, given by name, follow the functions of `sweep.cuh`."""
    return FIRST_KERNEL + kernels[function] if isinstance(function, str) else function


PER_SECOND = 1e9  # counts of the device's clock


class Launcher:
    """A launcher of the steps of a stage of a run.

    Args:
        sweep: the steps, in parts; see `autobatch.backends.tables.CallList`.
        listed: the steps on the device, ints [1 + n, FIELDS].
        runs: the stage of each type, for steps that the host runs.
        make_kernel: returns the compiled kernel that goes through steps.
        n_blocks: the number of blocks that the device can run at the same time.
        moving: the number of blocks that the first step has work for; 0 if it does nothing.

    Attributes:
        launches: the number of launches and of steps of the host so far.
    """

    def __init__(
        self,
        device: Device,
        sweep: Sweep,
        listed: Any,
        runs: Sequence[DeviceStageRun],
        make_kernel: Callable[[], Any],
        n_blocks: int,
        moving: int,
    ) -> None:
        self._device, self._sweep, self._listed, self._make_kernel = device, sweep, listed, make_kernel
        self._n_blocks, self._moving = n_blocks, moving
        self._steps = [(run, step) for run in runs for step in run.stage.steps]
        self.launches = 0

    def run(self, first: int, end: int, timed: bool = False) -> int:
        """Run parts first:end. If timed, these must be all parts, and the device records the end of each.

        Returns:
            0, because `launches` counts them.
        """
        moves = self._moving > 0 and first == 0
        for launched in self._sweep.launches(first, end, timed or moves):
            self.launches += 1
            if launched.host is not None:
                run, step = self._steps[launched.host[0]]
                assert step.run is not None, "the host runs no kernels"
                step.run(run, launched.host[1])
                if timed:
                    self._launch(launched.first, launched.end, 1)  # only records the time
            elif launched.blocks:
                self._launch(launched.first, launched.end, max(launched.blocks, self._moving * (launched.first == 0)))
        return 0

    def ends(self) -> list[float]:
        """Wait for the device, and return the end of each part of a timed run, in seconds of `time.perf_counter`."""
        self._device.synchronize()
        now, noted = perf_counter(), self._device.get(self._listed[:, FIELDS.index("ended")])
        ended = np.maximum.accumulate(noted)[self._sweep.ends]
        ends: list[float] = (now - (ended[-1] - ended) / PER_SECOND).tolist()
        return ends

    def _launch(self, first: int, end: int, blocks: int) -> None:
        args = self._device.address(self._listed), first, end
        blocks = min(blocks, self._n_blocks)
        self._device.launch(self._make_kernel(), Launch(blocks, THREADS, self._sweep.shared_bytes, args))
