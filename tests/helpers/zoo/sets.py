"""Sets and memories: deep sets, attention pooling, memory networks, pointer networks, mixtures of experts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear, lstm

DIM, HIDDEN, CLASSES, WORDS, EXPERTS = 3, 4, 3, 6, 3


class DeepSets(ab.Module):
    """Deep sets in one cell (Zaheer et al. 2017): a network per element, for any number of them; a sum; a network."""

    def __init__(self, rng: Rng) -> None:
        self.inner = [ab.Linear(DIM, HIDDEN, rng=rng), ab.Linear(HIDDEN, HIDDEN, rng=rng)]
        self.outer = [ab.Linear(HIDDEN, HIDDEN, rng=rng), ab.Linear(HIDDEN, CLASSES, rng=rng)]

    @ab.cell
    def loss_of(self, elements: Any, label: Any) -> Any:
        first, second = self.inner
        pooled = ab.sum_n([ab.relu(second(ab.relu(first(x)))) for x in elements])
        first, second = self.outer
        return ab.cross_entropy(second(ab.tanh(first(pooled))), label)

    def loss(self, instance: Any) -> Any:
        xs, label = instance
        return self.loss_of(list(xs), label)


def deep_sets(w: Weights, instance: Any) -> Tensor:
    xs, label = instance
    inner = linear(w, "inner.1", linear(w, "inner.0", torch.tensor(xs)).relu()).relu()
    return F.cross_entropy(linear(w, "outer.1", torch.tanh(linear(w, "outer.0", inner.sum(0)))), torch.tensor(label))


class AttentionPooling(ab.Module):
    """Attention of learned queries over the elements of a set (Lee et al. 2019), joined with their maximum."""

    def __init__(self, rng: Rng) -> None:
        self.queries = [array(rng, HIDDEN) for _ in range(2)]
        self.key, self.value = ab.Linear(DIM, HIDDEN, rng=rng), ab.Linear(DIM, HIDDEN, rng=rng)
        self.output = ab.Linear(3 * HIDDEN, CLASSES, rng=rng)

    @ab.cell
    def element(self, x: Any) -> Any:
        return self.key(x), ab.tanh(self.value(x))

    @ab.cell
    def pool(self, keys: Any, values: Any) -> Any:
        seen = [ab.attend(query, keys, values) for query in self.queries]
        return self.output(ab.concat([*seen, ab.max_n(values)]))

    def loss(self, instance: Any) -> Any:
        xs, label = instance
        pairs = [self.element(x) for x in xs]
        keys, values = zip(*pairs, strict=True)
        return ab.cross_entropy(self.pool(list(keys), list(values)), label)


def attention_pooling(w: Weights, instance: Any) -> Tensor:
    xs, label = instance
    x = torch.tensor(xs)
    keys, values = linear(w, "key", x), torch.tanh(linear(w, "value", x))
    seen = [torch.softmax(keys @ w[f"queries.{i}"], 0) @ values for i in range(2)]
    return F.cross_entropy(linear(w, "output", torch.cat((*seen, values.amax(0)))), torch.tensor(label))


class Story(NamedTuple):
    sentences: list[list[int]]
    question: list[int]
    answer: int


class MemoryNetwork(ab.Module):
    """A memory network (Sukhbaatar et al. 2015): sentences are bags of words; A of each hop is C of the one before."""

    def __init__(self, rng: Rng) -> None:
        self.tables = [array(rng, WORDS, DIM) for _ in range(3)]
        self.H = ab.Linear(DIM, DIM, rng=rng, bias=False)

    @ab.cell
    def bag(self, table: Any, words: Any) -> Any:
        return ab.sum(ab.lookup(table, words), axis=0)

    @ab.cell
    def hop(self, u: Any, memory: Any, answers: Any) -> Any:
        return self.H(u) + ab.attend(u, memory, answers)

    @ab.cell
    def answer_loss(self, u: Any, answer: Any) -> Any:
        return ab.cross_entropy(self.tables[-1] @ u, answer)

    def loss(self, story: Story) -> Any:
        bags = [[self.bag(table, np.array(words)) for words in story.sentences] for table in self.tables]
        u = self.bag(self.tables[0], np.array(story.question))
        for memory, answers in pairwise(bags):
            u = self.hop(u, memory, answers)
        return self.answer_loss(u, story.answer)


def memory_network(w: Weights, story: Story) -> Tensor:
    def bag(k: int, words: list[int]) -> Tensor:
        return F.embedding_bag(torch.tensor([words]), w[f"tables.{k}"], mode="sum")[0]

    u = bag(0, story.question)
    for hop in range(2):
        memory, answers = (torch.stack([bag(hop + k, words) for words in story.sentences]) for k in range(2))
        u = linear(w, "H", u) + torch.softmax(memory @ u, 0) @ answers
    return F.cross_entropy(w["tables.2"] @ u, torch.tensor(story.answer))


def draw_story(rng: Rng) -> Story:
    def words() -> list[int]:
        return [int(word) for word in rng.integers(0, WORDS, rng.integers(1, 4))]

    return Story([words() for _ in range(rng.integers(1, 5))], words(), int(rng.integers(WORDS)))


class PointerNetwork(ab.Module):
    """A pointer network (Vinyals, Fortunato, Jaitly 2015): an LSTM sorts its inputs by pointing at them."""

    def __init__(self, rng: Rng) -> None:
        self.encoder, self.decoder = ab.LSTMCell(1, DIM, rng=rng), ab.LSTMCell(1, DIM, rng=rng)
        self.key, self.query = ab.Linear(DIM, DIM, rng=rng), ab.Linear(DIM, DIM, rng=rng, bias=False)
        self.v = array(rng, DIM)

    @ab.cell
    def score(self, query: Any, key: Any) -> Any:
        return self.v @ ab.tanh(query + key)

    @ab.cell
    def pick(self, scores: Any, chosen: Any) -> Any:
        """Return the negative log-softmax at the chosen place."""
        most = ab.stop_gradient(ab.max_n(scores))
        return most + ab.log(ab.sum_n([ab.exp(s - most) for s in scores])) - chosen

    def loss(self, numbers: Any) -> Any:
        state, keys = None, []
        for x in numbers:
            state = self.encoder(np.array([x]), state)
            keys.append(self.key(state[0]))
        total, last = 0.0, 0.0
        for i in np.argsort(numbers):
            state = self.decoder(np.array([last]), state)
            query = self.query(state[0])
            scores = [self.score(query, key) for key in keys]
            total = total + self.pick(scores, scores[i])
            last = numbers[i]
        return total


def pointer_network(w: Weights, numbers: Any) -> Tensor:
    x = torch.tensor(numbers)
    state, states = (torch.zeros(DIM, dtype=torch.float64),) * 2, []
    for number in x:
        state = lstm(w, "encoder", number[None], state)
        states.append(state[0])
    keys, last, order, logits = linear(w, "key", torch.stack(states)), x.new_zeros(()), x.argsort(), []
    for i in order:
        state = lstm(w, "decoder", last[None], state)
        logits.append(torch.tanh(linear(w, "query", state[0]) + keys) @ w["v"])
        last = x[i]
    return F.cross_entropy(torch.stack(logits), order, reduction="sum")


class Experts(ab.Module):
    """A soft mixture of experts without those that have less than half of the largest weight."""

    def __init__(self, rng: Rng) -> None:
        self.experts = [ab.Linear(DIM, CLASSES, rng=rng) for _ in range(EXPERTS)]
        self.router = ab.Linear(DIM, EXPERTS, rng=rng)
        self.embedding = ab.Embedding(WORDS, DIM, rng=rng)

    @ab.cell
    def token_loss(self, word: Any, label: Any) -> Any:
        x = self.embedding(word)
        p = ab.softmax(self.router(x))
        p = ab.where(p >= 0.5 * ab.max(p), p, 0.0)
        p = p / ab.sum(p)
        mixed = sum(ab.tanh(expert(x)) * p[i] for i, expert in enumerate(self.experts))
        return ab.cross_entropy(mixed, label)

    def loss(self, instance: Any) -> Any:
        return ab.mean_n([self.token_loss(word, label) for word, label in instance])


def experts(w: Weights, instance: Any) -> Tensor:
    words, labels = torch.tensor(instance).T
    x = w["embedding.weight"][words]
    p = torch.softmax(linear(w, "router", x), 1)
    p = p.masked_fill(p < 0.5 * p.amax(1, keepdim=True), 0.0)
    outputs = torch.stack([torch.tanh(linear(w, f"experts.{i}", x)) for i in range(EXPERTS)], 1)
    return F.cross_entropy((F.normalize(p, p=1, dim=1)[:, :, None] * outputs).sum(1), labels)


class RoutedExperts(ab.Module):
    """Each word has its own expert: data determines which cell runs, and a gate scales its output."""

    def __init__(self, rng: Rng) -> None:
        self.experts = [ab.Linear(DIM, DIM, rng=rng) for _ in range(EXPERTS)]
        self.embedding = array(rng, WORDS, DIM)
        self.gates = array(rng, EXPERTS)

    @ab.cell
    def run(self, word: Any, expert: Any, number: Any) -> Any:
        gate = ab.sigmoid(ab.lookup(self.gates, number))
        return gate * ab.tanh(expert(ab.lookup(self.embedding, word)))

    def loss(self, instance: Any) -> Any:
        h = ab.mean_n([self.run(word, self.experts[word % EXPERTS], word % EXPERTS) for word, _ in instance])
        return ab.sum(h * h)


def routed_experts(w: Weights, instance: Any) -> Tensor:
    outs = []
    for word, _ in instance:
        k = word % EXPERTS
        outs.append(torch.sigmoid(w["gates"][k]) * torch.tanh(linear(w, f"experts.{k}", w["embedding"][word])))
    return torch.stack(outs).mean(0).square().sum()


def draw_set(rng: Rng) -> Any:
    return rng.standard_normal((rng.integers(1, 5), DIM)), int(rng.integers(CLASSES))


def draw_numbers(rng: Rng) -> Any:
    return rng.standard_normal(rng.integers(1, 5))


def draw_tokens(rng: Rng) -> Any:
    return [(int(rng.integers(WORDS)), int(rng.integers(CLASSES))) for _ in range(rng.integers(1, 4))]


CASES = [
    Case("deep sets", DeepSets, draw_set, deep_sets),
    Case("attention pooling", AttentionPooling, draw_set, attention_pooling),
    Case("memory network", MemoryNetwork, draw_story, memory_network),
    Case("pointer network", PointerNetwork, draw_numbers, pointer_network),
    Case("mixture of experts", Experts, draw_tokens, experts),
    Case("routed experts", RoutedExperts, draw_tokens, routed_experts),
]
