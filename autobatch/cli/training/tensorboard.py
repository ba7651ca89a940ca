"""Scalars of a training run for TensorBoard, as two runs in one folder: `steps` and `epochs`, both over mini-batches.

A resumed run writes further files. Each begins with an event that tells TensorBoard to drop the points of earlier files
from that mini-batch on, so points that a killed run wrote after its checkpoint are not shown twice. Epochs are a
separate run, because a checkpoint may include the last mini-batch of an epoch that is not measured yet.

The `tensorboard` package writes the files; it needs neither torch nor TensorFlow. The `SummaryWriter`s of other
packages have a `purge_step` for this, but torch's needs torch, and `flush` of tensorboardX does not wait for its queue,
so a checkpoint could be ahead of the file.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from autobatch.cli.training.fitting import Epoch, Fitting
from autobatch.errors import DataError
from autobatch.release import pip_install


class Writer:
    """A writer of events to the files of a run.

    Args:
        writer: writer of the `tensorboard` package.
        folder: folder named in messages.
    """

    def __init__(self, writer: Any, folder: Path) -> None:
        self._writer, self._folder = writer, folder

    def write(self, event: Any) -> None:
        """Write an event and flush it; raise a DataError if that fails."""
        with _naming(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the files; raise a DataError if that fails."""
        with _naming(self._folder):
            self._writer.close()


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write scalars to {str(folder)!r}: {error.strerror}; choose a writable folder with free space."
        ) from error


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Suppress file errors printed by the package's threads, because `flush` raises them again."""
    show = threading.excepthook

    def show_others(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, OSError):
            show(args)

    threading.excepthook = show_others
    try:
        yield
    finally:
        threading.excepthook = show


class Scalars:
    """The scalars of `autobatch train`; without a folder, nothing is written.

    Each write is flushed, before the checkpoint of the same mini-batch.
    """

    def __init__(self, steps: Writer | None = None, epochs: Writer | None = None) -> None:
        self._steps, self._epochs = steps, epochs

    def after_step(self, fitting: Fitting) -> None:
        if self._steps is None:
            return
        position = fitting.position
        figures = {
            "train/loss": fitting.last_loss,
            "instances_per_s": position.n_seen / position.seconds,
            "batches": fitting.loss.last.batches,
        }
        _write(self._steps, _n_steps(fitting), figures)

    def after_epoch(self, fitting: Fitting, epoch: Epoch) -> None:
        if self._epochs is None:
            return
        figures = {
            "train/loss": epoch.loss,
            **{f"dev/{metric}": share for metric, share in epoch.metrics.items()},
            "instances_per_s": epoch.instances_per_s,
            "batches": epoch.counts["batches"],
        }
        _write(self._epochs, _n_steps(fitting), figures)


def require_tensorboard(folder: Path | None) -> None:
    """Raise a DataError for a folder of scalars if the package `tensorboard` is not installed."""
    if folder is not None and importlib.util.find_spec("tensorboard") is None:
        raise DataError(
            f"cannot write scalars to {str(folder)!r}: the package tensorboard is not installed; "
            f"{pip_install('tensorboard')}, or leave out --tensorboard."
        )


@contextmanager
def open_scalars(folder: Path | None, fitting: Fitting) -> Iterator[Scalars]:
    """Open the folder to continue from the position of training.

    Raises:
        DataError: the folder cannot be written.
    """
    if folder is None:
        yield Scalars()
        return
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    _wait_for_a_later_name(folder)
    with ExitStack() as stack, _quiet_threads():
        writers = []
        for run, n_done in (
            ("steps", _n_steps(fitting)),
            ("epochs", fitting.position.epochs * fitting.steps_per_epoch),
        ):
            with _naming(folder):
                made = EventFileWriter(str(folder / run))
            writer = Writer(made, folder)
            stack.callback(writer.close)
            _mark_start(writer, n_done + 1)
            writers.append(writer)
        yield Scalars(*writers)


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait for the next second if a file is from this one, as TensorBoard orders files by the seconds in names."""
    # Names are events.out.tfevents.SECONDS.HOST...
    seconds = [int(name.name.split(".")[3]) for name in folder.glob("*/events.out.tfevents.*")]
    time.sleep(min(max(max(seconds, default=0) + 1 - time.time(), 0.0), 1.0))


def _n_steps(fitting: Fitting) -> int:
    """Return the number of mini-batches trained since the start."""
    return fitting.position.epochs * fitting.steps_per_epoch + fitting.position.steps


def _mark_start(writer: Writer, step: int) -> None:
    """Mark the start at a step, from which TensorBoard drops the points of earlier files."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer.write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))


def _write(writer: Writer, step: int, figures: Mapping[str, float]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=float(figure)) for tag, figure in figures.items()]
    writer.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
