"""Question: does training with autobatch reach the accuracy of the same model trained in PyTorch, tree by tree?

Both start from the same parameters, see the same mini-batches in the same order and take the same steps of Adam. Their
losses drift apart only by rounding, so after some epochs their accuracies on the development data must lie within a
point of each other. `autobatch train` trains like the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import autobatch as ab
from against_torch import TorchTreeLSTM, labels_of
from autobatch.cli.results import format_table
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from harness import Findings, Settings, load_sst_or_listops, name_of, run

Accuracy = tuple[float, float]  # of the roots, of all nodes


@dataclass(frozen=True)
class Config(Settings):
    """As `autobatch train tree-lstm --dim 128 --batch-size 64 --epochs 5`."""

    dim: int = 128
    batch_size: int = 64
    epochs: int = 5
    lr: float = 1e-3


def measure(config: Config) -> Findings:
    """Train both, an epoch of each in turn."""
    torch.set_num_threads(config.threads)
    data = load_sst_or_listops(config.seed)
    ours = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    theirs = TorchTreeLSTM(dim=config.dim, **data.sizes)
    theirs.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in ours.state_dict().items()})
    train_ours, train_theirs = Ours(ours, data.train, config), Theirs(theirs, data.train, config)
    reached: list[tuple[Accuracy, Accuracy]] = []
    for epoch in range(config.epochs):
        train_ours.epoch(np.random.default_rng([config.seed, epoch]))
        train_theirs.epoch(np.random.default_rng([config.seed, epoch]))
        reached.append((train_ours.accuracy(data.dev), train_theirs.accuracy(data.dev)))
    rows = [
        (str(epoch), *(f"{share:.2%}" for share in (*ours_at, *theirs_at)))
        for epoch, (ours_at, theirs_at) in enumerate(reached, start=1)
    ]
    title = f"{name_of(data)}, dim {config.dim}, batch {config.batch_size}; accuracy on the development data\n\n"
    header = ("epoch", "autobatch root", "autobatch nodes", "PyTorch root", "PyTorch nodes")
    figures = {"data": name_of(data), "autobatch": [o for o, _ in reached], "torch": [t for _, t in reached]}
    return Findings({}, figures, title + format_table(header, rows))


class Ours:
    """Training with autobatch."""

    def __init__(self, model: TreeLSTM, trees: Sequence[Tree[int]], config: Config) -> None:
        self.config = config
        self.loss, self.scores = ab.batched(model.loss), ab.batched(model.scores)
        self.graphs = self.loss.record_all(trees)
        self.optimizer = ab.optim.Adam(model, lr=config.lr)

    def epoch(self, rng: np.random.Generator) -> None:
        """See every tree once."""
        for batch in ab.minibatches(self.graphs, self.config.batch_size, rng=rng):
            _, grads = self.loss.value_and_grad(batch)
            self.optimizer.step(grads)

    def accuracy(self, trees: Sequence[Tree[int]]) -> Accuracy:
        """Share of right answers at the roots and at all nodes."""
        _, node_logits = self.scores(trees)
        return share_right(trees, [np.argmax(logits, axis=-1) for logits in node_logits])


class Theirs:
    """Training with PyTorch, tree by tree."""

    def __init__(self, model: TorchTreeLSTM, trees: Sequence[Tree[int]], config: Config) -> None:
        self.config, self.model = config, model
        self.examples = [(tree, labels_of(tree)) for tree in trees]
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)

    def epoch(self, rng: np.random.Generator) -> None:
        """See every tree once."""
        for batch in ab.minibatches(self.examples, self.config.batch_size, rng=rng):
            self.optimizer.zero_grad()
            for tree, labels in batch:
                torch.autograd.backward(self.model.loss(tree, labels) / len(batch))
            self.optimizer.step()

    def accuracy(self, trees: Sequence[Tree[int]]) -> Accuracy:
        """Share of right answers at the roots and at all nodes."""
        with torch.no_grad():
            return share_right(trees, [self.model.scores(tree).argmax(dim=1).numpy() for tree in trees])


def share_right(trees: Sequence[Tree[int]], answers: Sequence[np.ndarray]) -> Accuracy:
    """Compare answers for all nodes, in postorder, with the labels."""
    right = [labels_of(tree).numpy() == np.asarray(answer) for tree, answer in zip(trees, answers, strict=True)]
    return float(np.mean([tree[-1] for tree in right])), float(np.mean(np.concatenate(right)))


if __name__ == "__main__":
    run(Config(), measure)
