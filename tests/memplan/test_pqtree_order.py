"""Test the orders of PQ-trees against brute force; trees print, draw, and may exceed the recursion limit."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Hashable
from itertools import islice, permutations
from math import factorial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autobatch.errors import PlanError
from autobatch.memplan import PQTree
from autobatch.memplan.pqtree.node import PNode
from helpers.checkers.consecutive_ones import are_consecutive, random_system

N = 6


def random_tree(rng: np.random.Generator) -> PQTree:
    """Draw a tree of 6 items and reduce it by a few random subsets, skipping those that do not fit."""
    tree = PQTree(range(N))
    for subset in random_system(rng, N, int(rng.integers(0, 5)), share_wrong=0.2):
        tree.reduce(subset)
    return tree


def without(order: list[Hashable], kept: list[int]) -> tuple[Hashable, ...]:
    return tuple(item for item in order if item in kept)


@pytest.mark.parametrize("start", range(0, 100, 50))
def test_restricted_trees_permit_what_is_left_of_the_orders(start: int) -> None:
    for seed in range(start, start + 50):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng)
        kept = rng.permutation(N)[: rng.integers(0, N + 1)].tolist()
        left = [tuple(order) for order in tree.restricted(kept).orders()]
        assert len(set(left)) == len(left)
        assert set(left) == {without(order, kept) for order in tree.orders()}


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_arrange_finds_an_order_if_there_is_one(start: int) -> None:
    for seed in range(start, start + 20):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng)
        kept = rng.permutation(N)[: rng.integers(0, 5)].tolist()
        possible = {without(order, kept) for order in tree.orders()}
        permitted = {tuple(order) for order in tree.orders()}
        for wanted in permutations(kept):
            before, same = tree.frontier(), tree.copy()
            assert tree.arrange(wanted) == (wanted in possible)
            assert without(tree.frontier(), kept) == wanted if wanted in possible else tree.frontier() == before
            assert tuple(tree.frontier()) in permitted
            assert tree == same
            tree.check()


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_reverse_turns_the_deepest_node_that_has_the_items(start: int) -> None:
    for seed in range(start, start + 20):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng)
        permitted = {tuple(order) for order in tree.orders()}
        for _ in range(10):
            before, same = tree.frontier(), tree.copy()
            pair = rng.permutation(N)[:2].tolist()
            tree.reverse(pair)
            assert tuple(tree.frontier()) in permitted
            assert tree == same
            assert without(tree.frontier(), pair) == without(before, pair)[::-1]
            tree.check()
            tree.reverse(pair)
            assert tree.frontier() == before


def test_fewer_than_two_items_reverse_nothing() -> None:
    for items in ["", "b"]:
        tree = PQTree("abcd")
        assert tree.reduce("bc")
        tree.reverse(items)
        assert str(tree) == "(a d (b c))"


def test_structure_is_carried_from_one_operand_to_another() -> None:
    """(a b) is adjacent in the first operand. Its partners are in the second, and both get the same order.

    first operand   a b c d        second operand   w x y z
    """
    partner: dict[Hashable, Hashable] = dict(zip("abcd", "wxyz", strict=True))
    tree = PQTree("zaybxcwd")
    assert tree.reduce_all(["abcd", "wxyz", "ab", "bc"])
    assert tree.reduce_all([partner[item] for item in subset] for subset in tree.restricted("abcd").constraints())
    assert tree.restricted("abcd").n_orders() == tree.restricted("wxyz").n_orders() == 4
    order = tree.restricted("abcd").frontier()
    assert tree.arrange(partner[item] for item in order)
    assert tree.arrange([*order, *(partner[item] for item in order)])
    assert tree.frontier() == [*order, *(partner[item] for item in order)]
    assert len(tree) == 8


def test_orders_come_one_at_a_time() -> None:
    tree = PQTree(range(200))
    assert tree.n_orders() == factorial(200)
    listed = tree.orders()
    first = next(listed)
    assert tree.reduce(range(0, 200, 2))
    orders = [first, *islice(listed, 100)]
    assert first == list(range(200))
    assert len({tuple(order) for order in orders}) == 101


def test_implied_subsets_are_kept_by_every_order() -> None:
    tree = PQTree(range(12))
    assert tree.reduce_all([range(8), range(2, 5), range(4, 7), range(8, 11)])
    implied = list(tree.implied())
    assert str(tree) == "(11 (0 1 7 [(2 3) 4 (5 6)]) (8 9 10))"
    assert len(implied) == 1 + 1 + 3 + 2 + 1
    orders = list(islice(tree.orders(), 500))
    assert len(orders) == 500
    assert all(are_consecutive(order, implied) for order in orders)


def test_equality_is_of_items_and_orders() -> None:
    trees = [PQTree("abcd"), PQTree("dcba"), PQTree("dcba")]
    assert trees[0] == trees[1]
    assert trees[0].reduce_all(["ab", "bc"])
    assert trees[1].reduce_all(["cb", "abc"])
    assert trees[1] != trees[0]
    assert trees[1].reduce("ab")
    assert trees[1] == trees[0] != trees[2]
    assert PQTree("abc") != PQTree("abd")
    assert PQTree("ab") != "(a b)"
    with pytest.raises(TypeError, match="unhashable type: 'PQTree'"):
        hash(trees[0])


@pytest.mark.slow
def test_trees_may_be_deeper_than_python_recurses() -> None:
    depth = sys.getrecursionlimit() + 100
    tree = PQTree(range(depth))
    assert all(tree.reduce(range(size)) for size in range(2, depth))
    assert tree.n_orders() == 2 ** (depth - 1)
    assert tree.copy() == tree
    assert str(tree).count("(") == depth - 1
    assert len(tree.picture().splitlines()) == 2 * depth - 1
    assert tree.to_dot().count("->") == 2 * depth - 2
    assert [len(subset) for subset in tree.constraints()] == list(range(depth - 1, 1, -1))
    assert len(next(islice(tree.orders(), 9, None))) == depth
    assert tree.restricted([0, 5, depth - 1]).constraints() == [[5, 0]]
    assert tree.arrange(range(depth))
    tree.reverse([0, 1])
    assert tree.frontier() == [1, 0, *range(2, depth)]
    assert tree.reduce([0, depth - 1])
    assert tree.n_orders() == 2


def _lose(tree: PQTree) -> None:
    tree._leaf.pop("a")


def _mark(tree: PQTree) -> None:
    tree._leaf["a"].mark = 1


def _orphan(tree: PQTree) -> None:
    tree._leaf["a"].parent = None


def _disown(tree: PQTree) -> None:
    tree._leaf["c"].parent = None


def _part(tree: PQTree) -> None:
    end = next(leaf for leaf in tree._leaf.values() if leaf.parent is not tree._root and leaf.item != "d")
    end.sib_a = end.sib_b = tree._leaf["d"]


def _shrink(tree: PQTree) -> None:
    tree._root = PNode([tree._root])


def _hang(tree: PQTree) -> None:
    PNode([tree._root])


def test_a_damaged_tree_is_noticed() -> None:
    for damage, message in [
        (_lose, "one leaf for each of ['b', 'c', 'd', 'e'], got ['a', 'b', 'c', 'd', 'e']"),
        (_mark, "a reduction left a mark behind"),
        (_orphan, "a child of a P-node has another parent"),
        (_disown, "an endmost child of a Q-node has another parent"),
        (_part, "a child of a Q-node does not know its siblings"),
        (_shrink, "a P-node must have two or more children, got 1"),
        (_hang, "its root must have no parent"),
    ]:
        tree = PQTree("abcde")
        assert tree.reduce_all(["cd", "de"])
        tree.check()
        damage(tree)
        with pytest.raises(PlanError, match="^checking a PQ-tree: .*" + re.escape(message)):
            tree.check()


def test_names_are_quoted_for_graphviz() -> None:
    tree = PQTree(['say "h"', "c\\d"])
    assert tree.to_dot().count('label="say \\"h\\""') == 1
    assert tree.to_dot().count('label="c\\\\d"') == 1


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    tree = PQTree([*"abcdefg", "$h^$"])
    assert tree.reduce_all(["abc", "cd", "efg"])
    tree.plot(tmp_path / f"tree{suffix}")
    assert (tmp_path / f"tree{suffix}").stat().st_size > 1_000


def test_a_picture_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(PlanError, match=r"tree\.png: matplotlib is not installed; pip install 'autobatch-nn\[plot\]'"):
        PQTree("ab").plot("tree.png")
