"""Test search and the proofs about its schedules, on random graphs and on data with known counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch.errors import GraphError, PolicyError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.sketch import to_graph
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.sst import read_trees
from autobatch.models.shapes import make_lattice_graph, make_tree_graph, make_two_type_tree_graph
from autobatch.policies.search.bounds import judge, pair_bound
from autobatch.policies.search.search import Search
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.supersequences import fewest_batches
from helpers.data.datasets import REAL, SMALL, needs_real, real
from helpers.programs.graphs import chain, random_batch, random_dag, random_tree
from helpers.runs.ways import each


@cache
def lattices(folder: Path, form: str) -> Graph:
    return make_lattice_graph(read_lattices(folder / "lattice" / "train.txt")[:32], form)


@cache
def trees(folder: Path, seed: int | None) -> Graph:
    items = read_trees(folder / "sst" / "train.txt")[:256]
    return make_tree_graph(items) if seed is None else make_two_type_tree_graph(items, np.random.default_rng(seed))


@each("make", [random_batch, random_tree, lambda seed: random_dag(seed, n_nodes=40)])
@each("seed", range(8))
def test_search_never_needs_more_than_the_best_rule(make: Callable[[int], Graph], seed: int) -> None:
    graph = make(seed)
    schedule = make_schedule(graph, Search(steps=60))
    check_schedule(graph, schedule)
    assert min_batches(graph) <= schedule.n_batches
    assert schedule.n_batches <= make_schedule(graph, policies.get("score+both+compact")).n_batches


@each("seed", range(10))
def test_search_finds_the_fewest_on_small_graphs(seed: int) -> None:
    graph = random_dag(seed, n_nodes=11)
    assert make_schedule(graph, Search(steps=600)).n_batches == fewest_batches(to_dag(graph))


def test_the_same_seed_gives_the_same_schedule() -> None:
    graph = merge_graphs([random_dag(seed, n_nodes=30) for seed in range(4)])
    one, same = (Search(steps=300, seed=3).schedule(graph) for _ in range(2))
    assert one.batch_type.tolist() == same.batch_type.tolist()
    assert one.order.tolist() == same.order.tolist()


def test_search_is_named_as_it_is_asked_for() -> None:
    assert [policies.get(name).name for name in ("search", "search+20000", "search+5000")] == [
        "search", "search+20000", "search",
    ]  # fmt: skip


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(PolicyError, match="steps must be at least 0, got -1"):
        Search(steps=-1)
    cyclic = chain("a", "b", "c")
    cyclic.edge_src[0] = 2
    with pytest.raises(GraphError, match="points backwards"):
        Search().schedule(cyclic)
    graph = chain("a")
    with pytest.raises(PolicyError, match="bound must be 'chain' or 'pairs', got 'best'"):
        judge(graph, make_schedule(graph, policies.get("agenda")), "best")


@each("seed", range(10))
def test_a_judgement_holds_what_is_true(seed: int) -> None:
    """The optimum lies between the bounds and the compacted schedule."""
    graph = random_dag(seed, n_nodes=11)
    schedule = make_schedule(graph, policies.get("depth"))
    fewest = fewest_batches(to_dag(graph))
    chains, pairs = judge(graph, schedule, "chain"), judge(graph, schedule, "pairs")
    assert chains.bound == min_batches(graph) <= pairs.bound <= fewest
    assert fewest <= pairs.compacted == chains.compacted <= schedule.n_batches


@each("bound_kind", ("chain", "pairs"))
def test_a_judgement_counts_batches_whatever_they_cost(bound_kind: str) -> None:
    """Two types, each with a node that waits for one of the other type: three batches, of which one or two cost 5."""
    graph = to_graph(Dag.from_edges([0, 1, 1, 0], [(0, 1), (2, 3)], costs=[5.0, 1.0]))
    found = judge(graph, make_schedule(graph, policies.get("score")), bound_kind)
    assert (found.compacted, found.bound) == (3, {"chain": 2, "pairs": 3}[bound_kind])


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "form", "bound", "fewest"),
    [(SMALL, "variadic", 56, 56), (SMALL, "folded", 36, 36), real("variadic", 220, 221), real("folded", 150, 150)],
)
def test_lattices_are_near_or_at_the_bound(folder: Path, form: str, bound: int, fewest: int) -> None:
    """The first 32 lattices of the training file. More steps reach the bound of the variadic form, as tested below."""
    graph = lattices(folder, form)
    schedule = make_schedule(graph, Search())
    assert schedule.n_batches == fewest
    assert judge(graph, schedule, "pairs").bound == bound


@needs_real
@pytest.mark.slow
@pytest.mark.parametrize(("form", "steps", "most"), [("arity", 200_000, 235), ("variadic", 60_000, 220)])
def test_lattices_with_more_search(form: str, steps: int, most: int) -> None:
    assert make_schedule(lattices(REAL, form), Search(steps)).n_batches <= most


@pytest.mark.parametrize("folder", [SMALL, real()])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_two_type_trees_are_proven_optimal(folder: Path, seed: int) -> None:
    """At most 256 trees. Search reaches the pair bound for every draw of the types."""
    graph = trees(folder, seed)
    schedule = make_schedule(graph, Search())
    assert schedule.n_batches == pair_bound(to_dag(graph), known=schedule.batch_type).value


@pytest.mark.parametrize(("folder", "fewest"), [(SMALL, 21), real(28)])
@each("policy", ["sufficient", "critical", "score", "agenda+compact", "search"])
def test_plain_trees_are_at_the_bound(folder: Path, fewest: int, policy: str) -> None:
    graph = trees(folder, None)
    assert make_schedule(graph, policies.get(policy)).n_batches == min_batches(graph) == fewest
