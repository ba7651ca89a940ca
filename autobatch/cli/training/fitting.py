"""Train a model and measure it after every epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

import autobatch as ab
from autobatch.cli.progress import Progress
from autobatch.cli.results import Tally
from autobatch.cli.training.scoring import Scorer
from autobatch.cli.workload import Workload, record
from autobatch.devices.late import Late
from autobatch.distributed.group import Joined
from autobatch.distributed.shares import Share, costs_of
from autobatch.errors import DataError, NumericError
from autobatch.models import ModelSpec
from autobatch.schedule.schedule import Policy

LARGE = 1e6  # losses from here on are printed with an exponent


@dataclass(frozen=True)
class Epoch:
    """The results of one pass over the training data."""

    number: int
    loss: float
    """Mean loss of the training instances, with their weights, each before the step of its mini-batch."""
    metrics: dict[str, float]
    """Metrics on the development data after the epoch; empty if the model or the data has none."""
    metric_texts: Sequence[str]
    """The metrics as text."""
    is_best: bool
    """Whether this is the best epoch so far."""
    seconds: float
    """Training time, without measuring."""
    instances_per_s: float
    ms: float
    """Per mini-batch."""
    counts: dict[str, float]
    """Per mini-batch, as in `loss.last`."""

    def line(self) -> str:
        metrics = "".join(f"  dev {metric}" for metric in self.metric_texts)
        return f"epoch {self.number}:  loss {say_loss(self.loss)}{metrics}  {self.instances_per_s:,.0f} instances/s"


def say_loss(loss: float) -> str:
    """Format a loss with four decimals, or, if it is large, with four digits and an exponent."""
    return f"{loss:.4f}" if abs(loss) < LARGE else f"{loss:.3e}"


@dataclass
class Position:
    """The progress of training."""

    epochs: int = 0
    """Number of finished and measured epochs."""
    steps: int = 0
    """Number of steps taken in the current epoch; all of them until it is measured."""
    order: Any = None
    """State of the generator of the data's order, before the current epoch."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last finished epoch."""
    total_loss: float = 0.0
    """Sum of the losses of the current epoch's instances; the fields below are of this epoch too."""
    n_seen: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Best:
    """The best epoch so far, by `ModelSpec.is_better`; 0 before the first."""

    epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def or_later(self, epoch: int, metrics: Mapping[str, float], spec: ModelSpec) -> Best:
        """Return the better one of this epoch and a later one; this one if they are equal."""
        return Best(epoch, metrics) if spec.is_better(metrics, self.metrics) else self


class Fitting:
    """Training in progress: the model, its recorded instances, its optimizer and its position.

    Attributes:
        loss: the model's batched loss.
        optimizer: the optimizer, Adam.
        position: the progress; set it to resume. `total_loss` lacks losses not yet read by `read_losses`.
        best: the best epoch; set it to resume.
    """

    def __init__(
        self,
        workload: Workload,
        policy: str | Policy,
        backend: str,
        batch_size: int,
        lr: float,
        max_bytes: int | None = None,
        joined: Joined | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        """Record training and development data.

        Args:
            joined: a group whose processes train and measure together.
            weights: a factor for the loss of each training instance (N,); by default 1.

        Raises:
            DataError: the training data is empty.
            PolicyError, BackendError: the policy or backend is unknown.
        """
        if not workload.dataset.train:
            raise DataError(f"cannot train on {workload.dataset.name}: it must hold at least one training instance.")
        self.loss = workload.batched("loss", policy, backend, max_bytes)
        workload.move_to(self.backend)
        self.optimizer = ab.optim.Adam(workload.model, lr=lr)
        self.position = Position(order=workload.rng.bit_generator.state)
        self.best = Best()
        self._last_loss = math.nan
        self._unread: list[tuple[int, Any, int]] = []  # of the last steps: number, loss, size of the mini-batch
        self._rng = workload.rng
        self._spec = workload.spec
        self._batch_size = batch_size
        self._graphs = record(self.loss, workload.dataset.train)
        self._costs = costs_of(self._graphs)
        self._weights = weights
        self._dev = Scorer(workload, workload.dataset.dev, policy, backend, batch_size, max_bytes, joined)

    @property
    def policy(self) -> str:
        """Return the name of the policy in use."""
        return str(self.loss.policy.name)

    @property
    def backend(self) -> str:
        """Return the name of the backend in use."""
        return str(self.loss.backend.name)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of mini-batches of an epoch."""
        return math.ceil(len(self._graphs) / self._batch_size)

    @property
    def last_loss(self) -> float:
        """Return the mean loss of the last mini-batch; waits for it."""
        self.read_losses()
        return self._last_loss

    def read_losses(self, n_left: int = 0) -> None:
        """Add the losses of the last steps, which a device may still be computing, to the epoch's total.

        Args:
            n_left: number of last steps to leave unread, so that the host does not wait for the device.

        Raises:
            NumericError: a loss is not finite; its step changed nothing.
        """
        while len(self._unread) > n_left:
            _, value, n_instances = self._unread[0]
            self._last_loss = float(value)
            self.position.total_loss += self._last_loss * n_instances
            # After the loss is read: if that raises an error, `_naming_the_step` finds the step here.
            del self._unread[0]

    def is_stuck(self, patience: int | None) -> bool:
        """Return whether the last `patience` epochs brought no improvement; False without a patience."""
        return patience is not None and self.position.epochs - self.best.epoch >= patience

    def epochs(
        self,
        n_epochs: int,
        progress: Progress,
        after_step: Callable[[], None] = lambda: None,
        patience: int | None = None,
    ) -> Iterator[Epoch]:
        """Train until `n_epochs` epochs are finished, or training `is_stuck`; yield the results of each.

        Args:
            n_epochs: total number, including epochs before `position`.
            progress: display, advanced after every mini-batch.
            after_step: called after every mini-batch, with `position` updated; its errors propagate.
            patience: largest number of epochs without an improvement; None for no limit.

        Raises:
            NumericError: the loss of a mini-batch is not finite.
        """
        while self.position.epochs < n_epochs and not self.is_stuck(patience):
            with np.errstate(all="ignore"):  # `_naming_the_step` reports non-finite losses
                self._train(f"epoch {self.position.epochs + 1}/{n_epochs}", progress, after_step)
            yield self._finish(self._dev.measure())

    def _train(self, what: str, progress: Progress, after_step: Callable[[], None]) -> None:
        """Take the remaining steps of an epoch."""
        position = self.position
        self._rng.bit_generator.state = position.order  # a resumed epoch has the order it began with
        shown = "".join(f"  {self._spec.say(metric, value, 0)}" for metric, value in position.metrics.items())
        batches = ab.distributed.shares(self._graphs, self._batch_size, self._rng, cost=self._costs)
        start = time.perf_counter() - position.seconds  # includes the time before a resume
        for batch in islice(batches, position.steps, None):
            with self._naming_the_step(what):
                value, grads = self.loss.value_and_grad(batch, reduce=self._reduce(batch))
                self.optimizer.step(grads)
                position.steps += 1
                self._unread.append((position.steps, value, batch.size))
                # The device computes this step while the host reads the loss of the one before and records the next.
                self.read_losses(n_left=1 if isinstance(value, Late) else 0)
                position.tally.add(self.loss.last)
                position.n_seen += batch.size
                position.seconds = time.perf_counter() - start
                rate = position.n_seen / position.seconds
                loss = "" if math.isnan(self._last_loss) else f"loss {self._last_loss:.4g}"
                progress.advance(what, f"{loss}{shown}  {rate:,.0f}/s  {self.loss.last.batches} batches")
                after_step()
        with self._naming_the_step(what):
            self.read_losses()
        position.seconds = time.perf_counter() - start

    def _reduce(self, batch: Share) -> str | NDArray[np.float64]:
        """Return the weights of the losses of `batch`, a share of a mini-batch, in the mean over all of it."""
        if self._weights is None:
            return "mean"
        return self._weights[[graph.key for graph in batch]] / batch.size

    @contextmanager
    def _naming_the_step(self, what: str) -> Iterator[None]:
        """Add the epoch and the mini-batch to the message of a NumericError."""
        try:
            yield
        except NumericError as error:
            number = self._unread[0][0] if self._unread else self.position.steps + 1
            raise NumericError(f"training stopped in {what}, mini-batch {number}: {error}") from error

    def _finish(self, metrics: dict[str, float]) -> Epoch:
        """Advance to the next epoch; return the results of this one."""
        done = self.position
        self.position = Position(epochs=done.epochs + 1, order=self._rng.bit_generator.state, metrics=metrics)
        self.best = self.best.or_later(self.position.epochs, metrics, self._spec)
        return Epoch(
            number=self.position.epochs,
            loss=done.total_loss / done.n_seen,
            metrics=metrics,
            metric_texts=[self._spec.say(metric, value) for metric, value in metrics.items()],
            is_best=self.best.epoch == self.position.epochs,
            seconds=done.seconds,
            instances_per_s=done.n_seen / done.seconds,
            ms=1e3 * done.seconds / self.steps_per_epoch,
            counts=done.tally.means(),
        )
