"""A case of the zoo: a module, random instances, and the loss of an instance in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab

Rng = np.random.Generator
Weights = Mapping[str, Tensor]
"""The parameters of a model by name, as in its `state_dict()`."""


@dataclass(frozen=True)
class Case:
    """A model, whose `loss` takes one instance, and its twin."""

    name: str
    make: Callable[[Rng], Any]
    draw: Callable[[Rng], Any]
    twin: Callable[[Weights, Any], Tensor]
    """Computes the loss of an instance, a scalar, in PyTorch."""


def to_torch(model: ab.Module) -> dict[str, Tensor]:
    """Copy the parameters of a model to tensors that require gradients."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in model.state_dict().items()}


def array(rng: Rng, *shape: int, scale: float = 0.5) -> ab.Parameter:
    """Draw a parameter from a normal distribution."""
    return ab.Parameter(scale * rng.standard_normal(shape))


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """Apply the `Linear` of this name."""
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def gru(w: Weights, name: str, x: Tensor, h: Tensor) -> Tensor:
    """Make a step of the `GRUCell` of this name."""
    return torch.gru_cell(x[None], h[None], *_recurrent(w, name))[0]


def lstm(w: Weights, name: str, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Make a step of the `LSTMCell` of this name."""
    h, c = torch.lstm_cell(x[None], [part[None] for part in state], *_recurrent(w, name))
    return h[0], c[0]


def _recurrent(w: Weights, name: str) -> list[Tensor]:
    return [w[f"{name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
