"""Sequence-to-sequence models: an encoder, attention over its states, and a decoder with teacher forcing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, gru, linear, lstm

DIM, WORDS = 4, 6
BOS, EOS = 0, 1


class Pair(NamedTuple):
    source: list[int]
    target: list[int]


def draw_pair(rng: Rng) -> Pair:
    def sentence() -> list[int]:
        return [int(word) for word in rng.integers(2, WORDS, rng.integers(1, 5))]

    return Pair(sentence(), sentence())


class DotAttention(ab.Module):
    """GRU encoder and decoder, attention by dot products (Luong et al. 2015), and one shared embedding."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = array(rng, WORDS, DIM)
        self.encoder = ab.GRUCell(DIM, DIM, rng=rng)
        self.decoder = ab.GRUCell(DIM, DIM, rng=rng)
        self.combine = ab.Linear(2 * DIM, DIM, rng=rng, bias=False)

    @ab.cell
    def read(self, word: Any, h: Any) -> Any:
        return self.encoder(ab.lookup(self.embedding, word), h)

    @ab.cell
    def write(self, word: Any, h: Any, memory: Any) -> Any:
        h = self.decoder(ab.lookup(self.embedding, word), h)
        context = ab.attend(h, memory, memory)
        return h, ab.tanh(self.combine(ab.concat((context, h))))

    @ab.cell
    def word_loss(self, out: Any, word: Any) -> Any:
        return ab.cross_entropy(self.embedding @ out, word)

    def loss(self, pair: Pair) -> Any:
        h, memory = np.zeros(DIM), []
        for word in pair.source:
            h = self.read(word, h)
            memory.append(h)
        losses = []
        for before, word in zip([BOS, *pair.target], [*pair.target, EOS], strict=True):
            h, out = self.write(before, h, memory)
            losses.append(self.word_loss(out, word))
        return ab.mean_n(losses)


def dot_attention(w: Weights, pair: Pair) -> Tensor:
    h, states, outs = torch.zeros(DIM, dtype=torch.float64), [], []
    for word in pair.source:
        h = gru(w, "encoder", w["embedding"][word], h)
        states.append(h)
    memory = torch.stack(states)
    for word in [BOS, *pair.target]:
        h = gru(w, "decoder", w["embedding"][word], h)
        context = F.scaled_dot_product_attention(h[None], memory, memory, scale=1.0)[0]
        outs.append(torch.tanh(linear(w, "combine", torch.cat((context, h)))))
    return F.cross_entropy(torch.stack(outs) @ w["embedding"].T, torch.tensor([*pair.target, EOS]))


class AdditiveAttention(ab.Module):
    """Bidirectional LSTM encoder, LSTM decoder, additive attention (Bahdanau, Cho, Bengio 2015)."""

    def __init__(self, rng: Rng) -> None:
        self.source = ab.Embedding(WORDS, DIM, rng=rng)
        self.target = ab.Embedding(WORDS, DIM, rng=rng)
        self.rightward = ab.LSTMCell(DIM, DIM, rng=rng)
        self.leftward = ab.LSTMCell(DIM, DIM, rng=rng)
        self.decoder = ab.LSTMCell(3 * DIM, DIM, rng=rng)
        self.keys = ab.Linear(2 * DIM, DIM, rng=rng, bias=False)
        self.query = ab.Linear(DIM, DIM, rng=rng)
        self.v = array(rng, DIM)
        self.output = ab.Linear(3 * DIM, WORDS, rng=rng)

    def encode(self, words: list[int]) -> Any:
        def run(lstm: Any, words: list[int]) -> Any:
            state, states = None, []
            for word in words:
                state = lstm(self.source(word), state)
                states.append(state[0])
            return states

        forth, back = run(self.rightward, words), run(self.leftward, words[::-1])[::-1]
        memory = [ab.concat((f, b)) for f, b in zip(forth, back, strict=True)]
        return [(self.keys(m), m) for m in memory]

    @ab.cell
    def score(self, query: Any, key: Any) -> Any:
        return ab.dot(self.v, ab.tanh(query + key))

    @ab.cell
    def context(self, scores: Any, values: Any) -> Any:
        exps = [ab.exp(s) for s in scores]
        total = ab.sum_n(exps)
        return ab.sum_n([e / total * value for e, value in zip(exps, values, strict=True)])

    @ab.cell
    def word_loss(self, h: Any, context: Any, word: Any) -> Any:
        return ab.cross_entropy(self.output(ab.concat((h, context))), word)

    def loss(self, pair: Pair) -> Any:
        memory = self.encode(pair.source)
        state = (np.zeros(DIM), np.zeros(DIM))
        total = 0.0
        for before, word in zip([BOS, *pair.target], [*pair.target, EOS], strict=True):
            query = self.query(state[0])
            context = self.context([self.score(query, key) for key, _ in memory], [value for _, value in memory])
            state = self.decoder(ab.concat((self.target(before), context)), state)
            total = total + self.word_loss(state[0], context, word)
        return total


def additive_attention(w: Weights, pair: Pair) -> Tensor:
    bi = torch.nn.LSTM(DIM, DIM, bidirectional=True).double()
    names = {
        f"{name}_l0{end}": f"{way}.{name}"
        for way, end in (("rightward", ""), ("leftward", "_reverse"))
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    inputs = w["source.weight"][pair.source]
    memory, _ = torch.func.functional_call(bi, {mine: w[theirs] for mine, theirs in names.items()}, (inputs,))
    keys = linear(w, "keys", memory)
    state = (torch.zeros(DIM, dtype=torch.float64),) * 2
    outs = []
    for word in [BOS, *pair.target]:
        scores = torch.tanh(linear(w, "query", state[0]) + keys) @ w["v"]
        context = torch.softmax(scores, 0) @ memory
        state = lstm(w, "decoder", torch.cat((w["target.weight"][word], context)), state)
        outs.append(torch.cat((state[0], context)))
    return F.cross_entropy(linear(w, "output", torch.stack(outs)), torch.tensor([*pair.target, EOS]), reduction="sum")


CASES = [
    Case("seq2seq with dot attention, tied", DotAttention, draw_pair, dot_attention),
    Case("seq2seq with additive attention", AdditiveAttention, draw_pair, additive_attention),
]
