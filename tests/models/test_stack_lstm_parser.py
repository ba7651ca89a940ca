"""The shift-reduce parser: actions, brackets and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.stack_lstm_parser import SPEC, StackLSTMParser, actions_of, brackets_of, count_correct, write_tree

TREES = st.recursive(
    st.builds(Tree.leaf, st.just(0), st.integers(0, 3)),
    lambda children: st.builds(Tree.inner, st.integers(0, 2), children, children),
    max_leaves=8,
)


@given(TREES)
def test_actions_build_the_tree_that_they_are_of(tree: Tree[int]) -> None:
    """Their brackets are those of its inner nodes, and their text is the tree's."""
    actions = actions_of(tree)
    expected = set()

    def visit(node: Tree[int], first: int) -> int:
        if node.is_leaf:
            return first + 1
        after = visit(node.right, visit(node.left, first))
        expected.add((node.label, first, after - 1))
        return after

    visit(tree, 0)
    assert brackets_of(actions) == expected

    def write(node: Tree[int]) -> str:
        return f"w{node.word}" if node.is_leaf else f"({node.label} {write(node.left)} {write(node.right)})"

    assert write_tree(actions, [f"w{word}" for word in tree.words()]) == write(tree)


@pytest.mark.parametrize("words", [[1], [1, 2], [3, 1, 2, 1, 2, 3]], ids=len)
def test_any_decisions_make_a_tree(words: list[int]) -> None:
    """With parameters that were never trained; a round for every action that there is a choice of."""
    for seed in range(5):
        model = StackLSTMParser(n_words=4, n_classes=2, dim=4, rng=np.random.default_rng(seed))
        parse = ab.batched(model.parse)
        (actions,) = parse([words])
        assert write_tree(actions, [str(word) for word in words]).count("(") == len(words) - 1
        assert actions.count(0) == len(words)
        assert parse.last is not None
        n_choices = sum(2 * sum(a == 0 for a in actions[:i]) - i > 1 for i in range(len(actions)))
        assert parse.last.rounds == n_choices


def test_counting_right_brackets() -> None:
    """One of two brackets is right, with its label; a text of one word has none."""
    a, b, c = (Tree.leaf(0, word) for word in (1, 2, 3))
    trees = [Tree.inner(1, Tree.inner(0, a, b), c), Tree.leaf(2, 3)]
    outputs = [[0, 0, 2, 0, 2], [0]]
    assert count_correct(outputs, trees, {}) == {"bracket_f1": (2, 4), "exact": (1, 2)}
    assert SPEC.predict is not None
    names = {"words": Vocabulary(["x", "y", "("])}
    assert SPEC.predict(outputs, trees, names) == [{"tree": "(1 (1 x y) -LRB-)"}, {"tree": "-LRB-"}]
