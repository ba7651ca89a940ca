"""Random programs run correctly in every way; `tools/fuzz.py` finds injected errors, shrinks them, and resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fuzz
from autobatch.compiler.uses import Uses
from autobatch.ops.define import run_kernel
from autobatch.ops.operators import OPS
from fuzzing.campaign import Found, load_state, run, run_one, save_state
from fuzzing.cells import draw_program
from fuzzing.checks import Way, draw_way, find_failure

Plant = Callable[[pytest.MonkeyPatch], None]
PER_TEST, N_PROGRAMS = 10, 1000


@pytest.mark.cases(1, 8)
@pytest.mark.parametrize("start", range(0, N_PROGRAMS, PER_TEST))
def test_programs_are_right(start: int) -> None:
    for seed in range(start, start + PER_TEST):
        assert run_one(seed, backends=("reference", "cpu"), shrink_seconds=0.0) is None


def test_a_number_draws_one_program() -> None:
    assert str(draw_program(3)) == str(draw_program(3))
    assert draw_way(3) == draw_way(3)
    assert len({str(draw_program(seed)) for seed in range(10)}) == 10


def wrong_kernel(patch: pytest.MonkeyPatch) -> None:
    """Make interpreted sigmoids too small."""

    def wrong(op: Any, xp: Any, arrays: list[Any], out: Any, static: dict[str, Any]) -> None:
        run_kernel(op, xp, arrays, out, static)
        if op.name == "sigmoid":
            out *= 0.9

    patch.setattr("autobatch.backends.interpret.run_kernel", wrong)


def wrong_pullback(patch: pytest.MonkeyPatch) -> None:
    """Drop the sign of the gradients of negatives."""
    patch.setitem(OPS, "neg", replace(OPS["neg"], pullback=lambda g, out, x: (g,)))


def crash(patch: pytest.MonkeyPatch) -> None:
    """Make interpreted softmaxes fail."""

    def fail(op: Any, xp: Any, arrays: list[Any], out: Any, static: dict[str, Any]) -> None:
        if op.name == "softmax":
            raise RuntimeError("no softmax today")
        run_kernel(op, xp, arrays, out, static)

    patch.setattr("autobatch.backends.interpret.run_kernel", fail)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "signature", "culprits"),
    [
        (wrong_kernel, "forward in reference", ("ab.sigmoid(",)),
        (wrong_pullback, "slope in eager", ("-",)),
        (crash, "crash in reference: RuntimeError no softmax today", ("ab.softmax", "ab.cross_entropy")),
    ],
)
def test_planted_defects_are_found_and_shrunk(
    plant: Plant, signature: str, culprits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seed = next(s for s in range(200) if signature == wrong_with(s))
    found = run_one(seed, backends=("reference", "cpu"), shrink_seconds=300.0)
    assert found is not None
    assert found.signature == signature
    body = found.program.split("def instance_")[1].split("def loss")[0]
    assert len(found.program) < 1000
    assert any(culprit in found.program.split("class Model")[1] for culprit in culprits)
    assert body.count("\n") <= 6


@pytest.mark.slow
def test_a_reader_that_a_pass_forgets_is_found_in_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value must live until it is read as a whole; a cell of joined vectors shows the error without a run."""
    seed = next(seed for seed in range(100) if "def woven" in str(draw_program(seed)))
    assert run_one(seed, backends=(), shrink_seconds=0.0) is None
    monkeypatch.setattr(Uses, "readers", lambda self, value: self._read.get(value, []))
    way = Way(planner={"simplifies": False, "recomputes": "nothing"})
    woven = (program for program in map(draw_program, range(88)) if "def woven" in str(program))
    found = (find_failure(program, way, ()) for program in woven)
    assert any(failure and "complaint in compiler" in failure.signature for failure in found)


def wrong_with(seed: int) -> str:
    """Return the signature of a program's failure, or an empty string."""
    found = run_one(seed, backends=("reference", "cpu"), shrink_seconds=0.0)
    return found.signature if found else ""


def test_a_run_resumes_and_counts_apart_what_is_refused(tmp_path: Path) -> None:
    runs = list[int]()

    def fake(seed: int, shrink_seconds: float) -> Found | None:
        runs.append(seed)
        if seed == 3:
            return Found(seed, "refused: no", "no", is_set_apart=True)
        return Found(seed, "forward in cpu", "by 1") if seed == 1 and not shrink_seconds else None

    path = tmp_path / "fuzz.json"
    state = load_state(path, 0, 5)
    going = run(state, fake, 0.0, str)
    assert [next(going) is None for _ in range(3)] == [True, False, True]
    save_state(state, path)
    again = load_state(path, 0, 5)
    assert (again.next, again.n_run, [found.seed for found in again.failures]) == (3, 3, [1])
    assert list(run(again, fake, 0.0, str)) == [None, None]
    assert again.apart == {"refused: no": 1}
    assert fuzz.summary(again) == "5 programs, 1 wrong, 1 set apart\n     1 forward in cpu: seeds 1\n     1 refused: no"
    assert runs == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="its run must end at 9, got 5"):
        load_state(path, 0, 9)


@pytest.mark.slow
def test_the_command_says_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "fuzz.json")
    wrong_kernel(monkeypatch)
    seed = next(s for s in range(200) if wrong_with(s))
    first = CliRunner().invoke(fuzz.main, ["--seeds", f"0:{seed + 1}", "--state", path, "--shrink", "0"])
    assert first.exit_code == 1
    assert f"{seed + 1} programs, 1 wrong\n     1 {wrong_with(seed)}: seeds {seed}\n" in first.output
    monkeypatch.undo()
    assert CliRunner().invoke(fuzz.main, ["--seed", "0"]).exit_code == 0
    assert CliRunner().invoke(fuzz.main, ["--seeds", "9"]).exit_code == 2
