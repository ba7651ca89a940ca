"""The stack and the buffer of a shift-reduce parser, each read by an LSTM that returns to an earlier state on a pop.

With e_1 to e_k the elements of the stack, from the bottom, and x_1 to x_n the vectors of the remaining words, the
states are

    stack:    s_0 = 0,      s_i = LSTM_s(e_i, s_(i-1)),    of which s_k is used
    buffer:   b_(n+1) = 0,  b_i = LSTM_b(x_i, b_(i+1)),    of which b_1 is used

An element is the vector of a word, or composed of two elements and a label: tanh(W [left; right] + b + v_label).
`autobatch.models.stack_lstm_parser` has the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.actions import REDUCE, SHIFT


class StackCells(ab.Module):
    """Word vectors, LSTMs for stack and buffer, and a layer that composes two elements.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_classes: C, labels are 0 to C - 1.
        dim: H, width of elements and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_classes: int, dim: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.labels = ab.Parameter(0.1 * rng.standard_normal((n_classes, dim)))
        self.stack = ab.LSTMCell(dim, dim, rng=rng)
        self.buffer = ab.LSTMCell(dim, dim, rng=rng)
        self.join = ab.Linear(2 * dim, dim, rng=rng)
        self.zeros = np.zeros(dim)

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word of the buffer, from the last word to the first."""
        return self.buffer(ab.lookup(self.embedding, word), state)

    @ab.cell
    def element(self, word: int) -> Any:
        """Look up the element (H,) of a word."""
        return ab.lookup(self.embedding, word)

    @ab.cell
    def compose(self, left: Any, right: Any, label: int) -> Any:
        """Combine two elements and a label to one element (H,)."""
        return ab.tanh(self.join(ab.concat((left, right))) + ab.lookup(self.labels, label))

    @ab.cell
    def push(self, element: Any, state: Any) -> Any:
        """Return the stack's state after pushing an element, from the state below it."""
        return self.stack(element, state)


class Parse:
    """A text during parsing: the stack, the buffer and the number of shifted words."""

    def __init__(self, model: StackCells, words: Sequence[int]) -> None:
        self._model, self._words, self._n_shifted = model, words, 0
        bottom = model.zeros, model.zeros
        self._elements: list[Any] = []
        self._stack = [bottom]
        """States of the stack LSTM: below all elements, and after each."""
        self._buffer = [bottom]
        """States of the buffer LSTM, from the empty buffer to the state of the next word."""
        for word in reversed(words):
            self._buffer.append(model.read(word, self._buffer[-1]))

    @property
    def may_shift(self) -> bool:
        """Return whether a word is left."""
        return self._n_shifted < len(self._words)

    @property
    def may_reduce(self) -> bool:
        """Return whether the stack has two elements."""
        return len(self._elements) > 1

    @property
    def first(self) -> int:
        """Return the first possible action: `SHIFT`, or without words left, `REDUCE`."""
        return SHIFT if self.may_shift else REDUCE

    @property
    def states(self) -> tuple[Any, Any]:
        """Return the states of stack and buffer."""
        return self._stack[-1], self._buffer[-1]

    def act(self, action: int) -> None:
        """Perform an action, shift or reduce."""
        model = self._model
        if action == SHIFT:
            element = model.element(self._words[self._n_shifted])
            self._n_shifted += 1
            self._buffer.pop()
        else:
            right, left = self._elements.pop(), self._elements.pop()
            del self._stack[-2:]
            element = model.compose(left, right, action - REDUCE)
        self._elements.append(element)
        self._stack.append(model.push(element, self._stack[-1]))
