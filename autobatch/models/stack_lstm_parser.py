"""Shift-reduce parser whose stack and buffer are LSTMs, one instance at a time.

It *shifts* the next word onto a stack, or *reduces* the two topmost elements to one with a label, until no word and one
element are left. Training uses the actions that build a given tree. In parsing, the program awaits the most likely
action of each step.

Source: Dyer, Ballesteros, Ling, Matthews and Smith 2015, Transition-based dependency parsing with stack long
short-term memory (arXiv:1505.08075), for labelled binary trees, and without their LSTM of past actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.actions import SHIFT, actions_of
from autobatch.models.data.dataset import TREES, load_texts_of_trees
from autobatch.models.data.tree import Tree
from autobatch.models.spec import ModelSpec
from autobatch.models.stack_lstm import Parse, StackCells
from autobatch.models.tree_metric import count_brackets, predict_parses


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
