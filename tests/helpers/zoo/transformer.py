"""A transformer: multi-head attention of every word to every word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear

DIM, WORDS, CLASSES, HEADS, LAYERS, MOST = 4, 6, 3, 2, 2, 5


class Layer(ab.Module):
    """A pre-norm layer (Vaswani et al. 2017): attention and a perceptron, each with a shortcut."""

    def __init__(self, rng: Rng) -> None:
        self.project = ab.Linear(DIM, 3 * DIM, rng=rng)
        self.join = ab.Linear(DIM, DIM, rng=rng)
        self.up, self.down = ab.Linear(DIM, 2 * DIM, rng=rng), ab.Linear(2 * DIM, DIM, rng=rng)
        self.first, self.second = ab.LayerNorm(DIM), ab.LayerNorm(DIM)

    @ab.cell
    def heads(self, x: Any) -> Any:
        q, k, v = ab.split(self.project(self.first(x)), 3)
        return ab.split(q / (DIM / HEADS) ** 0.5, HEADS), ab.split(k, HEADS), ab.split(v, HEADS)

    @ab.cell
    def attend(self, x: Any, queries: Any, keys: Any, values: Any) -> Any:
        seen = [ab.attend(queries[i], [k[i] for k in keys], [v[i] for v in values]) for i in range(HEADS)]
        x = x + self.join(ab.concat(seen))
        return x + self.down(ab.relu(self.up(self.second(x))))

    def __call__(self, xs: list[Any]) -> list[Any]:
        queries, keys, values = zip(*[self.heads(x) for x in xs], strict=True)
        return [self.attend(x, q, list(keys), list(values)) for x, q in zip(xs, queries, strict=True)]


class Transformer(ab.Module):
    """Words and their positions, a few layers, and a classifier of the mean of all words."""

    def __init__(self, rng: Rng) -> None:
        self.words, self.positions = array(rng, WORDS, DIM), array(rng, MOST, DIM)
        self.layers = [Layer(rng) for _ in range(LAYERS)]
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def read(self, word: Any, position: Any) -> Any:
        return ab.lookup(self.words, word) + ab.lookup(self.positions, position)

    @ab.cell
    def classify(self, states: Any, label: Any) -> Any:
        return ab.cross_entropy(self.output(ab.mean_n(states)), label)

    def loss(self, words: list[int]) -> Any:
        states = [self.read(word, position) for position, word in enumerate(words)]
        for layer in self.layers:
            states = layer(states)
        return self.classify(states, sum(words) % CLASSES)


NAMES = {
    "self_attn.in_proj_": "project",
    "self_attn.out_proj.": "join",
    "linear1.": "up",
    "linear2.": "down",
    "norm1.": "first",
    "norm2.": "second",
}


def transformer(w: Weights, words: list[int]) -> Tensor:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, norm_first=True)
    x = (w["words"][words] + w["positions"][: len(words)])[:, None]
    for i in range(LAYERS):
        mine = {f"{theirs}{p}": w[f"layers.{i}.{n}.{p}"] for theirs, n in NAMES.items() for p in ("weight", "bias")}
        x = torch.func.functional_call(layer, mine, (x,))
    return F.cross_entropy(linear(w, "output", x[:, 0].mean(0)), torch.tensor(sum(words) % CLASSES))


def draw_words(rng: Rng) -> list[int]:
    return [int(word) for word in rng.integers(0, WORDS, rng.integers(1, MOST + 1))]


CASES = [
    Case("transformer", Transformer, draw_words, transformer),
]
