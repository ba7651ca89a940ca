"""Measure gradients of each instance, and sums of clipped gradients, compared with the gradients of the sum.

Chains are LSTMs over sequences of equal length, for which PyTorch has `torch.func.vmap` of `grad`. Trees are binary and
of different sizes, so PyTorch needs a loop over instances; autobatch runs such a loop too, for comparison. All variants
have the same parameters, use one thread and take turns; ours run recorded graphs with cached plans. Gradients are
compared first. PyTorch clips the gradients of each instance; ours computes norms without these gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

import autobatch as ab
from autobatch.cli.results import format_table
from harness import medians, run, take_turns
from records import Findings, Settings

WARM_UP, QUICK = 2, 3
CLASSES = 8
Ways: TypeAlias = dict[str, Callable[[], Any]]
Weights: TypeAlias = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the models and the mini-batches."""

    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    length: int = 20
    """Steps of a chain, and the most leaves of a tree."""
    max_norm: float = 1.0
    repeats: int = 20
    quick: bool = False


class Chain(ab.Module):
    """An LSTM over frames, and a class."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.lstm, self.output = ab.LSTMCell(dim, dim, rng=rng), ab.Linear(dim, CLASSES, rng=rng)
        self.dim = dim

    @ab.cell
    def step(self, frame: Any, state: Any) -> Any:
        return self.lstm(frame, state)

    @ab.cell
    def score(self, h: Any, label: int) -> Any:
        """Compute the loss of the last state."""
        return ab.cross_entropy(self.output(h), label)

    def loss(self, instance: Any) -> Any:
        """Compute the loss of frames and a label."""
        frames, label = instance
        zeros = np.zeros(self.dim, np.float32)
        state = zeros, zeros
        for frame in frames:
            state = self.step(frame, state)
        return self.score(state[0], label)


def chain_loss(weights: Weights, frames: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Compute the loss of a chain in PyTorch."""
    h = c = torch.zeros(frames.shape[1])
    inputs = frames @ weights["lstm.weight_ih"].T + weights["lstm.bias_ih"] + weights["lstm.bias_hh"]
    for x in inputs:
        i, f, g, o = (x + weights["lstm.weight_hh"] @ h).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return F.cross_entropy(weights["output.weight"] @ h + weights["output.bias"], label)


class Tree(ab.Module):
    """A binary Tree-LSTM over word vectors, and a class."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(rng.standard_normal((50, dim)))
        self.gates, self.output = ab.Linear(2 * dim, 5 * dim, rng=rng), ab.Linear(dim, CLASSES, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        c = ab.lookup(self.words, word)
        return ab.tanh(c), c

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        i, f, g, o, u = ab.split(self.gates(ab.concat([left[0], right[0]])), 5)
        c = ab.sigmoid(i) * ab.tanh(u) + ab.sigmoid(f) * left[1] + ab.sigmoid(g) * right[1]
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def score(self, h: Any, label: int) -> Any:
        """Compute the loss of the root."""
        return ab.cross_entropy(self.output(h), label)

    def state(self, tree: Any) -> Any:
        return self.leaf(tree) if isinstance(tree, int) else self.merge(*map(self.state, tree))

    def loss(self, instance: Any) -> Any:
        """Compute the loss of a tree and a label."""
        return self.score(self.state(instance[0])[0], instance[1])


def tree_loss(weights: Weights, tree: Any, label: torch.Tensor) -> torch.Tensor:
    """Compute the loss of a tree in PyTorch."""

    def state(tree: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(tree, int):
            return torch.tanh(weights["words"][tree]), weights["words"][tree]
        (h, left), (k, right) = map(state, tree)
        i, f, g, o, u = (weights["gates.weight"] @ torch.cat([h, k]) + weights["gates.bias"]).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * left + torch.sigmoid(g) * right
        return torch.sigmoid(o) * torch.tanh(c), c

    return F.cross_entropy(weights["output.weight"] @ state(tree)[0] + weights["output.bias"], label)


def measure(config: Config) -> Findings:
    """Time all variants, for chains and trees of every width."""
    torch.set_num_threads(config.threads)
    seconds: dict[str, list[float]] = {}
    figures, rows = dict[str, Any](), list[tuple[str, ...]]()
    for dim in config.dims:
        for what, make_ways in (("chains", of_chains), ("trees", of_trees)):
            ways = make_ways(config, dim, np.random.default_rng(config.seed))
            for way in (*ways.values(),) * WARM_UP:
                way()
            timed = take_turns(ways, QUICK if config.quick else config.repeats)
            seconds |= {f"{what}, dim {dim}, {way}": times for way, times in timed.items()}
            found = {way: round(1e3 * median, 2) for way, median in medians(timed).items()}
            figures[f"{what}, dim {dim}"] = found
            rows += [(what, str(dim), way, f"{ms:.2f}") for way, ms in found.items()]
    title = f"{config.batch_size} instances, of {config.length} steps or up to {config.length} leaves; median ms\n\n"
    return Findings(seconds, figures, title + format_table(("", "dim", "way", "ms"), rows))


def of_chains(config: Config, dim: int, rng: np.random.Generator, backend: str = "cpu") -> Ways:
    """Make all variants for chains, and check that their gradients are equal."""
    model = Chain(dim, rng)
    frames = rng.standard_normal((config.batch_size, config.length, dim)).astype(np.float32)
    labels = rng.integers(0, CLASSES, config.batch_size)
    weights, given = to_torch(model), (torch.from_numpy(frames), torch.from_numpy(labels))
    batch = [*zip(frames, labels.tolist(), strict=True)]
    gradients = torch.func.vmap(torch.func.grad(chain_loss), in_dims=(None, 0, 0))
    ways = our_ways(model, batch, config, backend)
    ways["PyTorch, vmap"] = lambda: gradients(weights, *given)
    ways["PyTorch, vmap and clip"] = lambda: clip(gradients(weights, *given), config.max_norm)
    compare(ways["each"]()[1], ways["PyTorch, vmap"]())
    compare(ways["clipped"]()[1], ways["PyTorch, vmap and clip"]())
    return ways


def of_trees(config: Config, dim: int, rng: np.random.Generator, backend: str = "cpu") -> Ways:
    """Make all variants for trees, and check that their gradients are equal."""
    model = Tree(dim, rng)
    sizes = rng.permutation(np.linspace(1, config.length, config.batch_size).round().astype(int))
    batch = [(draw_tree(rng, int(n)), int(rng.integers(CLASSES))) for n in sizes]
    weights, labels = to_torch(model), [torch.tensor(label) for _, label in batch]
    ways = our_ways(model, batch, config, backend)
    alone = ab.batched(model.loss, backend=backend)
    graphs = alone.record_all(batch)

    def loop() -> list[dict[str, Any]]:
        found = []
        for graph in graphs:
            grads = alone.value_and_grad([graph], reduce="sum")[1]
            found.append({name: np.array(np.asarray(gradient)) for name, gradient in grads.items()})
        return found

    def theirs() -> dict[str, torch.Tensor]:
        found = []
        for (tree, _), label in zip(batch, labels, strict=True):
            value = tree_loss(weights, tree, label)
            found.append(torch.autograd.grad(value, [*weights.values()], materialize_grads=True))
        return {name: torch.stack(parts) for name, parts in zip(weights, zip(*found, strict=True), strict=True)}

    for weight in weights.values():
        weight.requires_grad_()
    ways["ours, a loop"] = loop
    ways["PyTorch, a loop"] = theirs
    ways["PyTorch, a loop and clip"] = lambda: clip(theirs(), config.max_norm)
    compare(ways["each"]()[1], theirs())
    compare(ways["clipped"]()[1], clip(theirs(), config.max_norm))
    return ways


def our_ways(model: Any, batch: Sequence[Any], config: Config, backend: str) -> Ways:
    """Make our variants: gradients of the sum, of each instance, and the sum of clipped ones."""
    loss = ab.batched(model.loss, backend=backend)
    graphs = loss.record_all(batch)
    options = {"clip": "per-instance", "max_norm": config.max_norm}
    return {
        "sum": partial(loss.value_and_grad, graphs, reduce="sum"),
        "each": partial(loss.value_and_grad, graphs, reduce="none"),
        "clipped": partial(loss.value_and_grad, graphs, reduce="sum", **options),
    }


def clip(gradients: Mapping[str, torch.Tensor], max_norm: float) -> dict[str, torch.Tensor]:
    """Sum gradients over instances, each scaled down if its norm is too large."""
    flat = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]
    norms = torch.stack([one.square().sum(1) for one in flat]).sum(0).sqrt()
    factors = (max_norm / norms).clamp(max=1.0)
    return {name: torch.einsum("b,b...->...", factors, gradient) for name, gradient in gradients.items()}


def compare(ours: Mapping[str, Any], theirs: Mapping[str, torch.Tensor]) -> None:
    """Check that gradients are equal up to rounding."""
    for name, gradient in theirs.items():
        np.testing.assert_allclose(np.asarray(ours[name]), gradient.detach().numpy(), rtol=2e-3, atol=2e-5)


def to_torch(model: ab.Module) -> dict[str, torch.Tensor]:
    """Return the parameters as tensors."""
    return {name: torch.tensor(data) for name, data in model.state_dict().items()}


def draw_tree(rng: np.random.Generator, n_leaves: int) -> Any:
    """Draw a binary tree over words."""
    if n_leaves == 1:
        return int(rng.integers(50))
    left = int(rng.integers(1, n_leaves))
    return draw_tree(rng, left), draw_tree(rng, n_leaves - left)


if __name__ == "__main__":
    run(Config(), measure)
