"""Train a model, batched, and measure it after every epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.progress import Progress
from autobatch.cli.results import Tally
from autobatch.cli.workload import Workload, record
from autobatch.errors import DataError, NumericError


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data gave."""

    number: int
    loss: float
    """Mean over the training instances, each measured in the mini-batch that learned from it."""
    metrics: dict[str, float]
    """On the development data after the epoch, 0 to 1 per metric; empty if the model or the data has none."""
    seconds: float
    """Spent training; measuring is not counted."""
    instances_per_s: float
    ms: float
    """Per mini-batch."""
    counts: dict[str, float]
    """Per mini-batch, as in `loss.last`."""

    def line(self) -> str:
        """Say it in one line."""
        metrics = "".join(f"  dev {_in_words(metric)} {share:.1%}" for metric, share in self.metrics.items())
        return f"epoch {self.number}:  loss {self.loss:.4f}{metrics}  {self.instances_per_s:,.0f} instances/s"


class Fitting:
    """Training in progress: the model, its recorded instances and its optimizer."""

    def __init__(self, workload: Workload, policy: str, backend: str, batch_size: int, lr: float) -> None:
        """Record training and development data.

        Raises:
            DataError: there is nothing to train on.
            PolicyError, BackendError: there is no such policy or backend.
        """
        if not workload.dataset.train:
            raise DataError(f"cannot train on {workload.dataset.name}: it holds no training instance; add some.")
        self._workload = workload
        self._batch_size = batch_size
        self._loss = workload.batched("loss", policy, backend)
        self._optimizer = ab.optim.Adam(workload.model, lr=lr)
        self._graphs = record(self._loss, workload.dataset.train)
        self._dev_graphs: list[Any] = []
        if workload.spec.count_correct and workload.dataset.dev:
            self._scores = workload.batched("scores", policy, backend)
            self._dev_graphs = record(self._scores, workload.dataset.dev)

    @property
    def policy(self) -> str:
        """Name the policy in use, which may have been asked for as "auto"."""
        return str(self._loss.policy.name)

    @property
    def backend(self) -> str:
        """Name the backend in use."""
        return str(self._loss.backend.name)

    @property
    def steps_per_epoch(self) -> int:
        """Count the mini-batches of an epoch."""
        return math.ceil(len(self._graphs) / self._batch_size)

    def epochs(self, n_epochs: int, progress: Progress) -> Iterator[Epoch]:
        """Train; give each epoch's results as soon as they are there.

        Raises:
            NumericError: the loss of a mini-batch is not finite.
        """
        metrics: dict[str, float] = {}
        for number in range(1, n_epochs + 1):
            with np.errstate(all="ignore"):  # a loss that is not finite is reported with its mini-batch
                epoch = self._train(f"epoch {number}/{n_epochs}", number, metrics, progress)
            yield epoch
            metrics = epoch.metrics

    def _train(self, what: str, number: int, metrics: dict[str, float], progress: Progress) -> Epoch:
        tally, total_loss, n_seen = Tally(), 0.0, 0
        shown = "".join(f"  {_in_words(metric)} {share:.0%}" for metric, share in metrics.items())
        start = time.perf_counter()
        for step, batch in enumerate(ab.minibatches(self._graphs, self._batch_size, rng=self._workload.rng), start=1):
            try:
                value, grads = self._loss.value_and_grad(batch)
            except NumericError as error:
                raise NumericError(f"training stopped in {what}, mini-batch {step}: {error}") from error
            self._optimizer.step(grads)
            tally.add(self._loss.last)
            total_loss += float(value) * len(batch)
            n_seen += len(batch)
            rate = n_seen / (time.perf_counter() - start)
            figures = f"loss {value:.4g}{shown}  {rate:,.0f}/s  {self._loss.last.batches} batches"
            progress.advance(what, figures)
        seconds = time.perf_counter() - start
        return Epoch(
            number=number,
            loss=total_loss / n_seen,
            metrics=self._measure(),
            seconds=seconds,
            instances_per_s=n_seen / seconds,
            ms=1e3 * seconds / self.steps_per_epoch,
            counts=tally.means(),
        )

    def _measure(self) -> dict[str, float]:
        """Compute the metrics on the development data; what nothing counts towards is 0."""
        count_correct, dataset = self._workload.spec.count_correct, self._workload.dataset
        totals: dict[str, tuple[int, int]] = {}
        for start in range(0, len(self._dev_graphs), self._batch_size):
            part = slice(start, start + self._batch_size)
            assert count_correct is not None
            counts = count_correct(self._scores(self._dev_graphs[part]), dataset.dev[part], dataset.vocabularies)
            for metric, (n_right, n_all) in counts.items():
                right_before, all_before = totals.get(metric, (0, 0))
                totals[metric] = right_before + n_right, all_before + n_all
        return {metric: n_right / max(n_all, 1) for metric, (n_right, n_all) in totals.items()}


def _in_words(metric: str) -> str:
    return metric.replace("_", " ")
