"""Measure whether training with bf16 products matches float32, and what it saves.

A Tree-LSTM trains with `precision="float32"` and with "bf16". The same model trains in PyTorch, as an expert writes it:
in float32; with `set_float32_matmul_precision("medium")`, which allows oneDNN to round operands to bf16, as it does if
the processor has AMX; and with products of bf16 tensors. All start from the same parameters and see the same
mini-batches in the same order. They take steps of Adam in turn, so that changes of the machine's speed affect all
equally. Losses are means per tree, also on the development data after every epoch.

    python experiments/precision.py dim=64 epochs=4
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import autobatch as ab
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.cli.workload import Workload, load_workload, record
from baselines.tree_lstm_expert import ExpertTreeLSTM, OneDnnTreeLSTM
from harness import find_data, name_of, run
from records import Findings, Settings

OURS = ("float32", "bf16")
SMOOTH = 25  # mini-batches averaged for a point of a curve
WARM = 20  # steps that are not timed


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `autobatch train tree-lstm --data ../shared/data/sst --dim 256 --backend cpu`."""

    dim: int = 256
    batch_size: int = 64
    epochs: int = 2
    lr: float = 1e-3
    backend: str = "cpu"


class Way(ABC):
    """A model in training."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.dev: list[float] = []

    def take_step(self, instances: Sequence[Any]) -> None:
        """Learn from a mini-batch of prepared instances."""
        start = time.perf_counter()
        self.losses.append(self.learn(instances))
        self.seconds.append(time.perf_counter() - start)

    @abstractmethod
    def prepare(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Prepare instances, as far as that is possible ahead of time."""

    @abstractmethod
    def learn(self, instances: Sequence[Any]) -> float:
        """Take a step. Return the mean loss before it."""

    @abstractmethod
    def measure(self, instances: Sequence[Any]) -> float:
        """Return the sum of the losses."""


class Ours(Way):
    """Training with autobatch."""

    def __init__(self, workload: Workload, precision: str, config: Config) -> None:
        super().__init__()
        model = deepcopy(workload.model)
        self.loss = ab.batched(model.loss, backend=config.backend, precision=precision, plan_cache=0)
        self.optimizer = ab.optim.Adam(model, lr=config.lr)

    def prepare(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Record the instances."""
        return record(self.loss, instances)

    def learn(self, instances: Sequence[Any]) -> float:
        value, grads = self.loss.value_and_grad(instances)
        self.optimizer.step(grads)
        return float(value)

    def measure(self, instances: Sequence[Any]) -> float:
        return float(self.loss(instances).sum())


class Bf16TreeLSTM(ExpertTreeLSTM):
    """The expert's model with products of bf16 tensors, as in autocast: results are rounded to bf16 before they are
    copied.
    """

    def multiply(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute x @ weight.T + bias, in `out`."""
        out.copy_(torch.mm(x.bfloat16(), weight.bfloat16().t()))
        return out if bias is None else out.add_(bias)

    def add_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Add x @ weight.T to `out`."""
        out.add_(torch.mm(x.bfloat16(), weight.bfloat16().t()))

    def sum_products(self, d: Tensor, x: Tensor, out: Tensor) -> None:
        """Compute d.T @ x, the gradient of a weight."""
        out.copy_(torch.mm(d.bfloat16().t(), x.bfloat16()))


class Theirs(Way):
    """Training with PyTorch."""

    def __init__(self, workload: Workload, way: str, config: Config) -> None:
        super().__init__()
        expert, self.precision = THEIRS[way]
        self.model = expert(dim=workload.dim, **workload.dataset.sizes)
        self.model.copy_parameters(workload.model.state_dict())
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # the model overwrites it in every step
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr, fused=True)

    def prepare(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Prepare the instances of the model."""
        return [self.model.prepare(instance) for instance in instances]

    def learn(self, instances: Sequence[Any]) -> float:
        torch.set_float32_matmul_precision(self.precision)
        loss = self.model.losses(self.model.merge(instances)).mean()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()

    def measure(self, instances: Sequence[Any]) -> float:
        torch.set_float32_matmul_precision(self.precision)
        with torch.inference_mode():
            return float(self.model.losses(self.model.merge(instances)).sum())


THEIRS: dict[str, tuple[type[ExpertTreeLSTM], str]] = {
    "float32": (OneDnnTreeLSTM, "highest"),
    "medium": (ExpertTreeLSTM, "medium"),
    "bf16": (Bf16TreeLSTM, "highest"),
}
"""The fastest model of each; oneDNN operators called by name stay float32, whatever the setting."""


def measure(config: Config) -> Findings:
    """Train all variants."""
    torch.set_num_threads(config.threads)
    workload = load_workload("tree-lstm", find_data("sst"), config.dim, config.seed)
    ways: dict[str, Way] = {f"autobatch, {p}": Ours(workload, p, config) for p in OURS}
    ways |= {f"PyTorch, {p}": Theirs(workload, p, config) for p in THEIRS}
    train = {name: way.prepare(workload.dataset.train) for name, way in ways.items()}
    dev = {name: way.prepare(workload.dataset.dev) for name, way in ways.items()}
    numbers = list(range(len(workload.dataset.train)))
    n_steps = config.epochs * -(-len(numbers) // config.batch_size) * len(ways)
    with show_progress(n_steps) as progress:
        for _ in range(config.epochs):
            for batch in ab.minibatches(numbers, config.batch_size, rng=workload.rng):
                for name, way in ways.items():
                    way.take_step([train[name][number] for number in batch])
                    progress.advance("training", name)
            for name, way in ways.items():
                parts = ab.minibatches(dev[name], config.batch_size)
                way.dev.append(sum(map(way.measure, parts)) / max(len(dev[name]), 1))
    return compare(workload, ways, config)


def compare(workload: Workload, ways: Mapping[str, Way], config: Config) -> Findings:
    """Compare curves and times; distances are from our float32."""
    curves = {name: smooth(way.losses) for name, way in ways.items()}
    first = curves[f"autobatch, {OURS[0]}"]
    ms = {name: 1e3 * statistics.median(way.seconds[WARM:]) for name, way in ways.items()}
    gaps = {name: float(np.max(np.abs(curve / first - 1))) for name, curve in curves.items()}
    rows = [
        (
            name, f"{way.losses[0]:.4f}", f"{curves[name][-1]:.4f}", f"{gaps[name]:.3%}",
            *(f"{loss:.4f}" for loss in way.dev), f"{ms[name]:.1f}", f"{ms[wide_of(name)] / ms[name]:.2f}",
        )
        for name, way in ways.items()
    ]  # fmt: skip
    dev = (f"dev, epoch {number + 1}" for number in range(config.epochs))
    header = ("way", "first loss", "last losses", "furthest", *dev, "ms per step", "speed-up")
    data = name_of(workload.dataset)
    title = (
        f"tree-lstm, {data}, dim {config.dim}, mini-batches of {config.batch_size}, Adam at {config.lr}; means of "
        f"{SMOOTH} losses, how far they ever are from autobatch's in float32, and median milliseconds\n\n"
    )
    figures = {
        "data": data,
        "ms": ms,
        "furthest": gaps,
        "dev_loss": {name: way.dev for name, way in ways.items()},
        "losses": {name: [float(f"{loss:.5g}") for loss in way.losses] for name, way in ways.items()},
    }
    seconds = {name: way.seconds for name, way in ways.items()}
    return Findings(seconds, figures, title + format_table(header, rows), draw=lambda path: draw(curves, path))


def wide_of(name: str) -> str:
    """Return the float32 variant that another one is compared with."""
    return f"{name.split(',')[0]}, float32"


def smooth(losses: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Average neighbouring mini-batches."""
    n = min(SMOOTH, len(losses))
    return np.convolve(losses, np.full(n, 1 / n), mode="valid")


def draw(curves: Mapping[str, Any], path: Path) -> None:
    """Draw losses, and how far they are from our float32, into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    first = next(iter(curves.values()))
    for number, (name, curve) in enumerate(curves.items()):
        style = {"label": name, "color": f"C{number}", "linestyle": "-" if name.startswith("autobatch") else "--"}
        left.plot(curve, **style)
        right.plot(100 * (curve / first - 1), **style)
    left.set_ylabel(f"loss of a tree (nats; mean of {SMOOTH} mini-batches)")
    right.set_ylabel("loss above that of autobatch in float32 (%)")
    for axes in (left, right):
        axes.set_xlabel("mini-batch")
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    run(Config(), measure)
