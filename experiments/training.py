"""Claim 8: `autobatch train` learns what the same model learns in PyTorch, one instance at a time, epoch by epoch.

Both start from the same parameters, see the same mini-batches in the same order and take the same steps of Adam; ours
run the code of the command. Their losses differ only by rounding. Parts are tasks; if a task's real data does not exist
beside the checkout, the model's own data is drawn.

    python experiments/training.py only=sst,wikiner epochs=3
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.cli.progress import show_progress
from autobatch.cli.training.fitting import Epoch, Fitting
from autobatch.cli.workload import Workload, load_workload
from autobatch.models import find_model
from autobatch.models.spec import in_words
from charts import OURS, THEIRS, entitle, legend_below, panels
from claims import Claim, Records, run_claim
from digest import ROOT, RUNTIME
from harness import find_data, name_of
from records import Findings, Settings
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LOSS = "loss"


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `autobatch train MODEL --dim 64 --batch-size 32`, with the `--lr` and the `--epochs` of `TASKS`."""

    dim: int = 64
    batch_size: int = 32
    epochs: int = 0
    """Number of epochs; 0 for that of each task."""
    instances: int = 0
    """Number of instances to train and measure on, at most; 0 for all."""


@dataclass(frozen=True)
class Task:
    """A model and what it learns from.

    Attributes:
        model: its name.
        data: a folder of real data, or a generator.
        lr: learning rate, high enough that a few epochs do better than predicting the most frequent class.
        epochs: number of epochs; more if there is little data.
        metric: the model's metric that is drawn; LOSS if a few epochs are too few for any of them.
        twin: makes the same model in PyTorch.
    """

    model: str
    data: str
    lr: float
    epochs: int
    metric: str
    twin: Callable[[Workload], Twin]


class Twin(NamedTuple):
    """A PyTorch model: the module, how to prepare an instance, the loss of a prepared one, and predictions for many."""

    module: Any
    prepare: Callable[[Any], Any]
    loss: Callable[[Any], Any]
    predict: Callable[[Sequence[Any]], Any]


def make_baseline(workload: Workload) -> Twin:
    """Make the Tree-LSTM that throughput is compared with, which scores all nodes with one product."""
    from baselines.torch_models import TorchTreeLSTM

    model = TorchTreeLSTM(dim=workload.dim, **workload.dataset.sizes)
    model.copy_parameters(workload.model.state_dict())

    def predict(examples: Sequence[Any]) -> Any:
        scores = [model.scores(example).numpy() for example in examples]
        return np.stack([nodes[-1] for nodes in scores]), scores

    return Twin(model, model.prepare, model.loss, predict)


def make_tested(workload: Workload) -> Twin:
    """Make the twin that the tests compare a model with."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.twins.cases import AWAITING, CASES, MORE

    spec = workload.spec
    case = next(case for case in (*CASES, *MORE, *AWAITING) if case.model == spec.name)
    twin = case.make_twin(workload.model.state_dict())

    def predict(instances: Sequence[Any]) -> list[Any]:
        found = (getattr(twin, spec.predictor)(spec.given(instance)) for instance in instances)
        return [one.numpy() if hasattr(one, "numpy") else one for one in found]

    return Twin(twin, lambda instance: instance, twin.loss, predict)


TASKS = {
    "sst": Task("tree-lstm", "sst", 1e-3, 5, "root_accuracy", make_baseline),
    "wikiner": Task("bilstm-char-tagger", "wikiner", 5e-3, 10, "entity_f1", make_tested),
    "lattice": Task("lattice-lstm-ner", "lattice", 5e-3, 5, "tag_accuracy", make_tested),
    "iwslt15": Task("lstm-nmt-attention", "iwslt15", 3e-3, 5, LOSS, make_tested),
    "listops": Task("tree-lstm", "listops", 3e-3, 5, "root_accuracy", make_baseline),
    "python-ast": Task("tree-lstm", "python-ast", 1e-3, 5, "root_accuracy", make_baseline),
}
MODELS = ("tree_classifier", "tree_lstm", "bilstm_tagger", "crf", "lattice_lstm_ner", "seq2seq")
"""The modules of the models of `TASKS`."""
NAMES = {
    "sst": "SST, trees", "wikiner": "WikiNER, tagger", "lattice": "Chinese NER, lattices",
    "iwslt15": "English–Vietnamese", "listops": "ListOps, trees", "python-ast": "Python AST, trees",
}  # fmt: skip


def measure(config: Config, part: str) -> Findings:
    """Train a model and its twin, an epoch of each in turn."""
    import torch

    torch.set_num_threads(config.threads)
    task = TASKS[part]
    data = find_data(task.data) or (task.data if task.data in find_model(task.model).generators else None)
    workload = cut(load_workload(task.model, data, config.dim, config.seed), config.instances)
    theirs = Theirs(task, workload, config)
    ours = Fitting(workload, policy="auto", backend="auto", batch_size=config.batch_size, lr=task.lr)
    seconds: dict[str, list[float]] = {"autobatch, epoch": [], "PyTorch, epoch": []}
    n_epochs, epochs = config.epochs or task.epochs, []
    with show_progress(n_epochs * ours.steps_per_epoch) as progress:
        for epoch in ours.epochs(n_epochs, progress):
            start = time.perf_counter()
            loss = theirs.epoch()
            seconds["PyTorch, epoch"].append(time.perf_counter() - start)
            seconds["autobatch, epoch"].append(epoch.seconds)
            epochs.append((epoch, loss, theirs.metrics()))
    figures = compare(task, workload, epochs)
    return Findings(seconds, figures, table_of(part, figures).text())


def cut(workload: Workload, n_instances: int) -> Workload:
    """Take the first instances, to train and measure on."""
    if not n_instances:
        return workload
    data = workload.dataset
    return replace(workload, dataset=replace(data, train=data.train[:n_instances], dev=data.dev[:n_instances]))


class Theirs:
    """Training with PyTorch, with the parameters and the order of a workload that has not been trained yet."""

    def __init__(self, task: Task, workload: Workload, config: Config) -> None:
        import torch

        self.workload, self.batch_size, self.twin = workload, config.batch_size, task.twin(workload)
        self.train = [self.twin.prepare(instance) for instance in workload.dataset.train]
        self.dev = [self.twin.prepare(instance) for instance in workload.dataset.dev]
        self.rng = deepcopy(workload.rng)
        self.optimizer = torch.optim.Adam(self.twin.module.parameters(), lr=task.lr)

    def epoch(self) -> float:
        """See every instance once. Return the mean loss."""
        from torch import autograd

        total = 0.0
        for batch in ab.minibatches(self.train, self.batch_size, rng=self.rng):
            self.optimizer.zero_grad()
            for example in batch:
                loss = self.twin.loss(example)
                autograd.backward(loss / len(batch))
                total += loss.item()
            self.optimizer.step()
        return total / len(self.train)

    def metrics(self) -> dict[str, float]:
        """Compute our model's metrics on the development data."""
        import torch

        with torch.no_grad():
            outputs = self.twin.predict(self.dev)
        dataset, spec = self.workload.dataset, self.workload.spec
        assert spec.count_correct is not None
        counted = spec.count_correct(outputs, dataset.dev, dataset.vocabularies)
        return {metric: spec.metrics.get(metric, share)(*counts) for metric, counts in counted.items()}


def share(n_right: int, n_all: int) -> float:
    """Return the share of correct answers."""
    return n_right / max(n_all, 1)


def compare(task: Task, workload: Workload, epochs: Sequence[tuple[Epoch, float, dict[str, float]]]) -> dict[str, Any]:
    """Return figures that compare the two."""
    gaps = [abs(ours.metrics[metric] - theirs[metric]) for ours, _, theirs in epochs for metric in theirs]
    return {
        "model": task.model,
        "data": name_of(workload.dataset),
        "lr": task.lr,
        "largest_gap_points": 100 * max(gaps),
        "autobatch": [{"loss": ours.loss, **ours.metrics} for ours, _, _ in epochs],
        "torch": [{"loss": loss, **theirs} for _, loss, theirs in epochs],
    }


def name_of_task(part: str, figures: Any) -> str:
    """Name a task, by its data if these are not the real ones."""
    return NAMES[part] if figures["data"] == TASKS[part].data else f"{figures['model']} on {figures['data']}"


def table_of(part: str, figures: Any) -> Table:
    """Show loss and metrics of every epoch."""
    metrics = [name for name in figures["autobatch"][0] if name != "loss"]
    rows = []
    for number, pair in enumerate(zip(figures["autobatch"], figures["torch"], strict=True), start=1):
        losses = (f"{one['loss']:.4f}" for one in pair)
        rows.append((f"{number}", *losses, *(f"{100 * one[metric]:.2f}%" for metric in metrics for one in pair)))
    header = ("epoch", *(f"{what}, {who}" for what in ("loss", *map(in_words, metrics)) for who in ("ours", "PyTorch")))
    title = (
        f"{name_of_task(part, figures)} ({figures['model']}, {figures['data']}, learning rate {figures['lr']:g}): mean "
        f"training loss, and metrics on the development data, at most {figures['largest_gap_points']:.2f} points apart"
    )
    return Table(title, header, rows)


def tabulate(records: Records) -> list[Table]:
    """Show all tasks."""
    return [table_of(part, record.figures) for part, record in records.items()]


def tabulate_last(records: Records) -> Table:
    """Show all tasks after the last epoch."""
    rows = []
    for part, record in records.items():
        figures, metric = record.figures, TASKS[part].metric
        ours, theirs = figures["autobatch"][-1], figures["torch"][-1]
        numbers = [f"{100 * one[metric]:.2f}%" for one in (ours, theirs)] if metric != LOSS else losses_of(figures)
        what = in_words(metric) if metric != LOSS else "training loss, epoch by epoch"
        gap = f"{figures['largest_gap_points']:.2f} points"
        rows.append((name_of_task(part, figures), figures["model"], f"{len(figures['torch'])}", what, *numbers, gap))
    header = ("", "model", "epochs", "metric", "ours", "PyTorch", "largest gap, all metrics and epochs")
    return Table("", header, rows)


def losses_of(figures: Any) -> list[str]:
    """Format the losses of all epochs: ours, and PyTorch's."""
    return [", ".join(f"{epoch['loss']:.2f}" for epoch in figures[who]) for who in ("autobatch", "torch")]


def draw(records: Records, figure: Figure) -> None:
    """Draw loss and metric of every task by epoch, ours over the twin's."""
    from matplotlib.ticker import MaxNLocator

    parts = list(records)
    n_columns = min(3, len(parts))
    n_bands = -(-len(parts) // n_columns)
    axes = panels(figure, 2 * n_bands, n_columns, 1.6)
    for ax in axes:
        ax.set_visible(False)
    for k, part in enumerate(parts):
        first = 2 * n_columns * (k // n_columns) + k % n_columns
        figures, metric = records[part].figures, TASKS[part].metric
        drawn = [(axes[first], LOSS, 1), *([(axes[first + n_columns], metric, 100)] if metric != LOSS else [])]
        for ax, what, scale in drawn:
            ax.set_visible(True)
            for who, color, mark, width in (("torch", THEIRS, "-", 4), ("autobatch", OURS, "o--", 1.2)):
                values = [scale * one[what] for one in figures[who]]
                label = {"torch": "PyTorch, one instance at a time", "autobatch": "autobatch"}[who]
                ax.plot(range(1, len(values) + 1), values, mark, color=color, lw=width, label=label)
            ax.set_ylabel("training loss (nats)" if what == LOSS else f"{in_words(what)} (%)", fontsize=7.5)
            ax.set_xlabel("epoch", fontsize=7.5)
            ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes[first].set_title(name_of_task(part, figures), loc="left")
    legend_below(figure, axes[0])
    entitle(figure, "Trained batched, models learn what PyTorch learns one instance at a time (one seed)")


def see(records: Records) -> str:
    """State how far apart the two end, and how much faster ours is."""
    parts = []
    for part, record in records.items():
        metric, figures = TASKS[part].metric, record.figures
        ours, theirs = (figures[who][-1][metric] for who in ("autobatch", "torch"))
        if metric == LOSS:
            reached = f"training loss {ours:.2f}, PyTorch's {theirs:.2f}"
        else:
            apart = f"at most {figures['largest_gap_points']:.2f} points apart"
            reached = f"{in_words(metric)} {100 * ours:.1f}%, {apart}"
        text = f"{NAMES[part]}: {reached}"
        if record.seconds:
            ours, theirs = (statistics.median(record.seconds[f"{who}, epoch"]) for who in ("autobatch", "PyTorch"))
            text += f", {theirs / ours:.0f} times as fast"
        parts.append(text)
    return f"After the last epoch: {'; '.join(parts)}."


CLAIM = Claim(
    name="training",
    heading="Batched training matches PyTorch training one instance at a time",
    claimed=(
        "With the same initial parameters, order of mini-batches and steps of Adam, the loss of every "
        "epoch and the metrics on the development data equal those of the same model in PyTorch, up to rounding. One "
        "seed. If a metric is still near 0 after so few epochs, such as the BLEU of translations, the loss is compared "
        "instead."
    ),
    settings=Config(),
    quick=Config(dim=16, batch_size=16, epochs=2, instances=48),
    parts=tuple(TASKS),
    quick_parts=("sst",),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=(*RUNTIME, *(f"autobatch.models.{name}" for name in MODELS), "autobatch.cli.training.fitting"),
    needs=("torch", "sacrebleu"),
)

if __name__ == "__main__":
    run_claim(CLAIM)
