"""The graph network, reimplemented in PyTorch: all pairs of atoms at once, with a mask."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.molecule import Molecule

N_STEPS = 4


class GraphNetworkTwin(nn.Module):
    """Messages as an array (N, N, H), from each atom (second) to each (first)."""

    def __init__(self, n_atoms: int, n_bonds: int, dim: int, aggregate: str) -> None:
        super().__init__()
        self.atoms = nn.Parameter(torch.zeros(n_atoms, dim))
        self.bonds = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(n_bonds))
        self.update = nn.GRUCell(dim, dim)
        self.gate = nn.Linear(2 * dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, 1)
        self.aggregate = aggregate

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]], aggregate: str = "sum") -> GraphNetworkTwin:
        n_atoms, dim = state["atoms"].shape
        twin = cls(n_atoms, sum(name.startswith("bonds.") for name in state), dim, aggregate)
        twin = twin.to(torch.from_numpy(state["atoms"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def receive(self, messages: Tensor, bonded: Tensor) -> Tensor:
        """Combine the messages to each atom (N, H); without messages, the result is zero."""
        if self.aggregate == "max":
            return messages.masked_fill(~bonded[..., None], -torch.inf).amax(1).nan_to_num(neginf=0.0)
        total = (messages * bonded[..., None]).sum(1)
        return total / bonded.sum(1, keepdim=True).clamp(min=1) if self.aggregate == "mean" else total

    def scores(self, molecule: Molecule[int]) -> Tensor:
        """Predict the number of a molecule (1,)."""
        n = len(molecule.atoms)
        kind = torch.full((n, n), -1)
        for one, other, bond in molecule.bonds:
            kind[one, other] = kind[other, one] = bond
        x = h = self.atoms[torch.tensor(molecule.atoms)]
        for _ in range(N_STEPS):
            of_kind = torch.stack([bond(h) for bond in self.bonds])  # (n_bonds, N, H)
            messages = of_kind[kind.clamp(min=0), torch.arange(n)[None, :]]
            h = self.update(self.receive(messages, kind >= 0), h)
        parts = torch.sigmoid(self.gate(torch.cat((h, x), 1))) * self.value(h)
        found: Tensor = self.output(parts.sum(0))
        return found

    def loss(self, molecule: Molecule[int]) -> Tensor:
        """Square the error: a scalar."""
        return (self.scores(molecule)[0] - molecule.target) ** 2
