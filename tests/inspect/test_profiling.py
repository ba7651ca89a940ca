"""Test profiles: every batch has its time, rows and bytes, spans nest, and nothing is noted outside profiles."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch
from autobatch.errors import DataError, NumericError
from autobatch.inspect.profiling import STAGES, Profile
from autobatch.plan.plan import Plan
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each

SLACK_US = 1e-3  # times in a trace are rounded to this


class Sums(ab.Module):
    """Word vectors, their part of a sum over all words, and a loss."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((9, 4)))
        self.gates = ab.Linear(4, 4, rng=rng)

    @ab.cell
    def read(self, word: int) -> Any:
        return ab.tanh(self.gates(ab.lookup(self.table, word)))

    @ab.cell
    def total(self, reads: list[Any]) -> Any:
        return ab.sum(ab.sum_n(reads) ** 2)

    @ab.cell
    def log(self, x: Any) -> Any:
        return ab.log(x)

    def loss(self, words: list[int]) -> Any:
        return self.total([self.read(word) for word in words])

    def log_loss(self, words: list[int]) -> Any:
        return self.log(self.loss(words) - float(words[0] == 8) * 1e9)


@ab.cell
def halve(x: Any) -> Any:
    return 0.5 * x


WORDS = [[1, 2, 3], [4], [5, 6]]


def plans_of(loss: ab.Batched, instances: Any, training: bool) -> list[Plan]:
    return [part.plan for part in loss.prepare(instances, training).parts]


def test_every_batch_has_its_rows_and_bytes() -> None:
    """read x 6, then total x 3, whose group has 6 edges: rows of 0 + 4 numbers in, and what backward needs."""
    loss = ab.batched(Sums().loss, policy="agenda", backend="reference")
    profile = loss.profile(WORDS, training=True)
    (call,) = profile.calls
    assert (call.instances, call.nodes, call.plan_hit) == (3, 9, None)
    names = [(span.stage, loss.merged([]).types.names[span.type_id], span.rows) for span in call.batches]
    assert names == [
        ("forward", "read", 6), ("forward", "total", 3), ("backward", "total", 3), ("backward", "read", 6),
        ("weights", "read", 6), ("weights", "total", 3),
    ]  # fmt: skip
    cells, (plan,) = loss.prepare(WORDS, training=True).cells, plans_of(loss, WORDS, training=True)
    saved = {c.type.name: c.layout.saved_width for c in cells.cells}
    forward = {
        name: span.n_bytes for span, (stage, name, _) in zip(call.batches, names, strict=True) if stage == "forward"
    }
    assert forward == {
        "read": 4 * 6 * sum(saved["read"]), "total": 4 * (6 * 4 + 3 * saved["total"][0] + 6 * saved["total"][1]),
    }  # fmt: skip
    assert call.batches[2].n_bytes == forward["total"] + 4 * 6 * 4
    assert int(plan.block_rows.sum()) == 6 + 3 + 6


@pytest.mark.slow
@each("seed", range(6))
@each("training", [True, False])
def test_rows_and_bytes_are_those_of_the_plan(seed: int, training: bool) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True).astype("float64")
    loss = ab.batched(model.loss, policy="score", backend="reference")
    instances = draw_instances(rng, model, n=5)
    (call,) = loss.profile(instances, training=training).calls
    (plan,), cells = plans_of(loss, instances, training), loss.prepare(instances, training).cells
    batches = [(batch.type_id, batch.end - batch.start) for batch in plan.batches]
    ran = {stage: [(s.type_id, s.rows) for s in call.batches if s.stage == stage] for stage in STAGES}
    assert ran["forward"] == batches
    assert ran["backward"] == (batches[::-1] if training else [])
    inputs = np.array([width for cell in cells.cells for width in cell.layout.input_width])
    saved = np.array([width for cell in cells.cells for width in cell.layout.saved_width]) * training
    forward, backward = (sum(s.n_bytes for s in call.batches if s.stage == stage) for stage in ("forward", "backward"))
    assert forward == 8 * int(plan.block_rows @ (inputs + saved))
    assert backward == 8 * int(plan.block_rows @ (2 * inputs + saved)) * training


def assert_nested(inner: Any, outer: Any) -> None:
    assert outer["ts"] <= inner["ts"] + SLACK_US
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + SLACK_US


@pytest.mark.parametrize("parts", [1, 3])
def test_spans_nest_in_a_trace(parts: int, tmp_path: Path) -> None:
    loss = ab.batched(Sums().loss, backend="reference")
    instances = WORDS * 4
    if parts > 1:
        loss.value_and_grad(instances)
        assert loss.last is not None
        loss.max_bytes = loss.last.planned_bytes // parts + 200
    with loss.profile() as profile:
        graphs = loss.record_all(instances)
        for _ in range(2):
            loss(graphs)
            loss.value_and_grad(graphs)
    assert loss.last is not None
    assert (loss.last.parts > 1) == (parts > 1)
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    calls = [event for event in spans if event["cat"] == "call"]
    stages = [event for event in spans if event["cat"] == "stage"]
    batches = [event for event in spans if event["cat"] not in ("call", "stage")]
    assert [call["args"]["plan hit"] for call in calls] == [False, False, True, True]
    for events, outers in ((calls, []), (stages, calls), (batches, stages)):
        for one, other in pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"] + SLACK_US
        for event in events if outers else []:
            around = [o for o in outers if o["ts"] <= event["ts"] + SLACK_US]
            assert_nested(event, around[-1])
            if outers is stages:
                assert around[-1]["name"] == event["cat"]
    assert len(batches) == sum(len(call.batches) for call in profile.calls) > 4 * 3


def test_stages_fill_calls_and_agree_with_the_last_call() -> None:
    loss = ab.batched(Sums().loss, backend="reference")
    with loss.profile() as profile:
        loss.value_and_grad(WORDS)
    (call,) = profile.calls
    assert [span.stage for span in call.stages] == [
        "record", "layout", "rewrite", "schedule", "place", "forward", "backward", "weights",
    ]  # fmt: skip
    assert call.stages[0].start == call.start
    for one, other in pairwise(call.stages):
        assert one.end == other.start
    ms, last = profile.stage_ms(), loss.last
    assert last is not None
    np.testing.assert_allclose(ms["record"], last.record_ms)
    np.testing.assert_allclose(ms["forward"] + ms["backward"] + ms["weights"], last.execute_ms)
    text = str(profile)
    assert text.startswith("1 calls; mean per call: ")
    assert [line.split()[0] for line in text.splitlines()[2:10]] == [span.stage for span in call.stages]
    assert {line.split()[0] for line in text.splitlines()[11:13]} == {"read", "total"}
    besides = [float(line.split(": ")[1].removesuffix(" ms")) for line in text.splitlines()[13:]]
    for stage, shown in zip(("forward", "backward", "weights"), besides, strict=True):
        in_batches = sum(span.ms for span in call.batches if span.stage == stage)
        assert shown == pytest.approx(ms[stage] - in_batches, abs=1e-3)
        assert shown >= 0


def test_types_that_differ_only_in_shape_have_one_row() -> None:
    loss = ab.batched(lambda n: ab.sum(halve(np.ones(n))))
    (row,) = (line.split() for line in str(loss.profile([1, 2, 2, 3])).splitlines() if "halve" in line)
    assert row[:5] == ["halve,", "3", "shapes", "3.0", "4.0"]


def test_profiles_of_functions_that_share_a_backend() -> None:
    """One inside the other, while the outer one's backend is swapped: each notes its own batches."""
    backend, other = Reference(), Reference()
    one, two = (ab.batched(Sums().loss, backend=backend) for _ in range(2))
    with one.profile() as outer:
        one(WORDS)
        with two.profile() as inner:
            two(WORDS)
            one(WORDS)
        one.backend = other
        one(WORDS)
    two(WORDS)
    assert [[len(call.batches) > 0 for call in profile.calls] for profile in (outer, inner)] == [[True] * 3, [True]]


def test_nothing_is_noted_outside_of_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = ab.batched(Sums().loss, backend="reference")
    profile = loss.profile(WORDS)

    def refuse(*_: Any) -> None:
        raise AssertionError("noted")

    monkeypatch.setattr(Profile, "mark", refuse)
    monkeypatch.setattr(Profile, "add", refuse)
    step = loss.prepare(WORDS, training=False)
    loss.value_and_grad(WORDS)
    assert step.clock.spans is None
    assert len(profile.calls) == 1
    with loss.profile(), pytest.raises(AssertionError, match="noted"):
        loss(WORDS)


def test_results_do_not_depend_on_it_and_profiles_may_nest() -> None:
    loss = ab.batched(Sums().loss, backend="reference")
    value, grads = loss.value_and_grad(WORDS)
    expected = {name: np.array(gradient) for name, gradient in grads.items()}
    with loss.profile(n_calls=2) as outer:
        for _ in range(3):
            again, grads = loss.value_and_grad(WORDS)
            assert again == value
            for name, gradient in expected.items():
                np.testing.assert_array_equal(np.array(grads[name]), gradient)
        with loss.profile() as inner:
            loss(WORDS)
        loss(WORDS[:1])
    loss(WORDS)
    assert ([call.instances for call in outer.calls], [call.instances for call in inner.calls]) == ([3, 1], [3])


def test_a_call_that_fails_is_left_out() -> None:
    model = Sums().astype("float64")
    loss = ab.batched(model.log_loss, backend=Reference())
    with loss.profile() as profile, np.errstate(all="ignore"):
        with pytest.raises(NumericError):
            loss.value_and_grad([[8]])
        loss.value_and_grad([[1], [2]])
    (call,) = profile.calls
    stages = [span.stage for span in call.batches]
    assert (stages.count("forward"), call.instances) == (stages.count("backward"), 2)


def test_an_empty_profile_says_so_and_is_a_trace(tmp_path: Path) -> None:
    profile = ab.batched(Sums().loss).profile()
    assert str(profile).startswith("0 calls")
    profile.save_trace(tmp_path / "trace.json")
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) == 1
    with pytest.raises(DataError, match=r"cannot write a trace to .*no such file"):
        profile.save_trace(tmp_path / "none" / "trace.json")
    for wrong in (0, 1.5):
        with pytest.raises(DataError, match=f"n_calls of profile must be an int.*, got {wrong}"):
            ab.batched(Sums().loss).profile(n_calls=wrong)  # type: ignore[arg-type]


def test_training_from_the_command_line_shows_and_keeps_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    trees = tmp_path / "trees.txt"
    trees.write_text("(2 good)\n(0 (1 not) (2 good))\n(1 (0 (1 not) (2 good)) (1 film))\n" * 4)
    common = ["train", "tree-lstm", "--data", str(trees), "--dim", "4", "--epochs", "2", "--batch-size", "6"]
    assert run_to_the_end(lambda: dispatch([*common, "--profile", str(path)])) == 0
    shown = capsys.readouterr().out
    assert "3 calls; mean per call:" in shown, "of four: the first compiles"
    assert f"trace for ui.perfetto.dev: {path}" in shown
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event.get("cat") == "call" for event in events) == 3
    missing = str(tmp_path / "none" / "trace.json")
    assert run_to_the_end(lambda: dispatch([*common, "--profile", missing])) == 2
    assert "cannot write a trace to" in capsys.readouterr().err
