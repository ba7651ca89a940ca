"""The energy of a molecule and the forces on its atoms, learned from both, one instance at a time.

    w_ij = cos²(π d_ij / 2c) W_2 ς(W_1 b(d_ij))       a filter for each pair of near atoms and each block
    m_i = Σ_j (U h_j) ∘ w_ij                          messages of the near atoms j of i
    h_i ← h_i + V_2 ς(V_1 m_i)                        T blocks; initially h_i is the embedding of the atom's element
    E = Σ_i A_2 ς(A_1 h_i)                            the energy; the force on atom i is -∂E/∂x_i

d_ij is the distance of two atoms, c the cutoff, b the value of Gaussians around K distances, and ς(x) = softplus(x) -
log 2. The loss includes the forces, which are a gradient computed by the program itself.

Source: Schütt, Kindermans, Sauceda, Chmiela, Tkatchenko and Müller 2017, SchNet, a continuous-filter convolutional
neural network for modeling quantum interactions (arXiv:1706.08566), with a smooth cutoff (Behler and Parrinello 2007).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.conformation import CUTOFF, Conformation
from autobatch.models.data.dataset import CONFORMATIONS, load_conformations
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_errors, count_squares, explained_variance, root_of_mean
from autobatch.models.regressor import Regressor
from autobatch.models.spec import Counts, ModelSpec

N_CENTRES = 32  # K
LOG_2 = math.log(2.0)


class Block(ab.Module):
    """The parameters of one block: filters, messages and updates."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.filter = ab.Linear(dim, dim, rng=rng)
        self.send = ab.Linear(dim, dim, rng=rng, bias=False)
        self.hidden = ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, dim, rng=rng)


class MoleculeForces(Regressor):
    """A table of elements, T blocks and a small network for an atom's energy.

    Args:
        n_elements: elements are 0 to n_elements - 1.
        dim: H, width of states, filters and messages.
        rng: draws the initial parameters.
        n_blocks: T, one or more.
        cutoff: c, in the unit of positions; the atoms of a pair are nearer than that.
        target_mean, target_std: scale of the energies, as for `Regressor`; the standard deviation also scales forces.
    """

    def __init__(
        self, n_elements: int, dim: int, rng: np.random.Generator, n_blocks: int = 3, cutoff: float = CUTOFF,
        target_mean: float = 0.0, target_std: float = 1.0,
    ) -> None:  # fmt: skip
        self.elements = ab.Parameter(rng.standard_normal((n_elements, dim)))
        self.distances = ab.Linear(N_CENTRES, n_blocks * dim, rng=rng)
        self.blocks = [Block(dim, rng) for _ in range(n_blocks)]
        self.energy_hidden = ab.Linear(dim, dim, rng=rng)
        self.energy_output = ab.Linear(dim, 1, rng=rng)
        self.cutoff = cutoff
        self.target_mean, self.target_std = target_mean, target_std
        self.centres = np.linspace(0.0, cutoff, N_CENTRES)

    @ab.cell
    def embed(self, element: int) -> Any:
        """Look up the state of an element (H,), and its message in the first block (H,)."""
        h = ab.lookup(self.elements, element)
        return h, self.blocks[0].send(h)

    @ab.cell
    def pair(self, x: Any, y: Any) -> Any:
        """Compute the filters of two atoms at positions (3,): one (H,) for each of T blocks."""
        apart = x - y
        d = ab.sqrt(ab.sum(apart * apart))
        off = (d - self.centres) * (N_CENTRES / self.cutoff)
        fade = 0.5 + 0.5 * ab.cos(d * (math.pi / self.cutoff))
        hidden = ab.split(shifted_softplus(self.distances(ab.exp(-0.5 * off * off))), len(self.blocks))
        return tuple(fade * block.filter(part) for block, part in zip(self.blocks, hidden, strict=True))

    @ab.cell
    def interact(self, block: Block, following: Block, h: Any, sent: Sequence[Any], filters: Sequence[Any]) -> Any:
        """Update a state by the filtered messages of near atoms; return it and its message in the next block."""
        h = self.receive(block, h, sent, filters)
        return h, following.send(h)

    @ab.cell
    def atom_energy(self, block: Block, h: Any, sent: Sequence[Any], filters: Sequence[Any]) -> Any:
        """Update a state in the last block, and compute the energy of the atom: a scalar."""
        h = self.receive(block, h, sent, filters)
        return self.energy_output(shifted_softplus(self.energy_hidden(h)))[0]

    def receive(self, block: Block, h: Any, sent: Sequence[Any], filters: Sequence[Any]) -> Any:
        """Update a state (H,) by the messages (H,) of any number of near atoms, each times a filter (H,)."""
        messages = ab.dot_n(filters, sent, shape=h.shape)
        return h + block.output(shifted_softplus(block.hidden(messages)))

    @ab.cell
    def energy_error(self, found: Any, energy: float) -> Any:
        """Compute the squared error of an energy: a scalar."""
        return ab.squared_error(found, energy)

    @ab.cell
    def force_error(self, gradient: Any, force: Any) -> Any:
        """Compute the squared error of the force on an atom (3,), from the gradient of the energy (3,): a scalar."""
        return ab.sum(ab.squared_error(-gradient, force))

    def standard_energy(self, molecule: Conformation[int]) -> Any:
        """Predict the standardised energy of a molecule: a scalar."""
        positions = list(molecule.positions)
        near: list[list[int]] = [[] for _ in positions]
        filters: list[list[list[Any]]] = [[[] for _ in positions] for _ in self.blocks]
        for one, other in molecule.pairs:
            near[one].append(other)
            near[other].append(one)
            # A filter depends on the distance alone, so both atoms of a pair use it.
            for of_block, made in zip(filters, self.pair(positions[one], positions[other]), strict=True):
                of_block[one].append(made)
                of_block[other].append(made)
        states, sent = zip(*map(self.embed, molecule.elements), strict=True)
        # All but the last block, which gives energies instead of messages.
        for block, following, of_block in zip(self.blocks, self.blocks[1:], filters, strict=False):
            around = [[sent[other] for other in others] for others in near]
            changed = map(partial(self.interact, block, following), states, around, of_block)
            states, sent = zip(*changed, strict=True)
        around = [[sent[other] for other in others] for others in near]
        return ab.sum_n(list(map(partial(self.atom_energy, self.blocks[-1]), states, around, filters[-1])))

    def energy(self, molecule: Conformation[int]) -> Any:
        """Predict the energy of a molecule, in eV: a scalar."""
        return self.in_unit(self.standard_energy(molecule))

    def scores(self, molecule: Conformation[int]) -> tuple[Any, list[Any]]:
        """Predict the energy of a molecule in eV, a scalar, and the force on each atom in eV/Å (3,)."""
        energy, (gradient,) = ab.value_and_grad(self.energy, wrt=lambda m: m.positions)(molecule)
        return energy, [-g for g in gradient]

    def loss(self, molecule: Conformation[int]) -> Any:
        """Sum the squared errors of the standardised energy and of all forces, by default in eV and eV/Å: a scalar."""
        energy, (gradient,) = ab.value_and_grad(self.standard_energy, wrt=lambda m: m.positions)(molecule)
        forces = molecule.forces / self.target_std
        errors = [self.force_error(g, force) for g, force in zip(gradient, forces, strict=True)]
        return ab.sum_n([self.energy_error(energy, self.standardize(molecule.energy)), *errors])


def shifted_softplus(x: Any) -> Any:
    """Compute log((1 + exp(x)) / 2) element by element; it is 0 at 0."""
    return ab.softplus(x) - LOG_2


def count_correct(
    outputs: Any, molecules: Sequence[Conformation[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Sum the statistics for the explained variances and errors of energies and of all force components.

    Args:
        outputs: energies (B,), and for each molecule the forces on its atoms, (3,) each.
        molecules: one per output.
        vocabularies: not used.
    """
    energies, forces = outputs
    pairs = {
        "forces": (
            [number for of_molecule in forces for force in of_molecule for number in force],
            [number for molecule in molecules for number in molecule.forces.ravel().tolist()],
        ),
        "energies": (energies, [molecule.energy for molecule in molecules]),
    }
    counts = {f"explained_variance_of_{name}": count_squares(*pair) for name, pair in pairs.items()}
    for name, pair in pairs.items():
        counts[f"rmse_of_{name}"], counts[f"mae_of_{name}"] = count_errors(*pair)
    return counts


def predict_forces(
    outputs: Any, molecules: Sequence[Conformation[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Return energies and forces, {"energy": -0.41, "forces": [[0.1, -0.2, 0.0], ...]}; a `ModelSpec.predict`."""
    return [
        {"energy": float(energy), "forces": [[float(number) for number in force] for force in of_molecule]}
        for energy, of_molecule in zip(*outputs, strict=True)
    ]


SPEC = ModelSpec(
    name="molecule-forces",
    summary="the energy of a molecule in space and the forces on its atoms (after Schütt et al. 2017)",
    model=MoleculeForces,
    generators=tuple(CONFORMATIONS.generators),
    reads=CONFORMATIONS.reads,
    default_data="force-field",
    load=load_conformations,
    load_inputs=load_conformations.inputs,
    count_correct=count_correct,
    predict=predict_forces,
    metrics={
        "explained_variance_of_forces": explained_variance,
        "explained_variance_of_energies": explained_variance,
        "rmse_of_forces": root_of_mean,
        "rmse_of_energies": root_of_mean,
    },
    costs=("rmse_of_forces", "mae_of_forces", "rmse_of_energies", "mae_of_energies"),
    target=lambda molecule: molecule.energy,
)
