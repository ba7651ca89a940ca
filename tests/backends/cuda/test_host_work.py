"""Test how much the host does in a training step whose mini-batch is new, once the core has planned it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cuda.backend import Cuda
from autobatch.ops.randomness import Randomness
from autobatch.params.gradients import GradientBuffers
from helpers.counters.counting import files_in_order
from helpers.twins.cases import CASES
from host_device import HostArray, HostDevice

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MOST_CALLS, MOST_CALLS_OF_A_RUN = 122, 60
"""Calls of Python functions of autobatch by `value_and_grad`, and by the backend alone."""


class IdleDevice(HostDevice):
    """A device whose memory is zero at first, which compiles and launches nothing, and does not call autobatch."""

    def load(self, source: str, names: Any, about: str) -> dict[str, Any]:
        return dict.fromkeys(names, "a kernel")

    def launch(self, kernel: Any, launch: Any) -> None:
        self.traffic.launches += 1

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        return np.zeros(size, dtype).view(HostArray)

    def address(self, array: Any) -> int:
        address: int = array.ctypes.data
        return address


def planned(n_instances: int) -> tuple[Callable[..., Any], Any, HostDevice]:
    """Return a function that takes a training step of a planned Tree-LSTM, the plan, and the device."""
    model, instances = CASES[0].draw(seed=5, n_instances=n_instances, dim=8)
    device = IdleDevice()
    loss = ab.batched(model.to(device).loss, policy="score", backend=Cuda(device=device), plan_cache=0)
    graphs, place, made = loss.record_all(instances), loss.planning._place, list[Any]()

    def keep(*args: Any) -> Any:
        made.append(place(*args))
        return made[-1]

    with patch.object(loss.planning, "_place", keep):
        for _ in range(3):
            loss.value_and_grad(graphs)

    def step() -> None:
        with patch.object(loss.planning, "_place", lambda *args: made[-1]):
            loss.value_and_grad(graphs)

    return step, (loss, made[-1]), device


def test_a_planned_step_makes_few_calls_and_one_upload() -> None:
    """Whatever the number of instances. The launches are forward, backward, weights, and the rows of the table."""
    counts = []
    for n_instances in (4, 32):
        step, _, device = planned(n_instances)
        before = copy.copy(device.traffic)
        entered = files_in_order(step)
        counts.append(len(entered))
        assert len(entered) <= MOST_CALLS, entered
        assert device.traffic.launches - before.launches == 4
        assert device.traffic.uploads - before.uploads == 1
        assert device.traffic.downloads - before.downloads == 1
    assert counts[0] == counts[1]


def test_the_backend_makes_few_calls_to_prepare_and_run_a_plan() -> None:
    _, (loss, made), _ = planned(16)
    backend, options, trainable = loss.backend, loss._now, loss.parameters.trainable
    cells, buffers = loss.planning.cells(options.purpose), GradientBuffers()
    seeds, randomness = {0: np.full(16, 1 / 16, np.float32)}, Randomness(0, 0, made.graph.keys, True)

    def run() -> None:
        executable = backend.prepare(made.plan, cells, options, made.tables)
        one = executable.begin(randomness)
        with one:
            one.forward()
            one.backward(seeds, into)
        one.close()

    for _ in range(2):
        gradients = buffers.zeros(trainable, cells.row_parameters)
        into = {id(trainable[name]): gradient for name, gradient in gradients.items()}
        entered = files_in_order(run)
    assert len(entered) <= MOST_CALLS_OF_A_RUN, entered
