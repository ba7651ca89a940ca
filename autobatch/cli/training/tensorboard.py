"""Scalars of a training run for TensorBoard, in two runs of one folder: `steps` and `epochs`, both over mini-batches.

A run that is resumed from a checkpoint writes further files. Each begins with an event that tells TensorBoard to drop
the points of earlier files from that mini-batch on, so points that a killed run wrote after its checkpoint show once.
Epochs are a run of their own, because a checkpoint may hold the last mini-batch of an epoch that is not measured yet.

The `tensorboard` package writes the files; it needs neither torch nor TensorFlow. Of the `SummaryWriter`s, which take a
`purge_step` for this, torch's needs torch, and the `flush` of tensorboardX's does not wait for its queue, so a
checkpoint could be ahead of the file.
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
    """Writes events to the files of a run.

    Args:
        writer: the package's writer; folder: for messages.
    """

    def __init__(self, writer: Any, folder: Path) -> None:
        self._writer, self._folder = writer, folder

    def write(self, event: Any) -> None:
        """Write an event and flush it; DataError if that fails."""
        with _naming(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the files; DataError if that fails."""
        with _naming(self._folder):
            self._writer.close()


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write scalars to {str(folder)!r}: {error.strerror}; name a folder that can be written and has "
            f"room."
        ) from error


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Keep the package's threads from printing file errors, which `flush` raises again."""
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
    """Writes what `autobatch train` reports; without a folder, writes nothing.

    Each write reaches the file at once, before the checkpoint of the same mini-batch.
    """

    def __init__(self, steps: Writer | None = None, epochs: Writer | None = None) -> None:
        """Take the writers of the two runs."""
        self._steps, self._epochs = steps, epochs

    def after_step(self, fitting: Fitting) -> None:
        """Write the figures of the mini-batch that the model has just learned from."""
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
        """Write the figures of the epoch that was just measured."""
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
    """Refuse a folder for scalars where the package that writes them is not installed; DataError."""
    if folder is not None and importlib.util.find_spec("tensorboard") is None:
        raise DataError(
            f"cannot write scalars to {str(folder)!r}: the package tensorboard is not installed; "
            f"{pip_install('tensorboard')}, or leave out --tensorboard."
        )


@contextmanager
def open_scalars(folder: Path | None, fitting: Fitting) -> Iterator[Scalars]:
    """Open the folder to go on from where training is.

    Raises:
        DataError: it cannot be written.
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
    """Wait for the next second if files are of this one: TensorBoard reads files by name, and names give seconds."""
    seconds = [int(name.name.split(".")[3]) for name in folder.glob("*/events.out.tfevents.*")]
    time.sleep(min(max(max(seconds, default=0) + 1 - time.time(), 0.0), 1.0))


def _n_steps(fitting: Fitting) -> int:
    """Mini-batches that the model has learned from, since the start."""
    return fitting.position.epochs * fitting.steps_per_epoch + fitting.position.steps


def _mark_start(writer: Writer, step: int) -> None:
    """Begin at a step: TensorBoard drops the points of earlier files from there on."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer.write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))


def _write(writer: Writer, step: int, figures: Mapping[str, float]) -> None:
    """Write figures by tag, readable at once."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=float(figure)) for tag, figure in figures.items()]
    writer.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
