"""Test changes of parameters that a tensor's version counter does not count."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt
from autobatch._native import fingerprint
from helpers.runs.tensors_on_device import TorchDevice
from helpers.runs.ways import each

X = [torch.randn(4, generator=torch.Generator().manual_seed(k)) for k in range(3)]


class Model(nn.Module):
    """Products, a normalization, a bare parameter, a buffer and a table."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.norm, self.cell = nn.Linear(4, 4), nn.LayerNorm(4), nn.GRUCell(4, 4)
        self.table, self.scale = nn.Embedding(5, 4), nn.Parameter(torch.randn(4))
        self.register_buffer("steps", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.cell(self.lin(x)[None], self.norm(x)[None])[0]
        return (h * self.scale * self.steps + self.table.weight[2] @ self.lin.weight).sum()  # type: ignore[no-any-return]


def fused(kind: Callable[..., torch.optim.Optimizer]) -> Callable[[nn.Module], Callable[[], Any]]:
    def make(model: nn.Module) -> Callable[[], Any]:
        return kind(model.parameters(), lr=0.05, fused=True).step

    return make


def halve(array: np.ndarray) -> None:
    array *= 0.5


def by_data(change: Callable[[Tensor], Any]) -> Callable[[nn.Module], Callable[[], Any]]:
    return lambda model: lambda: [change(x.data) for x in (*model.parameters(), *model.buffers())]


WAYS: dict[str, Callable[[nn.Module], Callable[[], Any]]] = {
    "fused SGD": fused(torch.optim.SGD),
    "fused Adam": fused(torch.optim.Adam),
    "fused AdamW": fused(torch.optim.AdamW),
    "fused Adagrad": fused(torch.optim.Adagrad),
    "moving average": by_data(lambda x: x.mul_(0.5).add_(0.1)),
    "sign": by_data(lambda x: x.neg_()),
    "copy": by_data(lambda x: x.copy_(x.flip(0))),
    "one number": by_data(lambda x: x.view(-1)[-1].add_(0.5)),
    "NumPy": lambda model: (
        lambda: [np.negative(x.detach().numpy(), out=x.detach().numpy()) for x in model.parameters()]
    ),
    "flat": lambda model: lambda: [x.data.view(-1)[1:3].fill_(0.25) for x in model.parameters()],
}


@pytest.mark.parametrize("in_cell", [True, False])
@each("way", WAYS)
def test_changes_that_torch_does_not_count_take_effect(
    way: str, in_cell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_COMPILE_WAIT", "inf")  # interpreted cells read parameters in place
    model = Model()
    check_changes(way, model, abt.batched(abt.cell(model) if in_cell else model, backend="cpu"))


@each("way", [way for way in WAYS if way != "NumPy"])
def test_such_changes_on_a_device_take_effect(way: str, tensors: TorchDevice) -> None:
    model = Model()
    tensors.hold(model)
    check_changes(way, model, abt.batched(abt.cell(model), backend="auto"))


def check_changes(way: str, model: Model, run: Any) -> None:
    """Train a model by changes of its parameters, batched and one instance at a time."""
    twin, place = copy.deepcopy(model), model.scale.device
    changes = [WAYS[way](one) for one in (model, twin)]
    for _ in range(4):
        model.zero_grad()
        twin.zero_grad()
        loss, expected = run(X).sum(), torch.stack([twin(x.to(place)) for x in X]).sum()
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()  # type: ignore[no-untyped-call]
        for x, y in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(x.grad, y.grad)
        for change in changes:
            change()


def changed(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the array, and copies with up to two numbers negated, scaled or swapped, or with one bit flipped."""
    yield array
    n = len(array)
    for places in ((i, j) for j in range(n) for i in range(j + 1)):
        for change in (np.negative, lambda x: 2 * x, np.zeros_like, lambda x: x[::-1]):
            one = array.copy()
            one[[*places]] = change(one[[*places]])
            yield one
    for bit in range(8 * array.nbytes):
        one = array.copy()
        one.view(np.uint8)[bit // 8] ^= 1 << bit % 8
        yield one
    yield -array
    yield np.append(array, array.dtype.type(0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 40])
def test_fingerprints_of_different_arrays_differ(n: int, dtype: Any) -> None:
    arrays = [*changed(np.random.default_rng(n).standard_normal(n).astype(dtype))]
    found = {one.tobytes(): fingerprint(one) for one in arrays}
    assert len({*found.values()}) == len(found) > 8 * n
    assert [fingerprint(one.copy()) for one in arrays] == [found[one.tobytes()] for one in arrays]
