"""Taggers over words and their characters, with a linear-chain conditional random field on top."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear

DIM, CHARACTERS, WORDS, TAGS = 3, 6, 5, 4


class Sentence(NamedTuple):
    words: list[int]
    spelled: list[list[int]]
    tags: list[int]


def draw_sentence(rng: Rng) -> Sentence:
    n = int(rng.integers(1, 5))
    spelled = [[int(c) for c in rng.integers(0, CHARACTERS, rng.integers(1, 5))] for _ in range(n)]
    return Sentence(rng.integers(0, WORDS, n).tolist(), spelled, rng.integers(0, TAGS, n).tolist())


class CharWordCRF(ab.Module):
    """Character and word BiLSTMs, and a CRF whose partition function is a chain of cells (Ma, Hovy 2016)."""

    def __init__(self, rng: Rng) -> None:
        self.characters = ab.Embedding(CHARACTERS, DIM, rng=rng)
        self.words = ab.Embedding(WORDS, DIM, rng=rng)
        self.char_lstms = [ab.LSTMCell(DIM, DIM, rng=rng) for _ in range(2)]
        self.word_lstms = [ab.LSTMCell(3 * DIM, DIM, rng=rng) for _ in range(2)]
        self.emit = ab.Linear(2 * DIM, TAGS, rng=rng)
        self.transitions = array(rng, TAGS, TAGS)
        self.start, self.end = array(rng, TAGS), array(rng, TAGS)

    def run(self, lstm: Any, inputs: Any) -> list[Any]:
        state, states = None, []
        for x in inputs:
            state = lstm(x, state)
            states.append(state[0])
        return states

    def spell(self, characters: list[int]) -> Any:
        inputs = [self.characters(c) for c in characters]
        forth, back = self.char_lstms
        return self.run(forth, inputs)[-1], self.run(back, inputs[::-1])[-1]

    @ab.cell
    def word(self, word: Any, spelled: Any) -> Any:
        return ab.concat((self.words(word), *spelled))

    @ab.cell
    def emissions(self, forth: Any, back: Any) -> Any:
        return self.emit(ab.concat((forth, back)))

    @ab.cell
    def forward(self, alpha: Any, emission: Any) -> Any:
        scores = alpha + self.transitions + ab.reshape(emission, (-1, 1))  # rows: to, columns: from
        most = ab.max(scores, axis=1, keepdims=True)
        return ab.reshape(most, TAGS) + ab.log(ab.sum(ab.exp(scores - most), axis=1))

    @ab.cell
    def score(self, emission: Any, tag: Any, before: Any) -> Any:
        return ab.lookup(emission, tag) + ab.lookup(ab.lookup(self.transitions, tag), before)

    @ab.cell
    def begin(self, emission: Any, tag: Any) -> Any:
        first = self.start + emission
        return first, ab.lookup(first, tag)

    @ab.cell
    def finish(self, alpha: Any, tag: Any) -> Any:
        last = alpha + self.end
        most = ab.max(last)
        return most + ab.log(ab.sum(ab.exp(last - most))), ab.lookup(self.end, tag)

    def loss(self, s: Sentence) -> Any:
        inputs = [self.word(word, self.spell(spelled)) for word, spelled in zip(s.words, s.spelled, strict=True)]
        forth, back = self.word_lstms
        states = zip(self.run(forth, inputs), self.run(back, inputs[::-1])[::-1], strict=True)
        emissions = [self.emissions(f, b) for f, b in states]
        alpha, gold = self.begin(emissions[0], s.tags[0])
        for i in range(1, len(s.tags)):
            alpha = self.forward(alpha, emissions[i])
            gold = gold + self.score(emissions[i], s.tags[i], s.tags[i - 1])
        normalizer, end = self.finish(alpha, s.tags[-1])
        return normalizer - gold - end


def char_word_crf(w: Weights, s: Sentence) -> Tensor:
    """Sum over all sequences of tags, enumerated one by one."""

    def bilstm(name: str, n_in: int, x: Tensor) -> tuple[Tensor, Tensor]:
        net = torch.nn.LSTM(n_in, DIM, bidirectional=True).double()
        mine = {
            f"{part}_l0{end}": w[f"{name}.{i}.{part}"]
            for i, end in enumerate(("", "_reverse"))
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        states, (last, _) = torch.func.functional_call(net, mine, (x,))
        return states, last.flatten()

    spelled = [bilstm("char_lstms", DIM, w["characters.weight"][c])[1] for c in s.spelled]
    inputs = torch.cat((w["words.weight"][s.words], torch.stack(spelled)), 1)
    emissions = linear(w, "emit", bilstm("word_lstms", 3 * DIM, inputs)[0])
    tags = torch.cartesian_prod(*[torch.arange(TAGS)] * len(s.tags)).reshape(-1, len(s.tags))
    scores = emissions[torch.arange(len(s.tags)), tags].sum(1) + w["start"][tags[:, 0]] + w["end"][tags[:, -1]]
    scores = scores + w["transitions"][tags[:, 1:], tags[:, :-1]].sum(1)
    gold = (tags == torch.tensor(s.tags)).all(1)
    return torch.logsumexp(scores, 0) - scores[gold][0]


CASES = [
    Case("character and word bilstm with a crf", CharWordCRF, draw_sentence, char_word_crf),
]
