"""The energies and forces of molecules in PyTorch: one molecule at a time, and batched by an expert.

Both compute with the atoms and the pairs of atoms of a whole molecule, or of all molecules of a mini-batch, which are
concatenated as in PyTorch Geometric: pairs gather from their atoms, and messages are added up at atoms by index. Forces
are a gradient that keeps its graph.

Differences from PyTorch Geometric's own SchNet: a pair has one filter per block instead of two, which makes a step
almost twice as fast; one product computes the first layers of the filters of all blocks; pairs are listed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional as F

from autobatch.models.data.conformation import CUTOFF, Conformation
from autobatch.models.molecule_forces import N_CENTRES
from baselines.baseline import Baseline

LOG_2 = math.log(2.0)


class Atoms(NamedTuple):
    """One molecule, or several: N atoms and P pairs of atoms."""

    elements: Tensor
    """(N,)"""
    positions: Tensor
    """(N, 3)"""
    forces: Tensor
    """(N, 3)"""
    pairs: Tensor
    """Numbers of atoms (2, P)."""
    energies: Tensor
    """(B,)"""
    molecules: Tensor
    """The number of each atom's molecule (N,)."""


class Block(nn.Module):
    """The parameters of one block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.filter = nn.Linear(dim, dim)
        self.send = nn.Linear(dim, dim, bias=False)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)


class ExpertMoleculeForces(Baseline):
    """All molecules of a mini-batch at once."""

    def __init__(self, n_elements: int, dim: int, n_blocks: int = 3) -> None:
        super().__init__()
        self.elements = nn.Parameter(torch.zeros(n_elements, dim))
        self.distances = nn.Linear(N_CENTRES, n_blocks * dim)
        self.blocks: Any = nn.ModuleList(Block(dim) for _ in range(n_blocks))
        self.energy_hidden = nn.Linear(dim, dim)
        self.energy_output = nn.Linear(dim, 1)

    def prepare(self, instance: Conformation[int]) -> Atoms:
        """Make tensors of a molecule."""
        dtype = self.elements.dtype
        return Atoms(
            torch.tensor(instance.elements),
            torch.tensor(instance.positions, dtype=dtype),
            torch.tensor(instance.forces, dtype=dtype),
            torch.tensor(instance.pairs, dtype=torch.long).reshape(-1, 2).t().contiguous(),
            torch.tensor([instance.energy], dtype=dtype),
            torch.zeros(len(instance.elements), dtype=torch.long),
        )

    def merge(self, prepared: Sequence[Atoms]) -> Atoms:
        """Concatenate molecules, and shift the numbers of their atoms."""
        sizes = [len(one.elements) for one in prepared]
        starts = list(accumulate(sizes, initial=0))
        return Atoms(
            torch.cat([one.elements for one in prepared]),
            torch.cat([one.positions for one in prepared]),
            torch.cat([one.forces for one in prepared]),
            torch.cat([one.pairs + start for one, start in zip(prepared, starts, strict=False)], 1),
            torch.cat([one.energies for one in prepared]),
            torch.arange(len(prepared)).repeat_interleave(torch.tensor(sizes)),
        )

    def atom_energies(self, atoms: Atoms, positions: Tensor) -> Tensor:
        """Compute the energy of each atom (N,) if atoms are at `positions`."""
        one, other = atoms.pairs
        apart = positions.index_select(0, one) - positions.index_select(0, other)
        d = (apart * apart).sum(1, keepdim=True).sqrt()
        off = (d - torch.linspace(0.0, CUTOFF, N_CENTRES, dtype=d.dtype, device=d.device)) * (N_CENTRES / CUTOFF)
        fade = 0.5 + 0.5 * torch.cos(d * (math.pi / CUTOFF))
        hidden = (F.softplus(self.distances(torch.exp(-0.5 * off * off))) - LOG_2).chunk(len(self.blocks), 1)
        h = self.elements.index_select(0, atoms.elements)
        for block, part in zip(self.blocks, hidden, strict=True):
            filters = block.filter(part) * fade
            sent = block.send(h)
            heard = torch.zeros_like(h).index_add(0, one, sent.index_select(0, other) * filters)
            heard = heard.index_add(0, other, sent.index_select(0, one) * filters)
            h = h + block.output(F.softplus(block.hidden(heard)) - LOG_2)
        energies: Tensor = self.energy_output(F.softplus(self.energy_hidden(h)) - LOG_2)
        return energies[:, 0]

    def losses(self, minibatch: Atoms) -> Tensor:
        """Sum the squared errors of the energy and the forces of each molecule: (B,)."""
        with torch.inference_mode(False), torch.enable_grad():
            positions = minibatch.positions.clone().requires_grad_()
            each = self.atom_energies(minibatch, positions)
            (gradient,) = autograd.grad(each.sum(), positions, create_graph=True)
            energies = torch.zeros_like(minibatch.energies).index_add(0, minibatch.molecules, each)
            squares = (energies - minibatch.energies) ** 2
            return squares.index_add(0, minibatch.molecules, ((gradient + minibatch.forces) ** 2).sum(1))


class TorchMoleculeForces(ExpertMoleculeForces):
    """One molecule after the other, each with all of its atoms and pairs at once; a mini-batch is a list."""

    def merge(self, prepared: Sequence[Atoms]) -> Sequence[Atoms]:  # type: ignore[override]
        """Keep the molecules separate."""
        return prepared

    def losses(self, minibatch: Sequence[Atoms]) -> Tensor:  # type: ignore[override]
        """Compute one loss after the other: (B,)."""
        return torch.cat([super(TorchMoleculeForces, self).losses(atoms) for atoms in minibatch])

    def backward(self, minibatch: Sequence[Atoms]) -> None:
        """Compute the gradients of the mean loss, one molecule after the other."""
        self.zero_grad()
        for atoms in minibatch:
            autograd.backward(super().losses(atoms).sum() / len(minibatch))
