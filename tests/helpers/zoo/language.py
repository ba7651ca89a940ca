"""Language models whose table of word vectors is also their output layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, lstm

DIM, WORDS = 4, 7


class TiedLSTM(ab.Module):
    """An LSTM language model with tied embeddings: E reads words, and E @ h scores them."""

    def __init__(self, rng: Rng) -> None:
        self.E, self.b = array(rng, WORDS, DIM), array(rng, WORDS)
        self.lstm = ab.LSTMCell(DIM, DIM, rng=rng)

    @ab.cell
    def step(self, word: Any, state: Any) -> Any:
        return self.lstm(ab.lookup(self.E, word), state)

    @ab.cell
    def word_loss(self, state: Any, word: Any) -> Any:
        h, _ = state
        return ab.cross_entropy(self.E @ h + self.b, word)

    def loss(self, words: list[int]) -> Any:
        state, losses = (np.zeros(DIM), np.zeros(DIM)), []
        for word, following in pairwise(words):
            state = self.step(word, state)
            losses.append(self.word_loss(state, following))
        return ab.sum_n(losses)


def tied_lstm(w: Weights, words: list[int]) -> Tensor:
    state, outs = (torch.zeros(DIM, dtype=torch.float64),) * 2, []
    for word in words[:-1]:
        state = lstm(w, "lstm", w["E"][word], state)
        outs.append(state[0])
    return F.cross_entropy(F.linear(torch.stack(outs), w["E"], w["b"]), torch.tensor(words[1:]), reduction="sum")


class TiedTwice(ab.Module):
    """E reads words, and E @ h + U @ c scores them: two products that may run in parallel."""

    def __init__(self, rng: Rng) -> None:
        self.E, self.U = array(rng, WORDS, DIM), array(rng, WORDS, DIM)
        self.lstm = ab.LSTMCell(DIM, DIM, rng=rng)

    @ab.cell
    def word_loss(self, state: Any, word: Any) -> Any:
        h, c = state
        return ab.cross_entropy(self.E @ h + self.U @ c, word)

    def loss(self, words: list[int]) -> Any:
        state, total = None, 0.0
        for word, following in pairwise(words):
            state = self.lstm(ab.lookup(self.E, word), state)
            total = total + self.word_loss(state, following)
        return total


def tied_twice(w: Weights, words: list[int]) -> Tensor:
    state, total = (torch.zeros(DIM, dtype=torch.float64),) * 2, torch.tensor(0.0, dtype=torch.float64)
    for word, following in pairwise(words):
        state = lstm(w, "lstm", w["E"][word], state)
        total = total + F.cross_entropy(state[0] @ w["E"].T + state[1] @ w["U"].T, torch.tensor(following))
    return total


class Bigrams(ab.Module):
    """A neural bigram model of whole windows at once: ids and rows are arrays."""

    def __init__(self, rng: Rng) -> None:
        self.E = array(rng, WORDS, DIM)
        self.hidden = ab.Linear(3 * DIM, DIM, rng=rng)

    @ab.cell
    def loss(self, window: Any) -> Any:
        words, following = window
        x = ab.reshape(ab.lookup(self.E, words), -1)
        h = ab.tanh(self.hidden(x))
        return -ab.lookup(ab.log_softmax(self.E @ h), following)


def bigrams(w: Weights, window: Any) -> Tensor:
    words, following = window
    h = torch.tanh(F.linear(w["E"][torch.tensor(words)].flatten(), w["hidden.weight"], w["hidden.bias"]))
    return F.nll_loss(F.log_softmax(w["E"] @ h, 0), torch.tensor(following))


def draw_words(rng: Rng) -> list[int]:
    return [int(word) for word in rng.integers(0, WORDS, rng.integers(2, 7))]


def draw_window(rng: Rng) -> Any:
    return rng.integers(0, WORDS, 3), int(rng.integers(0, WORDS))


CASES = [
    Case("tied lstm", TiedLSTM, draw_words, tied_lstm),
    Case("tied twice", TiedTwice, draw_words, tied_twice),
    Case("tied windows", Bigrams, draw_window, bigrams),
]
