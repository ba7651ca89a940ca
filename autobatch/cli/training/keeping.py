"""Write the checkpoints of a run, and end it on Ctrl-C only after a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
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
TOGETHER = 1.0  # seconds within which several signals count as one
STATUS_OF_A_SIGNAL = 128  # exit status of shells after a signal, minus its number


class Stopped(Exception):
    """Training was ended by a signal; the checkpoint includes the last step."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.status = STATUS_OF_A_SIGNAL + signal_number


class Keeper:
    """A writer of a run's checkpoints: the last one, and the one of the best epoch.

    Of several processes, the first one writes, and all stop after the same step.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        workload: Workload,
        fitting: Fitting,
        n_steps: int,
        joined: Joined,
    ) -> None:
        """Prepare to write every `n_steps` steps."""
        self._folder, self._joined = folder, joined
        self._run = settings, workload, fitting
        self._n_steps = n_steps
        self._signal, self._noted = 0, 0.0
        self._handlers: dict[signal.Signals, Any] = {}

    def after_step(self) -> None:
        """Write the last checkpoint every `n_steps` steps, and after a signal.

        Raises:
            CheckpointError: it cannot be written.
            Stopped: a signal arrived; the checkpoint has been written.
        """
        _, _, fitting = self._run
        asked = self._joined.most(self._signal)  # a later signal ends training after the next step
        if asked or fitting.position.steps % self._n_steps == 0:
            self.write(LAST)
        if asked:
            raise Stopped(asked)

    def after_epoch(self, epoch: Epoch) -> None:
        """Write the last checkpoint, and the best one if this epoch is the best; raise the errors of `after_step`."""
        # The best first: if the process is killed in between, the last checkpoint is older, and a resumed run finishes
        # this epoch again.
        if epoch.is_best:
            self.write(BEST)
        self.write(LAST)
        self._stop_if_asked()

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """End training after a step on Ctrl-C or SIGTERM; a second signal has its usual effect.

        Raises:
            Stopped: a signal arrived after the last step.
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
            # Other handlers stay in place, as Python must not find a pending signal without one.
            signal.signal(signal_number, self._handlers[signal.Signals(signal_number)])
            signal.raise_signal(signal_number)

    def _stop_if_asked(self) -> None:
        asked = self._joined.most(self._signal)
        if asked:
            raise Stopped(asked)

    def write(self, name: str) -> None:
        """Write a checkpoint with this file name now."""
        if self._joined.rank == 0:
            store_run(self._folder / name, *self._run)


@contextmanager
def open_folder(folder: Path | None, resume: bool) -> Iterator[StoredRun | None]:
    """Create the folder, or yield the last checkpoint in it; after an error, remove created folders if empty.

    Raises:
        CheckpointError: there is a checkpoint and `resume` is False, or it cannot be read, or the folder cannot be
            created.
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
                f"cannot write checkpoints to {str(folder)!r}: {error.strerror}; choose a writable folder."
            ) from error
        try:
            yield None
        except BaseException:
            with suppress(OSError):  # a folder that is not empty
                for path in made:
                    path.rmdir()
            raise
        return
    if not resume:
        raise CheckpointError(
            f"cannot start a run in {str(folder)!r}: it holds the checkpoint of another run; add --resume to continue "
            f"that run, or choose another folder."
        )
    yield read_run(last)
