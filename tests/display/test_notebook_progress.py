"""Test progress in a notebook: one output that is replaced a few times per second and keeps the last line."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import autobatch as ab
from autobatch.display import progress
from helpers.checkers.refusals import Model


class Outputs:
    """A notebook's outputs, with everything that each showed over time."""

    def __init__(self) -> None:
        self.shown: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.shown.append([data])
        return SimpleNamespace(update=lambda data, raw: self.shown[-1].append(data))

    def lines(self, number: int = 0) -> list[str]:
        return [data["text/plain"] for data in self.shown[number]]


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """Pretend that the test runs in a notebook's kernel; return its outputs."""
    found = Outputs()
    interactive, shows = ModuleType("IPython"), ModuleType("IPython.display")
    interactive.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shows.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", interactive)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    return found


def test_recording_is_one_output(outputs: Outputs, model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    words = [1, 2, 3] * 100
    assert len(ab.batched(model.loss).record_all(words, progress=True)) == 300
    assert len(outputs.shown) == 1
    first, *_, last = outputs.lines()
    assert (first, last) == ("recording: 0 of 300", "recording: 300 of 300")
    assert 'value="1.000"' in outputs.shown[0][-1]["text/html"]
    assert capfd.readouterr() == ("", "")


def test_it_changes_a_few_times_per_second(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(progress, "monotonic", lambda: next(times) / 100)  # 100 items per second
    assert list(progress.track(range(400), "counting", 400)) == list(range(400))
    assert 10 < len(outputs.lines()) < 30


def test_learning_is_one_output(outputs: Outputs, model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    ab.batched(model.loss).learn_policy([[1, 2]], progress=True, episodes=60)
    assert len(outputs.shown) == 1
    assert " episodes, " in outputs.lines()[-1]
    assert capfd.readouterr() == ("", "")


def test_an_error_leaves_the_last_line(outputs: Outputs) -> None:
    def divide() -> None:
        with progress.show_status("dividing") as show:
            show("one <by> zero")
            show(f"{1 // 0}")

    with pytest.raises(ZeroDivisionError):
        divide()
    assert outputs.lines()[-1] == "one <by> zero"
    assert "&lt;by&gt;" in outputs.shown[0][-1]["text/html"]


def test_nothing_said_is_nothing_shown(outputs: Outputs) -> None:
    with progress.show_status("waiting"):
        pass
    assert outputs.shown == []


def test_a_shell_without_a_kernel_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not progress.in_notebook()
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not progress.in_notebook()
