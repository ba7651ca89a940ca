"""Test learning the weights of a rule: the loss, its decrease, and the results of the packaged rule."""

from __future__ import annotations

import sys
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.sketch import Sketch, to_graph
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.sst import read_trees
from autobatch.models.shapes import make_lattice_graph, make_tree_graph, make_two_type_tree_graph
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.learning import read_lesson
from autobatch.policies.rules.rules import LEARNED, Score, Weights
from autobatch.policies.search.bounds import pair_bound
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from learning.evolution import (
    FOREST_SIZE,
    FOREST_STEPS,
    Course,
    Evolution,
    count_all,
    learn_families,
    learn_rule,
    make_forest,
    measure_loss,
)
from learning.families import FAMILIES, draw_graphs

DATA = Path(__file__).parents[3] / "shared" / "data"
START = Weights(0.5, 1.0, 0.5, 0.5)
SHORT = Evolution(generations=8, population=8)


def make_trap(n_chain: int = 3, n_tails: int = 9, tail: int = 4) -> Dag:
    """Make one chain a → a → a → b, and nine chains b → c → c → c → c.

    Nine of ten b are ready and have more nodes ahead of them than a. But only a is critical, and b is needed again.
    """
    sketch = Sketch(3)
    last = sketch.add(0)
    for _ in range(n_chain - 1):
        last = sketch.add(0, [last])
    sketch.add(1, [last])
    for _ in range(n_tails):
        last = sketch.add(1)
        for _ in range(tail):
            last = sketch.add(2, [last])
    return sketch.to_dag()


def loss_of(dags: list[Dag], weights: Weights) -> float:
    return measure_loss(count_all([Course.of(dag) for dag in dags], weights))


def test_all_that_is_counted_is_what_the_policies_give() -> None:
    dags = draw_graphs(12, seed=1)
    graphs = [to_graph(dag) for dag in dags]
    counts = count_all([Course.of(dag) for dag in dags], START)
    ways = (Score(weights=START), Score("backward", weights=START), Score("both", compact=True, weights=START))
    for column, policy in enumerate(ways):
        for row, graph in enumerate(graphs):
            schedule = policy.schedule(graph)
            check_schedule(graph, schedule)
            assert counts[row, column] == schedule.n_batches
    assert counts[:, 3].tolist() == [min_batches(graph) for graph in graphs]


def test_the_loss_is_half_of_what_is_reported_and_a_quarter_of_each_plan() -> None:
    """One graph takes twice the bound from the inputs and four times from the outputs; the other is at the bound."""
    loss = measure_loss(np.array([[20.0, 40.0, 10.0, 10.0], [7.0, 7.0, 7.0, 7.0]]))
    assert loss == pytest.approx((np.log(2) / 4 + np.log(4) / 4) / 2)


def test_a_planted_choice_is_learned() -> None:
    """The trap takes 9 batches at first, and 8 once `critical` has more weight."""
    dags = [make_trap(), make_trap(3, 12, 4), make_trap(4, 9, 5)]
    assert Score(weights=START).plan(dags[0])[0].size == 9
    assert loss_of(dags, START) > 0
    rule = learn_rule(dags, Evolution(generations=15))
    assert count_all([Course.of(dag) for dag in dags], rule.weights).tolist() == [
        [8.0, 8.0, 8.0, 8.0], [8.0, 8.0, 8.0, 8.0], [10.0, 10.0, 10.0, 10.0],
    ]  # fmt: skip
    assert rule.weights.critical > START.critical


@pytest.mark.slow
def test_learned_weights_are_as_good_as_the_best_of_a_grid() -> None:
    dags = draw_graphs(40, seed=3)
    grid = [Weights(c, 1.0, o, h) for c, o, h in product((0.0, 0.5, 1.0), repeat=3)]
    rule = learn_rule(dags, Evolution(generations=20), seed=0)
    loss, losses = loss_of(dags, rule.weights), [loss_of(dags, weights) for weights in grid]
    assert loss < loss_of(dags, START)
    assert loss <= min(losses) < max(losses)


def test_the_best_generation_is_kept_and_told() -> None:
    told: list[Progress] = []
    dags, held_out = draw_graphs(16, seed=4), draw_graphs(12, seed=5)
    rule = learn_rule(dags, SHORT, held_out=held_out, direction="forward", compact=False, on_progress=told.append)
    losses = rule.about["curves"]["loss"]
    assert loss_of(held_out, rule.weights) == pytest.approx(min(losses), abs=1e-6)
    assert [progress.episodes for progress in told] == list(range(1, 9))
    counts = count_all([Course.of(dag) for dag in held_out], rule.weights)
    assert told[int(np.argmin(losses))].batches == counts[:, 2].mean()
    assert {progress.bound for progress in told} == {counts[:, 3].mean()}
    assert rule.name == "score"
    assert rule.weights.ready == 1


def test_same_seed_same_weights_and_no_other_draw_is_touched(tmp_path: Path) -> None:
    dags = draw_graphs(16, seed=6)
    np.random.seed(1)  # noqa: NPY002, the state that the package cma draws from by default
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    first, again, other = (learn_rule(dags, SHORT, seed=seed) for seed in (0, 0, 1))
    assert np.random.random() == expected  # noqa: NPY002
    assert first.weights == again.weights
    assert first.about == again.about
    assert first.about["curves"] != other.about["curves"]
    first.save(tmp_path / "rule.json")
    loaded = policies.load(tmp_path / "rule.json")
    assert isinstance(loaded, Score)
    assert (loaded.weights, loaded.name, loaded.about) == (first.weights, "score+both+compact", first.about)


def test_bounds_that_must_be_reached_are() -> None:
    """A chain of one type says nothing about weights, so all information comes from the traps."""
    sketch = Sketch(1)
    sketch.add(0, [sketch.add(0)])
    traps = [make_trap(), make_trap(4, 9, 5)]
    assert loss_of(traps, START) > 0
    rule = learn_rule([sketch.to_dag()], Evolution(generations=15), must_reach=traps)
    assert loss_of(traps, rule.weights) == 0 == min(rule.about["curves"]["loss"])


@pytest.mark.parametrize("n_steps", FOREST_STEPS)
def test_forests_and_their_bound(n_steps: int) -> None:
    """Batches: leaves, `n_steps` levels of inner nodes, output, loss and sum."""
    forest = make_forest(FOREST_SIZE, n_steps)
    check_graph(to_graph(forest))
    counts = count_all([Course.of(forest)], LEARNED)
    assert counts.tolist() == [[n_steps + 4.0] * 4]


def test_a_rule_is_learned_for_one_model_too() -> None:
    graphs = [to_graph(make_trap())]
    rule = learn_rule(read_lesson(graphs, ())[0], Evolution(generations=15))
    assert rule.schedule(graphs[0]).n_batches == 8


def test_graphs_of_all_families_are_drawn_in_turn() -> None:
    one, other = draw_graphs(8, seed=0), draw_graphs(4, seed=0)
    assert len(FAMILIES) == 4
    assert [dag.edge_src.tolist() for dag in one[:4]] == [dag.edge_src.tolist() for dag in other]
    assert [np.diff(dag.edge_ptr).max() for dag in one[2::4]] == [1, 1], "chains come third"


@pytest.mark.parametrize(
    ("setting", "value"), [("generations", 0), ("population", 3), ("spread", 0.0), ("spread", float("nan"))]
)
def test_a_setting_out_of_range_is_refused(setting: str, value: float) -> None:
    with pytest.raises(PolicyError) as error:
        Evolution(**{setting: value})  # type: ignore[arg-type]
    assert str(error.value) == f"learning a rule: {setting}={value!r} is out of range; see Evolution."


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(PolicyError, match="learning a rule: no graph has nodes; give at least one that has"):
        learn_rule([Sketch(2).to_dag()])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(
        PolicyError, match=r"the package cma is not installed; pip install 'autobatch-nn\[rl\]', or use"
    ):
        learn_rule([make_trap()])


@pytest.mark.long
def test_the_weights_in_the_package_are_learned_again() -> None:
    rule = learn_families()
    assert rule.weights == LEARNED


def held_out_lattices(form: str) -> list[Graph]:
    lattices = read_lattices(DATA / "lattice" / "train.txt")
    return [make_lattice_graph(lattices[k : k + 32], form) for k in range(32, 32 * 9, 32)]


def held_out_trees(size: int) -> list[Graph]:
    trees = list(islice(read_trees(DATA / "sst" / "train.txt"), size * 9))
    return [make_two_type_tree_graph(trees[size * k : size * (k + 1)], np.random.default_rng(k)) for k in range(1, 9)]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not there")
def test_score_reaches_the_bound_on_plain_trees() -> None:
    trees = read_trees(DATA / "sst" / "train.txt")[: 256 * 20]
    for size in (32, 256):
        graphs = [make_tree_graph(trees[first : first + size]) for first in range(0, 20 * size, size)]
        least = [min_batches(graph) for graph in graphs]
        for rule in ("score", "score+backward"):
            assert [policies.get(rule).schedule(graph).n_batches for graph in graphs] == least


@pytest.mark.cases(1)
@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not there")
@pytest.mark.parametrize(
    ("workload", "batches", "gap"),
    [
        pytest.param("lattices, arity", 1750, 0.12, marks=pytest.mark.slow),
        pytest.param("lattices, variadic", 1600, 0.12, marks=pytest.mark.slow),
        ("lattices, folded", 1102, 0.12),
        ("two-type trees, 32", 244, 0.05),
        ("two-type trees, 256", 292, 0.05),
    ],
)
def test_score_on_unseen_workloads(workload: str, batches: int, gap: float) -> None:
    """The eight mini-batches after the first. The weights were learned on other workloads."""
    kind, form = workload.split(", ")
    graphs = held_out_lattices(form) if kind == "lattices" else held_out_trees(int(form))

    def count(rule: str) -> int:
        policy = policies.get(f"{rule}+both+compact")
        return sum(policy.schedule(graph).n_batches for graph in graphs)

    assert count("score") == batches
    assert batches <= (1 + gap) * sum(pair_bound(to_dag(graph)).value for graph in graphs)
    assert batches <= 1.02 * min(count(rule) for rule in ("depth", "agenda", "sufficient", "critical"))
