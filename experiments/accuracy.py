"""Question: does `autobatch train` reach the accuracy of the same model trained in PyTorch, one instance at a time?

Both start from the same parameters, see the same mini-batches in the same order and take the same steps of Adam; ours
run by the code of the command. Their losses drift apart only by rounding, so after every epoch their metrics on the
development data must lie within a point of each other. One table and one record for each model:

    python experiments/accuracy.py models=bilstm-tagger,lattice-lstm epochs=3
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import autobatch as ab
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.cli.training.fitting import Epoch, Fitting, in_words
from autobatch.cli.workload import Workload, load_workload
from harness import Findings, Settings, find_data, name_of, run
from peers.torch_models import TorchBiLSTMTagger, TorchLatticeLSTM, TorchModel, TorchTreeLSTM


@dataclass(frozen=True)
class Config(Settings):
    """As `autobatch train MODEL --dim 64 --batch-size 32 --epochs 5`, with the `--lr` of `TWINS`."""

    models: str = "tree-lstm,bilstm-tagger,lattice-lstm"
    dim: int = 64
    batch_size: int = 32
    epochs: int = 5


@dataclass(frozen=True)
class Twin:
    """How a model's twin is made and measured, and on what data both learn."""

    model: Callable[..., TorchModel]
    folder: str
    """Of the real data."""
    lr: float
    """So high that a few epochs get beyond naming the most frequent class."""
    to_outputs: Callable[[list[Any]], Any] = lambda scores: scores
    """From the scores of each instance (N, C) to what the model's `count_correct` takes."""


TWINS = {
    "tree-lstm": Twin(TorchTreeLSTM, "sst", 1e-3, lambda scores: (np.stack([nodes[-1] for nodes in scores]), scores)),
    "bilstm-tagger": Twin(TorchBiLSTMTagger, "wikiner", 1e-2),
    "lattice-lstm": Twin(TorchLatticeLSTM, "lattice", 1e-2),
}


def measure(config: Config) -> Iterator[Findings]:
    """Train each model and its twin, an epoch of each in turn."""
    torch.set_num_threads(config.threads)
    names = config.models.split(",")
    if unknown := [name for name in names if name not in TWINS]:
        sys.exit(f"{unknown[0]!r} has no twin; give some of {', '.join(TWINS)}")
    for name in names:
        twin = TWINS[name]
        workload = load_workload(name, find_data(twin.folder), config.dim, config.seed)
        theirs = Theirs(twin, workload, config)
        ours = Fitting(workload, policy="auto", backend="auto", batch_size=config.batch_size, lr=twin.lr)
        with show_progress(config.epochs * ours.steps_per_epoch) as progress:
            epochs = [(epoch, *theirs.epoch()) for epoch in ours.epochs(config.epochs, progress)]
        yield compare(name, workload, epochs, config)


class Theirs:
    """Training with PyTorch, from the parameters and in the order of a workload that is yet to be trained."""

    def __init__(self, twin: Twin, workload: Workload, config: Config) -> None:
        self.workload, self.to_outputs, self.batch_size = workload, twin.to_outputs, config.batch_size
        self.model = twin.model(dim=config.dim, **workload.dataset.sizes)
        self.model.copy_parameters(workload.model.state_dict())
        self.train = [self.model.prepare(instance) for instance in workload.dataset.train]
        self.dev = [self.model.prepare(instance) for instance in workload.dataset.dev]
        self.rng = deepcopy(workload.rng)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=twin.lr)

    def epoch(self) -> tuple[float, dict[str, float]]:
        """See every instance once; give the mean loss, and the metrics on the development data."""
        total = 0.0
        for batch in ab.minibatches(self.train, self.batch_size, rng=self.rng):
            self.optimizer.zero_grad()
            for example in batch:
                loss = self.model.loss(example)
                torch.autograd.backward(loss / len(batch))
                total += loss.item()
            self.optimizer.step()
        return total / len(self.train), self.metrics()

    def metrics(self) -> dict[str, float]:
        """Measure as our model is measured."""
        with torch.no_grad():
            outputs = self.to_outputs([self.model.scores(example).numpy() for example in self.dev])
        dataset, count_correct = self.workload.dataset, self.workload.spec.count_correct
        assert count_correct is not None
        counts = count_correct(outputs, dataset.dev, dataset.vocabularies)
        return {metric: n_right / n_all for metric, (n_right, n_all) in counts.items()}


def compare(
    name: str, workload: Workload, epochs: Sequence[tuple[Epoch, float, dict[str, float]]], config: Config
) -> Findings:
    """Put the two next to each other."""
    data = name_of(workload.dataset)
    metrics = list(epochs[0][0].metrics)
    gaps = [abs(ours.metrics[metric] - theirs[metric]) for ours, _, theirs in epochs for metric in metrics]
    rows = [
        (
            str(ours.number),
            *(f"{loss:.4f}" for loss in (ours.loss, their_loss)),
            *(f"{share:.2%}" for metric in metrics for share in (ours.metrics[metric], theirs[metric])),
        )
        for ours, their_loss, theirs in epochs
    ]
    header = ("epoch", *(f"{what}, {who}" for what in ("loss", *map(in_words, metrics)) for who in ("ours", "PyTorch")))
    title = (
        f"{name}, {data}, dim {config.dim}, mini-batches of {config.batch_size}, learning rate {TWINS[name].lr}; mean "
        f"training loss, and metrics on the development data: at most {100 * max(gaps):.2f} points apart\n\n"
    )
    figures = {
        "model": name,
        "data": data,
        "lr": TWINS[name].lr,
        "largest_gap_points": 100 * max(gaps),
        "autobatch": [{"loss": ours.loss, **ours.metrics} for ours, _, _ in epochs],
        "torch": [{"loss": loss, **theirs} for _, loss, theirs in epochs],
    }
    return Findings({}, figures, title + format_table(header, rows), part=name)


if __name__ == "__main__":
    run(Config(), measure)
