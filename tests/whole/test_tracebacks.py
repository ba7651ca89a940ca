"""Tracebacks of user errors keep the user's lines without autobatch's own, and messages name the line."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
import autobatch.torch as abt
from autobatch.serving.answers import refusal_of
from helpers.runs.ways import each

OWN = str(Path(ab.__file__).parent)


class Net(ab.Module):
    """A cell that adds values of different shapes, unless x has length 3."""

    def __init__(self) -> None:
        self.linear = ab.Linear(3, 3, rng=np.random.default_rng(0))

    @ab.cell
    def step(self, h: Any, x: Any) -> Any:
        return ab.tanh(self.linear(h) + x)  # the line

    def run(self, xs: Any) -> Any:
        h = np.zeros(3)
        for x in xs:
            h = self.step(h, x)
        return ab.sum(h)

    async def wait(self, xs: Any) -> Any:
        return await ab.value(self.run(xs))

    def fail(self, xs: Any) -> Any:
        raise KeyError("of the user")


class TorchNet(torch.nn.Module):
    """The same cell in torch."""

    @abt.cell
    def step(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(h + x)  # the line

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(torch.zeros(3), x)


def batched(function: Any) -> Any:
    return ab.batched(function, backend="reference")


XS = np.ones((2, 4))
CALLS: dict[str, Callable[[], Any]] = {
    "a call": lambda: batched(Net().run)([XS]),
    "value_and_grad": lambda: batched(Net().run).value_and_grad([XS]),
    "record_all": lambda: batched(Net().run).record_all([XS]),
    "explain": lambda: batched(Net().run).explain([XS]),
    "an async program": lambda: batched(Net().wait)([XS]),
    "eager": lambda: Net().run(XS),
    "torch": lambda: abt.batched(TorchNet())([torch.ones(4)]),
}


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@each("call", list(CALLS.items()))
def test_a_shape_error_in_a_cell_names_the_line_and_the_arguments(call: tuple[str, Callable[[], Any]]) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011  # eager arrays raise NumPy's own
        call[1]()
    text = "".join(traceback.format_exception(found.value))
    assert f"{__file__}:" in text, call[0]
    assert "# the line" in text
    assert "(3,)" in text or "value[3]" in text
    assert "(4,)" in text or "value[4]" in text
    own = [name for name in frames(found.value) if name.startswith((OWN, "<recording"))]
    assert len(own) <= 1, (call[0], frames(found.value))


def test_no_line_of_a_library_is_named() -> None:
    """In a thread that calls autobatch directly, the only frames are those of the standard library."""
    found: list[BaseException] = []

    def keep(error: Any) -> None:
        found.append(error.exc_value)

    before, threading.excepthook = threading.excepthook, keep
    try:
        thread = threading.Thread(target=batched(ab.cell(ab.tanh)), args=([""],))
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    assert "in cell" in str(found[0])
    assert ".py" not in str(found[0])


def test_clients_of_a_server_see_no_lines_of_code() -> None:
    with ab.serve(Net().run, backend="reference") as server, pytest.raises(ab.ShapeError) as found:
        server.submit(XS).result(60)
    assert __file__ in str(found.value)
    refusal = refusal_of(found.value)
    assert refusal.status == 422
    assert "in cell 'step'" in str(refusal)
    assert ".py" not in str(refusal)
    assert "`" not in str(refusal)


def test_frames_of_autobatch_stay_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_TRACEBACK", "full")
    with pytest.raises(ab.ShapeError) as found:
        batched(Net().run)([XS])
    assert sum(name.startswith(OWN) for name in frames(found.value)) > 5


def test_what_a_function_of_the_user_raises_ends_at_its_line() -> None:
    with pytest.raises(KeyError) as found:
        batched(Net().fail)([XS])
    assert frames(found.value)[-1] == __file__
    assert sum(name.startswith(OWN) for name in frames(found.value)) <= 1


def test_errors_from_inside_keep_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("inside")

    broken.__code__ = broken.__code__.replace(co_filename=f"{OWN}/engine/broken.py")
    monkeypatch.setattr("autobatch.engine.session.Session.plan", broken)
    with pytest.raises(RuntimeError) as found:
        batched(Net().run)([np.ones((2, 3))])
    assert len([name for name in frames(found.value) if name.startswith(OWN)]) >= 2


class TooSmall(ab.ShapeError):
    """A user-defined error with attributes."""

    def __init__(self, size: int, least: int) -> None:
        super().__init__(f"{size} is less than {least}")
        self.size, self.least = size, least


def test_errors_of_the_users_own_classes_leave_cells_as_they_are() -> None:
    def body(x: Any) -> Any:
        raise TooSmall(x.shape[0], 4)

    small = ab.cell(body)
    runs: list[Any] = [lambda: small(np.ones(3)), lambda: ab.batched(small, backend="reference")([np.ones(3)])]
    for run in runs:
        with pytest.raises(TooSmall, match="3 is less than 4") as caught:
            run()
        assert (caught.value.size, caught.value.least) == (3, 4)
        assert any("in cell 'body'" in note for note in caught.value.__notes__)
