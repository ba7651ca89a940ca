"""Measure products of a loss's Hessian and a vector, compared with PyTorch one tree at a time.

The trees and the Tree-LSTM are those of `experiments/per_instance.py`. The product is the gradient of the loss's
derivative along the vector. In autobatch the program asks for that derivative (`ab.jvp`), and `value_and_grad` of the
batched function returns the gradient. PyTorch has two variants, `torch.func.jvp` of `torch.func.grad`, and a gradient
of a gradient; both run one tree at a time, because `vmap` does not support trees of different shapes. All variants have
the same parameters and vectors, use one thread and take turns; ours run recorded graphs with cached plans. Products are
compared first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import autobatch as ab
from autobatch.cli.results import format_table
from harness import medians, run, take_turns
from per_instance import CLASSES, Tree, Ways, compare, draw_tree, to_torch, tree_loss
from records import Findings, Settings

WARM_UP, QUICK = 2, 3


@dataclass(frozen=True)
class Config(Settings):
    """Widths of the model, and the mini-batches."""

    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    n_leaves: int = 20
    """The most leaves of a tree."""
    repeats: int = 15
    quick: bool = False


class Along(ab.Module):
    """The derivative of a model's loss along a vector.

    Args:
        model: a model with a loss.
        vector: the direction, by parameter name.
    """

    def __init__(self, model: Tree, vector: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.model = model
        self.vector = [ab.Parameter(vector[name], trainable=False) for name in model.parameters()]

    def slope(self, instance: Any) -> Any:
        """Return the derivative of an instance's loss along the vector: a scalar."""
        parameters = tuple(self.model.parameters().values())
        return ab.jvp(self.model.loss, (instance,), tuple(self.vector), wrt=lambda instance: parameters)[1]


def make_ways(config: Config, dim: int, backend: str = "cpu") -> Ways:
    """Make all variants for trees of one width, and check that their products are equal."""
    rng = np.random.default_rng(config.seed)
    model = Tree(dim, rng)
    vector = {name: rng.standard_normal(p.shape).astype(np.float32) for name, p in model.parameters().items()}
    sizes = rng.permutation(np.linspace(1, config.n_leaves, config.batch_size).round().astype(int))
    batch = [(draw_tree(rng, int(n)), int(rng.integers(CLASSES))) for n in sizes]
    loss, slope = ab.batched(model.loss, backend=backend), ab.batched(Along(model, vector).slope, backend=backend)
    graphs, sloping = loss.record_all(batch), slope.record_all(batch)
    weights, along = to_torch(model), {name: torch.from_numpy(own) for name, own in vector.items()}
    trees = [(tree, torch.tensor(label)) for tree, label in batch]
    ways: Ways = {
        "autobatch, gradients alone": partial(loss.value_and_grad, graphs, reduce="sum"),
        "autobatch": partial(slope.value_and_grad, sloping, reduce="sum"),
        "PyTorch, jvp of grad": partial(forward_over_reverse, weights, along, trees),
        "PyTorch, grad of grad": partial(reverse_over_reverse, weights, along, trees),
    }
    ours = {name.removeprefix("model."): product for name, product in ways["autobatch"]()[1].items()}
    for way in ("PyTorch, jvp of grad", "PyTorch, grad of grad"):
        compare(ours, ways[way]())
    return ways


def forward_over_reverse(
    weights: Mapping[str, torch.Tensor], vector: Mapping[str, torch.Tensor], trees: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """Return the sum of all trees' products, by `torch.func`."""
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for tree, label in trees:
        gradient = torch.func.grad(partial(_loss_of, tree, label))
        for name, product in torch.func.jvp(gradient, (dict(weights),), (dict(vector),))[1].items():
            total[name] += product
    return total


def reverse_over_reverse(
    weights: Mapping[str, torch.Tensor], vector: Mapping[str, torch.Tensor], trees: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """Return the sum of all trees' products, by two backward passes each."""
    own = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for tree, label in trees:
        gradients = torch.autograd.grad(
            tree_loss(own, tree, label), [*own.values()], create_graph=True, materialize_grads=True
        )
        slope = torch.stack([(g * vector[name]).sum() for name, g in zip(own, gradients, strict=True)]).sum()
        products = torch.autograd.grad(slope, [*own.values()], materialize_grads=True)
        for name, product in zip(own, products, strict=True):
            total[name] += product
    return total


def _loss_of(tree: Any, label: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return tree_loss(weights, tree, label)


def measure(config: Config) -> Findings:
    """Time all variants, for every width."""
    torch.set_num_threads(config.threads)
    seconds: dict[str, list[float]] = {}
    figures, rows = dict[str, Any](), list[tuple[str, ...]]()
    for dim in config.dims:
        ways = make_ways(config, dim)
        for way in (*ways.values(),) * WARM_UP:
            way()
        timed = take_turns(ways, QUICK if config.quick else config.repeats)
        seconds |= {f"dim {dim}, {way}": times for way, times in timed.items()}
        found = {way: round(1e3 * median, 2) for way, median in medians(timed).items()}
        figures[f"dim {dim}"] = found
        rows += [(str(dim), way, f"{ms:.2f}", f"{ms / found['autobatch']:.2f}") for way, ms in found.items()]
    title = f"{config.batch_size} trees of up to {config.n_leaves} leaves; median ms, and beside ours\n\n"
    return Findings(seconds, figures, title + format_table(("dim", "way", "ms", "times"), rows))


if __name__ == "__main__":
    run(Config(), measure)
