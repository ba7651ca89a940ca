"""Dynamic programs: cells that fill tables of data-dependent size, differentiated through every entry."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear

DIM, SYMBOLS, RULES = 3, 4, 3
BLANK = 0


class SoftAlignment(ab.Module):
    """Soft dynamic time warping (Cuturi, Blondel 2017) of two sequences, between learned features of both."""

    def __init__(self, rng: Rng) -> None:
        self.features = ab.Linear(DIM, DIM, rng=rng)

    @ab.cell
    def embed(self, x: Any) -> Any:
        return ab.tanh(self.features(x))

    @ab.cell
    def entry(self, a: Any, b: Any, before: Any) -> Any:
        """Return the cost of a place plus the soft minimum of its predecessors, of which there are at most three."""
        cost = ab.sum(ab.squared_error(a, b))
        if len(before) == 0:
            return cost
        low = -ab.max_n([-x for x in before])
        return cost + low - ab.log(ab.sum_n([ab.exp(low - x) for x in before]))

    def loss(self, instance: Any) -> Any:
        xs, ys = ([self.embed(x) for x in part] for part in instance)
        table: dict[tuple[int, int], Any] = {}
        for i, x in enumerate(xs):
            for j, y in enumerate(ys):
                places = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
                table[i, j] = self.entry(x, y, [table[place] for place in places if place in table])
        return table[len(xs) - 1, len(ys) - 1]


def soft_alignment(w: Weights, instance: Any) -> Tensor:
    """Return the soft minimum over all paths, enumerated one by one."""
    x, y = (torch.tanh(linear(w, "features", torch.tensor(part))) for part in instance)
    costs = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    paths = []

    def walk(i: int, j: int, cost: Tensor) -> None:
        cost = cost + costs[i, j]
        if (i, j) == (len(x) - 1, len(y) - 1):
            paths.append(cost)
        for k, m in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
            if k < len(x) and m < len(y):
                walk(k, m, cost)

    walk(0, 0, torch.tensor(0.0, dtype=torch.float64))
    return -torch.logsumexp(-torch.stack(paths), 0)


class Speech(NamedTuple):
    frames: Any
    labels: list[int]


class CTC(ab.Module):
    """Connectionist temporal classification (Graves et al. 2006): all alignments of labels, with blanks in between."""

    def __init__(self, rng: Rng) -> None:
        self.output = ab.Linear(DIM, SYMBOLS, rng=rng)

    @ab.cell
    def frame(self, x: Any) -> Any:
        return ab.log_softmax(self.output(x))

    @ab.cell
    def arrive(self, log_p: Any, symbol: Any, before: Any) -> Any:
        most = ab.max_n(before)
        return ab.lookup(log_p, symbol) + most + ab.log(ab.sum_n([ab.exp(x - most) for x in before]))

    @ab.cell
    def begin(self, log_p: Any, symbol: Any) -> Any:
        return ab.lookup(log_p, symbol)

    @ab.cell
    def end(self, last: Any) -> Any:
        most = ab.max_n(last)
        return -most - ab.log(ab.sum_n([ab.exp(x - most) for x in last]))

    def loss(self, speech: Speech) -> Any:
        symbols = [BLANK] + [s for label in speech.labels for s in (label, BLANK)]
        frames = [self.frame(x) for x in speech.frames]
        alpha = {s: self.begin(frames[0], symbols[s]) for s in range(min(2, len(symbols)))}
        for log_p in frames[1:]:
            now = {}
            for s, symbol in enumerate(symbols):
                skips = symbol != BLANK and s >= 2 and symbols[s - 2] != symbol
                before = [alpha[k] for k in (s, s - 1, *([s - 2] if skips else [])) if k in alpha]
                if before:
                    now[s] = self.arrive(log_p, symbol, before)
            alpha = now
        return self.end([alpha[s] for s in (len(symbols) - 1, len(symbols) - 2) if s in alpha])


def ctc(w: Weights, speech: Speech) -> Tensor:
    log_p = F.log_softmax(linear(w, "output", torch.tensor(speech.frames)), 1)
    lengths = torch.tensor([len(log_p)]), torch.tensor([len(speech.labels)])
    return F.ctc_loss(log_p[:, None], torch.tensor([speech.labels]), *lengths, blank=BLANK, reduction="sum")


class InsideParser(ab.Module):
    """The inside algorithm for a grammar over vectors of nonterminals, with any number of split points."""

    def __init__(self, rng: Rng) -> None:
        self.words = array(rng, SYMBOLS, RULES)
        self.rules = array(rng, RULES, RULES * RULES)
        self.root = array(rng, RULES)

    @ab.cell
    def leaf(self, word: Any) -> Any:
        return ab.lookup(ab.softmax(self.words, axis=0), word)

    @ab.cell
    def span(self, splits: Any) -> Any:
        pairs = ab.sum_n([ab.reshape(ab.outer(left, right), (RULES * RULES,)) for left, right in splits])
        return ab.softmax(self.rules) @ pairs

    @ab.cell
    def top(self, inside: Any) -> Any:
        return -ab.log(ab.dot(ab.softmax(self.root), inside))

    def loss(self, words: list[int]) -> Any:
        chart = {(i, i + 1): self.leaf(word) for i, word in enumerate(words)}
        for width in range(2, len(words) + 1):
            for i in range(len(words) - width + 1):
                k = i + width
                chart[i, k] = self.span([(chart[i, j], chart[j, k]) for j in range(i + 1, k)])
        return self.top(chart[0, len(words)])


def inside_parser(w: Weights, words: list[int]) -> Tensor:
    lexicon, root = torch.softmax(w["words"], 0), torch.softmax(w["root"], 0)
    rules = torch.softmax(w["rules"], 1).reshape(RULES, RULES, RULES)

    @cache
    def inside(i: int, k: int) -> Any:
        if k == i + 1:
            return lexicon[words[i]]
        return torch.stack(
            [torch.einsum("abc,b,c->a", rules, inside(i, j), inside(j, k)) for j in range(i + 1, k)]
        ).sum(0)

    return -torch.log(root @ inside(0, len(words)))


def draw_pair(rng: Rng) -> Any:
    return rng.standard_normal((rng.integers(1, 4), DIM)), rng.standard_normal((rng.integers(1, 4), DIM))


def draw_speech(rng: Rng) -> Speech:
    labels = rng.integers(1, SYMBOLS, rng.integers(1, 3)).tolist()
    return Speech(rng.standard_normal((2 * len(labels) + int(rng.integers(3)), DIM)), labels)


def draw_sentence(rng: Rng) -> list[int]:
    return [int(word) for word in rng.integers(0, SYMBOLS, rng.integers(1, 6))]


CASES = [
    Case("soft alignment", SoftAlignment, draw_pair, soft_alignment),
    Case("ctc", CTC, draw_speech, ctc),
    Case("inside parser", InsideParser, draw_sentence, inside_parser),
]
