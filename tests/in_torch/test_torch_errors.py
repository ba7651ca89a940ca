"""Errors that cells of torch end in are of public classes, which the reference lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
    """Applies a layer of batches to a row."""

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
    with pytest.raises(GraphError, match=rf"torch\.Tensor\.{name} takes no recorded values .* write v\.{name}\("):
        abt.batched(lambda x: UNBOUND[name](model(x)), module=model)([torch.ones(2)])
