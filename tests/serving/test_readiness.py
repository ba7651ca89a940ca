"""Test when a server reports that it is ready."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from autobatch.serving import asgi
from autobatch.serving.asgi import MOST_FAILED, WARMING, Readiness


class Model:
    """A warm-up that fails while the model is broken."""

    def __init__(self) -> None:
        self.is_broken, self.n_calls = False, 0

    def warm_up(self) -> None:
        self.n_calls += 1
        if self.is_broken:
            raise ValueError("broken")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(asgi, "TRY_AFTER", 0.0)
    return Model()


def readiness_of(model: Model) -> Readiness:
    server: Any = SimpleNamespace(is_closed=False)
    return Readiness(server, model.warm_up)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.002)


def test_predictions_that_succeed_again_make_it_ready(model: Model) -> None:
    async def run() -> list[str]:
        readiness, found = readiness_of(model), list[str]()
        found.append(await readiness.why_not())
        await settle()  # the first question began to warm up
        found.append(await readiness.why_not())
        model.is_broken = True
        for _ in range(MOST_FAILED):
            readiness.count(500)
        found.append(await readiness.why_not())
        await settle()
        found.append(await readiness.why_not())
        model.is_broken = False
        readiness.count(200)
        found.append(await readiness.why_not())
        return found

    failing = f"predictions fail, the last {MOST_FAILED} in a row", "predictions fail, ValueError: broken"
    assert asyncio.run(run()) == [WARMING, "", *failing, ""]


def test_a_warm_up_that_failed_is_repeated(model: Model) -> None:
    async def run() -> list[str]:
        readiness, found = readiness_of(model), list[str]()
        model.is_broken = True
        await readiness.warm()
        found.append(await readiness.why_not())
        readiness.count(422)  # an answer that says nothing about the model
        model.is_broken = False
        found.append(await readiness.why_not())
        await settle()
        found.append(await readiness.why_not())
        return found

    broken = "warming up failed, ValueError: broken"
    assert asyncio.run(run()) == [broken, broken, ""]
    assert model.n_calls >= 2
