"""List the steps of a stage in the order in which the device runs them, in as few launches as possible, and run them.

The end of each batch is read from the clock of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import list_device_steps
from autobatch.arrays import LongArray
from autobatch.backends.cuda.binding import FIELDS, BoundStage
from autobatch.backends.cuda.device_cell import THREADS, DeviceStageRun
from autobatch.backends.tables import PlanTables
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


class Sweep:
    """The steps of a stage of a plan.

    Attributes:
        stage: the stage of all types of the plan.
        steps: [1 + n, FIELDS] addresses of slots are relative to the first slot. The first step does nothing: a timed
            run begins with it, to record the time of its start.
        blocks: [1 + n] the number of blocks that have work.
        ptr: [parts + 1] part p has steps ptr[p]:ptr[p + 1]; see `autobatch.backends.tables.CallList`.

    Args:
        tables: the tables of the plan.
        name: the name of the stage.
        sum_ptr: sums sum_ptr[b]:sum_ptr[b + 1] are added up after batch b; empty for backward.
    """

    def __init__(self, stage: BoundStage, tables: PlanTables, name: str, sum_ptr: LongArray) -> None:
        self.stage = stage
        self.steps, self.blocks, self.ptr, self._hosted = list_device_steps(
            stage.known, stage.rules, tables.calls[name], tables.words, tables.ptr, sum_ptr
        )

    @property
    def ends(self) -> LongArray:
        """Return the last step of each part; for a part without steps, the last step before it."""
        found: LongArray = self.ptr[1:] - 1
        return found

    def launches(self, first_part: int, end_part: int, timed: bool = False) -> list[Launched]:
        """List the launches and host steps of parts in order; if timed, begin with the step that records the start."""
        found = list[Launched]()
        at, end = 0 if timed else int(self.ptr[first_part]), int(self.ptr[end_part])
        for host, number, tile in self._hosted.tolist():
            if at <= host < end:
                if at < host:
                    found.append(Launched(at, host, int(self.blocks[at:host].max()), None))
                found.append(Launched(host, host + 1, 0, (number, tile)))
                at = host + 1
        if at < end:
            found.append(Launched(at, end, int(self.blocks[at:end].max()), None))
        return found


PER_SECOND = 1e9  # counts of the device's clock


class Launcher:
    """A launcher of the steps of a stage of a run.

    Args:
        sweep: the steps, in parts; see `autobatch.backends.tables.CallList`.
        listed: the steps on the device, as bytes.
        make_run: returns the stage of a type, given its position, for steps that the host runs.
        make_kernel: returns the compiled kernel that goes through steps.
        n_blocks: the number of blocks that the device can run at the same time.

    Attributes:
        launches: the number of launches and of steps of the host so far.
    """

    def __init__(
        self,
        device: Device,
        sweep: Sweep,
        listed: Any,
        make_run: Callable[[int], DeviceStageRun],
        make_kernel: Callable[[], Any],
        n_blocks: int,
    ) -> None:
        self._device, self._sweep, self._listed, self._make_kernel = device, sweep, listed, make_kernel
        self._make_run, self._n_blocks = make_run, n_blocks
        self.launches = 0

    def run(self, first: int, end: int, timed: bool = False) -> int:
        """Run parts first:end. If timed, these must be all parts, and the device records the end of each.

        Returns:
            0, because `launches` counts them.
        """
        for launched in self._sweep.launches(first, end, timed):
            self.launches += 1
            if launched.host is not None:
                number, tile = launched.host
                position, step = self._sweep.stage.steps[number]
                assert step.run is not None, "the host runs no kernels"
                step.run(self._make_run(position), tile)
            blocks = int(timed) if launched.host is not None else launched.blocks  # one only records the time
            if blocks:
                args = self._device.address(self._listed), launched.first, launched.end
                launch = Launch(min(blocks, self._n_blocks), THREADS, self._sweep.stage.shared_bytes, args)
                self._device.launch(self._make_kernel(), launch)
        return 0

    def ends(self) -> list[float]:
        """Wait for the device, and return the end of each part of a timed run, in seconds of `time.perf_counter`."""
        self._device.synchronize()
        listed = self._listed.view(np.int64).reshape(-1, len(FIELDS))
        now, noted = perf_counter(), self._device.get(listed[:, FIELDS.index("ended")])
        ended = np.maximum.accumulate(noted)[self._sweep.ends]
        ends: list[float] = (now - (ended[-1] - ended) / PER_SECOND).tolist()
        return ends
