"""Train a model, batched, and measure it after every epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.progress import Progress
from autobatch.cli.results import Tally
from autobatch.cli.training.scoring import Scorer
from autobatch.cli.workload import Workload, record
from autobatch.devices.late import Late
from autobatch.distributed.group import Joined
from autobatch.distributed.shares import costs_of
from autobatch.errors import DataError, NumericError
from autobatch.schedule.schedule import Policy

LARGE = 1e6  # a loss of so much is printed with a power of ten


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data gave."""

    number: int
    loss: float
    """Mean over the training instances, each measured in the mini-batch that learned from it."""
    metrics: dict[str, float]
    """On the development data after the epoch; empty if the model or the data has none."""
    metric_texts: Sequence[str]
    """The metrics in words."""
    seconds: float
    """Spent training; measuring is not counted."""
    instances_per_s: float
    ms: float
    """Per mini-batch."""
    counts: dict[str, float]
    """Per mini-batch, as in `loss.last`."""

    def line(self) -> str:
        """Say it in one line."""
        metrics = "".join(f"  dev {metric}" for metric in self.metric_texts)
        return f"epoch {self.number}:  loss {say_loss(self.loss)}{metrics}  {self.instances_per_s:,.0f} instances/s"


def say_loss(loss: float) -> str:
    """Say a loss with four decimals, or, if it is large, with four digits and the power of ten."""
    return f"{loss:.4f}" if abs(loss) < LARGE else f"{loss:.3e}"


@dataclass
class Position:
    """How far training is."""

    epochs: int = 0
    """Finished and measured."""
    steps: int = 0
    """Mini-batches of the next epoch that the model has learned from; all of them before it is measured."""
    order: Any = None
    """State of the generator that draws the order of the data, before it draws that of the next epoch."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last finished epoch."""
    total_loss: float = 0.0
    """Of the next epoch's steps, as all below."""
    n_seen: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)


class Fitting:
    """Training in progress: the model, its recorded instances, its optimizer, and how far it is.

    Attributes:
        loss: the model's batched loss.
        optimizer: changes the model.
        position: how far training is; set it to go on from there. Its loss lacks what `read_losses` has not read yet.
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
    ) -> None:
        """Record training and development data; the processes of a group, `joined`, train and measure together.

        Raises:
            DataError: there is nothing to train on.
            PolicyError, BackendError: there is no such policy or backend.
        """
        if not workload.dataset.train:
            raise DataError(f"cannot train on {workload.dataset.name}: it holds no training instance; add some.")
        self.loss = workload.batched("loss", policy, backend, max_bytes)
        workload.move_to(self.backend)
        self.optimizer = ab.optim.Adam(workload.model, lr=lr)
        self.position = Position(order=workload.rng.bit_generator.state)
        self._last_loss = math.nan
        self._unread: list[tuple[int, Any, int]] = []  # of the last steps: number, loss, and size of the mini-batch
        self._rng = workload.rng
        self._say = workload.spec.say
        self._batch_size = batch_size
        self._graphs = record(self.loss, workload.dataset.train)
        self._costs = costs_of(self._graphs)
        self._dev = Scorer(workload, workload.dataset.dev, policy, backend, batch_size, max_bytes, joined)

    @property
    def policy(self) -> str:
        """Name the policy in use."""
        return str(self.loss.policy.name)

    @property
    def backend(self) -> str:
        """Name the backend in use."""
        return str(self.loss.backend.name)

    @property
    def steps_per_epoch(self) -> int:
        """Count the mini-batches of an epoch."""
        return math.ceil(len(self._graphs) / self._batch_size)

    @property
    def last_loss(self) -> float:
        """The mean loss over the last mini-batch."""
        self.read_losses()
        return self._last_loss

    def read_losses(self, n_left: int = 0) -> None:
        """Add the losses of the last steps, which a device may still compute, to those of the epoch.

        Args:
            n_left: steps that may stay unread, so that the host does not wait for the device.

        Raises:
            NumericError: a loss is not finite; the model has not learned from it.
        """
        while len(self._unread) > n_left:
            _, value, n_instances = self._unread[0]
            self._last_loss = float(value)
            self.position.total_loss += self._last_loss * n_instances
            del self._unread[0]

    def epochs(
        self, n_epochs: int, progress: Progress, after_step: Callable[[], None] = lambda: None
    ) -> Iterator[Epoch]:
        """Train until `n_epochs` are finished; give each epoch's results as soon as they are there.

        Args:
            n_epochs: how many, those before `position` included.
            progress: is advanced after every mini-batch.
            after_step: called after every mini-batch, when `position` counts it; what it raises passes.

        Raises:
            NumericError: the loss of a mini-batch is not finite.
        """
        while self.position.epochs < n_epochs:
            with np.errstate(all="ignore"):  # a loss that is not finite is reported with its mini-batch
                self._train(f"epoch {self.position.epochs + 1}/{n_epochs}", progress, after_step)
            yield self._finish(self._dev.measure())

    def _train(self, what: str, progress: Progress, after_step: Callable[[], None]) -> None:
        """Take the steps that are left of an epoch."""
        position = self.position
        self._rng.bit_generator.state = position.order
        shown = "".join(f"  {self._say(metric, value, 0)}" for metric, value in position.metrics.items())
        batches = ab.distributed.shares(self._graphs, self._batch_size, self._rng, cost=self._costs)
        start = time.perf_counter() - position.seconds
        for batch in islice(batches, position.steps, None):
            with self._naming_the_step(what):
                value, grads = self.loss.value_and_grad(batch)
                self.optimizer.step(grads)
                position.steps += 1
                self._unread.append((position.steps, value, batch.size))
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

    @contextmanager
    def _naming_the_step(self, what: str) -> Iterator[None]:
        """Have a NumericError say in which mini-batch of an epoch it is."""
        try:
            yield
        except NumericError as error:
            number = self._unread[0][0] if self._unread else self.position.steps + 1
            raise NumericError(f"training stopped in {what}, mini-batch {number}: {error}") from error

    def _finish(self, metrics: dict[str, float]) -> Epoch:
        """Go on to the next epoch; say what this one gave."""
        done = self.position
        self.position = Position(epochs=done.epochs + 1, order=self._rng.bit_generator.state, metrics=metrics)
        return Epoch(
            number=self.position.epochs,
            loss=done.total_loss / done.n_seen,
            metrics=metrics,
            metric_texts=[self._say(metric, value) for metric, value in metrics.items()],
            seconds=done.seconds,
            instances_per_s=done.n_seen / done.seconds,
            ms=1e3 * done.seconds / self.steps_per_epoch,
            counts=done.tally.means(),
        )
