"""Shift-reduce parser whose stack and buffer are LSTMs, one instance at a time.

It reads a text from the left: it *shifts* the next word onto a stack, or *reduces* the two topmost elements to one
with a label, until one element is left and no word. The stack is read by an LSTM that goes back where something is
taken off. It learns from the actions that build a tree, and parses by its own: it awaits the likeliest.

Source: Dyer, Ballesteros, Ling, Matthews and Smith 2015, Transition-based dependency parsing with stack long
short-term memory (arXiv:1505.08075), for labelled binary trees, and without their LSTM of past actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TREES, load_trees
from autobatch.models.data.tree import Tree, escape
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_common
from autobatch.models.spec import Counts, ModelSpec

SHIFT = 0


class StackLSTMParser(ab.Module):
    """Word vectors, LSTMs for stack and buffer, a layer that composes two elements, and two that choose an action.

    Action 0 shifts; action 1 + l reduces to an element with label l.

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
        self.hidden = ab.Linear(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_classes + 1, rng=rng)
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

    @ab.cell(static=("first",))
    def action_loss(self, stack: Any, buffer: Any, action: int, first: int) -> Any:
        """Compare the next action, counted from the first that is possible, with the right one: a scalar."""
        return ab.cross_entropy(self.scores(stack, buffer)[first:], action)

    @ab.cell(static=("first",))
    def best_action(self, stack: Any, buffer: Any, first: int) -> Any:
        """Choose the next action, counted from the first that is possible: an int."""
        return ab.argmax(self.scores(stack, buffer)[first:])

    def scores(self, stack: Any, buffer: Any) -> Any:
        """Score the actions, inside a cell: logits (C + 1,)."""
        return self.output(ab.relu(self.hidden(ab.concat((stack[0], buffer[0])))))

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of the actions that build a tree, where there is a choice: a scalar."""
        parse, losses = Parse(self, tree.words()), []
        for action in actions_of(tree):
            if parse.may_reduce:
                losses.append(self.action_loss(*parse.states, action - parse.first, parse.first))
            parse.act(action)
        return ab.sum_n(losses, shape=())

    async def parse(self, words: Sequence[int]) -> list[int]:
        """Find the actions that build the tree of a text, of one or more words."""
        parse, actions = Parse(self, words), list[int]()
        while parse.may_shift or parse.may_reduce:
            action = SHIFT
            if parse.may_reduce:
                action = parse.first + int(await ab.value(self.best_action(*parse.states, parse.first)))
            parse.act(action)
            actions.append(action)
        return actions


class Parse:
    """A text that is being parsed: what is on the stack, and how many words have been shifted."""

    def __init__(self, model: StackLSTMParser, words: Sequence[int]) -> None:
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
        return SHIFT if self.may_shift else SHIFT + 1

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
            element = model.compose(left, right, action - 1)
        self._elements.append(element)
        self._stack.append(model.push(element, self._stack[-1]))


def actions_of(tree: Tree[int]) -> list[int]:
    """List the actions that build a tree, children first.

    >>> actions_of(Tree.inner(3, Tree.leaf(0, 7), Tree.leaf(0, 8)))
    [0, 0, 4]
    """
    return [SHIFT if node.is_leaf else 1 + node.label for node in tree.postorder()]


def brackets_of(actions: Sequence[int]) -> set[tuple[int, int, int]]:
    """Collect the inner nodes that actions build: the label, the first and the last word of each.

    >>> brackets_of([0, 0, 4])
    {(3, 0, 1)}
    """
    brackets, firsts, n_shifted = set(), list[int](), 0
    for action in actions:
        if action == SHIFT:
            firsts.append(n_shifted)
            n_shifted += 1
        else:
            firsts.pop()
            brackets.add((action - 1, firsts[-1], n_shifted - 1))
    return brackets


def write_tree(actions: Sequence[int], words: Sequence[str]) -> str:
    """Write the tree that actions build of words, its leaves without labels.

    >>> write_tree([0, 0, 4], ["good", "film"])
    '(3 good film)'
    """
    left, done = iter(words), list[str]()
    for action in actions:
        if action == SHIFT:
            done.append(escape(next(left)))
        else:
            right = done.pop()
            done.append(f"({action - 1} {done.pop()} {right})")
    return done[0]


def count_correct(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count for F1, which is their ratio, twice the right brackets and all meant and found; and right and all trees.

    A bracket is an inner node with its label and the words that it is over.

    Args:
        outputs: of batched `StackLSTMParser.parse`: per text the actions.
        trees: one per output.
        vocabularies: not used; labels are numbers.
    """
    found, meant = list(map(brackets_of, outputs)), [brackets_of(actions_of(tree)) for tree in trees]
    right = sum(brackets == others for brackets, others in zip(found, meant, strict=True))
    return {"bracket_f1": count_common(found, meant), "exact": (right, len(trees))}


def predict(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(3 good film)"}."""
    texts = ([vocabularies["words"].word(word) for word in tree.words()] for tree in trees)
    return [{"tree": write_tree(actions, words)} for actions, words in zip(outputs, texts, strict=True)]


SPEC = ModelSpec(
    name="stack-lstm-parser",
    summary="shift-reduce parser whose stack and buffer are LSTMs (Dyer et al. 2015, for labelled binary trees)",
    model=StackLSTMParser,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="brackets",
    load=load_trees,
    count_correct=count_correct,
    predict=predict,
    predictor="parse",
    given=lambda tree: tree.words(),
)
