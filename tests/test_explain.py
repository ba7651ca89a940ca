"""Reports: what ran together, how far from the bound, and which types ran one node at a time, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab


class Mixed(ab.Module):
    """Cells that batch, and cells that cannot."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.eye(3))

    @ab.cell
    def start(self, word: int) -> Any:
        return ab.where(word > 0, 1.0, 2.0) * self.weight[0]

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.tanh(self.weight @ x)

    @ab.cell
    def tagged(self, x: Any, tag: str) -> Any:
        return 2.0 * x

    def chain(self, n: int) -> Any:
        x = self.start(n)
        for _ in range(n):
            x = self.step(x)
        return ab.sum(x)

    def tags(self, n: int) -> Any:
        return ab.sum(self.tagged(self.start(n), "odd" if n % 2 else "even"))


def explain(method: str, instances: list[int], policy: str = "agenda", training: bool = False) -> Any:
    return ab.batched(getattr(Mixed(), method), policy=policy).explain(instances, training)


def test_a_report_counts_nodes_batches_and_the_gap_to_the_bound() -> None:
    """start -> step -> step -> sum and start -> step -> sum: agenda runs the late sum with the early one."""
    report = explain("chain", [2, 1])
    assert (report.instances, report.nodes, report.batches, report.lower_bound) == (2, 7, 4, 4)
    assert report.gap == 0.0
    assert {t.name: (t.nodes, t.batches, t.bound) for t in report.types} == {
        "start": (2, 1, 1), "step": (3, 2, 2), "sum": (2, 1, 1),
    }  # fmt: skip
    assert "policy agenda: 2 instances, 7 nodes, 4 batches; lower bound 4, gap 0%" in str(report)


def test_depth_pays_for_sums_at_different_depths() -> None:
    assert explain("chain", [2, 1], policy="depth").batches == 5


def test_nodes_on_one_path_are_said_to_wait_for_each_other() -> None:
    text = str(explain("chain", [3]))
    assert "step ran one node at a time: its nodes wait for each other: all lie on one path" in text
    assert "start ran one node at a time: the mini-batch has one node of this type" in text


def test_types_that_differ_in_a_static_argument_are_said_to_differ_in_it() -> None:
    text = str(explain("tags", [1, 2]))
    assert "argument 'tag': 'odd' against 'even'" in text or "argument 'tag': 'even' against 'odd'" in text


def test_types_of_two_modules_are_said_to_differ_in_the_module() -> None:
    one, two = Mixed(), Mixed()

    class Both(ab.Module):
        def __init__(self) -> None:
            self.parts = [one, two]

        def run(self, n: int) -> Any:
            return self.parts[n].step(self.parts[n].start(1))

    text = str(ab.batched(Both().run).explain([0, 1]))
    assert "differs from step#" in text
    assert "the module, and so the parameters, that it reads" in text


def test_a_policy_that_runs_nodes_apart_is_named_as_the_reason() -> None:
    assert "start ran one node at a time: the policy ran them apart; 1 batches would do" in str(
        explain("chain", [1, 1], policy="unbatched")
    )


def test_training_adds_the_launches_and_copies_of_backward() -> None:
    inference, training = explain("chain", [2, 1]), explain("chain", [2, 1], training=True)
    assert training.launches > inference.launches
    assert training.copied_bytes > inference.copied_bytes
    assert training.batches == inference.batches


def test_the_last_call_has_the_counts_of_the_report() -> None:
    model = Mixed()
    loss = ab.batched(model.chain)
    assert loss.last is None
    loss([2, 1])
    report = loss.explain([2, 1])
    last = loss.last
    assert last is not None
    assert (last.nodes, last.batches, last.lower_bound) == (report.nodes, report.batches, report.lower_bound)
    assert (last.launches, last.copied_bytes) == (report.launches, report.copied_bytes)
    assert min(last.record_ms, last.schedule_ms, last.place_ms, last.execute_ms) > 0
