"""Compare a map over children inside one cell with a separate cell for each child.

Four models are each written in both forms with the same parameters: a tree of any arity with a gate per child, additive
attention, a graph network with gated edges, and a conditional random field over a lattice. The variants take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from harness import medians, run, take_turns
from records import Findings, Settings

Rng = np.random.Generator
WORDS, TAGS, ROUNDS = 50, 8, 3


class Tree(NamedTuple):
    """A word, and any number of children."""

    word: int
    children: tuple[Any, ...]


def draw_tree(rng: Rng, depth: int = 4) -> Tree:
    """Draw a tree in which a node has up to five children."""
    n = int(rng.integers(1, 6)) if depth and rng.random() < 0.8 else 0
    return Tree(int(rng.integers(WORDS)), tuple(draw_tree(rng, depth - 1) for _ in range(n)))


class ChildSum(ab.Module):
    """A child-sum Tree-LSTM with a forget gate for each child (Tai, Socher, Manning 2015, section 3.1)."""

    def __init__(self, rng: Rng, dim: int) -> None:
        self.embedding = ab.Embedding(WORDS, dim, rng=rng)
        self.x_iou, self.x_f = ab.Linear(dim, 3 * dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.h_iou, self.h_f = (ab.Linear(dim, n * dim, rng=rng, bias=False) for n in (3, 1))

    @ab.cell
    def leaf(self, word: Any) -> Any:
        """Compute the state of a node without children."""
        i, o, u = ab.split(self.x_iou(self.embedding(word)), 3)
        c = ab.sigmoid(i) * ab.tanh(u)
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def node(self, word: Any, children: Any) -> Any:
        """Compute the state of a node and its gates, in one cell."""
        x = self.embedding(word)
        kept = sum(ab.sigmoid(self.x_f(x) + self.h_f(h)) * c for h, c in children)
        i, o, u = ab.split(self.x_iou(x) + self.h_iou(sum(h for h, _ in children)), 3)
        c = ab.sigmoid(i) * ab.tanh(u) + kept
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def gate(self, word: Any, child: Any) -> Any:
        """Compute what a node keeps of a child."""
        h, c = child
        return h, ab.sigmoid(self.x_f(self.embedding(word)) + self.h_f(h)) * c

    @ab.cell
    def join(self, word: Any, gated: Any) -> Any:
        """Compute the state of a node from gated children."""
        total, kept = ab.sum_n(gated)
        i, o, u = ab.split(self.x_iou(self.embedding(word)) + self.h_iou(total), 3)
        c = ab.sigmoid(i) * ab.tanh(u) + kept
        return ab.sigmoid(o) * ab.tanh(c), c

    def visit(self, tree: Tree, in_one: bool) -> Any:
        """Compute the state of a tree."""
        children = [self.visit(child, in_one) for child in tree.children]
        if not children:
            return self.leaf(tree.word)
        if in_one:
            return self.node(tree.word, children)
        return self.join(tree.word, [self.gate(tree.word, child) for child in children])

    def loss(self, tree: Tree, in_one: bool = True) -> Any:
        """Compute a scalar from the root's state."""
        h, c = self.visit(tree, in_one)
        return ab.sum(h * h) + ab.sum(c)


class Attention(ab.Module):
    """A decoder that attends to all words of a sentence at each step (Bahdanau, Cho, Bengio 2015)."""

    def __init__(self, rng: Rng, dim: int) -> None:
        self.source, self.target = (ab.Embedding(WORDS, dim, rng=rng) for _ in range(2))
        self.keys, self.query = ab.Linear(dim, dim, rng=rng), ab.Linear(dim, dim, rng=rng, bias=False)
        self.v = ab.Parameter(rng.standard_normal(dim) / np.sqrt(dim))
        self.decoder = ab.GRUCell(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, WORDS, rng=rng)
        self.dim = dim

    @ab.cell
    def read(self, word: Any) -> Any:
        """Return the key and the value of a word."""
        x = self.source(word)
        return self.keys(x), x

    @ab.cell
    def look(self, word: Any, state: Any, memory: Any) -> Any:
        """Compute a step of the decoder, with attention in one cell."""
        query = self.query(state)
        weights = ab.softmax_n([ab.dot(self.v, ab.tanh(query + key)) for key, _ in memory])
        context = ab.dot_n(weights, [x for _, x in memory])
        return self.decoder(ab.concat((self.target(word), context)), state)

    @ab.cell
    def ask(self, state: Any) -> Any:
        """Compute the query of a state."""
        return self.query(state)

    @ab.cell
    def score(self, query: Any, key: Any) -> Any:
        """Score how well a word matches a query."""
        return ab.dot(self.v, ab.tanh(query + key))

    @ab.cell
    def step(self, word: Any, state: Any, scores: Any, values: Any) -> Any:
        """Compute a step of the decoder from the scores."""
        context = ab.dot_n(ab.softmax_n(scores), values)
        return self.decoder(ab.concat((self.target(word), context)), state)

    @ab.cell
    def error(self, state: Any, word: Any) -> Any:
        """Compute the loss of a word."""
        return ab.cross_entropy(self.output(state), word)

    def loss(self, pair: Any, in_one: bool = True) -> Any:
        """Compute the loss of a translation."""
        memory = [self.read(word) for word in pair[0]]
        state, losses = np.zeros(self.dim), []
        for word in pair[1]:
            if in_one:
                state = self.look(word, state, memory)
            else:
                query = self.ask(state)
                scores = [self.score(query, key) for key, _ in memory]
                state = self.step(word, state, scores, [x for _, x in memory])
            losses.append(self.error(state, word))
        return ab.sum_n(losses)


def draw_pair(rng: Rng) -> tuple[list[int], list[int]]:
    """Draw two sentences."""
    lengths = rng.integers(3, 15, size=2)
    return tuple(rng.integers(WORDS, size=n).tolist() for n in lengths)


class GatedGraph(ab.Module):
    """A graph network with a gate on each edge (Bresson, Laurent 2017)."""

    def __init__(self, rng: Rng, dim: int) -> None:
        self.start = ab.Embedding(WORDS, dim, rng=rng)
        self.own, self.mine, self.theirs, self.message = (ab.Linear(dim, dim, rng=rng) for _ in range(4))

    @ab.cell
    def begin(self, word: Any) -> Any:
        """Return the first state of a node."""
        return self.start(word)

    @ab.cell
    def receive(self, h: Any, others: Any) -> Any:
        """Compute a round of a node with all of its edges, in one cell."""
        gate = self.mine(h)
        heard = ab.sum_n([ab.sigmoid(gate + self.theirs(x)) * self.message(x) for x in others])
        return h + ab.relu(self.own(h) + heard)

    @ab.cell
    def edge(self, h: Any, x: Any) -> Any:
        """Compute the message of an edge."""
        return ab.sigmoid(self.mine(h) + self.theirs(x)) * self.message(x)

    @ab.cell
    def update(self, h: Any, heard: Any) -> Any:
        """Compute a round of a node from its messages."""
        return h + ab.relu(self.own(h) + ab.sum_n(heard))

    @ab.cell
    def read(self, states: Any) -> Any:
        """Compute a scalar from all nodes."""
        return ab.sum(ab.tanh(ab.mean_n(states)))

    def loss(self, graph: Any, in_one: bool = True) -> Any:
        """Compute a scalar from a graph: a word and the neighbours' numbers for each node."""
        states = [self.begin(word) for word, _ in graph]
        for _ in range(ROUNDS):
            heard = [[states[j] for j in neighbours] for _, neighbours in graph]
            if in_one:
                states = [self.receive(h, others) for h, others in zip(states, heard, strict=True)]
            else:
                edges = [[self.edge(h, x) for x in others] for h, others in zip(states, heard, strict=True)]
                states = [self.update(h, messages) for h, messages in zip(states, edges, strict=True)]
        return self.read(states)


def draw_graph(rng: Rng) -> list[tuple[int, list[int]]]:
    """Draw a graph in which a node has one to five neighbours."""
    n = int(rng.integers(6, 16))
    return [
        (int(rng.integers(WORDS)), rng.choice(n, size=rng.integers(1, 6), replace=False).tolist()) for _ in range(n)
    ]


class LatticeCRF(ab.Module):
    """The partition function of a conditional random field over the words of a lattice."""

    def __init__(self, rng: Rng, dim: int) -> None:
        self.embedding, self.emit = ab.Embedding(WORDS, dim, rng=rng), ab.Linear(dim, TAGS, rng=rng)
        self.transitions = ab.Parameter(rng.standard_normal((TAGS, TAGS)))

    @ab.cell
    def begin(self, word: Any) -> Any:
        """Score the tags of a first word."""
        return self.emit(self.embedding(word))

    @ab.cell
    def forward(self, word: Any, before: Any) -> Any:
        """Score the tags of a word after all preceding words, in one cell."""
        paths = [ab.logsumexp(alpha + self.transitions, axis=1) for alpha in before]
        return self.emit(self.embedding(word)) + ab.logsumexp_n(paths)

    @ab.cell
    def move(self, alpha: Any) -> Any:
        """Score the tags after a word."""
        return ab.logsumexp(alpha + self.transitions, axis=1)

    @ab.cell
    def join(self, word: Any, paths: Any) -> Any:
        """Score the tags of a word from the scores after the preceding words."""
        return self.emit(self.embedding(word)) + ab.logsumexp_n(paths)

    @ab.cell
    def end(self, alpha: Any) -> Any:
        """Compute the logarithm of the partition function."""
        return ab.logsumexp(alpha)

    def loss(self, lattice: Any, in_one: bool = True) -> Any:
        """Compute the logarithm of a lattice's partition function: a word and the preceding words' numbers for each."""
        alphas: list[Any] = []
        for word, before in lattice:
            if not before:
                alphas.append(self.begin(word))
            elif in_one:
                alphas.append(self.forward(word, [alphas[j] for j in before]))
            else:
                alphas.append(self.join(word, [self.move(alphas[j]) for j in before]))
        return self.end(alphas[-1])


def draw_lattice(rng: Rng) -> list[tuple[int, list[int]]]:
    """Draw words, each of which follows one to four of the six before it."""
    words = []
    for i in range(int(rng.integers(5, 25))):
        near = np.arange(max(0, i - 6), i)
        before = rng.choice(near, size=min(len(near), int(rng.integers(1, 5))), replace=False) if i else near
        words.append((int(rng.integers(WORDS)), sorted(before.tolist())))
    return words


MODELS: dict[str, tuple[Callable[[Rng, int], Any], Callable[[Rng], Any]]] = {
    "child-sum tree-lstm": (ChildSum, draw_tree),
    "additive attention": (Attention, draw_pair),
    "gated graph network": (GatedGraph, draw_graph),
    "crf over a lattice": (LatticeCRF, draw_lattice),
}


@dataclass(frozen=True)
class Config(Settings):
    """One mini-batch of recorded instances, drawn at random."""

    dim: int = 64
    batch_size: int = 32
    policy: str = "score"
    backend: str = "cpu"
    repeats: int = 9


def measure(config: Config) -> Findings:
    """Measure both variants of every model: counts of a step, types, and times of layout, inference and training."""
    seconds: dict[str, list[float]] = {}
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    for name, (make, draw) in MODELS.items():
        rng = np.random.default_rng(config.seed)
        model = make(rng, config.dim)
        instances = [draw(rng) for _ in range(config.batch_size)]
        ways: dict[str, Callable[[], object]] = {}
        losses: dict[str, ab.Batched] = {}
        for way, function in (("one cell", model.loss), ("two cells", lambda x, m=model: m.loss(x, in_one=False))):
            loss = ab.batched(function, module=model, policy=config.policy, backend=config.backend, threads=1)
            graphs = loss.record_all(instances)
            start = time.perf_counter()
            loss.planning.cells(frozenset(model.parameters()))
            seconds[f"{name}, {way}, layout"] = [time.perf_counter() - start]
            losses[way] = loss
            ways[f"{name}, {way}, inference"] = partial(loss, graphs)
            ways[f"{name}, {way}, training"] = partial(loss.value_and_grad, graphs)
        seconds |= take_turns(ways, config.repeats)
        found = medians(seconds)
        for way, loss in losses.items():
            last = loss.last
            assert last is not None
            counts = {"types": len(loss.recorder.types), "nodes": last.nodes, "batches": last.batches}
            counts |= {"launches": last.launches, "copied_bytes": last.copied_bytes}
            ms = {what: 1e3 * found[f"{name}, {way}, {what}"] for what in ("layout", "inference", "training")}
            figures[f"{name}, {way}"] = counts | {f"{what}_ms": round(t, 3) for what, t in ms.items()}
            rows.append((name, way, *map(str, counts.values()), *(f"{t:.2f}" for t in ms.values())))
    head = ("model", "way", "types", "nodes", "batches", "launches", "copied bytes", "layout ms", "inference ms")
    title = f"dim {config.dim}, batch {config.batch_size}, {config.policy}, {config.backend}, one thread\n\n"
    return Findings(seconds, figures, title + format_table((*head, "training ms"), rows))


if __name__ == "__main__":
    run(Config(), measure)
