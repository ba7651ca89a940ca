"""List the steps of a stage in the order in which the device runs them, in as few launches as possible, and run them.

The end of each batch is read from the clock of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from autobatch.arrays import LongArray
from autobatch.backends.cuda.binding import FIELDS, BoundStage
from autobatch.backends.cuda.device_cell import THREADS
from autobatch.devices.device import Device, Launch


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


class Sweep(NamedTuple):
    """The steps of a stage of a plan.

    Attributes:
        stage: the stage of all types of the plan.
        steps: [1 + n, FIELDS] addresses of slots are relative to the packed memory. The first step does nothing: a
            timed run begins with it, to record the time of its start, and a run that moves rows, to do so.
        blocks: [1 + n] the number of blocks that have work.
        ptr: [parts + 1] part p has steps ptr[p]:ptr[p + 1]; see `autobatch.backends.tables.CallList`.
        hosted: for each step that the host runs, its position, its number among the steps of all types, and the tile.
    """

    stage: BoundStage
    steps: LongArray
    blocks: LongArray
    ptr: LongArray
    hosted: LongArray

    @property
    def ends(self) -> LongArray:
        """Return the last step of each part; for a part without steps, the last step before it."""
        found: LongArray = self.ptr[1:] - 1
        return found

    def launches(self, first_part: int, end_part: int, from_start: bool = False) -> list[Launched]:
        """List the launches and host steps of parts in order; with `from_start`, begin with the first step of all."""
        found = list[Launched]()
        at, end = 0 if from_start else int(self.ptr[first_part]), int(self.ptr[end_part])
        for host, number, tile in self.hosted.tolist():
            if at <= host < end:
                if at < host:
                    found.append(Launched(at, host, int(self.blocks[at:host].max()), None))
                found.append(Launched(host, host + 1, 0, (number, tile)))
                at = host + 1
        if at < end:
            found.append(Launched(at, end, int(self.blocks[at:end].max()), None))
        return found


PER_SECOND = 1e9  # counts of the device's clock


class Launcher(NamedTuple):
    """A launcher of the steps of a stage of a run.

    Attributes:
        address: the address of the steps on the device.
        n_blocks: the number of blocks that the device can run at the same time.
        index_type: the name of the integer type of destinations.
        load: compiles the kernel that goes through steps.
        run_step: runs a step of the host, given its number among the steps of all types and the number of a tile.
        moving: the number of blocks that the first step has work for; 0 if it does nothing.
    """

    device: Device
    sweep: Sweep
    address: int
    n_blocks: int
    index_type: str
    load: Callable[[], Any]
    run_step: Callable[[int, int], None]
    moving: int = 0

    def run(self, first: int, end: int, timed: bool = False) -> int:
        """Run parts first:end; return the number of launches and of steps of the host.

        Args:
            timed: whether the device records the end of each part; then these must be all parts.
        """
        moves = self.moving > 0 and first == 0
        stage, found = self.sweep.stage, self.sweep.launches(first, end, timed or moves)
        for launched in found:
            if launched.host is not None:
                self.run_step(*launched.host)
            blocks = int(timed) if launched.host is not None else launched.blocks  # one only records the time
            if launched.first == 0 and launched.host is None:
                blocks = max(blocks, self.moving)
            if blocks:
                args = self.address, launched.first, launched.end
                launch = Launch(min(blocks, self.n_blocks), THREADS, stage.shared_bytes, args)
                self.device.launch(stage.compiled.get(self.index_type) or self.load(), launch)
        return len(found)

    def ends(self, steps: Any) -> list[float]:
        """Wait for the device, and return the end of each part of a timed run, in seconds of `time.perf_counter`.

        Args:
            steps: the steps on the device, as bytes.
        """
        self.device.synchronize()
        listed = steps.view(np.int64).reshape(-1, len(FIELDS))
        now, noted = perf_counter(), self.device.get(listed[:, FIELDS.index("ended")])
        # A launch without work is left out and notes no time, so its parts end when the last one did. The last part
        # ended about now, because the device is idle.
        ended = np.maximum.accumulate(noted)[self.sweep.ends]
        ends: list[float] = (now - (ended[-1] - ended) / PER_SECOND).tolist()
        return ends
