"""Test the example script: batched with few changes, it prints the same losses as before."""

from __future__ import annotations

import ast
import difflib
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("torch_before", "torch_after")


def code_of(name: str) -> list[str]:
    """Return the lines of a script without its docstring and blank lines."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    return ast.unparse(tree.body[1:]).splitlines()  # type: ignore[arg-type]


def test_at_most_ten_lines_are_new() -> None:
    before, after = map(code_of, NAMES)
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
    assert 0 < sum(line.startswith("+ ") for line in changes) <= 10
    assert 0 < sum(line.startswith("- ") for line in changes) <= 10


def test_the_losses_of_all_epochs_are_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["script", "--pairs=12", "--dim=4", "--epochs=2", "--batch-size=5"])
    monkeypatch.setenv("AUTOBATCH_BACKEND", "reference")
    before, after = (runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]() for name in NAMES)
    assert len(after) == 2
    assert after == pytest.approx(before, rel=1e-5)
    assert capsys.readouterr().out.count("pairs/s") == 4
