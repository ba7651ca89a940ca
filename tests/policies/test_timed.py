"""Time instead of counts: hand-made costs under which fewer batches take longer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.errors import PolicyError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies.cost import CostModel, MeasuredCosts, TypeCost
from autobatch.policies.timed import Timed
from autobatch.schedule.schedule_check import check_schedule
from graphs import LETTERS, random_dag, random_tree
from refusals import Model
from ways import each

RULES = ("agenda", "score", "score+backward", "score+both+compact", "depth", "unbatched", "search+50")


def random_costs(rng: np.random.Generator, n_types: int) -> CostModel:
    return CostModel(rng.uniform(1, 20, n_types), rng.uniform(0, 2, n_types), rng.integers(0, 8, n_types).astype(float))


@each("seed", range(25))
def test_no_schedule_is_predicted_slower_than_that_of_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_dag(seed) if seed % 2 else merge_graphs([random_tree(8 * seed + k) for k in range(8)])
    costs = random_costs(rng, len(graph.types.names))
    for rule in RULES:
        inner = policies.get(rule)
        timed, searched = (Timed(inner, costs, search_steps=n).schedule(graph) for n in (0, 40))
        check_schedule(graph, timed)
        check_schedule(graph, searched)
        assert costs.schedule_us(timed) <= costs.schedule_us(inner.schedule(graph)) + 1e-9, rule
        assert costs.schedule_us(searched) <= costs.schedule_us(timed) + 1e-9, rule
    assert Timed(policies.get("score"), costs).name == "timed(score)"


def waiting() -> Graph:
    """Eight nodes can run first; a ninth has to wait, and seven of the eight may.

    a   a   a   a   a   a   a       a ── b ── a
    """
    return make_graph(NamedTypes(("a", "b")), [0] * 8 + [1, 0], [(0, 8), (8, 9)])


def test_rows_wait_where_small_batches_are_dear() -> None:
    """Batches of a cost as much as five rows at least, so 8 + 1 rows become 5 + 4."""
    graph, costs = waiting(), CostModel(np.array([2.0, 2.0]), np.array([1.0, 0.0]), np.array([5.0, 0.0]))
    early = policies.get("score").schedule(graph)
    timed = Timed(policies.get("score"), costs).schedule(graph)
    assert np.diff(early.batch_ptr).tolist() == [8, 1, 1]
    assert np.diff(timed.batch_ptr)[[0, 2]].tolist() in ([5, 4], [4, 5])
    assert (costs.schedule_us(early), costs.schedule_us(timed)) == (2 + 8 + 2 + 2 + 5, 2 + 5 + 2 + 2 + 5)


def alternating() -> Graph:
    """Paths a-b-a, a-b-a and b-a-b, which abab and baba finish."""
    paths = [make_graph(LETTERS, [0, 1, 0], [(0, 1), (1, 2)])] * 2 + [make_graph(LETTERS, [1, 0, 1], [(0, 1), (1, 2)])]
    return merge_graphs(paths)


def test_a_dear_type_runs_no_more_often_than_it_must() -> None:
    """Two batches of each type are the fewest and, whichever is dear, the fastest."""
    graph = alternating()
    for dear in (0, 1):
        costs = CostModel(np.where(np.arange(4) == dear, 100.0, 1.0), np.zeros(4), np.zeros(4))
        timed = Timed(policies.get("score+both"), costs, search_steps=200).schedule(graph)
        assert costs.schedule_us(timed) == 202.0
        assert len(timed) == 4


def supersequences() -> Graph:
    """Paths cabac, abcba, bacab and acbca."""
    words = ("cabac", "abcba", "bacab", "acbca")
    paths = []
    for word in words:
        edges = [(k, k + 1) for k in range(len(word) - 1)]
        paths.append(make_graph(LETTERS, ["abcd".index(letter) for letter in word], edges))
    return merge_graphs(paths)


def test_the_schedule_with_the_fewest_batches_is_not_the_fastest() -> None:
    """If a costs 30 times as much as b and c, more batches are faster than the fewest."""
    graph, costs = supersequences(), CostModel(np.array([30.0, 1.0, 1.0, 1.0]), np.zeros(4), np.zeros(4))
    fewest = policies.get("search").schedule(graph)
    fastest = Timed(policies.get("search"), costs, search_steps=2000).schedule(graph)
    check_schedule(graph, fastest)
    assert len(fewest) < len(fastest)
    assert costs.schedule_us(fastest) < costs.schedule_us(fewest)


def measured(graph: Graph) -> MeasuredCosts:
    kinds = [TypeCost(n, o, 5.0 + i, 0.5, 4.0, 64.0) for i, (n, o) in enumerate(zip(*names_of(graph), strict=True))]
    return MeasuredCosts("reference", 64, "train", tuple(kinds))


def names_of(graph: Graph) -> tuple[list[str], list[str]]:
    return list(graph.types.names), list(graph.types.outlines)


def test_measured_costs_are_found_by_the_types_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = merge_graphs([random_tree(k) for k in range(6)])
    by_name = policies.get("timed(score+both)")
    with pytest.raises(
        PolicyError, match=r"nothing was measured on this machine for the types leaf, inner_a.*calibrate"
    ):
        by_name.schedule(graph)
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    costs = measured(graph)
    path = costs.keep()
    assert path is not None
    given = Timed(policies.get("score+both"), costs).schedule(graph)
    found = by_name.schedule(graph)
    assert [a.tolist() for a in (found.batch_type, found.order)] == [
        a.tolist() for a in (given.batch_type, given.order)
    ]
    path.write_text(path.read_text().replace('"launch_us": 5.0', '"launch_us": -5.0'))
    with (
        pytest.warns(UserWarning, match="must hold a number of at least 0"),
        pytest.raises(PolicyError, match="nothing was measured"),
    ):
        policies.get("timed(score)").schedule(graph)


def test_a_name_stands_for_the_costs_of_the_backend_that_runs(model: Model) -> None:
    loss = ab.batched(model.loss, policy="timed(score)", backend="cpu")
    with pytest.raises(PolicyError, match=r"on the cpu backend; run autobatch doctor --calibrate MODEL --backend cpu"):
        loss(range(4))
    with pytest.warns(UserWarning, match=r"on the cpu backend.* Going on with agenda\."):
        ab.batched(model.loss, policy="timed(score) or agenda", backend="cpu").prepare(range(4))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(PolicyError, match="-1 steps are less than none"):
        Timed(policies.get("score"), search_steps=-1)
    with pytest.raises(PolicyError, match="'sore' is not known"):
        policies.get("timed(sore)")
