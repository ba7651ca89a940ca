"""Test versions of parameters: every change of numbers changes them, and runs use the current numbers."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.params.stacks import make_stack


class Net(ab.Module):
    """Two layers with stacked products, and a table."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.first, self.second = ab.Linear(3, 3, rng=rng), ab.Linear(3, 3, rng=rng, bias=False)
        self.table = ab.Parameter(rng.standard_normal((4, 3)))

    @ab.cell
    def step(self, x: Any, word: int) -> Any:
        return ab.sum(ab.tanh(self.first(x) + self.second(ab.tanh(x))) * ab.lookup(self.table, word))

    def loss(self, instance: Any) -> Any:
        return self.step(np.arange(3.0), instance)


def assign(net: Net, path: Path) -> None:
    net.first.weight.data = net.first.weight.data + 1


def write(net: Net, path: Path) -> None:
    """Write in place without keeping a reference."""
    net.second.weight.data[1:] *= 2


def load(net: Net, path: Path) -> None:
    """Load what another module saved."""
    other = Net()
    other.table.data += 1
    other.save(path / "net.safetensors")
    net.load(path / "net.safetensors")


def train(net: Net, path: Path) -> None:
    loss = ab.batched(net.loss, backend=Cpu())
    optimizer = ab.optim.Adam(net, lr=0.1)
    for _ in range(2):
        _, grads = loss.value_and_grad([1, 2])
        optimizer.step(grads)


def write_by_torch(net: Net, path: Path) -> None:
    """Write through a tensor that shares the memory."""
    torch = pytest.importorskip("torch")
    torch.from_numpy(net.table.data).mul_(3)


def cast(net: Net, path: Path) -> None:
    """Cast to another float type and back."""
    net.astype("float64").astype("float32")


def test_runs_read_the_numbers_as_they_are(tmp_path: Path) -> None:
    """After every kind of change, also through an array, view or buffer that was kept."""
    net = Net()
    loss = ab.batched(net.loss, backend=Cpu(poison=True))
    graphs = loss.record_all([0, 1, 2, 3])

    def check() -> None:
        for _ in range(2):
            np.testing.assert_allclose(loss(graphs), [net.loss(word) for word in range(4)], rtol=1e-5)

    check()
    for change in (assign, write, load, train, write_by_torch, cast):
        before = loss(graphs)
        change(net, tmp_path)
        check()
        assert np.allclose(loss(graphs), before) == (change is cast)
    kept = [net.first.weight.data, net.second.weight.data[0], memoryview(net.table.data[1])]
    check()
    for array in kept:
        for number in (1.0, -2.0):
            np.asarray(array)[...] = number
            check()


class Turned(ab.Module):
    """A matrix that is transposed and reshaped, which no view can represent."""

    def __init__(self) -> None:
        self.w = ab.Parameter(np.arange(16.0).reshape(4, 4) / 16)

    @ab.cell
    def step(self, x: Any) -> Any:
        """Look up a row in a part of it, and multiply by it."""
        turned = ab.reshape(ab.transpose(self.w), (16,))
        return ab.sum(ab.tanh(turned[1:5] * x) + ab.reshape(turned, (4, 4)) @ x)

    def loss(self, x: float) -> Any:
        return self.step(np.full(4, x))


def test_copies_that_views_of_parameters_make_follow_them() -> None:
    model = Turned()
    loss = ab.batched(model.loss, backend=Cpu())
    graphs = loss.record_all([0.5, 1.0])
    for _ in range(3):
        np.testing.assert_allclose(loss(graphs), [model.loss(0.5), model.loss(1.0)], rtol=1e-5)
        loss.value_and_grad(graphs)
        model.w.data *= 1.5


def test_a_version_says_whether_numbers_may_have_changed() -> None:
    parameter = ab.Parameter(np.zeros((2, 2)))
    version = parameter.version
    assert parameter.version == version
    changes: list[Callable[[], object]] = [
        lambda: parameter.data.fill(1.0),
        lambda: setattr(parameter, "data", np.ones((2, 2))),
        lambda: parameter.astype("float64"),
        lambda: parameter.move_to(np.empty((2, 2))),
        lambda: parameter.note_change(),
    ]
    for change in changes:
        change()
        assert parameter.version != version
        version = parameter.version
        assert parameter.version == version


@pytest.mark.slow
def test_whoever_keeps_an_array_may_write_at_any_time() -> None:
    """Also through a view of a view. Once all references are gone, the version settles."""
    parameter = ab.Parameter(np.zeros((2, 3, 2)))
    for keep in (lambda a: a, lambda a: a[0].T[:, 1:], lambda a: memoryview(a[1]), lambda a: a.reshape(-1)[3:]):
        kept: Any = keep(parameter.data)
        versions = [parameter.version for _ in range(3)]
        assert len(set(versions)) == 3
        assert np.shares_memory(np.asarray(kept), parameter.array)
        del kept
        gc.collect()
        settled = [parameter.version for _ in range(3)][1:]
        assert settled[0] == settled[1]


def test_data_is_one_object_while_it_is_kept() -> None:
    parameter = ab.Parameter(np.arange(4.0))
    data = parameter.data
    assert parameter.data is data
    assert (data.shape, data.dtype, data.flags.writeable) == ((4,), np.dtype(np.float32), True)
    for numbers in (np.zeros(()), np.zeros((0, 3)), np.zeros((3, 0))):
        assert ab.Parameter(numbers).data.shape == numbers.shape


def test_copies_have_versions_of_their_own() -> None:
    parameter = ab.Parameter(np.arange(4.0))
    data = parameter.data
    for twin in (copy.copy(parameter), copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert twin.version == twin.version
        assert not np.shares_memory(twin.data, data)


def test_a_stack_changes_with_its_parts() -> None:
    first, second = ab.Parameter(np.zeros((1, 2))), ab.Parameter(np.ones((1, 2)))
    stack = make_stack([first, second])
    assert stack.data.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    version = stack.version
    assert stack.version == version
    second.data[0, 1] = 5
    assert stack.version != version
    assert stack.data.tolist() == [[0.0, 0.0], [1.0, 5.0]]
    with pytest.raises(ValueError, match="read-only"):
        stack.data[0] = 1
