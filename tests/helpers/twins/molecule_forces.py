"""The model of molecular energies and forces, reimplemented in PyTorch: all pairs of atoms at once, with a mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autobatch.models.data.conformation import CUTOFF, Conformation


class BlockTwin(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.filter = nn.Linear(dim, dim)
        self.send = nn.Linear(dim, dim, bias=False)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)


class MoleculeForcesTwin(nn.Module):
    """Has symmetric filters in an array (N, N, H), which are zero for atoms that are not a pair."""

    def __init__(self, n_elements: int, dim: int, n_centres: int, n_blocks: int) -> None:
        super().__init__()
        self.elements = nn.Parameter(torch.zeros(n_elements, dim))
        self.distances = nn.Linear(n_centres, n_blocks * dim)
        self.blocks: Any = nn.ModuleList(BlockTwin(dim) for _ in range(n_blocks))
        self.energy_hidden = nn.Linear(dim, dim)
        self.energy_output = nn.Linear(dim, 1)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> MoleculeForcesTwin:
        n_elements, dim = state["elements"].shape
        rows, n_centres = state["distances.weight"].shape
        twin = cls(n_elements, dim, n_centres, rows // dim).to(torch.from_numpy(state["elements"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def energy(self, molecule: Conformation[int], positions: Tensor) -> Tensor:
        """Return the energy of a molecule with its atoms at other positions (N, 3): a scalar."""
        n, n_centres = len(positions), self.distances.weight.shape[1]
        near = torch.zeros(n, n, 1, dtype=positions.dtype)
        for one, other in molecule.pairs:
            near[one, other] = near[other, one] = 1.0
        squares = ((positions[:, None] - positions[None]) ** 2).sum(2)
        d = (squares + torch.eye(n, dtype=positions.dtype)).sqrt()[..., None]  # (N, N, 1)
        centres = torch.linspace(0.0, CUTOFF, n_centres, dtype=positions.dtype)
        basis = torch.exp(-(((d - centres) * n_centres / CUTOFF) ** 2) / 2)
        fade = near * torch.cos(math.pi * d / (2 * CUTOFF)) ** 2
        h = self.elements[torch.tensor(molecule.elements)]
        for block, hidden in zip(self.blocks, shifted(self.distances(basis)).chunk(len(self.blocks), 2), strict=True):
            messages = (block.send(h)[None] * block.filter(hidden) * fade).sum(1)
            h = h + block.output(shifted(block.hidden(messages)))
        energies: Tensor = self.energy_output(shifted(self.energy_hidden(h)))
        return energies.sum()

    def energy_and_forces(self, molecule: Conformation[int]) -> tuple[Tensor, Tensor]:
        """Predict the energy of a molecule and the forces on its atoms (N, 3), with their autograd graph."""
        positions = torch.tensor(molecule.positions, dtype=self.elements.dtype, requires_grad=True)
        energy = self.energy(molecule, positions)
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy, -gradient

    def scores(self, molecule: Conformation[int]) -> Tensor:
        """Return the energy and all components of the forces in one vector (1 + 3 N,)."""
        energy, forces = self.energy_and_forces(molecule)
        return torch.cat((energy[None], forces.flatten()))

    def loss(self, molecule: Conformation[int]) -> Tensor:
        """Square the errors of energy and forces: a scalar."""
        energy, forces = self.energy_and_forces(molecule)
        return (energy - molecule.energy) ** 2 + ((forces - torch.tensor(molecule.forces)) ** 2).sum()


def shifted(x: Tensor) -> Tensor:
    """Return the shifted softplus."""
    return F.softplus(x) - math.log(2.0)
