"""Define fixtures for all tests."""

from __future__ import annotations

import gc
import logging
import math
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import autobatch as ab
from autobatch import _native
from autobatch.devices.device import Device
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from checkout import ROOT
from helpers.checkers.refusals import N_WORDS, Model
from helpers.runs.commands import Command, make_command

if TYPE_CHECKING:
    from helpers.runs.tensors_on_device import TorchDevice


def pytest_sessionstart() -> None:
    """Refuse to test a native core older than its sources, and restore Ctrl-C for subprocesses of tests.

    A shell without job control makes its background jobs ignore Ctrl-C, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    newest = max((ROOT / "native").rglob("*.[ch]*"), key=lambda path: path.stat().st_mtime)
    if newest.stat().st_mtime > Path(_native.__file__).stat().st_mtime:
        raise pytest.UsageError(f"{newest.relative_to(ROOT)} has changed since the native core was built: make native")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of tests with `cases(quick, slow)`: unmarked up to `quick`, slow up to `slow`, and then long."""
    seen = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("cases")
        if mark is not None:
            quick, slow = (*mark.args, math.inf)[:2]
            test = item.nodeid.partition("[")[0]
            if seen[test] >= quick:
                item.add_marker(pytest.mark.slow if seen[test] < slow else pytest.mark.long)
            seen[test] += 1


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache, and let them wait for compiled code."""
    monkeypatch.setenv("AUTOBATCH_CACHE", "off")
    monkeypatch.setenv("AUTOBATCH_COMPILE_WAIT", "inf")


@pytest.fixture(autouse=True, scope="session")
def _interpreted() -> Iterator[None]:
    """Use the reference backend unless a test names another, so that nothing waits for a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOBATCH_BACKEND", "reference")
        yield


@pytest.fixture(autouse=True, scope="session")
def _patient() -> Iterator[None]:
    """Print no progress lines about slow work, however slow the machine; tests of such lines set the times
    themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SECONDS_BETWEEN_LINES", "SECONDS_BEFORE_REPORT"):
            patch.setattr(f"autobatch.cli.progress.{name}", math.inf)
        patch.setattr("autobatch.system.background.SECONDS_BEFORE_REPORT", threading.TIMEOUT_MAX)
        yield


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return the CPU in place of a GPU, or a GPU."""
    if request.param == "host" and shutil.which("g++") is None:
        pytest.skip("needs g++, which builds kernels for the processor")
    monkeypatch.setenv("AUTOBATCH_CUDA", "host" if request.param == "host" else "")
    try:
        return find_device()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture
def tensors(device: Device) -> Iterator[TorchDevice]:
    """Yield the device for PyTorch: a GPU, or the CPU in its place, which then holds all CPU tensors."""
    pytest.importorskip("torch")
    from helpers.runs.tensors_on_device import holding_tensors

    with holding_tensors(device) as found:
        yield found


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Exclude the remains of earlier modules from garbage collection, which would traverse gigabytes repeatedly."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check cells, graphs, schedules and plans by definition when they are made."""
    monkeypatch.setenv("AUTOBATCH_CHECK", "1")


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Yield a function that runs a command here and returns its status and output; reset its log afterwards."""
    yield make_command(capfd)
    log = logging.getLogger("autobatch.serve")
    log.handlers.clear()
    log.propagate = True


@pytest.fixture
def model() -> Iterator[Model]:
    """Yield a model, and check afterwards that its cells and its batched loss work as before."""
    model = Model()
    attributes = set(vars(model))
    expected = [model.loss(word) for word in range(N_WORDS)]
    loss = ab.batched(model.loss)
    yield model
    assert set(vars(model)) == attributes
    model.kept.clear()
    np.testing.assert_allclose([model.loss(word) for word in range(N_WORDS)], expected)
    np.testing.assert_allclose(loss(range(N_WORDS)), expected, rtol=1e-6)
