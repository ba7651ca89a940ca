"""Run the steps of a stage on the device, and read the end of each batch from its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from autobatch.backends.cuda.device_cell import THREADS, DeviceStageRun
from autobatch.backends.cuda.sweeps import FIELDS, Sweep
from autobatch.devices.device import Device, Launch

PER_SECOND = 1e9  # counts of the device's clock


class Launcher:
    """A launcher of the steps of a stage of a run.

    Args:
        sweep: the steps, in parts; see `autobatch.backends.tiles.CallList`.
        listed: the steps on the device, ints [1 + n, FIELDS].
        runs: the stage of each type, for steps that the host runs.
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
        runs: Sequence[DeviceStageRun],
        make_kernel: Callable[[], Any],
        n_blocks: int,
    ) -> None:
        self._device, self._sweep, self._listed, self._make_kernel = device, sweep, listed, make_kernel
        self._n_blocks = n_blocks
        self._steps = [(run, step) for run in runs for step in run.stage.steps]
        self.launches = 0

    def run(self, first: int, end: int, timed: bool = False) -> int:
        """Run parts first:end. If timed, these must be all parts, and the device records the end of each.

        Returns:
            0, because `launches` counts them.
        """
        for launched in self._sweep.launches(first, end, timed):
            self.launches += 1
            if launched.host is not None:
                run, step = self._steps[launched.host[0]]
                assert step.run is not None, "the host runs no kernels"
                step.run(run, launched.host[1])
                if timed:
                    self._launch(launched.first, launched.end, 1)  # only records the time
            elif launched.blocks:
                self._launch(launched.first, launched.end, launched.blocks)
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
