"""Test PQ-trees against brute force over all permutations; on large inputs, both answers come with a certificate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from itertools import combinations, product

import numpy as np
import pytest

import autobatch as ab
from autobatch.memplan import PQTree
from autobatch.memplan.pqtree import tree as pqtree
from autobatch.memplan.pqtree.node import Branch
from autobatch.memplan.pqtree.reduction import Match, match_all
from helpers.checkers.consecutive_ones import (
    MAX_ITEMS,
    all_orders,
    are_consecutive,
    is_refuted,
    mask_of,
    members,
    order_numbers,
    orders_with,
    random_subset,
    random_system,
)
from helpers.counters.counting import count_lines

N_ITEMS = 2_000


def check_all(tree: PQTree, n: int, permitted: int) -> None:
    """Compare a tree's answers with a mask of permitted orders."""
    listed = [order_numbers(n)[tuple(order)] for order in tree.orders()]
    assert len(set(listed)) == len(listed)
    assert sum(1 << at for at in listed) == permitted
    assert tuple(tree.frontier()) == all_orders(n)[listed[0]]
    implied = sorted(mask_of(subset) for subset in tree.implied())
    assert implied == [s for s in range(2**n) if s.bit_count() > 1 and orders_with(n)[s] & permitted == permitted]
    again = PQTree(range(n))
    assert again.reduce_all(tree.constraints())
    assert again == tree == tree.copy()


def check_system(n: int, subsets: list[list[int]]) -> int:
    """Reduce the subsets in turn, skipping refused ones, and compare with all permutations; count refusals."""
    tree, permitted, n_refused = PQTree(range(n)), (1 << math.factorial(n)) - 1, 0
    for subset in subsets:
        kept, before = permitted & orders_with(n)[mask_of(subset)], str(tree)
        assert tree.reduce(subset) == bool(kept)
        if kept:
            permitted = kept
            assert permitted >> order_numbers(n)[tuple(tree.frontier())] & 1
            assert tree.n_orders() == permitted.bit_count()
        else:
            n_refused += 1
            assert str(tree) == before
        tree.check()
    if permitted.bit_count() <= math.factorial(6):
        check_all(tree, n, permitted)
    return n_refused


def check_random_systems(n_systems: int, seed: int) -> None:
    """Half of the systems are random subsets, the other half intervals with a few random subsets."""
    rng = np.random.default_rng(seed)
    n_refused = 0
    for system in range(n_systems):
        n = max(rng.integers(0, MAX_ITEMS + 1, 2).tolist())
        n_refused += check_system(n, random_system(rng, n, int(rng.integers(0, 13)), (0.1, 1.0)[system % 2])) > 0
    assert 0.3 * n_systems < n_refused < 0.7 * n_systems


def test_3_000_random_systems_up_to_7_items_equal_brute_force() -> None:
    check_random_systems(3_000, seed=0)


@pytest.mark.slow
def test_20_000_random_systems_up_to_7_items_equal_brute_force() -> None:
    check_random_systems(20_000, seed=1)


def test_every_system_up_to_4_items_equals_brute_force() -> None:
    """Every set of subsets with at least two items but not all: 2 ** 10 sets for 4 items."""
    n_systems = 0
    for n in range(5):
        subsets = [members(subset) for subset in range(2**n) if 1 < subset.bit_count() < n]
        for size in range(len(subsets) + 1):
            for system in combinations(subsets, size):
                check_system(n, list(system))
                n_systems += 1
    assert n_systems == 1 + 1 + 1 + 2**3 + 2**10


@pytest.mark.slow
def test_every_sequence_of_3_subsets_of_5_items_equals_brute_force() -> None:
    subsets = [members(subset) for subset in range(2**5) if 1 < subset.bit_count() < 5]
    n_refused = sum(check_system(5, list(system)) > 0 for system in product(subsets, repeat=3))
    assert len(subsets) ** 3 == 15_625
    assert n_refused == 3_270


@pytest.mark.parametrize(
    ("templates", "before", "subset", "after"),
    [
        ("p1", ["abc"], "abc", "(d e f g h (a b c))"),
        ("p2", [], "ab", "(c d e f g h (a b))"),
        ("p2", ["abcde"], "ab", "(f g h (c d e (a b)))"),
        ("p3 p4", ["abcd"], "de", "(f g h [(a b c) d e])"),
        ("p3 p4", ["abcd"], "cdefg", "(h [(a b) (c d) (e f g)])"),
        ("p3 p4", ["abcd"], "cdefgh", "[(a b) (c d) (e f g h)]"),
        ("p3 p5 p4", ["abc", "abcdefg"], "cdeh", "[(f g) (a b) c (d e) h]"),
        ("p3 p3 p6", ["ab", "cd"], "bcef", "(g h [d c (e f) b a])"),
        ("p3 p3 p6", ["abcd", "efgh"], "cdef", "[(g h) (e f) (c d) (a b)]"),
        ("q1", ["ab", "bc"], "abc", "(d e f g h [a b c])"),
        ("q2 p4", ["ab", "bc", "cd"], "cde", "(f g h [a b c d e])"),
        ("p3 q2", ["abcd", "de", "ef"], "bcdef", "(g h [a (b c) d e f])"),
        ("q3", ["ab", "bc", "cd"], "bc", "(e f g h [a b c d])"),
        ("p3 p3 q3", ["abc", "cd", "de", "efg"], "bcdef", "(h [a b c d e f g])"),
    ],
)
def test_each_template(
    templates: str, before: list[str], subset: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def record(branches: list[Branch]) -> list[Match] | None:
        matches = match_all(branches)
        used.extend(match.template.__name__.removeprefix("template_") for match in matches or ())
        return matches

    tree = PQTree("abcdefgh")
    assert tree.reduce_all(before)
    monkeypatch.setattr(pqtree, "match_all", record)
    assert tree.reduce(subset)
    assert (" ".join(used), str(tree)) == (templates, after)


@pytest.mark.slow
def test_2_000_intervals_of_2_000_items_have_an_order() -> None:
    """Intervals up to a share of all items: the hidden order is permitted, and every permitted order fits."""
    for share in [0.01, 0.1, 1.0]:
        rng = np.random.default_rng(int(100 * share))
        hidden = rng.permutation(N_ITEMS).tolist()
        starts = rng.integers(0, N_ITEMS, N_ITEMS).tolist()
        sizes = rng.integers(2, int(share * N_ITEMS), N_ITEMS).tolist()
        subsets = [rng.permutation(hidden[a : a + size]).tolist() for a, size in zip(starts, sizes, strict=True)]
        tree = PQTree(range(N_ITEMS))
        assert all(tree.reduce(subset) for subset in subsets)
        tree.check()
        assert are_consecutive(tree.frontier(), subsets)
        for _ in range(20):
            tree.reverse(rng.permutation(N_ITEMS)[:2].tolist())
        assert are_consecutive(tree.frontier(), subsets)
        assert tree.arrange(hidden)
        assert tree.frontier() == hidden
        assert tree.n_orders() > 1


@pytest.mark.parametrize("start", range(2))
def test_the_permitted_orders_of_100_items_are_those_that_fit(start: int) -> None:
    """With part of the hidden order reversed, an order is permitted exactly if it keeps all subsets consecutive."""
    for seed in range(start, 10, 2):
        rng = np.random.default_rng(seed)
        hidden = rng.permutation(100).tolist()
        subsets = [hidden[a : a + size] for a, size in rng.integers((0, 2), (99, 60), (12, 2)).tolist()]
        tree = PQTree(range(100))
        assert tree.reduce_all(subsets)
        n_permitted = 0
        for _ in range(100):
            start, size = rng.integers((0, 2), (99, 60)).tolist()
            order = hidden[:start] + hidden[start : start + size][::-1] + hidden[start + size :]
            permitted = tree.arrange(order)
            assert permitted == are_consecutive(order, subsets)
            n_permitted += permitted
            if permitted:
                hidden = order
                tree.check()
        assert 0 < n_permitted < 100


def test_neighbours_leave_one_order_and_its_reverse() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.permutation(N_ITEMS).tolist()
    tree = PQTree(range(N_ITEMS))
    assert all(tree.reduce(hidden[at : at + 2]) for at in rng.permutation(N_ITEMS - 1).tolist())
    assert [*tree.orders()] in ([hidden, hidden[::-1]], [hidden[::-1], hidden])


@pytest.mark.parametrize("start", range(2))
def test_the_sequence_of_reductions_does_not_matter(start: int) -> None:
    for seed in range(start, 10, 2):
        rng = np.random.default_rng(seed)
        subsets = random_system(rng, n=150, n_subsets=60, share_wrong=0.0)
        trees = [PQTree(range(150)), PQTree(range(150))]
        assert trees[0].reduce_all(subsets)
        assert trees[1].reduce_all(subsets[at] for at in rng.permutation(60).tolist())
        assert trees[0] == trees[1]
        assert trees[0] != PQTree(range(150))


def test_is_refuted_equals_brute_force() -> None:
    """The certificate of refusals on large inputs, checked on small ones."""
    rng = np.random.default_rng(0)
    n_refuted = 0
    for _ in range(300):
        subsets = [random_subset(rng, 6) for _ in range(4)]
        refuted = not _permitted(6, subsets)
        assert is_refuted(subsets) == refuted
        n_refuted += refuted
    assert 30 < n_refuted < 270


def _permitted(n: int, subsets: list[list[int]]) -> int:
    permitted = (1 << math.factorial(n)) - 1
    for subset in subsets:
        permitted &= orders_with(n)[mask_of(subset)]
    return permitted


def check_conflict(n: int, subsets: list[list[int]], conflict: list[int]) -> None:
    """Check that the named subsets have no order, and that without any one of them the frontier is one."""
    named = [subsets[at] for at in conflict]
    assert is_refuted(named)
    for at in range(len(named)):
        rest = named[:at] + named[at + 1 :]
        tree = PQTree(range(n))
        assert tree.reduce_all(rest)
        tree.check()
        assert are_consecutive(tree.frontier(), rest)


def test_both_answers_are_certified_on_systems_up_to_60_items() -> None:
    rng = np.random.default_rng(0)
    n_refused = 0
    for _ in range(200):
        n = int(rng.integers(5, 61))
        subsets = random_system(rng, n, int(rng.integers(2, 61)), share_wrong=0.02)
        tree = PQTree(range(n))
        conflict = tree.conflict(subsets)
        assert tree == PQTree(range(n))
        if tree.reduce_all(subsets):
            assert conflict == []
            assert are_consecutive(tree.frontier(), subsets)
        else:
            n_refused += 1
            assert tree == PQTree(range(n))
            check_conflict(n, subsets, conflict)
    assert 40 < n_refused < 160


def test_a_conflict_among_many_large_subsets_is_found() -> None:
    """Three items of a hidden order, far apart, among 500 intervals of 1,000 items."""
    rng = np.random.default_rng(0)
    subsets = random_system(rng, 1_000, 500, share_wrong=0.0)
    order = PQTree(range(1_000))
    assert order.reduce_all(subsets)
    subsets.insert(250, [order.frontier()[at] for at in (5, 500, 900)])  # type: ignore[misc]
    conflict = PQTree(range(1_000)).conflict(subsets)
    assert 250 in conflict
    check_conflict(1_000, subsets, conflict)


def test_the_largest_conflicts_are_found() -> None:
    """A cycle of pairs: every proper part of it has an order."""
    cycle = [[at, (at + 1) % 60] for at in range(60)]
    conflict = PQTree(range(65)).conflict([[61, 62], *cycle, [1, 2], [61, 63]])
    assert conflict == list(range(1, 61))
    check_conflict(65, [[61, 62], *cycle], conflict)


def test_a_tree_can_forbid_a_subset_by_itself() -> None:
    tree = PQTree("abcd")
    assert tree.reduce_all(["ab", "cd"])
    assert tree.conflict(["ad", "ac", "abc", "bd"]) == [0, 1]
    assert tree.conflict(["bcd", "acd"]) == [0, 1]
    tree.reduce("bc")
    assert tree.conflict(["abc", "bd", "ac"]) == [1]


def lines_of_small_reductions(n: int) -> dict[str, int]:
    """Count the lines executed by reductions of at most five items, in trees of n items."""
    path = PQTree(range(n))
    assert path.reduce_all([at, at + 1] for at in range(n - 1))
    middle = n // 2
    halves = PQTree(range(n))
    assert halves.reduce(range(middle))
    return {
        "at the root": count_lines(PQTree(range(n)).reduce, range(5)),
        "in a P-node": count_lines(halves.reduce, range(5)),
        "across two": count_lines(halves.reduce, range(middle - 3, middle + 2)),
        "in a Q-node": count_lines(path.reduce, range(middle, middle + 5)),
        "refused": count_lines(path.reduce, [middle, middle + 1, middle + 3]),
    }


def test_a_reduction_visits_nothing_but_the_pertinent_subtree() -> None:
    lines = lines_of_small_reductions(100)
    assert lines == lines_of_small_reductions(10_000)
    assert max(lines.values()) < 400


@pytest.mark.cases(1)
@pytest.mark.parametrize("tree_of", ["nothing", "a P-node", "a Q-node of items", "a Q-node of P-nodes"])
def test_a_reduction_is_linear_in_the_subset(tree_of: str) -> None:
    """At most 40 lines per item, for 200 items as for 6,400."""

    def n_lines(size: int) -> int:
        tree = PQTree(range(3 * size))
        before: dict[str, list[range]] = {
            "nothing": [],
            "a P-node": [range(2 * size)],
            "a Q-node of items": [range(at, at + 2) for at in range(2 * size)],
            "a Q-node of P-nodes": [range(at, at + 9) for at in range(0, 2 * size, 5)],
        }
        assert tree.reduce_all(before[tree_of])
        return count_lines(tree.reduce, range(2, size + 2))

    assert n_lines(200) < 40 * 200
    assert n_lines(6_400) < 40 * 6_400


def test_all_reductions_together_are_linear() -> None:
    """200 intervals of 200 items, and 1,600 of 1,600: in both cases 51 lines per item of a subset."""

    def lines_per_item(n: int) -> float:
        rng = np.random.default_rng(0)
        hidden = rng.permutation(n).tolist()
        starts, sizes = rng.integers(0, n - 20, n).tolist(), rng.integers(2, 20, n).tolist()
        subsets = [hidden[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        tree = PQTree(range(n))
        return count_lines(lambda: [tree.reduce(subset) for subset in subsets]) / float(sum(sizes))

    assert lines_per_item(200) == pytest.approx(lines_per_item(1_600), rel=0.05)


def test_items_are_any_hashable_values() -> None:
    items: list[Hashable] = [None, "x", 1.5, (1, 2), frozenset({1}), b"x", PQTree, -1]
    tree = PQTree(items)
    assert tree.frontier() == items
    assert len(tree) == 8
    assert tree.reduce_all([items[2:5], items[4:7], {None, -1}])
    assert are_consecutive(tree.frontier(), [items[2:5], items[4:7], [None, -1]])


def test_tiny_trees() -> None:
    for n in [0, 1, 2]:
        tree = PQTree(range(n))
        assert tree.reduce([])
        assert tree.reduce(range(n))
        assert [tuple(order) for order in tree.orders()] == all_orders(n)
        assert tree.constraints() == []
        assert (str(tree), repr(tree)) == (("()", "<PQTree ()>"), ("0", "<PQTree 0>"), ("(0 1)", "<PQTree (0 1)>"))[n]
        assert tree.conflict([[], range(n)]) == []


def test_wrong_items() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: PQTree("abca"), "making a PQ-tree of 4 items: each must be given once, but 'a'"),
        (lambda: PQTree("abc").reduce("abd"), "looking up 3 items in a PQ-tree of 3: 'd' is not"),
        (lambda: PQTree("abc").reduce_all(["ab", "bx"]), "looking up 2 items in a PQ-tree of 3: 'x' is not"),
        (
            lambda: PQTree("abc").conflict(["ab", "bb"]),
            "looking up 2 items in a PQ-tree: each must be given once, but 'b'",
        ),
        (lambda: PQTree("abc").restricted([1]), "looking up 1 items in a PQ-tree of 3: 1 is not"),
        (lambda: PQTree("abc").arrange("aba"), "looking up 3 items in a PQ-tree: each must be given once, but 'a'"),
    ]
    for call, message in cases:
        with pytest.raises(ab.PlanError, match="^" + re.escape(message)):
            call()


def test_an_error_leaves_the_tree_as_it_was() -> None:
    tree = PQTree("abcd")
    with pytest.raises(ab.PlanError):
        tree.reduce_all(["ab", "bc", "cx"])
    assert tree == PQTree("abcd")
    with pytest.raises(ab.PlanError):
        tree.reduce("abx")
    assert tree.reduce("ab")
    assert str(tree) == "(c d (a b))"


def test_a_copy_goes_its_own_way() -> None:
    tree = PQTree("abcd")
    assert tree.reduce("abc")
    copy = tree.copy()
    assert copy.reduce("ab")
    assert (str(tree), str(copy)) == ("(d (a b c))", "(d (c (a b)))")
    assert tree.reduce("bc")
    assert (str(tree), str(copy)) == ("(d (a (b c)))", "(d (c (a b)))")
