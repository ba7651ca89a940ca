"""Question: how much faster than PyTorch, tree by tree, is the reference backend, with no compiled kernel yet?

Both run the Tree-LSTM of the README on the same trees with the same parameters, in turn, in one process, with one
thread each. PyTorch runs eagerly, tree by tree, with what can be computed at once within a tree (torch_models.py); its
tensors are made beforehand, as our trees are recorded beforehand. PyTorch batched over trees by hand is several times
faster and comes into the comparison with the compiled backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from harness import Findings, Settings, load_sst_or_listops, medians, name_of, run, take_turns
from peers.torch_models import TorchTreeLSTM

TOLERANCE = 1e-4  # relative, of the losses in float32, before training parts the two
LR = 1e-3


@dataclass(frozen=True)
class Config(Settings):
    """One sweep is over all mini-batches, the first ones in file order."""

    dim: int = 64
    batch_size: int = 64
    n_minibatches: int = 2
    policy: str = "agenda"
    repeats: int = 11


def measure(config: Config) -> Findings:
    """Check that both compute the same losses, then time them."""
    torch.set_num_threads(config.threads)
    data = load_sst_or_listops(config.seed)
    trees = data.train[: config.batch_size * config.n_minibatches]
    ours = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    theirs = TorchTreeLSTM(dim=config.dim, **data.sizes)
    theirs.copy_parameters(ours.state_dict())
    check_equal(ours, theirs, trees[:8])
    seconds = take_turns(
        {**torch_ways(theirs, trees, config.batch_size), **our_ways(ours, trees, config)}, config.repeats
    )
    rate = {way: len(trees) / median for way, median in medians(seconds).items()}
    rows = [
        (mode, *(f"{rate[f'{who}, {mode}']:,.0f}" for who in ("torch", "autobatch")), f"{ratio(rate, mode):.1f}x")
        for mode in ("inference", "training")
    ]
    title = (
        f"{name_of(data)}, dim {config.dim}, mini-batches of {config.batch_size}, {config.threads} threads; "
        f"trees per second\n\n"
    )
    table = title + format_table(("mode", "PyTorch, tree by tree", f"autobatch, {config.policy}", "ratio"), rows)
    figures = {"data": name_of(data), "trees_per_s": {way: round(r, 1) for way, r in rate.items()}}
    return Findings(seconds, figures, table)


def ratio(rate: dict[str, float], mode: str) -> float:
    """How many times as fast ours is."""
    return rate[f"autobatch, {mode}"] / rate[f"torch, {mode}"]


def check_equal(ours: TreeLSTM, theirs: TorchTreeLSTM, trees: Sequence[Tree[int]]) -> None:
    """Refuse to compare models that compute different losses."""
    losses = ab.batched(ours.loss)(trees)
    with torch.no_grad():
        expected = [float(theirs.loss(theirs.prepare(tree))) for tree in trees]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)


def torch_ways(model: TorchTreeLSTM, trees: Sequence[Tree[int]], size: int) -> dict[str, Callable[[], None]]:
    """PyTorch on all mini-batches: the loss of each tree, and its gradients and Adam."""
    batches = list(ab.minibatches([model.prepare(tree) for tree in trees], size))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def infer() -> None:
        with torch.no_grad():
            for batch in batches:
                torch.stack([model.loss(example) for example in batch])

    def train() -> None:
        for batch in batches:
            optimizer.zero_grad()
            for example in batch:
                torch.autograd.backward(model.loss(example) / len(batch))
            optimizer.step()

    return {"torch, inference": infer, "torch, training": train}


def our_ways(model: TreeLSTM, trees: Sequence[Tree[int]], config: Config) -> dict[str, Callable[[], None]]:
    """The same, batched; merging, scheduling and placing included."""
    loss = ab.batched(model.loss, policy=config.policy, backend="reference")
    batches = list(ab.minibatches(loss.record_all(trees), config.batch_size))
    optimizer = ab.optim.Adam(model, lr=LR)

    def infer() -> None:
        for batch in batches:
            loss(batch)

    def train() -> None:
        for batch in batches:
            _, grads = loss.value_and_grad(batch)
            optimizer.step(grads)

    return {"autobatch, inference": infer, "autobatch, training": train}


if __name__ == "__main__":
    run(Config(), measure)
