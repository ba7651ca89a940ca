"""The stack and the buffer of a shift-reduce parser, each read by an LSTM that goes back where something is taken off.

With e_1 to e_k the elements on the stack, from the lowest, and x_1 to x_n the vectors of the words that are left, the
states are

    stack:    s_0 = 0,      s_i = LSTM_s(e_i, s_(i-1)),    of which s_k is read
    buffer:   b_(n+1) = 0,  b_i = LSTM_b(x_i, b_(i+1)),    of which b_1 is read

An element is the vector of a word, or composed of two others and a label: tanh(W [left; right] + b + v_label).
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
        """Read a word of the buffer, the last word first, in a state, h (H,) and c (H,): the next state."""
        return self.buffer(ab.lookup(self.embedding, word), state)

    @ab.cell
    def element(self, word: int) -> Any:
        """Make a word an element of the stack (H,)."""
        return ab.lookup(self.embedding, word)

    @ab.cell
    def compose(self, left: Any, right: Any, label: int) -> Any:
        """Make two elements one, with a label."""
        return ab.tanh(self.join(ab.concat((left, right))) + ab.lookup(self.labels, label))

    @ab.cell
    def push(self, element: Any, state: Any) -> Any:
        """Put an element on the stack, in the state of what is below it: the state of the stack."""
        return self.stack(element, state)


class Parse:
    """A text that is being parsed: what is on the stack, and how many words have been shifted."""

    def __init__(self, model: StackCells, words: Sequence[int]) -> None:
        self._model, self._words, self._n_shifted = model, words, 0
        bottom = model.zeros, model.zeros
        self._elements: list[Any] = []
        self._stack = [bottom]
        """The states of the stack LSTM: below all elements, and after each."""
        self._buffer = [bottom]
        """The states of the buffer LSTM, after the words from the last to each; the first word's is on top."""
        for word in reversed(words):
            self._buffer.append(model.read(word, self._buffer[-1]))

    @property
    def may_shift(self) -> bool:
        """Whether a word is left."""
        return self._n_shifted < len(self._words)

    @property
    def may_reduce(self) -> bool:
        """Whether there are two elements."""
        return len(self._elements) > 1

    @property
    def first(self) -> int:
        """The first of the actions that are possible: without a word left, the one after `SHIFT`."""
        return SHIFT if self.may_shift else REDUCE

    @property
    def states(self) -> tuple[Any, Any]:
        """The states of stack and buffer."""
        return self._stack[-1], self._buffer[-1]

    def act(self, action: int) -> None:
        """Shift or reduce."""
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
