"""Test that errors of torch cells belong to the public classes listed in the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch.torch as abt
from autobatch import errors
from autobatch.errors import GraphError


def hooked(x: Tensor) -> Any:
    x.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return x * 2


def in_place(x: Tensor) -> Any:
    return x.add_(1)


OUTSIDE = torch.ones(2, requires_grad=True)
BODIES: dict[str, Callable[[], Any]] = {
    "batch norm in training": lambda: Row(nn.BatchNorm1d(2)),
    "instance norm with statistics": lambda: Row(nn.BatchNorm1d(2, momentum=None)),
    "a hook of an argument": lambda: hooked,
    "a constant with a gradient": lambda: lambda x: x * OUTSIDE,
    "memory of a tensor": lambda: lambda x: x.as_strided((1,), (1,)),
    "a change in place": lambda: in_place,
    "a number": lambda: lambda x: x * float(x.sum()),
    "a choice": lambda: lambda x: x if x.sum() > 0 else -x,
    "a sparse result": lambda: lambda x: x.to_sparse(),
    "shapes that do not fit": lambda: lambda x: x @ torch.ones(3, 3),
    "no result": lambda: lambda x: None,
}


class Row(nn.Module):
    """A module that applies a layer for batches to a single row."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x[None])[0]


@pytest.mark.parametrize("runs", ["auto", "autobatch", "torch"])
@pytest.mark.parametrize("name", BODIES)
def test_errors_of_cells_are_of_public_classes(name: str, runs: str) -> None:
    cell = abt.cell(BODIES[name](), runs=runs)
    module = cell if isinstance(cell, nn.Module) else nn.Linear(1, 1)
    run = abt.batched(lambda x: cell(x), module=module, backend="reference")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        run([torch.ones(2), torch.zeros(2)])
    kind = caught.type
    assert not issubclass(kind, errors.AutobatchError) or vars(errors)[kind.__name__] is kind


UNBOUND: dict[str, Callable[[Any], Any]] = {
    "add": lambda v: Tensor.add(v, torch.ones(2)),
    "relu": lambda v: [*map(Tensor.relu, [v, v])],
    "sum": lambda v: Tensor.sum(torch.stack([v, v])),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_methods_called_as_functions_are_refused_in_a_sentence(name: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(GraphError, match=rf"torch\.Tensor\.{name} .* takes no recorded values, .* write v\.{name}\("):
        abt.batched(lambda x: UNBOUND[name](model(x)), module=model)([torch.ones(2)])


def assign_data(v: Any) -> None:
    v.data = torch.ones(2)


def assign(v: Any) -> None:
    v.note = 3


DISTRIBUTIONS: Any = torch.distributions
TOLD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "register_hook": (lambda v: v.register_hook(print), r"torch\.Tensor\.register_hook is called on a recorded value"),
    "retain_grad": (lambda v: v.retain_grad(), r"torch\.Tensor\.retain_grad is called on a recorded value"),
    "data": (assign_data, "the data of a recorded value are assigned"),
    "an attribute": (assign, "the attribute 'note' cannot be set on a recorded value"),
    "a distribution": (
        lambda v: DISTRIBUTIONS.Normal(v, 1.0, validate_args=True).log_prob(v),
        "give it validate_args=False",
    ),
    "a distribution of logits": (
        lambda v: DISTRIBUTIONS.Categorical(logits=v, validate_args=True).entropy(),
        "give it validate_args=False",
    ),
    "a sample": (
        lambda v: DISTRIBUTIONS.Normal(0.0, 1.0, validate_args=True).log_prob(v),
        "give it validate_args=False",
    ),
    "max_norm": (
        lambda v: F.embedding(v.argmax(), torch.eye(2), max_norm=1.0),
        "torch's embedding with max_norm= changes",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_refusals_say_what_is_asked_for(name: str) -> None:
    function, told = TOLD[name]
    model = nn.Linear(2, 2)
    with pytest.raises(GraphError, match=told):
        abt.batched(lambda x: function(model(x)), module=model)([torch.ones(2)])
    if name.startswith("a "):
        cell: Any = abt.cell(function)
        with pytest.raises(GraphError, match=told):
            abt.batched(lambda x: cell(model(x)), module=model)([torch.ones(2)])


def test_grad_fn_of_a_value_points_to_requires_grad() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(AttributeError, match="'grad_fn'; requires_grad says"):
        abt.batched(lambda x: model(x).grad_fn, module=model)([torch.ones(2)])


@pytest.mark.parametrize("runs", ["", "auto", "autobatch", "torch"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_scale_their_weight_are_refused_in_a_sentence(kind: Any, runs: str) -> None:
    layer = kind(3, 2, max_norm=1.0)
    if runs:
        abt.cell(layer, runs=runs)
    with pytest.raises(GraphError, match="with max_norm= changes its weight at every call"):
        abt.batched(layer)([torch.tensor([[1, 0]])])


@pytest.mark.parametrize("read", [Tensor.tolist, Tensor.numpy, lambda x: x.detach().numpy(), lambda x: x.sum().item()])
def test_tensors_that_a_cell_kept_are_refused(read: Callable[[Any], Any]) -> None:
    kept: Any = nn.Module()

    def keep(x: Tensor) -> Tensor:
        kept.tensor = x * 2
        return x

    cell: Any = abt.cell(keep)
    abt.batched(lambda x: cell(x), module=nn.Linear(1, 1))([torch.ones(2)])
    with pytest.raises(GraphError, match="represented a value while a cell was traced"):
        read(kept.tensor)
