"""A pytest plugin: `pytest -p helpers.runs.torch_tests_on_device tests/in_torch` runs these tests on the host device.

Tensors on the CPU are then tensors of the device. The reference backend interprets cells there, in place of all others,
so that no kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autobatch.backends import CLASSES
from autobatch.backends.reference import Reference
from autobatch.devices.finding import find_device
from helpers.runs.tensors_on_device import holding_tensors


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    device = find_device()
    monkeypatch.setattr(Reference.__init__, "__defaults__", (False, device))
    monkeypatch.setitem(CLASSES, "cpu", CLASSES["reference"])
    monkeypatch.setattr("autobatch.backends.cuda.backend.Cuda", lambda device: Reference(store=device))
    with holding_tensors(device):
        yield
