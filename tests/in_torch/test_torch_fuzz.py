"""Test that random torch modules agree with torch, and that the fuzzer finds and shrinks defects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import autobatch.torch as abt
import fuzz
from autobatch.errors import GraphError
from fuzzing_torch import worlds
from fuzzing_torch.blocks import Block
from fuzzing_torch.campaign import run_one, text_of
from fuzzing_torch.drawing import draw_program
from fuzzing_torch.worlds import World, find_failure, is_unsteady, run, stack

PER_TEST, N_PROGRAMS, N_COMPILED = 10, 400, 40
Change = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: small tensors are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def wrong(seed: int, backend: str) -> str:
    """Describe what a program gets wrong; return "" if it is right or refused with a sentence."""
    found = run_one(seed, backend, shrink_seconds=0.0)
    return "" if found is None or found.is_set_apart else str(found)


@pytest.mark.cases(1, 6)
@pytest.mark.parametrize("start", range(0, N_PROGRAMS, PER_TEST))
def test_modules_give_what_torch_gives(start: int) -> None:
    assert [found for seed in range(start, start + PER_TEST) if (found := wrong(seed, "reference"))] == []


@pytest.mark.cases(0, 4)
@pytest.mark.parametrize("seed", range(N_COMPILED))
def test_modules_give_what_torch_gives_where_cells_are_compiled(seed: int) -> None:
    assert wrong(seed, "cpu") == ""


def test_a_number_draws_one_program_and_torch_runs_nearly_all() -> None:
    assert text_of(3) == text_of(3)
    assert len({text_of(seed) for seed in range(20)}) == 20
    invalid = []
    for seed in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                worlds.run(text_of(seed), World())
            except (RuntimeError, ValueError, IndexError, TypeError):
                invalid.append(seed)
    assert len(invalid) <= 3


def test_programs_log_outputs_and_gradients() -> None:
    world = World()
    worlds.run(text_of(1), world)
    names = {name.split()[0] for name, _ in world.logged}
    assert names == {"output", "gradient"}
    assert any(x is not None and x.any() for name, values in world.logged if "gradient" in name for x in values)


def plant(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Replace autobatch by torch with a change."""

    def batched(function: Change, module: Any, backend: str) -> Any:
        return lambda instances: change(stack([function(one) for one in instances]))

    monkeypatch.setattr(abt, "cell", lambda module, runs: module)
    monkeypatch.setattr(abt, "batched", batched)


def of_leaves(change: Change) -> Change:
    """Apply a change to all tensors of a structure."""

    def changed(y: Any) -> Any:
        if isinstance(y, dict):
            return {key: changed(part) for key, part in y.items()}
        return change(y)

    return changed


def refuse(y: Any) -> Any:
    raise GraphError("no numbers today.")


def fail(y: Any) -> Any:
    raise KeyError("no 7 of 'these'")


class Doubled(torch.autograd.Function):
    """The identity, with a doubled gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


@pytest.mark.parametrize(
    ("change", "signature"),
    [
        (of_leaves(lambda y: y), ""),
        (of_leaves(lambda y: y * 1.01), "wrong: output: values"),
        (of_leaves(lambda y: y * (1 + 1e-7)), "wrong: output: last digits"),
        (of_leaves(lambda y: y[:, None]), "wrong: output: shape"),
        (of_leaves(lambda y: y.float()), "wrong: output: dtype"),
        (of_leaves(Doubled.apply), "wrong: gradient: values"),
        (refuse, "refused: no numbers today."),
        (fail, "crash: KeyError \"no _ of _\""),
    ],
)  # fmt: skip
@pytest.mark.cases(1)
def test_planted_defects_are_told_apart(change: Change, signature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, change)
    failure = find_failure(text_of(1), "reference")
    assert (failure.signature if failure else "") == signature


UNSTEADY = """
import torch
def program(world):
    x = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)
    world.log("output", ((x * 3).sum() / 1e-18).tanh())
"""


@pytest.mark.slow
def test_programs_whose_numbers_depend_on_rounding_are_told_apart() -> None:
    assert is_unsteady(UNSTEADY, ran(UNSTEADY), tolerance=1e-9)
    assert not is_unsteady(text_of(1), ran(text_of(1)), tolerance=1e-9)


def ran(text: str) -> World:
    world = World()
    run(text, world)
    return world


@pytest.mark.slow
def test_a_failing_program_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, of_leaves(lambda y: y * 1.01))
    found = run_one(1, "reference", shrink_seconds=120.0)  # ends earlier, after about ten seconds
    assert found is not None
    assert found.signature == "wrong: output: values"
    assert len(found.program) < len(text_of(1)) / 2
    assert found.program in str(found).replace("\n    ", "\n")


def test_a_block_is_made_smaller_by_leaving_out_lines_and_terms() -> None:
    program = Block("", (Block("a = 1"), Block("b = 2"), Block("if b:", (Block("c = a + b"),))))
    assert program.text() == "a = 1\nb = 2\nif b:\n    c = a + b"
    smaller = {one.text() for one in program.smaller()}
    assert {
        "b = 2\nif b:\n    c = a + b",
        "a = 1\nb = 2\nif b:\n    pass",
        "a = 1\nb = a\nif b:\n    c = a + b",
    } <= smaller
    assert "a = 1\nb = 2\nif b:\n    c = a" in smaller


def test_the_command_runs_modules_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, refuse)
    found = CliRunner().invoke(fuzz.main, ["--torch", "--seeds", "1:3"])
    assert found.exit_code == 0
    assert "2 programs, 0 wrong, 2 set apart\n     2 refused: no numbers today." in found.output
    assert draw_program(1).text() in CliRunner().invoke(fuzz.main, ["--torch", "--seed", "1"]).output
