"""Test autobatch modules in torch: shared parameters, gradients equal to our own API's, and use in larger models."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, autograd, nn

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import GraphError
from helpers.twins.cases import draw_trees_case


class Chain(ab.Module):
    """An LSTM over rows, with dropout, and parameters in a list and in a dict."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.cell = ab.LSTMCell(3, 4, rng=rng)
        self.scales = [ab.Parameter(np.ones(4)), ab.Parameter(2 * np.ones(4), trainable=False)]
        self.ends = {"last": ab.Linear(4, 2, rng=rng)}
        self.astype("float64")

    @ab.cell
    def step(self, x: Any, state: Any) -> Any:
        h, c = self.cell(x, state)
        return ab.dropout(h * self.scales[0] * self.scales[1], 0.5), c

    def state(self, rows: Any) -> Any:
        state: Any = (np.zeros(4), np.zeros(4))
        for row in rows:
            state = self.step(row, state)
        return state[0]

    @ab.cell
    def end(self, h: Any) -> Any:
        return ab.sum(self.ends["last"](h) ** 2)

    def loss(self, rows: Any) -> Any:
        return self.end(self.state(rows))


def rows(*lengths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=draw, dtype=torch.float64) for n in lengths]


def test_gradients_and_losses_are_those_of_our_own_api() -> None:
    model, trees = draw_trees_case(seed=0, n_instances=5, dim=4)
    expected, gradients = ab.batched(copy.deepcopy(model).loss, backend="reference").value_and_grad(trees)
    net = abt.as_torch(model)
    assert abt.as_torch(model) is net
    losses = abt.batched(model.loss, backend="reference")(trees)
    autograd.backward(losses.mean())
    assert losses.mean().item() == pytest.approx(float(expected), rel=1e-12)
    assert {name for name, _ in net.named_parameters()} == gradients.keys()
    for name, tensor in net.named_parameters():
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy(), np.asarray(gradients[name]), rtol=1e-10, atol=1e-12)


def test_either_library_trains_it() -> None:
    model = Chain()
    net = abt.as_torch(model).eval()
    ours, theirs = ab.batched(model.loss, backend="reference"), abt.batched(model.loss, backend="reference")
    instances = rows(2, 3, 1)
    arrays = [tensor.numpy() for tensor in instances]
    first = theirs(instances).mean().item()
    optimizer, own = torch.optim.SGD(net.parameters(), lr=0.05), ab.optim.SGD(model, lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        autograd.backward(theirs(instances).mean())
        optimizer.step()
        value, gradients = ours.value_and_grad(arrays)
        own.step(gradients)
        np.testing.assert_allclose(ours(arrays), theirs(instances).detach().numpy(), rtol=1e-12)
    assert value < 0.8 * first
    assert model.scales[0].data.tolist() == net.get_parameter("scales.0").tolist()
    assert net.get_parameter("scales.1").tolist() == [2.0] * 4
    assert not net.get_parameter("scales.1").requires_grad


class Net(nn.Module):
    """A torch layer below an autobatch model, and a torch layer above it that is a cell."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above = nn.Linear(3, 3), abt.cell(nn.Linear(4, 1))
        self.chain = abt.as_torch(Chain())
        self.double()

    @abt.batched(backend="reference")
    def run(self, item: Tensor) -> Tensor:
        return self.above(self.chain.own.state(item)).sum()  # type: ignore[no-any-return]

    def forward(self, instances: list[Tensor]) -> Tensor:
        return self.run([self.below(item) for item in instances])  # type: ignore[no-any-return]

    def alone(self, item: Tensor) -> Tensor:
        """Compute the same with torch's LSTM cell."""
        lstm = nn.LSTMCell(3, 4).double()
        named = {name: getattr(self.chain.cell, name) for name, _ in lstm.named_parameters()}
        state = (torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
        for row in self.below(item):
            h, c = torch.func.functional_call(lstm, named, (row[None], state))
            state = (h * self.chain.get_parameter("scales.0") * self.chain.get_parameter("scales.1"), c)
        return self.above(state[0]).sum()  # type: ignore[no-any-return]


def test_it_is_a_part_of_a_larger_model() -> None:
    net = Net().eval()
    instances = rows(2, 3, 1)
    found, expected = net(instances), torch.stack([net.alone(item) for item in instances])
    torch.testing.assert_close(found, expected)
    asked = [p for p in net.parameters() if p.requires_grad]
    ours, theirs = (autograd.grad(losses.sum(), asked, allow_unused=True) for losses in (found, expected))
    for got, wanted in zip(ours, theirs, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            torch.testing.assert_close(got, wanted)
    net.train()
    assert not torch.equal(net(instances), net(instances))
    assert torch.equal(net.eval()(instances), found)


def test_copies_and_pickles_have_a_model_of_their_own() -> None:
    net = Net().eval()
    instances = rows(2, 1)
    expected = net(instances)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for twin in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        assert torch.equal(twin(instances), expected)
        with torch.no_grad():
            twin.chain.get_parameter("scales.0").zero_()
        assert not torch.equal(twin(instances), expected)
        assert not twin.chain.own.scales[0].data.any()
        assert twin.chain.own.scales[0].dtype == np.float64
    assert torch.equal(net(instances), expected)
    assert net.chain.state_dict().keys() == net.chain.own.parameters().keys()
    net.chain.load_state_dict({name: torch.zeros_like(x) for name, x in net.chain.state_dict().items()})
    assert not any(array.any() for array in net.chain.own.state_dict().values())


def test_what_cannot_be_replaced_is_named() -> None:
    class Tupled(ab.Module):
        def __init__(self) -> None:
            self.both = (ab.Parameter([1.0]), ab.Parameter([2.0]))

    with pytest.raises(GraphError, match="must not keep parameters in a tuple"):
        abt.as_torch(Tupled())
