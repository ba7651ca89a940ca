"""Measure sentences of any length without padding, compared with PyTorch's padded and nested tensors.

A classifier reads the words of a sentence in residual layers, pools them by attention and by a maximum, and computes a
cross-entropy. Lengths are spread evenly over 1 to 100. PyTorch computes a mini-batch padded to the longest sentence,
with a mask, and as nested tensors (the jagged layout). Ours is one cell, for mini-batches that are recorded in every
call, and for recorded ones with cached plans. All variants have the same parameters, use one thread, take turns and
start from the same lists of arrays; losses and gradients are compared first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

import autobatch as ab
from autobatch.cli.results import format_table
from harness import medians, run, take_turns
from records import Findings, Settings

WARM_UP, QUICK = 3, 5
CLASSES = 8
Ways: TypeAlias = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the model and the mini-batch."""

    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    longest: int = 100
    words: int = 1000
    repeats: int = 60
    quick: bool = False


class Sentence(NamedTuple):
    """The ids of words, and a class."""

    words: NDArray[np.int64]
    label: int


class Reader(ab.Module):
    """Residual layers over words, pooling by attention and by a maximum, and logits."""

    def __init__(self, n_words: int, dim: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Embedding(n_words, dim, rng=rng)
        self.layers = [ab.Linear(dim, dim, rng=rng) for _ in range(2)]
        self.query = ab.Parameter(rng.standard_normal(dim) / math.sqrt(dim))
        self.output = ab.Linear(2 * dim, CLASSES, rng=rng)

    @ab.cell(ragged=("words",))
    def read(self, words: Any, label: int) -> Any:
        """Compute the loss of a sentence."""
        x = self.embedding(words)
        for layer in self.layers:
            x = x + ab.tanh(layer(x))
        pooled = ab.softmax(x @ self.query) @ x
        return ab.cross_entropy(self.output(ab.concat((pooled, ab.max(x, axis=0)))), label)

    def loss(self, sentence: Sentence) -> Any:
        return self.read(*sentence)


class TorchReader(torch.nn.Module):
    """The same model in PyTorch, with the same parameters."""

    def __init__(self, model: Reader, n_words: int, dim: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(n_words, dim)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(2))
        self.query = torch.nn.Parameter(torch.empty(dim))
        self.output = torch.nn.Linear(2 * dim, CLASSES)
        self.load_state_dict({name: torch.from_numpy(data) for name, data in model.state_dict().items()})

    def states(self, words: torch.Tensor) -> torch.Tensor:
        """Compute the states of all words."""
        x: torch.Tensor = self.embedding(words)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x

    def padded(self, sentences: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """Compute the losses of sentences, padded to the longest."""
        words = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)
        is_word = torch.arange(words.shape[1]) < torch.tensor([len(s) for s in sentences])[:, None]
        x = self.states(words)
        scores = (x @ self.query).masked_fill(~is_word, -math.inf)
        pooled = (torch.softmax(scores, dim=1)[:, None] @ x)[:, 0]
        largest = x.masked_fill(~is_word[:, :, None], -math.inf).amax(dim=1)
        return self.losses(pooled, largest, labels)

    def nested(self, sentences: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """Compute the losses of sentences as a nested tensor. The softmax is written by hand, because the gradient of
        PyTorch's own is wrong (2.13).
        """
        x = self.states(torch.nested.nested_tensor(sentences, layout=torch.jagged))
        n, rows = len(sentences), x.values()
        owner = torch.repeat_interleave(torch.arange(n), torch.tensor([len(s) for s in sentences]))
        scores = rows @ self.query
        peaks = torch.full((n,), -math.inf).scatter_reduce(0, owner, scores.detach(), "amax")
        powers = torch.exp(scores - peaks[owner])
        weights = powers / torch.zeros(n).index_add(0, owner, powers)[owner]
        pooled = torch.zeros(n, rows.shape[1]).index_add(0, owner, weights[:, None] * rows)
        return self.losses(pooled, x.amax(dim=1), labels)

    def losses(self, pooled: torch.Tensor, largest: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute the cross-entropy of each sentence."""
        logits = self.output(torch.cat((pooled, largest), dim=1))
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def measure(config: Config) -> Findings:
    """Time all variants for every width."""
    torch.set_num_threads(config.threads)
    seconds: dict[str, list[float]] = {}
    figures, rows = dict[str, Any](), list[tuple[str, ...]]()
    for dim in config.dims:
        rng = np.random.default_rng(config.seed)
        model = Reader(config.words, dim, rng)
        sentences = draw(config, rng)
        for mode, make_ways in (("inference", inference), ("training", training)):
            ways = make_ways(model, TorchReader(model, config.words, dim), sentences)
            for way in (*ways.values(),) * WARM_UP:
                way()
            timed = take_turns(ways, QUICK if config.quick else config.repeats)
            seconds |= {f"{mode}, dim {dim}, {way}": times for way, times in timed.items()}
            found = {way: round(1e3 * median, 2) for way, median in medians(timed).items()}
            figures[f"{mode}, dim {dim}"] = found
            rows.append((mode, str(dim), *(f"{ms:.2f}" for ms in found.values())))
    title = f"{config.batch_size} sentences of 1 to {config.longest} words; median ms per mini-batch\n\n"
    return Findings(seconds, figures, title + format_table(("", "dim", *ways), rows))


def draw(config: Config, rng: np.random.Generator) -> list[Sentence]:
    """Draw sentences, with lengths spread evenly, in random order."""
    lengths = rng.permutation(np.linspace(1, config.longest, config.batch_size).round().astype(int))
    return [Sentence(rng.integers(0, config.words, n), int(rng.integers(CLASSES))) for n in lengths]


def inference(model: Reader, twin: TorchReader, sentences: list[Sentence], backend: str = "cpu") -> Ways:
    """Make all variants of computing the losses, and check that they are equal."""
    words, labels = to_torch(sentences)
    compute = torch.no_grad()
    ways: Ways = {name: compute(partial(way, words, labels)) for name, way in ways_of(twin).items()}
    loss = ab.batched(model.loss, backend=backend)
    ways |= {"recorded in the call": partial(loss, sentences), "plan found": partial(loss, loss.record_all(sentences))}
    for way in ways.values():
        np.testing.assert_allclose(way(), ways["padded"](), rtol=1e-4, atol=1e-5)
    return ways


def training(model: Reader, twin: TorchReader, sentences: list[Sentence], backend: str = "cpu") -> Ways:
    """Make all variants of the mean loss and its gradients, and check that they are equal."""
    words, labels = to_torch(sentences)

    def step(compute: Callable[..., torch.Tensor]) -> float:
        twin.zero_grad(set_to_none=False)
        mean = compute(words, labels).mean()
        torch.autograd.backward(mean)
        return float(mean.detach())

    ways: Ways = {name: partial(step, way) for name, way in ways_of(twin).items()}
    loss = ab.batched(model.loss, backend=backend)
    ways |= {
        "recorded in the call": partial(loss.value_and_grad, sentences),
        "plan found": partial(loss.value_and_grad, loss.record_all(sentences)),
    }
    value, grads = ways["plan found"]()
    for name in ways_of(twin):
        np.testing.assert_allclose(ways[name](), value, rtol=1e-4)
        for parameter, own in twin.named_parameters():
            np.testing.assert_allclose(np.asarray(grads[parameter]), np.asarray(own.grad), rtol=1e-3, atol=1e-5)
    return ways


def ways_of(twin: TorchReader) -> dict[str, Callable[..., torch.Tensor]]:
    """Return PyTorch's variants."""
    return {"padded": twin.padded, "nested": twin.nested}


def to_torch(sentences: list[Sentence]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return words and labels as tensors."""
    return [torch.from_numpy(s.words) for s in sentences], torch.tensor([s.label for s in sentences])


if __name__ == "__main__":
    run(Config(), measure)
