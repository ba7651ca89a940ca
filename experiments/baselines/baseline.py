"""The interface of all models in PyTorch, so that all are checked and timed alike.

An instance is prepared once, ahead of time, as autobatch records it. Prepared instances are merged into a mini-batch;
autobatch does this for every mini-batch and a user of PyTorch perhaps ahead of time, so both are timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.floating[Any]]]


class Baseline(nn.Module, ABC):
    """A model with a loss for every instance of a mini-batch."""

    @abstractmethod
    def prepare(self, instance: Any) -> Any:
        """Prepare an instance, as far as that is possible ahead of time."""

    @abstractmethod
    def merge(self, prepared: Sequence[Any]) -> Any:
        """Make a mini-batch of B prepared instances."""

    @abstractmethod
    def losses(self, minibatch: Any) -> Tensor:
        """Sum the cross-entropies of all places of each instance: (B,)."""

    def backward(self, minibatch: Any) -> None:
        """Compute the gradients of the mean loss, in place of the last ones."""
        self.zero_grad()
        torch.autograd.backward(self.losses(minibatch).mean())

    def placed(self, minibatch: Any) -> Any:
        """Move the tensors of a mini-batch to the parameters' device."""
        return placed(minibatch, next(self.parameters()).device)

    def answer(self, minibatch: Any) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Compute losses, and the gradients of their mean by name."""
        minibatch = self.placed(minibatch)
        with torch.inference_mode():
            losses = self.losses(minibatch).numpy(force=True)
        self.backward(minibatch)
        return losses, {name: p.grad.numpy(force=True) for name, p in self.named_parameters() if p.grad is not None}

    def translate(self, arrays: Arrays) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """Convert values or gradients of autobatch's parameters to this model's names and layout."""
        return dict(arrays)

    def copy_parameters(self, state: Arrays) -> None:
        """Copy the `state_dict()` of the same model in autobatch."""
        self.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in self.translate(state).items()})


def placed(value: Any, device: torch.device) -> Any:
    """Move tensors, and those in tuples and lists, to a device."""
    if hasattr(value, "to"):  # also packed sequences
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(placed(one, device) for one in value))
    return type(value)(placed(one, device) for one in value) if isinstance(value, list | tuple) else value


def as_ids(numbers: Iterable[int]) -> Tensor:
    """Make an integer tensor, which may be empty."""
    return torch.tensor(list(numbers), dtype=torch.long)
