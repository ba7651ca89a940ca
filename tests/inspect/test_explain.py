"""Test reports: what ran together, the distance to the bound, and which types ran one node at a time, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch
from autobatch.inspect.plotting import Picture, plot_schedules
from autobatch.schedule.make import make_schedule
from helpers.programs.graphs import chain
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each

PNG = b"\x89PNG\r\n"


@ab.cell
def one() -> Any:
    return np.ones(1)


@ab.cell
def double(x: Any) -> Any:
    return 2.0 * x


@ab.cell
def halve(x: Any) -> Any:
    return 0.5 * x


class Pair(ab.Module):
    def __init__(self, *parts: ab.Module) -> None:
        self.parts = list(parts)


def two_ways(n: int) -> Any:
    return double(halve(one())) if n else halve(double(one()))


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
    assert (report.compacted, report.bound_kind, report.optimal) == (4, "chain", True)
    assert str(report).startswith(
        "policy agenda (DyNet): 2 instances, 7 nodes, 4 batches (4 compacted); lower bound 4 (chain), proven optimal\n"
    )


def test_depth_pays_for_sums_at_different_depths() -> None:
    assert explain("chain", [2, 1], policy="depth").batches == 5


def test_a_report_says_what_compaction_would_leave() -> None:
    """depth runs the two sums separately; one batch of sums after the last step would be enough."""
    report = explain("chain", [2, 1], policy="depth")
    assert (report.batches, report.compacted, report.lower_bound, report.gap) == (5, 4, 4, 0.25)
    assert not report.optimal
    assert "5 batches (4 compacted); lower bound 4 (chain), gap 25%" in str(report)


@pytest.mark.parametrize(("bound", "fewest"), [("chain", 3), pytest.param("pairs", 4, marks=pytest.mark.slow)])
def test_the_better_bound_proves_what_that_of_chains_cannot(bound: str, fewest: int) -> None:
    """one -> double -> halve and one -> halve -> double: one type must run twice, though no path contains it twice."""
    report = ab.batched(two_ways).explain([0, 1], bound=bound)
    assert (report.batches, report.lower_bound, report.bound_kind) == (4, fewest, bound)
    assert report.optimal == (fewest == 4)
    assert f"lower bound {fewest} ({bound}), {'proven optimal' if fewest == 4 else 'gap 33%'}" in str(report)


def test_an_unknown_bound_is_refused() -> None:
    with pytest.raises(ab.PolicyError, match="bound must be 'chain' or 'pairs', got 'best'"):
        ab.batched(two_ways).explain([0, 1], bound="best")


def test_a_report_draws_what_ran_when(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    explain("chain", [2, 1]).plot(tmp_path / "schedule.png")
    assert (tmp_path / "schedule.png").read_bytes().startswith(PNG)
    graph = chain("a", "b")
    names = Picture("$title^$", make_schedule(graph, ab.policies.get("agenda")), ("$a^$", "$_$"))
    plot_schedules([names], tmp_path / "names.png")  # Matplotlib must not read these as formulas
    for name, why in (("schedule.odd", "'odd' is not supported"), ("none/schedule.png", "No such file")):
        with pytest.raises(ab.AutobatchError, match=rf"cannot draw a schedule to .*{name}': .*{why}"):
            explain("chain", [2, 1]).plot(tmp_path / name)


def test_drawing_without_matplotlib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ab.AutobatchError, match=r"matplotlib is not installed; pip install 'autobatch-nn\[plot\]'\."):
        explain("chain", [2, 1]).plot(tmp_path / "schedule.png")
    assert list(tmp_path.iterdir()) == []


def test_the_command_bounds_by_pairs_and_draws_all_policies(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    path = tmp_path / "schedules.png"
    words = ["explain", "tree-lstm", "--dim", "4", "--batch-size", "8", "--policy", "depth,score+both+compact"]
    assert run_to_the_end(lambda: dispatch([*words, "--bound", "pairs", "--plot", str(path)])) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.count("(pairs), ") == 2
    assert "policy score+both+compact: 8 instances" in out
    assert out.endswith(f"{path}.\n")
    assert path.read_bytes().startswith(PNG)


def test_nodes_on_one_path_are_said_to_wait_for_each_other() -> None:
    text = str(explain("chain", [3]))
    assert "step ran one node at a time: its nodes wait for each other: all are on one path" in text
    assert "start ran one node at a time: the mini-batch has one node of this type" in text


def test_types_that_differ_in_a_static_argument_are_said_to_differ_in_it() -> None:
    text = str(explain("tags", [1, 2]))
    assert "its only node differs from tagged#2 in argument 'tag': 'odd' instead of 'even'" in text
    assert "its only node differs from tagged#1 in argument 'tag': 'even' instead of 'odd'" in text


def test_types_of_two_modules_are_said_to_differ_in_the_module() -> None:
    one, two = Mixed(), Mixed()

    class Both(ab.Module):
        def __init__(self) -> None:
            self.parts = [one, two]

        def run(self, n: int) -> Any:
            return self.parts[n].step(self.parts[n].start(1))

    report = ab.batched(Both().run).explain([0, 1])
    text = str(report)
    apart = {t.apart for t in report.types if t.name.startswith("step#")}
    assert apart == {"reads parts.0.weight", "reads parts.1.weight"}
    assert "differs from step#" in text
    assert "its module, and so its parameters" in text


def test_a_policy_that_runs_nodes_apart_is_named_as_the_reason() -> None:
    assert "start ran one node at a time: the policy ran them separately; 1 batches" in str(
        explain("chain", [1, 1], policy="unbatched")
    )


def test_training_adds_the_launches_and_copies_of_backward() -> None:
    inference, training = explain("chain", [2, 1]), explain("chain", [2, 1], training=True)
    assert training.launches > inference.launches
    assert training.copied_bytes > inference.copied_bytes
    assert training.batches == inference.batches


def test_training_of_a_function_with_more_results_is_explained() -> None:
    model = Mixed()
    report = ab.batched(lambda n: (model.chain(n), n), module=model).explain([2, 1], training=True, has_aux=True)
    plain = explain("chain", [2, 1], training=True)
    assert (report.nodes, report.batches, report.launches) == (plain.nodes, plain.batches, plain.launches)
    with pytest.raises(ab.GraphError, match=r"with has_aux=True, the function must return \(loss, aux\)"):
        ab.batched(model.chain).explain([2, 1], training=True, has_aux=True)


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


@ab.cell
def plain(x: Any, **more: Any) -> Any:
    """Return the first argument."""
    return 2.0 * x


@ab.cell
def first(values: list[Any]) -> Any:
    return values[0] * len(values)


ONE, TWO = np.zeros(1), np.zeros(2)
DIFFERENCES: dict[str, tuple[Any, Any, str]] = {
    "shape": (lambda: plain(ONE), lambda: plain(TWO), "argument 'x': value[1] instead of value[2]"),
    "static": (lambda: plain(ONE, by="a"), lambda: plain(ONE, by="b"), "dict(by: 'a') instead of dict(by: 'b')"),
    "int or float": (lambda: plain(ONE, n=1), lambda: plain(ONE, n=1.0), "dict(n: int) instead of dict(n: float)"),
    "data": (
        lambda: plain(ONE, n=np.arange(2)),
        lambda: plain(ONE, n=np.arange(3)),
        "dict(n: int[2]) instead of dict(n: int[3])",
    ),
    "structure": (
        lambda: plain(ONE, n=(ONE,)),
        lambda: plain(ONE, n=ONE),
        "dict(n: tuple(value[1])) instead of dict(n: value[1])",
    ),
    "length": (
        lambda: first([ONE]), lambda: first([ONE, ONE]), "'values': list(value[1]) instead of list(value[1], value[1])",
    ),
}  # fmt: skip


@each("difference", DIFFERENCES)
def test_what_makes_two_types_of_one_cell_is_said(difference: str) -> None:
    *calls, text = DIFFERENCES[difference]
    report = ab.batched(lambda n: ab.sum(calls[n]())).explain([0, 1])
    lines = [line for line in str(report).splitlines() if "ran one node at a time" in line]
    (one,) = (line for line in lines if line.startswith(("  plain#1", "  first#1")))
    assert f"its only node differs from {one[2:7]}#2 in " in one
    assert text in one


def test_types_of_one_cell_are_told_apart_by_the_arguments_in_which_they_differ() -> None:
    def run(n: int) -> Any:
        return ab.sum(first([ONE] * (n % 10)) if n < 20 else plain(ONE, by=n > 20))

    report = ab.batched(run).explain([1, 2, 13, 20, 21])
    apart = {t.name: t.apart for t in report.types}
    assert apart == {
        "constant": "", "sum": "",
        "first#1": "values: list(value[1])", "first#2": "values: list(2 x value[1])",
        "first#3": "values: list(3 x value[1])",
        "plain#1": "more: dict(by: False)", "plain#2": "more: dict(by: True)",
    }  # fmt: skip
    assert "\n  first#2         1        1      1      1  values: list(2 x value[1])\n" in str(report)


def test_types_that_differ_only_in_shape_have_one_line() -> None:
    one, two = Mixed(), Mixed()

    def run(n: int) -> Any:
        return ab.sum(plain(np.ones(n % 10), n="a" if n < 10 else "b")) + ab.sum((one, two)[n % 2].start(1))

    report = ab.batched(run, module=Pair(one, two)).explain([1, 2, 2, 3, 14])
    lines = [line.split("  ") for line in str(report).splitlines()]
    rows = {words[1]: " ".join(words[2:]).split()[:4] for words in lines if len(words) > 4 and words[1] != "type"}
    assert rows["plain, 3 shapes"] == ["4", "3", "3", "2"]
    assert [len(row) for row in rows.values()] == [4] * len(rows)
    assert {"plain#4", "start#1", "start#2"} < rows.keys()
    assert "\n  plain#1 and 1 like it ran one node at a time: its only node differs from plain#2 in " in str(report)
    assert [t.name for t in report.types if t.name.startswith("plain")] == [f"plain#{k}" for k in (1, 2, 3, 4)]
    assert sum(int(row[0]) for row in rows.values()) == report.nodes


@pytest.mark.slow
@each("policy", ["unbatched", "depth", "agenda"])
@each("seed", range(5))
def test_every_type_that_ran_alone_is_named(seed: int, policy: str) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    loss = ab.batched(model.loss, policy=policy)
    report = loss.explain(instances)
    graph = loss.merged(instances)
    batches = [(graph.types.names[kind], nodes.size) for kind, nodes in make_schedule(graph, loss.policy)]
    assert {t.name: (t.nodes, t.batches, t.alone) for t in report.types} == {
        name: (
            sum(size for kind, size in batches if kind == name),
            sum(kind == name for kind, _ in batches),
            sum(batch == (name, 1) for batch in batches),
        )
        for name, _ in batches
    }
    alone = {name for name, _ in batches} - {name for name, size in batches if size > 1}
    assert {t.name for t in report.types if t.why} == alone
    text, named = str(report), dict[int, Any]()
    for t in report.types:
        if t.why and named.setdefault(t.group, t) is t:
            like = sum(bool(other.why) for other in report.types if other.group == t.group) - 1
            assert f"\n  {t.name}{f' and {like} like it' if like else ''} ran one node at a time: {t.why}" in text
    assert (report.batches, report.nodes) == (len(batches), graph.n_nodes)
    assert report.lower_bound <= report.batches
