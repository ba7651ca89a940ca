"""The policy "auto": a rule per backend, learning where it has paid, and what later processes find of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies import auto as module
from autobatch.policies.auto import LESSONS, MARKETS, Auto
from autobatch.policies.cost import MeasuredCosts, TypeCost
from autobatch.policies.fsm.machine import Fsm
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.rules.rules import Score
from autobatch.policies.store import sign
from autobatch.policies.timed import Timed
from autobatch.schedule.schedule import Schedule, min_batches
from autobatch.schedule.schedule_check import check_schedule
from graphs import LETTERS, random_dag, random_tree, words
from refusals import Model

N_FIRST = 2 * LESSONS


def to_lists(schedule: Schedule) -> list[list[int]]:
    return [schedule.batch_type.tolist(), schedule.batch_ptr.tolist(), schedule.order.tolist()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning that costs nothing pays at once; what it learns is worth something only if planning costs nothing."""
    monkeypatch.setattr(module, "EPISODE_NS", 0)
    monkeypatch.setattr(module, "MACHINE_NS", 0)


@pytest.mark.parametrize("backend", [*MARKETS, "unknown"])
def test_it_begins_with_the_rule_of_the_backend(backend: str) -> None:
    auto, rule = Auto(backend), "score+both+compact" if backend == "cuda" else "score"
    assert (auto.name, auto.unseen_share) == (f"auto ({rule})", None)
    for seed in range(4):
        graph = random_dag(seed)
        check_schedule(graph, auto.schedule(graph))
        assert to_lists(auto.schedule(graph)) == to_lists(policies.get(rule).schedule(graph))


def test_plans_that_are_used_again_are_searched_for() -> None:
    searched, rule = Auto(reused=True, search_steps=300), policies.get("score")
    graphs = [words(seed) for seed in range(4)]
    assert searched.name == "auto (search+300)"
    counts = [(len(searched.schedule(graph)), len(rule.schedule(graph))) for graph in graphs]
    assert all(found < planned for found, planned in counts)
    assert [to_lists(searched.schedule(graph)) for graph in graphs] == [
        to_lists(Auto(reused=True, search_steps=300).schedule(graph)) for graph in graphs
    ]


def test_nothing_is_learned_where_the_rule_needs_no_batch_more_than_it_must() -> None:
    auto = Auto()
    for seed in range(N_FIRST):
        assert not auto.settled
        auto.schedule(merge_graphs([chain(10 * seed + k) for k in range(4)]))
    assert (auto.settled, auto.name) == (True, "auto (score)")
    assert auto.why == "the rule for backend reference, which needs no more batches than the chain bound"


def chain(seed: int) -> Graph:
    """A chain: one leaf, then inner nodes."""
    length = 1 + seed % 7
    return make_graph(NamedTypes(("leaf", "inner")), [0] + [1] * length, [(k, k + 1) for k in range(length)])


def test_learning_waits_until_what_it_could_have_saved_has_cost_as_much() -> None:
    """The number of mini-batches follows from counts alone."""
    auto, graphs = Auto(), [words(seed) for seed in range(N_FIRST)]
    rule = policies.get("score")
    for graph in graphs:
        auto.schedule(graph)
    above = sum(len(rule.schedule(g)) - min_batches(g) for g in graphs)
    nodes = sum(graph.n_nodes for graph in graphs)
    learning_us = QLearning.episodes * nodes * module.EPISODE_NS / 1000
    assert auto._worth_from == -(-learning_us // (above * MARKETS["reference"].batch_us))
    assert 1 < auto._worth_from < 100
    for seed in range(int(auto._worth_from) - N_FIRST):
        assert not auto.settled
        auto.schedule(words(100 + seed))
    assert auto.settled


@pytest.mark.usefixtures("eager")
def test_what_is_learned_is_kept_for_other_processes_and_is_the_same_each_time(cache: Path) -> None:
    first, others = Auto("cuda"), [words(seed) for seed in range(50, 54)]
    for seed in range(N_FIRST):
        first.schedule(words(seed))
    assert first.settled
    (entry,) = (cache / "policies").iterdir()
    assert entry.name == f"{sign(LETTERS.outlines, 'auto', 'cuda')}.json"
    second = Auto("cuda")
    expected = [to_lists(first.schedule(graph)) for graph in others]
    assert [to_lists(second.schedule(graph)) for graph in others] == expected
    assert (second.settled, second.chosen.name, second.why) == (True, first.chosen.name, f"{first.why}; from the cache")
    before = entry.read_bytes()
    entry.unlink()
    third = Auto("cuda")
    third.settle([words(seed) for seed in range(N_FIRST)], n_uses=1)
    assert [to_lists(third.schedule(graph)) for graph in others] == expected
    assert entry.read_bytes() == before


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("better", [True, False])
def test_a_machine_is_taken_only_if_it_wins_on_mini_batches_that_it_was_not_learned_on(
    better: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule's weights are made bad, or the planning of the machine dear."""
    if better:
        monkeypatch.setattr(Auto, "make_rule", lambda self: Score(weights=policies.Weights(-1.0, -1.0, -1.0, -1.0)))
    else:
        monkeypatch.setattr(module, "MACHINE_NS", 10**9)
    auto = Auto()
    chosen = auto.settle([words(seed) for seed in range(N_FIRST)], n_uses=1)
    assert isinstance(chosen, Fsm if better else Score)
    assert ("save -" in auto.why) == (not better)
    assert auto.settled
    assert (auto.unseen_share is None) == (not better)


def test_settling_learns_only_what_pays_within_the_uses(cache: Path) -> None:
    auto = Auto()
    assert auto.settle([words(seed) for seed in range(N_FIRST)], n_uses=1).name == "score"
    assert auto.settled
    assert not cache.exists()
    auto = Auto()
    assert auto.settle([words(0)], n_uses=10**9).name == "score"  # too few to learn from


def measure(backend: str, dear: str = "", launch_us: float = 5.0) -> MeasuredCosts:
    """Keep costs of the letters; a batch of one of them costs thirty times as much, and one of few rows no less."""
    kinds = [TypeCost(name, name, launch_us * (30 if name == dear else 1), 0.5, 4.0, 64.0) for name in LETTERS.names]
    costs = MeasuredCosts(backend, 64, "train", tuple(kinds))
    assert costs.keep() is not None
    return costs


@pytest.mark.usefixtures("cache")
def test_on_a_gpu_it_minimises_the_time_that_was_measured_there() -> None:
    for backend in MARKETS:
        measure(backend)
    costs = measure("cuda", dear="a")
    auto = Auto("cuda")
    for seed in range(4):
        graph = words(seed)
        expected = Timed(policies.get("score+both+compact"), costs).schedule(graph)
        assert to_lists(auto.schedule(graph)) == to_lists(expected)
    assert auto.name == "auto (timed(score+both+compact))"
    assert auto.why == "the rule for backend cuda, by what batches were measured to cost there"
    assert to_lists(pickle.loads(pickle.dumps(auto)).schedule(words(0))) == to_lists(auto.schedule(words(0)))
    elsewhere = random_tree(0)
    assert to_lists(auto.schedule(elsewhere)) == to_lists(policies.get("score+both+compact").schedule(elsewhere))
    assert auto.why == "the rule for backend cuda"
    for backend in ("reference", "cpu"):
        other = Auto(backend)
        assert to_lists(other.schedule(words(0))) == to_lists(policies.get("score").schedule(words(0)))
        assert (other.name, other.why) == ("auto (score)", f"the rule for backend {backend}")


@pytest.mark.usefixtures("eager")
def test_what_is_learned_for_measured_time_is_faster_and_kept_with_the_costs(cache: Path) -> None:
    lessons, others = [words(seed) for seed in range(N_FIRST)], [words(seed) for seed in range(50, 54)]
    plain = Auto("cuda")
    plain.settle(lessons, n_uses=1)
    costs = measure("cuda", dear="a").of(LETTERS.outlines)
    auto = Auto("cuda")
    auto.settle(lessons, n_uses=1)
    assert len([*(cache / "policies").iterdir()]) == 2
    assert auto.name == "auto (timed(fsm+both+compact))"
    assert isinstance(auto.chosen, Timed)
    assert isinstance(auto.chosen.policy, Fsm)
    assert auto.chosen.policy.about["settings"]["reward"] == "time"
    timed = Timed(policies.get("score+both+compact"), costs)
    ways = (auto, plain, timed)
    ours, counted, ruled = (sum(costs.schedule_us(way.schedule(graph)) for graph in others) for way in ways)
    assert ours < min(counted, ruled)
    again = Auto("cuda")
    assert [to_lists(again.schedule(g)) for g in others] == [to_lists(auto.schedule(g)) for g in others]
    assert again.why == f"{auto.why}; from the cache"
    measure("cuda", dear="b")
    anew = Auto("cuda")
    anew.schedule(others[0])
    assert not anew.settled


def test_auto_is_the_default_and_explains_itself(model: Model) -> None:
    loss = ab.batched(model.loss)
    assert loss.policy.name == "auto (score)"
    assert loss.explain(range(4)).why == "the rule for backend reference"
    assert "chosen by auto: the rule for backend reference" in str(loss.explain(range(4)))
    assert ab.batched(model.loss, policy="score").explain(range(4)).why == ""
    np.testing.assert_allclose(loss(range(4)), ab.batched(model.loss, policy="agenda")(range(4)), rtol=1e-6)


def test_trees_of_two_kinds_are_scheduled_alike_in_two_runs() -> None:
    graphs = [merge_graphs([random_tree(9 * seed + k) for k in range(9)]) for seed in range(N_FIRST + 2)]
    one, other = Auto(), Auto()
    assert [to_lists(one.schedule(graph)) for graph in graphs] == [to_lists(other.schedule(graph)) for graph in graphs]
