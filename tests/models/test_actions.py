"""Test the actions that build trees: they rebuild the tree that they were derived from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autobatch.models.data.tree import Tree, actions_of, brackets_in, brackets_of, write_tree

TREES = st.recursive(
    st.builds(Tree.leaf, st.just(0), st.integers(0, 3)),
    lambda children: st.builds(Tree.inner, st.integers(0, 2), children, children),
    max_leaves=8,
)


@given(TREES)
def test_actions_build_the_tree_that_they_are_of(tree: Tree[int]) -> None:
    """Checked against the brackets of the inner nodes and against the printed tree."""
    actions = actions_of(tree)
    expected = set()

    def visit(node: Tree[int], first: int) -> int:
        if node.is_leaf:
            return first + 1
        after = visit(node.right, visit(node.left, first))
        expected.add((node.label, first, after - 1))
        return after

    visit(tree, 0)
    assert brackets_of(actions) == brackets_in(tree) == expected

    def write(node: Tree[int]) -> str:
        return f"w{node.word}" if node.is_leaf else f"({node.label} {write(node.left)} {write(node.right)})"

    assert write_tree(actions, [f"w{word}" for word in tree.words()], list(map(str, range(100)))) == write(tree)
