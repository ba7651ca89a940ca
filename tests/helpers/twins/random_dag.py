"""The network over random graphs, reimplemented in PyTorch: a mask selects the inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.circuit import Circuit


class RandomDagTwin(nn.Module):
    """Stacks the weights of all kinds in arrays (kinds, H, H), from which a node takes its own."""

    def __init__(self, n_kinds: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(
            nn.ModuleDict({"inner": nn.Linear(dim, dim), "outer": nn.Linear(dim, dim)}) for _ in range(n_kinds)
        )
        self.output = nn.Linear(dim, n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> RandomDagTwin:
        n_tags, dim = state["output.weight"].shape
        twin = cls(sum(name.endswith("inner.bias") for name in state), n_tags, dim)
        twin = twin.to(torch.from_numpy(state["output.weight"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, circuit: Circuit[int]) -> Tensor:
        """Score the tags of all nodes: logits (N, C)."""
        layers = [
            (
                torch.stack([kind[part].weight for kind in self.kinds]),  # type: ignore[index]
                torch.stack([kind[part].bias for kind in self.kinds]),  # type: ignore[index]
            )
            for part in ("inner", "outer")
        ]
        states = layers[0][0].new_zeros(0, self.output.in_features)
        for kind, inputs in zip(circuit.kinds, circuit.inputs, strict=True):
            mask = torch.zeros(len(states), dtype=states.dtype)
            mask[inputs] = 1.0
            h = mask @ states
            for weights, biases in layers:
                h = torch.tanh(weights[kind] @ h + biases[kind])
            states = torch.cat((states, h[None]))
        logits: Tensor = self.output(states)
        return logits

    def loss(self, circuit: Circuit[int]) -> Tensor:
        """Sum the cross-entropies of all nodes: a scalar."""
        return nn.functional.cross_entropy(self.scores(circuit), torch.tensor(circuit.tags), reduction="sum")
