"""Test schedules from users' policies: valid ones run and invalid ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.graph.build import make_graph
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies.fallback import Otherwise
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Policy, Schedule
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.refusals import Model, refused
from helpers.counters.counting import count_lines
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {"reference": Reference, "cpu": Cpu}


class Foreign:
    """A user's policy that changes the schedule of a built-in one."""

    name = "foreign"

    def __init__(self, change: Callable[[Schedule], Any]) -> None:
        self.change = change
        self.agenda = policies.get("agenda")

    def schedule(self, graph: Graph) -> Any:
        return self.change(self.agenda.schedule(graph))


def long(part: Any) -> Any:
    return np.asarray(part, np.int64)


def reverse(schedule: Schedule) -> Schedule:
    sizes = np.diff(schedule.batch_ptr)[::-1]
    return Schedule(schedule.batch_type[::-1], np.cumsum([0, *sizes]).astype(np.int32), schedule.order[::-1])


def shorten(schedule: Schedule) -> Schedule:
    ptr = schedule.batch_ptr[:-1]
    return Schedule(schedule.batch_type[:-1], ptr, schedule.order[: ptr[-1]])


def change_in_place(schedule: Schedule) -> Schedule:
    schedule.order[...] = schedule.order[::-1].copy()
    return schedule


ANOTHER = make_graph(NamedTypes(("a",)), [0, 0, 0], [(0, 1), (1, 2)])
WRONG: dict[str, tuple[Callable[[Schedule], Any], str]] = {
    "of another graph": (lambda _: policies.get("agenda").schedule(ANOTHER), "takes"),
    "reversed": (reverse, "are unfinished"),
    "changed in place": (change_in_place, "batch 0 ('leaf' x 2) takes node 3 ('total')"),
    "a batch missing": (shorten, "2 of 4 nodes are in no batch"),
    "nodes beyond the graph": (lambda s: Schedule(s.batch_type, s.batch_ptr, s.order + 10**6), "has nodes 0..3"),
    "nodes beyond 32 bits": (
        lambda s: Schedule(s.batch_type, s.batch_ptr, long(s.order) + 2**32),
        "has nodes 0..3",
    ),
    "types beyond the table": (lambda s: Schedule(s.batch_type + 99, s.batch_ptr, s.order), "'type 99'"),
    "pointers beyond the nodes": (lambda s: Schedule(s.batch_type, s.batch_ptr * 1000, s.order), "must rise from 0"),
    "no pointers": (lambda s: Schedule(s.batch_type, s.batch_ptr[:0], s.order), "must rise from 0"),
    "floats": (
        lambda s: Schedule(s.batch_type, s.batch_ptr, long(s.order) / 1),
        "order must be an int32[n]",
    ),
    "a table": (
        lambda s: Schedule(s.batch_type[:, None], s.batch_ptr, s.order),
        "batch_type must be an int32[n]",
    ),
    "nothing": (lambda _: None, "got None (NoneType)"),
    "a list": (list, "(list)."),
}


@pytest.mark.parametrize("backend", BACKENDS)
@each("name", WRONG)
@each("wrap", [lambda p: p, lambda p: Otherwise(lambda: p, policies.get("depth"))])
def test_a_schedule_that_does_not_run_the_graph_is_refused(
    model: Model, name: str, backend: str, wrap: Callable[[Any], Policy]
) -> None:
    change, text = WRONG[name]
    loss = ab.batched(model.loss, policy=wrap(Foreign(change)), backend=BACKENDS[backend]())
    for run in (loss, loss.value_and_grad):
        with refused(ab.ScheduleError, "scheduling with policy 'foreign'", text):
            run([0, 1])


RIGHT: dict[str, Callable[[Schedule], Schedule]] = {
    "as it is": lambda s: s,
    "64 bits": lambda s: Schedule(*map(long, (s.batch_type, s.batch_ptr, s.order))),
    "views": lambda s: Schedule(s.batch_type, np.repeat(s.batch_ptr, 2)[::2], s.order[::-1].copy()[::-1]),
    "lists": lambda s: Schedule(s.batch_type.tolist(), s.batch_ptr.tolist(), s.order.tolist()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@each("name", RIGHT)
def test_a_schedule_that_runs_the_graph_is_run(model: Model, name: str, backend: str) -> None:
    loss = ab.batched(model.loss, policy=Foreign(RIGHT[name]), backend=BACKENDS[backend]())
    expected, gradients = ab.batched(model.loss, policy="agenda", backend="reference").value_and_grad([0, 1, 3] * 21)
    value, grads = loss.value_and_grad([0, 1, 3] * 21)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(np.asarray(grads["table"]), np.asarray(gradients["table"]))


def test_a_schedule_that_changes_later_does_not_change_what_runs() -> None:
    kept = policies.get("agenda").schedule(ANOTHER)
    schedule = make_schedule(ANOTHER, Foreign(lambda _: kept))
    kept.order[...] = 99
    assert schedule.order.tolist() == [0, 1, 2]


def test_what_a_policy_of_ones_own_says_of_itself_is_heard() -> None:
    """Optional attributes take effect wherever the policy is given, and the policy stays the same object."""

    class Learning(Foreign):
        unseen_share, revision = 0.5, 0

    model, policy = Model(), Learning(lambda schedule: schedule)
    loss: Any = ab.batched(model.loss, policy=policy, backend="reference")
    graphs = loss.record_all([0, 1])
    for revision, hit in ((0, False), (0, True), (1, False)):
        policy.revision = revision
        loss(graphs)
        assert (loss.last.unseen_share, loss.last.plan_hit) == (0.5, hit)
    loss.policy = plain = Foreign(lambda schedule: schedule)
    loss(graphs)
    assert (loss.policy, loss.last.unseen_share) == (plain, None)
    for wrong in (3, "score"):
        with refused(ab.PolicyError, "policy must be an object with a name and schedule(graph)", f"got {wrong!r}"):
            loss.policy = wrong
    assert loss.policy is plain


def test_built_in_policies_are_unchecked_but_not_their_subclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Graph] = []
    monkeypatch.setattr("autobatch.schedule.make.check_schedule", lambda graph, _: checked.append(graph))
    for name in (*policies.names(), "score+both+compact", "auto", "agenda or score"):
        make_schedule(ANOTHER, policies.get(name))
    assert not checked
    derived: Any = type("Derived", (policies.Agenda,), {})
    make_schedule(ANOTHER, derived())
    assert checked == [ANOTHER]


def test_a_right_schedule_is_checked_by_whole_arrays() -> None:
    lines = []
    for n_nodes in (100, 10_000):
        graph = make_graph(NamedTypes(("a",)), [0] * n_nodes, [(node - 1, node) for node in range(1, n_nodes)])
        lines.append(count_lines(check_schedule, graph, policies.get("agenda").schedule(graph)))
    assert lines[0] == lines[1]
