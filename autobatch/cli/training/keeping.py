"""Write the checkpoints of a run, and let Ctrl-C end the run only after a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from autobatch.cli.training.fitting import Epoch, Fitting
from autobatch.cli.training.stored import BEST, LAST, Settings, StoredRun, read_run, store_run
from autobatch.cli.workload import Workload
from autobatch.distributed.group import Joined
from autobatch.errors import CheckpointError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0  # seconds in which several signals count as one
STATUS_OF_A_SIGNAL = 128  # and its number: what a shell reports


class Stopped(Exception):
    """A signal has ended training; the last step is in the checkpoint."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.status = STATUS_OF_A_SIGNAL + signal_number


class Keeper:
    """Writes the checkpoints of a run: the last, and that of the best epoch (see `ModelSpec.is_better`).

    Of several processes the first one writes, and all stop after the same step.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        workload: Workload,
        fitting: Fitting,
        n_steps: int,
        best: Mapping[str, float],
        joined: Joined,
    ) -> None:
        """Keep one every `n_steps` steps; `best` has the metrics of the best epoch so far."""
        self._folder, self._joined = folder, joined
        self._run = settings, workload, fitting
        self._n_steps = n_steps
        self._best = best
        self._signal, self._noted = 0, 0.0
        self._handlers: dict[signal.Signals, Any] = {}

    def after_step(self) -> None:
        """Write the last checkpoint if it is time to.

        Raises:
            CheckpointError: it cannot be written.
            Stopped: there was a signal; the checkpoint is written.
        """
        _, _, fitting = self._run
        asked = self._joined.most(self._signal)  # one that comes from here on ends training after the next step
        if asked or fitting.position.steps % self._n_steps == 0:
            self.write(LAST)
        if asked:
            raise Stopped(asked)

    def after_epoch(self, epoch: Epoch) -> None:
        """Write the best checkpoint, if this epoch is, and the last; raises what `after_step` does."""
        _, workload, _ = self._run
        if workload.spec.is_better(epoch.metrics, self._best):
            self._best = epoch.metrics
            self.write(BEST)
        self.write(LAST)
        self._stop_if_asked()

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end training after a step; a later one acts as it does elsewhere.

        Raises:
            Stopped: there was a signal after the last step.
        """
        for number in SIGNALS:
            self._handlers[number] = signal.getsignal(number)
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._stop_if_asked()

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        if not self._signal:
            self._signal, self._noted = signal_number, time.monotonic()
        elif time.monotonic() - self._noted >= TOGETHER:
            # Other handlers stay in place: Python must not find a pending signal without one.
            signal.signal(signal_number, self._handlers[signal.Signals(signal_number)])
            signal.raise_signal(signal_number)

    def _stop_if_asked(self) -> None:
        asked = self._joined.most(self._signal)
        if asked:
            raise Stopped(asked)

    def write(self, name: str) -> None:
        """Write the checkpoint of this name now."""
        if self._joined.rank == 0:
            store_run(self._folder / name, *self._run, self._best)


@contextmanager
def open_folder(folder: Path | None, resume: bool) -> Iterator[StoredRun | None]:
    """Make the folder, or read the last checkpoint in it; after an error, remove new folders that are still empty.

    Raises:
        CheckpointError: there is one and `resume` is not asked for, or it cannot be read; or the folder cannot be made.
    """
    if folder is None:
        yield None
        return
    last = folder / LAST
    if not last.exists():
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot keep checkpoints in {str(folder)!r}: {error.strerror}; name a folder that can be written."
            ) from error
        try:
            yield None
        except BaseException:
            with suppress(OSError):  # one that is not empty
                for path in made:
                    path.rmdir()
            raise
        return
    if not resume:
        raise CheckpointError(
            f"cannot begin in {str(folder)!r}: it holds the checkpoint of a run; add --resume to go on with that run, "
            f"or name another folder."
        )
    yield read_run(last)
