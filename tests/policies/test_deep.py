"""Test policy networks: reproducible from a seed, equal in torch and compiled code, usable on graphs of any types."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch._native import Simulation, score_types
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, to_dag
from autobatch.graph.sketch import to_graph
from autobatch.policies.fsm.machine import Machine, TypeNames
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.rules.network import (
    OVERALL_FEATURES,
    TYPE_FEATURES,
    Deep,
    Network,
    to_network,
)
from autobatch.policies.rules.rules import Score, Weights
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from helpers.programs.graphs import LETTERS, random_batch, random_dag
from helpers.runs.ways import each
from learning import deep
from learning.deep import DeepLearning, learn_deep, learn_families, plot_curve, require_packages
from learning.distill import distill_fsm, distill_rule, fit_choices
from learning.families import draw, draw_graphs

ALGORITHMS = ("ppo", "dqn")
TINY = DeepLearning(steps=600, seats=4, hidden=4, measure_every=300)
LETTERS_SEEN = TypeNames.of(LETTERS)


@pytest.fixture
def _extra() -> None:
    for package in ("gymnasium", "stable_baselines3", "sb3_contrib", "torch"):
        pytest.importorskip(package, reason="learning networks needs the extra rl")


def some_dags(n: int = 4) -> list[Dag]:
    return [to_dag(random_dag(i, n_nodes=30)) for i in range(n)]


def random_rows(rng: np.random.Generator, n_types: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw features of types, some without unrun nodes, and of the whole graph."""
    rows = rng.random((n_types, len(TYPE_FEATURES))).astype(np.float32)
    rows[:, 0] = rng.random(n_types) < 0.7
    rows *= rows[:, :1]
    return rows, rng.random(len(OVERALL_FEATURES)).astype(np.float32)


def random_network(rng: np.random.Generator, hidden: int = 5) -> Network:
    types, overall = len(TYPE_FEATURES), len(OVERALL_FEATURES)
    shapes = ((hidden, types), (hidden,), (hidden, hidden), (hidden, hidden), (hidden, overall), (hidden,), (hidden,))
    return Network(*(rng.normal(size=shape) for shape in shapes))


def scores_of(network: Network, rows: np.ndarray, overall: np.ndarray) -> np.ndarray:
    return score_types(network, np.ascontiguousarray(rows), overall)


def defined(dag: Dag, done: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the features from their definitions."""
    n, kinds, ahead = dag.type_id.size, dag.type_id.tolist(), chains_ahead(dag)
    inputs = [dag.edge_src[dag.edge_ptr[i] : dag.edge_ptr[i + 1]].tolist() for i in range(n)]
    unrun = [i for i in range(n) if i not in done]
    ready = [i for i in unrun if set(inputs[i]) <= done]
    before: list[set[int]] = []
    for i in range(n):
        before.append(set().union(*({s} | before[s] for s in inputs[i])))
    most = {a: max(int(ahead[i, a]) for i in ready) for a in range(dag.n_types)}
    tops = {a: [i for i in ready if most[a] and ahead[i, a] == most[a]] for a in range(dag.n_types)}
    own = {a: [i for i in ready if kinds[i] == a] for a in range(dag.n_types)}
    heights = {a: float(np.mean([ahead[i].sum() for i in nodes])) for a, nodes in own.items() if nodes}
    rows = np.zeros((dag.n_types, len(TYPE_FEATURES)))
    for a in range(dag.n_types):
        mine = [i for i in unrun if kinds[i] == a]
        if not mine:
            continue
        frontier = [i for i in mine if not any(kinds[j] == a and j not in done for j in before[i])]
        own_top = [i for i in tops[a] if kinds[i] == a]
        rows[a] = [
            1, bool(own[a]), bool(own[a]) and own_top == tops[a], len(own[a]) / len(mine),
            len(own_top) / len(tops[a]) if own[a] else 0, heights.get(a, 0) / max(heights.values()),
            most[a] / sum(most.values()), len(own[a]) / len(frontier), len(own[a]) / len(ready), len(mine) / len(unrun),
        ]  # fmt: skip
    left, with_ready, critical = rows[:, 0].sum(), rows[:, 1].sum(), rows[:, 2].sum()
    overall = [len(unrun) / n, len(ready) / len(unrun), with_ready / left, critical / with_ready, 1 / left]
    return rows, np.array(overall)


@each("seed", range(10))
def test_features_follow_their_definitions(seed: int) -> None:
    dag = to_dag(random_dag(seed))._replace(n_types=6)
    sim = Simulation(dag)
    rng, done = np.random.default_rng(seed), set[int]()
    rows, overall = sim.features()
    while len(done) < dag.type_id.size:
        expected, expected_overall = defined(dag._replace(n_types=4), done)
        np.testing.assert_allclose(rows[:4], expected, rtol=1e-6)
        np.testing.assert_allclose(overall, expected_overall, rtol=1e-6)
        assert not rows[4:].any(), "types that the dag lacks"
        assert rows.min() >= 0
        assert max(rows.max(), overall.max()) <= 1
        sim.step(int(rng.choice(np.flatnonzero(rows[:, 1]))))
        done |= set(sim.batches()[2].tolist())
        rows, overall = sim.features()
    assert not rows.any(), "nothing is left"


@pytest.mark.usefixtures("_extra")
@pytest.mark.parametrize("n_types", [1, 4, 9])
def test_compiled_scores_are_those_of_torch(n_types: int) -> None:
    import torch

    from learning.torch_policy import make_scorer, to_weights

    torch.manual_seed(n_types)
    rng, scorer = np.random.default_rng(n_types), make_scorer(7)
    network = to_weights(scorer)
    for _ in range(20):
        rows, overall = random_rows(rng, n_types)
        expected = scorer(torch.tensor(rows)[None], torch.tensor(overall)[None])[0][0].detach().numpy()
        np.testing.assert_allclose(scores_of(network, rows, overall), expected, atol=2e-5)


@pytest.mark.parametrize("seed", range(10))
def test_scores_follow_the_types_and_do_not_see_absent_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network, (rows, overall) = random_network(rng), random_rows(rng, 6)
    scores, order = scores_of(network, rows, overall), rng.permutation(6)
    np.testing.assert_allclose(scores_of(network, rows[order], overall), scores[order])
    wider = np.concatenate([rows, np.zeros((3, rows.shape[1]), np.float32)])
    assert scores_of(network, wider, overall).tolist() == [*scores.tolist(), 0, 0, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("_extra")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learning_is_reproducible_and_its_policies_are_valid(algorithm: deep.Algorithm) -> None:
    settings, told = replace(TINY, algorithm=algorithm), list[Progress]()
    first = learn_deep(some_dags(), settings, seed=3, on_progress=told.append)
    again = learn_deep(some_dags(), settings, seed=3)
    other = learn_deep(some_dags(), settings, seed=4)
    assert [part.tolist() for part in first.network] == [part.tolist() for part in again.network]
    assert [part.tolist() for part in first.network] != [part.tolist() for part in other.network]
    assert first.about == again.about
    assert [p["batches"] for p in first.about["curve"]] == [p.batches for p in told]
    assert first.name == "network+both+compact"
    assert told[-1].episodes > len(some_dags()), "graphs are played again"
    for seed in range(10):
        graph = random_batch(seed)
        schedule = first.schedule(graph)
        check_schedule(graph, schedule)
        assert min_batches(graph) <= len(schedule) <= graph.n_nodes


@pytest.mark.long
@pytest.mark.usefixtures("_extra")
def test_learning_on_families_gives_a_network_as_good_as_the_one_that_comes_along() -> None:
    learned, graphs = learn_families(seed=1), draw_graphs(64, seed=99)
    counts = [sum(len(policy.plan_best(dag)) for dag in graphs) for policy in (learned, Deep(None, "both", True))]
    assert counts[0] == pytest.approx(counts[1], rel=0.03)


@pytest.mark.usefixtures("_extra")
def test_learning_writes_scalars_and_a_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="scalars need the extra tensorboard")
    pytest.importorskip("matplotlib", reason="curves need the extra plot")
    learned = learn_deep(some_dags(2), TINY, log_folder=tmp_path / "logs")
    assert len(list(tmp_path.glob("logs/*/events.*"))) == 1
    plot_curve(learned, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PolicyError, match="give a file that can be written"):
        plot_curve(learned, tmp_path / "none" / "curve.png")


@pytest.mark.parametrize("setting", ["steps", "seats", "hidden", "learning_rate", "measure_every"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(PolicyError, match=f"{setting}=0 is out of range"):
        DeepLearning(**{setting: 0})  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="algorithm='q' is out of range"):
        DeepLearning(algorithm="q")  # type: ignore[arg-type]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "find_spec", lambda name: None if name in ("torch", "tensorboard") else name)
    with pytest.raises(PolicyError, match=r"the package torch is not installed; pip install 'autobatch-nn\[rl\]'"):
        require_packages()
    monkeypatch.setattr(deep, "find_spec", lambda name: None if name == "tensorboard" else name)
    with pytest.raises(
        PolicyError, match=r"package tensorboard is not installed; pip install 'autobatch-nn\[tensorboard"
    ):
        require_packages("tensorboard")


def test_the_network_that_comes_along_plans_graphs_it_never_saw_without_torch() -> None:
    rng = np.random.default_rng(2**31)
    graphs = [draw(family, rng) for family in ("random-dags", "grammars") * 6]
    assert [len(Deep().plan_best(dag)) for dag in graphs] == [4, 17, 14, 28, 17, 15, 59, 10, 28, 8, 36, 22]
    both = policies.get("network+both+compact")
    counts = [len(both.schedule(to_graph(dag))) for dag in graphs]
    assert counts == [4, 16, 14, 28, 17, 15, 51, 9, 28, 8, 33, 21]
    program = "import sys; from autobatch.policies.rules.network import Deep; Deep(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_it_does_not_depend_on_the_numbers_of_types() -> None:
    rng = np.random.default_rng(0)
    for dag in draw_graphs(8, seed=5):
        order = rng.permutation(dag.n_types + 2).astype(np.int32)
        renamed = dag._replace(type_id=order[dag.type_id], n_types=dag.n_types + 2)
        assert abs(len(Deep().plan_best(renamed)) - len(Deep().plan_best(dag))) <= 1, "only ties may fall otherwise"


@pytest.mark.parametrize("part", Network._fields)
def test_weights_that_do_not_fit_are_refused(part: str) -> None:
    network = random_network(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"of shape \(.*\), got shape \("):
        to_network(network._replace(**{part: network._asdict()[part][:-1]})._asdict())
    with pytest.raises(ValueError, match=f"{part} must be finite"):
        to_network(network._replace(**{part: network._asdict()[part] * np.nan})._asdict())


class TestDistilling:
    @pytest.mark.slow
    def test_a_machine_that_sees_enough_does_what_the_network_does(self) -> None:
        dag = to_dag(random_dag(8, n_nodes=80))
        made = distill_fsm(Deep(), [dag], LETTERS_SEEN, Machine("sort", critical=True))
        assert made.policy.plan(dag)[0].tolist() == Deep().plan(dag)[0].tolist()
        assert made.policy.unseen == 0
        assert made.before == made.after == len(Deep().plan(dag)[0])
        assert str(made).startswith("fsm: ")

    def test_both_directions_and_held_out_mini_batches(self) -> None:
        dags = [to_dag(random_dag(i, n_nodes=150)) for i in range(12)]
        made = distill_fsm(Deep(direction="both", compact=True), dags[:8], LETTERS_SEEN, held_out=dags[8:])
        assert made.policy.name == "fsm+both+compact"
        assert made.measured == 4
        assert made.after <= 1.05 * made.before

    @pytest.mark.slow
    def test_the_rule_distilled_from_the_rule_is_the_rule(self) -> None:
        weights = Weights(critical=0.4, ready=1.0, own=0.15, height=0.7)
        made = distill_rule(Score(weights=weights), draw_graphs(48, seed=1))
        assert made.after == pytest.approx(made.before, rel=0.01)
        np.testing.assert_allclose(np.array(made.policy.weights) / made.policy.weights.ready, weights, atol=0.1)

    def test_a_rule_distilled_from_the_network_serves_other_graphs(self) -> None:
        made = distill_rule(Deep(direction="both", compact=True), draw_graphs(24, seed=1), draw_graphs(12, seed=2))
        assert made.policy.name == "score+both+compact"
        assert made.after <= 1.05 * made.before

    def test_weights_that_made_the_choices_are_found_again(self) -> None:
        rng, true = np.random.default_rng(0), np.array([2.0, -1.0, 0.5])
        sizes = rng.integers(2, 6, size=20_000)
        starts = np.cumsum(sizes) - sizes
        rows = rng.random((sizes.sum(), 3))
        luck = rows @ true + rng.gumbel(size=len(rows))
        chosen = np.array([s + luck[s : s + n].argmax() for s, n in zip(starts, sizes, strict=True)])
        np.testing.assert_allclose(fit_choices(rows, starts, chosen), true, atol=0.1)

    def test_nothing_to_distil(self) -> None:
        with pytest.raises(PolicyError, match="no mini-batches"):
            distill_fsm(Deep(), [], LETTERS_SEEN)
        with pytest.raises(PolicyError, match="it never had a choice"):
            distill_rule(Deep(), [to_dag(random_dag(0, n_nodes=1))])
