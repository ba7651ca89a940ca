"""Test policies learned for a model: they can be saved and loaded, and never change results."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.errors import PolicyError
from autobatch.graph.rewrite import UNSHARED
from autobatch.models.tree_classifier import NodeClassifier
from autobatch.policies.fsm.machine import WAYS, Fsm
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.learning import PUBLISHED, describe_progress
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from helpers.checkers.machine_tables import rows_of
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

pytestmark = pytest.mark.usefixtures("_checked")
OPTIONS = ("", "+backward", "+both+compact")
PLAIN = ("unbatched", "search")
SPECS = [*PLAIN, *(name + options for name in policies.names() if name not in PLAIN for options in OPTIONS)]
MACHINES: dict[str, dict[str, Any]] = {
    "best": {},
    "published": dict(PUBLISHED),
    "base, backward": {"encoding": "base", "direction": "backward", "compact": False},
    "max, online": {"encoding": "max", "mask": False, "online": True},
}


class Setting:
    """A model in float64 with instances, and their results without batching."""

    def __init__(self, case: Case) -> None:
        self.model, instances = case.draw(seed=3, n_instances=18, dim=3)
        self.seen, self.unseen = [instances[:4], instances[4:8]], instances[8:]
        loss = ab.batched(self.model.loss, policy="unbatched")
        value, grads = loss.value_and_grad(self.unseen, reduce="sum")
        self.losses = loss(self.unseen)
        self.value, self.grads = float(value), {name: np.array(grad) for name, grad in grads.items()}

    def check(self, loss: Any) -> None:
        """Check losses and gradients up to float64 rounding, relative to the largest of their kind."""
        value, grads = loss.value_and_grad(self.unseen, reduce="sum")
        assert value.dtype == np.float64
        np.testing.assert_allclose(loss(self.unseen), self.losses, rtol=1e-13)
        np.testing.assert_allclose(value, self.value, rtol=1e-13)
        assert grads.keys() == self.grads.keys()
        for name, wanted in self.grads.items():
            np.testing.assert_allclose(np.asarray(grads[name]), wanted, rtol=1e-11, atol=1e-14 * np.abs(wanted).max())


SETTINGS: dict[str, Setting] = {}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def setting(request: pytest.FixtureRequest) -> Setting:
    if request.param.name not in SETTINGS:
        SETTINGS[request.param.name] = Setting(request.param)
    return SETTINGS[request.param.name]


@pytest.mark.slow
@each("spec", SPECS)
def test_losses_and_gradients_are_the_same_under_every_policy(setting: Setting, spec: str) -> None:
    loss = ab.batched(setting.model.loss, policy=spec)
    setting.check(loss)
    assert loss.policy.name == spec
    assert loss.last is not None
    assert loss.last.unseen_share is None
    assert loss.last.batches >= loss.last.lower_bound


@pytest.mark.cases(1)
@each("machine", MACHINES)
def test_losses_and_gradients_are_the_same_under_every_machine(setting: Setting, machine: str) -> None:
    loss = ab.batched(setting.model.loss)
    policy = loss.learn_policy(setting.seen, episodes=60, **MACHINES[machine])
    assert isinstance(policy, Fsm)
    assert loss.policy is policy
    for _ in range(3):  # a policy that continued learning would change
        setting.check(loss)
    assert loss.last is not None
    assert loss.last.unseen_share == policy.unseen_share
    report = loss.explain(setting.unseen)
    assert report.unseen_share is not None
    assert f"\n{report.unseen_share:.0%} of the batches were chosen in states unknown to the policy" in str(report)
    if machine == "max, online":
        assert report.unseen_share == 0


@pytest.mark.cases(2)
def test_learning_again_gives_the_same_policy(setting: Setting) -> None:
    """From instances, or from graphs recorded by the same function: the table is the same."""

    def rows(seed: int, recorded: bool) -> list[Any]:
        loss = ab.batched(setting.model.loss)
        batches = [loss.record_all(batch) for batch in setting.seen] if recorded else setting.seen
        policy = loss.learn_policy(batches, seed=seed, held_out=[setting.unseen], episodes=60, tolerance=0)
        return [rows_of(policy.tables[way]) for way in WAYS]

    assert rows(0, recorded=False) == rows(0, recorded=True)


@pytest.mark.cases(2)
def test_a_saved_policy_does_the_same_in_another_model(setting: Setting, tmp_path: Path) -> None:
    """Other widths, and types in another order. Types are matched by what they are."""
    loss = ab.batched(setting.model.loss)
    policy = loss.learn_policy(setting.seen, episodes=60)
    policy.save(tmp_path / "x.policy.json")
    case = next(case for case in CASES if SETTINGS.get(case.name) is setting)
    model, instances = case.draw(seed=3, n_instances=18, dim=5)
    other = ab.batched(model.loss, policy=str(tmp_path / "x.policy.json"))
    other(instances[7:5:-1])
    other(instances[8:])
    loss(setting.unseen)
    assert loss.last is not None
    assert other.last is not None
    assert other.last.batches == loss.last.batches
    assert other.last.unseen_share == loss.last.unseen_share


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_policy_for_another_model_is_refused(case: Case, tmp_path: Path) -> None:
    """Lattices and sentences get a policy for trees, which shares only the sum; trees get a policy for lattices.

    Models of trees share cells, and therefore policies.
    """
    trees, lattices = CASES[0], CASES[4]
    model, instances = case.draw(seed=0, n_instances=6, dim=3)
    learned = lattices if isinstance(model, NodeClassifier) else trees
    other, others = learned.draw(seed=0, n_instances=6, dim=3)
    ab.batched(other.loss).learn_policy([others], episodes=5).save(tmp_path / "x.policy.json")
    loss = ab.batched(model.loss, policy=str(tmp_path / "x.policy.json"))
    with pytest.raises(PolicyError, match=r"^using a policy: it was learned for .* but this model has "):
        loss(instances)
    loss = ab.batched(model.loss, policy=f"{tmp_path / 'x.policy.json'} or agenda")
    with pytest.warns(UserWarning, match=r"Using agenda instead\."):
        np.testing.assert_array_equal(loss(instances), ab.batched(model.loss, policy="agenda")(instances))


@pytest.mark.slow
def test_going_on_learning_meets_fewer_new_states() -> None:
    """Mini-batches of two-type trees, each unseen: the share of new states decreases."""
    case = next(case for case in CASES if case.name == "tree-lstm-2type")
    model, instances = case.draw(seed=0, n_instances=400, dim=2)
    loss = ab.batched(model.loss, rewrites=UNSHARED)
    graphs = loss.record_all(instances)
    loss.learn_policy([graphs[:8]], episodes=50, online=True)
    shares = []
    for first in range(8, 400, 8):
        loss(graphs[first : first + 8])
        assert loss.last is not None
        shares.append(loss.last.unseen_share or 0.0)
    early, late = np.mean(shares[:10]), np.mean(shares[-10:])
    assert early > 0.05
    assert late < early / 2


def test_the_published_machine_is_learned_beside_ours(setting: Setting) -> None:
    """Each is learned as if alone, so no mini-batch gets more batches than from either, with the same compaction."""
    loss = ab.batched(setting.model.loss)
    policy = loss.learn_policy(setting.seen, episodes=60)
    compacted = {"direction": "both", "compact": True}
    alone = [
        loss.learn_policy(setting.seen, episodes=60, **options)
        for options in ({"rival": False}, {**PUBLISHED, **compacted})
    ]
    assert [machine for machine, _ in policy.machines] == [one.machine for one in alone]
    for (_, tables), one in zip(policy.machines, alone, strict=True):
        assert [rows_of(tables[way]) for way in WAYS] == [rows_of(one.tables[way]) for way in WAYS]
    graph = loss.merged(setting.unseen)
    assert len(policy.schedule(graph)) == min(len(one.schedule(graph)) for one in alone)


def test_on_trees_it_reaches_the_bound() -> None:
    """Held-out mini-batches of plain trees, as recorded by the model."""
    model, instances = CASES[0].draw(seed=1, n_instances=96, dim=2)
    loss = ab.batched(model.loss)
    policy = loss.learn_policy([instances[:16], instances[16:32]])
    assert isinstance(policy, Fsm)
    for first in range(0, 96, 16):
        graph = loss.merged(instances[first : first + 16])
        assert make_schedule(graph, policy).n_batches == min_batches(graph)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    model, instances = CASES[1].draw(seed=1, n_instances=4, dim=2)
    shown = ab.batched(model.loss).learn_policy([instances], progress=True, episodes=60, tolerance=0)
    hidden = ab.batched(model.loss).learn_policy([instances], episodes=60, tolerance=0)
    assert shown.about == hidden.about
    assert capsys.readouterr().out == ""


def test_learning_on_own_graphs_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ab.policies.to_graph(ab.policies.Dag.from_edges([0, 0, 1, 2, 1], [(0, 2), (1, 3), (3, 4)]))
    told, lines = list[Progress](), list[str]()
    monkeypatch.setattr("autobatch.display.progress.show_status", lambda what: nullcontext(lines.append))
    hidden = ab.policies.learn([graph], episodes=60, on_progress=told.append)
    assert lines == []
    shown = ab.policies.learn([graph], episodes=60, progress=True)
    assert shown.about == hidden.about
    assert lines == [*map(describe_progress, told)] != []


def test_options_that_do_not_exist_are_refused() -> None:
    model, instances = CASES[0].draw(seed=1, n_instances=4, dim=2)
    loss = ab.batched(model.loss)
    before = loss.policy
    refused: list[tuple[dict[str, Any], str]] = [
        ({"seed": -1}, "seed of policy learning must be an int of at least 0, got -1"),
        ({"encoding": "sorted"}, "encoding of a state machine must be one of base, max, sort"),
        ({"episode": 3}, "unknown option 'episode'"),
        ({"reward": "money"}, "reward of policy learning must be one of published, critical, got 'money'"),
        ({"episodes": 0}, "episodes of policy learning must be at least 1, got 0"),
        (
            {"direction": "sideways"},
            "direction of policy learning must be one of forward, backward, both, got 'sideways'",
        ),
    ]
    for options, message in refused:
        with pytest.raises(PolicyError, match=message):
            loss.learn_policy([instances], **options)
    with pytest.raises(PolicyError, match="at least one mini-batch"):
        loss.learn_policy([])
    with pytest.raises(PolicyError, match=r"mini-batch 1 of 2 .*has no nodes"):
        loss.learn_policy([instances, []])
    with pytest.raises(PolicyError, match=r"mini-batch 1 of 2 .*has no nodes"):
        loss.learn_policy([instances], held_out=[[]])
    assert loss.policy is before


def test_a_flat_list_of_instances_is_refused_in_one_sentence() -> None:
    double = ab.batched(ab.cell(lambda x: 2.0 * x), backend="reference")
    for flat in ([np.ones((2, 3)), np.ones((4, 3))], np.ones((2, 2, 3)), [[np.ones(3)], np.ones(3)]):
        with pytest.raises(
            ab.DataError, match=r"each mini-batch of learn_policy must be a list .*, got an array"
        ) as told:
            double.learn_policy(flat)  # type: ignore[arg-type]
        assert not hasattr(told.value, "__notes__")


def test_the_deprecated_device_changes_nothing() -> None:
    graph = ab.policies.to_graph(ab.policies.Dag.from_edges([0, 0, 1, 2, 1], [(0, 2), (1, 3), (3, 4)]))
    with pytest.warns(FutureWarning, match=r"learn\(device=\) will be removed in 0\.4") as warned:
        learned = ab.policies.learn([graph], episodes=60, device="cuda")
    assert warned[0].filename == __file__
    assert learned.describe() == ab.policies.learn([graph], episodes=60).describe()
