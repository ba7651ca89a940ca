"""Variants give equal results; what is chosen by a given clock is known; decisions are kept, pinned and taken back."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.blas.finding import list_providers
from autobatch.errors import BackendError, PlanError
from autobatch.memplan.planner import MemoryPlanner
from autobatch.runtime.cpu.backend import Cpu
from autobatch.runtime.interpreter.reference import Reference
from autobatch.tuning import Trial, Variant, store
from autobatch.tuning.variant import LAYOUTS, OTHERS, REWRITES, WORDS, read_decisions, write_decisions
from clockwork import Clockwork, Pairs, decided, make, set_clock, train
from noting_backend import NotedExecutable, NotingBackend
from random_programs import draw_instances, draw_model
from twin_cases import CASES, Case

SWITCHES = (*REWRITES, *LAYOUTS)
BASE, TWO = Variant(), Variant(threads=2)
LABEL = "train up to 64 nodes"


def run_trial(trial: Trial, seconds: Callable[[Variant, int], float]) -> list[Variant]:
    """Run a trial by a clock that knows the variant and how often it ran; give whose turns there were."""
    turns: list[Variant] = []
    while not trial.done:
        turns.append(trial.next())
        trial.add(turns[-1], seconds(turns[-1], turns.count(turns[-1])))
    return turns


# --- trials ---


def test_variants_take_turns_and_their_first_runs_do_not_count() -> None:
    variants = [BASE, TWO, Variant(share=True)]
    trial = Trial(variants)
    turns = run_trial(trial, lambda variant, n: 100.0 if n == 1 else 0.9 if variant == TWO else 1.0)
    rounds = [turns[first : first + 3] for first in range(0, len(turns), 3)]
    assert all(set(one) == set(variants) for one in rounds)
    assert len({one[0] for one in rounds[1:]}) == 3
    assert (trial.chosen, trial.medians[BASE], len(rounds)) == (TWO, 1.0, 8)


@pytest.mark.parametrize(("seconds", "expected"), [(0.98, BASE), (1.0, BASE), (0.96, TWO), (2.0, BASE)])
def test_a_variant_must_be_clearly_faster(seconds: float, expected: Variant) -> None:
    trial = Trial([BASE, TWO])
    run_trial(trial, lambda variant, n: seconds if variant == TWO else 1.0)
    assert trial.chosen == expected


def test_what_is_faster_on_the_whole_but_not_most_times_is_tried_longer() -> None:
    """Two rounds of seven are lost: not clear. Of fifteen, three are: clear."""
    trial = Trial([BASE, TWO])
    turns = run_trial(trial, lambda variant, n: 1.0 if variant == BASE else 1.1 if n in (3, 5, 9) else 0.9)
    assert (len(turns), trial.winners) == (2 * 16, [TWO])
    trial = Trial([BASE, TWO])
    turns = run_trial(trial, lambda variant, n: 1.0 if variant == BASE else 1.1 if n % 3 == 0 else 0.9)
    assert (len(turns), trial.winners) == (2 * 16, [])


def test_what_is_hopeless_runs_three_times() -> None:
    trial = Trial([BASE, TWO, Variant(fold=False)])
    turns = run_trial(trial, lambda variant, n: 20.0 if variant == TWO else 1.0)
    assert (turns.count(TWO), turns.count(BASE), trial.chosen) == (3, 8, BASE)


def test_a_turn_lasts_until_its_time_is_known() -> None:
    trial = Trial([BASE, TWO])
    assert trial.next() == trial.next() == BASE
    trial.add(TWO, 1.0)
    assert trial.next() == BASE
    assert Trial([BASE]).done


def test_chance_alone_rarely_chooses_another() -> None:
    """Equal variants, a tenth of noise: of 400 trials few end elsewhere."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        trial = Trial([BASE, TWO])
        run_trial(trial, lambda variant, n: float(rng.lognormal(0.0, 0.1)))
        found.append(trial.chosen)
    assert 0 < found.count(TWO) < 60


# --- equal results ---


def all_variants() -> list[Variant]:
    """Every combination of switches that says something else."""
    combined = itertools.product(*(("nothing", "all") if name in WORDS else (False, True) for name in SWITCHES))
    choices: list[dict[str, Any]] = [dict(zip(SWITCHES, values, strict=True)) for values in combined]
    variants = [Variant(**one, matmul="numpy") for one in choices]
    return [variant for variant in variants if not variant.sums or (variant.joins and variant.stacks)]


def some_variants() -> list[Variant]:
    """What differs from the options' defaults in one switch, or in all."""
    base = Variant(matmul="numpy")
    others = [one if one.joins and one.stacks else replace(one, sums=False) for one in base.neighbours(SWITCHES, 1)]
    opposite = Variant(fold=False, share=True, joins=False, stacks=False, sums=False, recomputes="all", matmul="numpy")
    return [base, *others, opposite]


def check_variants(function: Any, instances: list[Any], variants: list[Variant], backend: Callable[[], Any]) -> int:
    """Compare values and gradients under all variants with those of the first; give how many there were."""
    expected = None
    for variant in variants:
        loss = ab.batched(function, backend=backend(), seed=3, tune=write_decisions({OTHERS: variant}))
        value, grads = loss.value_and_grad(instances)
        found = {"": np.asarray(value), **{name: np.asarray(grad) for name, grad in grads.items()}}
        expected = expected or {name: array.copy() for name, array in found.items()}
        for name, array in found.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-12, err_msg=f"{variant} {name}")
    return len(variants)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_variants_give_equal_gradients(case: Case) -> None:
    model, instances = case.draw(seed=5, n_instances=4, dim=3)
    assert check_variants(model.loss, instances, some_variants(), Reference) == 9


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_combinations_give_equal_gradients(case: Case) -> None:
    model, instances = case.draw(seed=5, n_instances=4, dim=3)
    for backend in (Reference, lambda: Cpu(jitted=False)):
        assert check_variants(model.loss, instances, all_variants(), backend) == 40


def test_variants_give_equal_gradients_on_the_cpu_backend() -> None:
    model, instances = next(case for case in CASES if case.name == "lattice-lstm").draw(5, 4, 3)
    assert check_variants(model.loss, instances, some_variants(), lambda: Cpu(jitted=False)) == 9


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_variants_give_equal_gradients_of_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    assert check_variants(model.loss, draw_instances(rng, model, n=4), some_variants(), Reference) == 9


class Dropping(ab.Module):
    """Equal nodes, sums, and masks that differ."""

    def __init__(self) -> None:
        self.matrix = ab.Parameter(np.random.default_rng(0).standard_normal((6, 6)))

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.dropout(ab.tanh(self.matrix @ x), 0.5)

    @ab.cell
    def plain(self, x: Any) -> Any:
        return ab.sigmoid(self.matrix @ x)

    def loss(self, n: int) -> Any:
        x: Any = np.linspace(-1.0, 1.0, 6)
        for _ in range(n):
            x = self.step(self.plain(x)) + self.plain(x) + self.step(x)
        return ab.sum(x)


def test_variants_draw_the_same_masks() -> None:
    model = Dropping().astype("float64")
    assert check_variants(model.loss, [3, 3, 2], all_variants(), Reference) == 40
    once, again = (ab.batched(model.loss, seed=seed)([3])[0] for seed in (3, 4))
    assert once != again


# --- a loss by a clock of its own ---


class Gated(ab.Module):
    """Two matrices, and a tanh of what is saved."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.left, self.right = (ab.Parameter(rng.standard_normal((5, 5))) for _ in range(2))

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.sigmoid(self.left @ x) * ab.tanh(ab.sigmoid(self.right @ x) * x)

    def loss(self, n: int) -> Any:
        x: Any = np.ones(5)
        for _ in range(n):
            x = self.turn(x)
        return ab.sum(x)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    """A machine of four cores whose time is known."""
    return set_clock(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tuning"


def test_as_given_nothing_is_tried(clock: Clockwork) -> None:
    loss, _ = make(clock, threads=3)
    values = train(loss, 20)
    assert (len(set(values)), set(clock.asked), loss.settled) == (1, {3}, True)
    assert list(loss.decisions) == [OTHERS]
    assert loss.decisions[OTHERS]["threads"] == 3
    assert "decided" not in str(loss.explain([2, 3]))


def test_threads_are_measured_per_class_of_sizes(clock: Clockwork) -> None:
    """Four threads are twice as fast as two here; every mini-batch runs once."""
    loss, backend = make(clock, threads="auto")
    train(loss, 1)
    assert decided(loss) == {}
    train(loss, 60)
    assert (decided(loss), loss.settled, len(backend.ran)) == ({"threads": 4}, True, 61)
    assert set(clock.asked) == {1, 2, 4}
    train(loss, 1, size=20)
    assert len(loss.decisions) == 3
    assert not loss.settled
    assert "4 threads (measured: " in str(loss.explain([2, 3, 4, 5], training=True))


def test_winners_are_tried_together(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto", tune="auto")
    values = train(loss, 150)
    found = decided(loss)
    assert (found["share"], found["threads"], loss.settled) == (True, 4, True)
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    assert len(loss._tuning._plannings) == 1  # what has lost is forgotten


def test_how_much_is_made_again_is_chosen_by_time(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where saved values cost what there is, as much is made again as pays; in inference there is nothing to choose."""

    def take_time(executable: NotedExecutable) -> None:
        clock.now += 1e-6 * (executable.plan.size - 2 * executable.plan.mirror)

    backend = NotingBackend(Reference(), on_run=take_time)
    loss = ab.batched(Gated().loss, policy="depth", backend=backend, tune="auto")
    for _ in range(150):
        loss.value_and_grad([2, 3, 4, 5])
    assert (decided(loss)["recomputes"], loss.settled) == ("more", True)
    for _ in range(50):
        loss([2, 3, 4, 5])
    (label,) = (name for name in loss.decisions if name.startswith("infer"))
    assert loss.decisions[label]["recomputes"] == "cheap"
    assert "recomputes more" in str(loss.explain([2, 3, 4, 5], training=True))


def test_equal_clocks_decide_equally(clock: Clockwork) -> None:
    one, other = (make(clock, threads="auto", tune="auto")[0] for _ in range(2))
    train(one, 150)
    train(other, 150)
    assert one.decisions == other.decisions
    assert str(one.explain([2, 3, 4], True)) == str(other.explain([2, 3, 4], True))


def test_decisions_are_kept_for_other_processes(clock: Clockwork, folder: Path) -> None:
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    assert len(list(folder.iterdir())) == 1
    clock.asked.clear()
    again, _ = make(clock, threads="auto")
    values = train(again, 5)
    assert (decided(again), clock.asked[1:]) == ({"threads": 4}, [4] * 4)
    assert "from the cache" in str(again.explain(range(2, 6), training=True))
    assert values[1] == train(loss, 1)[0]
    for tune, n_threads in (("auto", "auto"), ("auto", 4)):
        other, _ = make(clock, threads=n_threads, tune=tune)
        train(other, 2)
        assert not other.settled


def test_recorded_mini_batches_run_as_kept_from_the_first(clock: Clockwork, folder: Path) -> None:
    loss, _ = make(clock, threads="auto")
    graphs = loss.record_all([2, 3, 4, 5])
    for _ in range(60):
        loss.value_and_grad(graphs)
    again, _ = make(clock, threads="auto")
    graphs = again.record_all([2, 3, 4, 5])
    clock.asked.clear()
    again.value_and_grad(graphs)
    assert clock.asked == [4]


def test_a_mini_batch_that_fails_takes_no_turn(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto")
    train(loss, 2)
    (size_class,) = loss._tuning._classes.values()
    assert size_class.trial is not None
    turn = size_class.trial.next()
    with pytest.raises(ab.errors.ShapeError, match="weights"):
        loss.value_and_grad([2, 3, 4, 5], reduce=[1.0])
    assert size_class.trial.next() == turn


# --- pinned decisions ---


def test_pinned_decisions_give_the_same_bits(clock: Clockwork, tmp_path: Path) -> None:
    loss, _ = make(clock, threads="auto", tune="auto")
    train(loss, 150)
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps(loss.decisions))
    expected, expected_grads = loss.value_and_grad([2, 3, 4, 5])
    for tune in (loss.decisions, str(path), path):
        clock.asked.clear()
        pinned, _ = make(clock, tune=tune)
        value, grads = pinned.value_and_grad([2, 3, 4, 5])
        assert value.tobytes() == expected.tobytes()
        assert grads["matrix"].tobytes() == expected_grads["matrix"].tobytes()
        assert set(clock.asked) == {4}
        assert pinned.decisions == loss.decisions
        assert "(pinned)" in str(pinned.explain([2, 3, 4, 5], training=True))
    clock.slower = 100.0
    train(pinned, 30)
    assert set(clock.asked) == {4}
    assert decided(pinned)["threads"] == 4


def test_choices_may_be_pinned_for_all_classes() -> None:
    loss = ab.batched(Pairs().loss, tune={"share": True, "joins": False})
    plain = ab.batched(Pairs().loss)
    np.testing.assert_allclose(loss([3, 4]), plain([3, 4]), rtol=1e-5)
    assert loss.last is not None
    assert plain.last is not None
    assert (loss.last.nodes, plain.last.nodes) == (9, 20)
    assert loss.decisions[OTHERS]["share"]


@pytest.mark.parametrize(
    ("tune", "why"),
    [
        (3, "tune=3 is neither 'off', 'auto', a table of decisions nor the path of one"),
        ("no/such.json", "tune='no/such.json' is neither 'off' nor 'auto', and there is no file of this name"),
        ("on", "tune='on' is neither 'off' nor 'auto', and there is no file of this name; give one of these words, or"),
        ({}, r"tune=\{\} is a table without a choice; give one such as \{'threads': 2\}, or 'off'."),
        ({"recomputes": True}, "recomputes=True should be 'nothing' or 'cheap' or 'more' or 'all'"),
        ({"recomputes": "some"}, "recomputes='some' should be 'nothing' or 'cheap' or 'more' or 'all'"),
        ({"speed": 1}, "there is no choice 'speed'; there are fold, share, joins"),
        ({"threads": 0}, r"for '\*': threads=0 should be an int of at least 1"),
        ({"threads": True}, "threads=True should be an int"),
        ({"fold": 1}, "fold=1 should be true or false"),
        ({"*": {"fold": True}, "train up to 64 nodes": 5}, "for 'train up to 64 nodes': 5 is no table of choices"),
        ({"*": {}, "a": {"matmul": "mkl"}}, "products by mkl and numpy; give one for all"),
        ({"matmul": "mkl"}, "the backend 'reference' multiplies by numpy, not by 'mkl'"),
    ],
)
def test_decisions_that_cannot_be_pinned_are_refused(tune: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        ab.batched(Pairs().loss, tune=tune)


def test_a_library_may_be_pinned() -> None:
    with pytest.raises(BackendError, match="no matmul provider 'abacus'"):
        ab.batched(Pairs().loss, backend="cpu", tune={"matmul": "abacus"})
    backend, values = Cpu(jitted=False, provider="numpy"), []
    for library in [one.name for one in list_providers()]:
        loss = ab.batched(Pairs().loss, backend=backend, tune={"matmul": library})
        assert loss.decisions[OTHERS]["matmul"] == library
        assert [part.executable.chooser.name for part in loss.prepare([2, 3]).parts] == [library]
        values.append(loss([2, 3]))
    np.testing.assert_allclose(values, [values[0]] * len(values), rtol=1e-5)


def test_switches_that_a_planner_lacks_are_refused() -> None:
    class Own:
        plan_cell, place = MemoryPlanner().plan_cell, MemoryPlanner().place

        def __repr__(self) -> str:
            return "Own()"

    loss = ab.batched(Pairs().loss, planner=Own())
    assert loss.decisions[OTHERS]["joins"] is False
    with pytest.raises(PlanError, match=r"the planner Own\(\) has no switch 'joins'; leave it out"):
        ab.batched(Pairs().loss, planner=Own(), tune={"joins": True})


def test_decisions_are_read_as_they_were_written() -> None:
    decisions = {OTHERS: BASE, LABEL: Variant(share=True, stacks=False, sums=False, threads=3)}
    assert read_decisions(json.loads(json.dumps(write_decisions(decisions))), BASE, MemoryPlanner()) == decisions


@pytest.mark.parametrize("n_threads", [0, -1, 1.5, "many", None, True])
def test_what_is_no_number_of_threads_is_refused(n_threads: Any) -> None:
    with pytest.raises(BackendError, match=r"is no number of threads; give an int of at least 1, or 'auto'\."):
        ab.batched(Pairs().loss, threads=n_threads)


# --- the store ---


def signature() -> str:
    loss = ab.batched(Pairs().loss)
    loss([2])
    return store.sign_model(loss.recorder.types.types, "cpu")


def test_an_entry_holds_for_a_model_with_its_widths() -> None:
    def sign(width: int, *options: str) -> str:
        model = ab.Linear(width, 3, rng=np.random.default_rng(0))
        loss = ab.batched(lambda x: ab.sum(model(x)), module=model)
        loss([np.ones(width)])
        return store.sign_model(loss.recorder.types.types, *options)

    assert sign(4) == sign(4)
    assert len({sign(4), sign(5), sign(4, "cpu"), sign(4, "cpu", "bf16")}) == 4


def test_decisions_go_round(folder: Path) -> None:
    one, two = store.Decision(BASE, "measured"), store.Decision(TWO, "also measured", 123.0)
    name = signature()
    store.keep_decision(name, "a", one)
    store.keep_decision(name, LABEL, two)
    assert store.find_decisions(name) == {"a": one, LABEL: two}


GOOD = {"format": store.FORMAT, "classes": {"a": {"variant": {}, "why": "", "one_ns": 0}}}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[1]", b"\xff\xfe", b'{"format": "other", "classes": {}}',
        json.dumps({**GOOD, "classes": [1]}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {"fold": 1}, "why": "", "one_ns": 0}}}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {"threads": 0}, "why": "", "one_ns": 1}}}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {"threads": 2}, "why": "", "one_ns": 0}}}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {"recomputes": "?"}, "why": "", "one_ns": 0}}}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {"speed": 2}, "why": "", "one_ns": 0}}}).encode(),
        json.dumps({**GOOD, "classes": {"a": {"variant": {}}}}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_entry_is_told_and_replaced(folder: Path, content: bytes) -> None:
    name = signature()
    store.keep_decision(name, "a", store.Decision(BASE, "measured"))
    (path,) = folder.iterdir()
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="left aside and will be replaced: reading decisions from"):
        assert store.find_decisions(name) == {}
    with pytest.warns(UserWarning, match="left aside"):
        store.keep_decision(name, "b", store.Decision(TWO, "measured", 5.0))
    assert list(store.find_decisions(name)) == ["b"]


WRITER = """
import sys
from autobatch.tuning import Variant, store
for k in range(40):
    store.keep_decision("shared", f"{sys.argv[1]} {k}", store.Decision(Variant(), "measured"))
    found = store.find_decisions("shared")
    assert found and all(one.why == "measured" for one in found.values())
print(len(found))
"""


def test_processes_that_write_one_entry_do_not_harm_it(folder: Path, tmp_path: Path) -> None:
    """Warnings are errors here: no writer ever reads a part of a file."""
    command = [sys.executable, "-W", "error", "-c", WRITER]
    writers = [
        subprocess.Popen([*command, name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")
        assert int(out) >= 1
    assert 1 <= len(store.find_decisions("shared")) <= 120
    assert len(list(folder.iterdir())) == 1
