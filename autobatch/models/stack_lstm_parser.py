"""Shift-reduce parser whose stack and buffer are LSTMs, one instance at a time.

It *shifts* the next word onto a stack, or *reduces* the two topmost elements to one with a label, until no word and one
element are left. Training uses the actions that build a given tree. In parsing, the program awaits the most likely
action of each step.

The stack and the buffer are each read by an LSTM that returns to an earlier state on a pop. With e_1 to e_k the
elements of the stack, from the bottom, and x_1 to x_n the vectors of the remaining words, the states are

    stack:    s_0 = 0,      s_i = LSTM_s(e_i, s_(i-1)),    of which s_k is used
    buffer:   b_(n+1) = 0,  b_i = LSTM_b(x_i, b_(i+1)),    of which b_1 is used

An element is the vector of a word, or composed of two elements and a label: tanh(W [left; right] + b + v_label).

Source: Dyer, Ballesteros, Ling, Matthews and Smith 2015, Transition-based dependency parsing with stack long short-term
memory (arXiv:1505.08075), for labelled binary trees, and without their LSTM of past actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TREES, load_texts_of_trees
from autobatch.models.data.tree import REDUCE, SHIFT, Tree, actions_of
from autobatch.models.metric import count_brackets, predict_parses
from autobatch.models.spec import ModelSpec


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
            del self._stack[-2:]  # back to the state below both
            element = model.compose(left, right, action - REDUCE)
        self._elements.append(element)
        self._stack.append(model.push(element, self._stack[-1]))


class StackLSTMParser(StackCells):
    """The cells of stack and buffer, and two layers that choose an action from the states of both.

    Actions are `SHIFT`, and `REDUCE` + l for each label l, C + 1 in total. Arguments are those of `StackCells`.
    """

    def __init__(self, n_words: int, n_classes: int, dim: int, rng: np.random.Generator) -> None:
        super().__init__(n_words, n_classes, dim, rng)
        self.hidden = ab.Linear(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_classes + 1, rng=rng)

    @ab.cell(static=("first",))
    def action_loss(self, stack: Any, buffer: Any, action: int, first: int) -> Any:
        """Compute the cross-entropy of the next action, an int counted from the first possible one: a scalar."""
        return ab.cross_entropy(self.scores(stack, buffer)[first:], action)

    @ab.cell(static=("first",))
    def best_action(self, stack: Any, buffer: Any, first: int) -> Any:
        """Choose the next action, an int counted from the first possible one."""
        return ab.argmax(self.scores(stack, buffer)[first:])

    def scores(self, stack: Any, buffer: Any) -> Any:
        """Score the actions, inside a cell: logits (C + 1,)."""
        return self.output(ab.relu(self.hidden(ab.concat((stack[0], buffer[0])))))

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of the actions that build a tree, except where only one is possible: a scalar."""
        parse, losses = Parse(self, tree.words()), []
        for action in actions_of(tree):
            if parse.may_reduce:
                losses.append(self.action_loss(*parse.states, action - parse.first, parse.first))
            parse.act(action)
        return ab.sum_n(losses, shape=())

    async def parse(self, words: Sequence[int]) -> list[int]:
        """Find the actions that parse a text of one or more words."""
        parse, actions = Parse(self, words), list[int]()
        while parse.may_shift or parse.may_reduce:
            action = SHIFT
            if parse.may_reduce:
                action = parse.first + int(await ab.value(self.best_action(*parse.states, parse.first)))
            parse.act(action)
            actions.append(action)
        return actions


SPEC = ModelSpec(
    name="stack-lstm-parser",
    summary="shift-reduce parser whose stack and buffer are LSTMs (Dyer et al. 2015, for labelled binary trees)",
    model=StackLSTMParser,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="brackets",
    load=load_texts_of_trees,
    load_inputs=load_texts_of_trees.inputs,
    count_correct=count_brackets,
    predict=predict_parses,
    predictor="parse",
    given=lambda tree: tree.words(),
)
