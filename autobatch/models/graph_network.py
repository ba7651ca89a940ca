"""Message passing between the atoms of a molecule to predict a number, one instance at a time.

    m_v = Σ_w A_{b(v,w)} h_w          messages of the neighbours w of v, by kind of bond b; or their mean or maximum
    h_v ← GRU(m_v, h_v)               T steps of all atoms; initially h_v is the embedding x_v of the atom's kind
    y = Σ_v σ(G [h_v, x_v]) ∘ V h_v   readout, and a linear layer from y to the number

Source: Gilmer, Schoenholz, Riley, Vinyals and Dahl 2017, Neural message passing for quantum chemistry
(arXiv:1704.01212), section 2, with the functions of gated graph networks (Li et al. 2016, arXiv:1511.05493).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import MOLECULES, load_molecules
from autobatch.models.data.molecule import Molecule
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_errors, count_squares, explained_variance, predict_numbers, root_of_mean
from autobatch.models.regressor import Regressor
from autobatch.models.spec import Counts, ModelSpec

AGGREGATES = {"sum": ab.sum_n, "mean": ab.mean_n, "max": ab.max_n}


class GraphNetwork(Regressor):
    """A table of atoms, a matrix per kind of bond, a GRU and a gated readout.

    Args:
        n_atoms: kinds of atoms are 0 to n_atoms - 1.
        n_bonds: kinds of bonds are 0 to n_bonds - 1.
        dim: H, width of embeddings, states and messages.
        rng: draws the initial parameters.
        n_steps: T, the distance in bonds over which atoms interact.
        aggregate: aggregation of an atom's messages: "sum", "mean" or "max".
        target_mean, target_std: scale of the numbers, as for `Regressor`.
    """

    def __init__(
        self, n_atoms: int, n_bonds: int, dim: int, rng: np.random.Generator, n_steps: int = 4, aggregate: str = "sum",
        target_mean: float = 0.0, target_std: float = 1.0,
    ) -> None:  # fmt: skip
        self.atoms = ab.Parameter(0.1 * rng.standard_normal((n_atoms, dim)))
        self.bonds = [ab.Linear(dim, dim, rng=rng, bias=False) for _ in range(n_bonds)]
        self.update = ab.GRUCell(dim, dim, rng=rng)
        self.gate = ab.Linear(2 * dim, dim, rng=rng)
        self.value = ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, 1, rng=rng)
        self.n_steps = n_steps
        self.aggregate = aggregate
        self.target_mean, self.target_std = target_mean, target_std

    @ab.cell
    def embed(self, atom: int) -> Any:
        """Look up the state of a kind of atom (H,)."""
        return ab.lookup(self.atoms, atom)

    @ab.cell
    def send(self, bond: ab.Linear, h: Any) -> Any:
        """Compute the message of an atom along bonds of one kind (H,)."""
        return bond(h)

    @ab.cell
    def receive(self, h: Any, messages: Sequence[Any]) -> Any:
        """Update the state of an atom (H,) by the messages of its neighbours."""
        return self.update(AGGREGATES[self.aggregate](messages, shape=h.shape), h)

    @ab.cell
    def weigh(self, h: Any, x: Any) -> Any:
        """Compute the contribution of an atom to the molecule (H,)."""
        return ab.sigmoid(self.gate(ab.concat((h, x)))) * self.value(h)

    @ab.cell
    def read(self, parts: Sequence[Any]) -> Any:
        """Predict the standardised number of a molecule from its atoms' contributions: a scalar."""
        return self.output(ab.sum_n(parts))[0]

    @ab.cell
    def error(self, found: Any, target: float) -> Any:
        """Compute the squared error of a number: a scalar."""
        return ab.squared_error(found, target)

    def standard_score(self, molecule: Molecule[int]) -> Any:
        """Predict the standardised number of a molecule: a scalar."""
        near = molecule.neighbours()
        first = states = [self.embed(atom) for atom in molecule.atoms]
        for _ in range(self.n_steps):
            # One message for each atom and kind of its bonds, whatever the number of neighbours that read it.
            sent = {
                (atom, bond): self.send(self.bonds[bond], states[atom])
                for atom, bonds in enumerate(near)
                for bond in sorted({bond for _, bond in bonds})
            }
            states = [self.receive(h, [sent[one] for one in bonds]) for h, bonds in zip(states, near, strict=True)]
        return self.read([self.weigh(h, x) for h, x in zip(states, first, strict=True)])

    def scores(self, molecule: Molecule[int]) -> Any:
        """Predict the number of a molecule, in the unit of the targets: a scalar."""
        return self.in_unit(self.standard_score(molecule))

    def loss(self, molecule: Molecule[int]) -> Any:
        """Compute the squared error of the standardised number: a scalar."""
        return self.error(self.standard_score(molecule), self.standardize(molecule.target))


def count_correct(outputs: Any, molecules: Sequence[Molecule[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Sum the statistics for the explained variance and the errors of predicted numbers (B,)."""
    meant = [molecule.target for molecule in molecules]
    rmse, mae = count_errors(outputs, meant)
    return {"explained_variance": count_squares(outputs, meant), "rmse": rmse, "mae": mae}


SPEC = ModelSpec(
    name="graph-network",
    summary="message passing between the atoms of a molecule, to predict a number (Gilmer et al. 2017)",
    model=GraphNetwork,
    generators=tuple(MOLECULES.generators),
    reads=MOLECULES.reads,
    default_data="compounds",
    load=load_molecules,
    load_inputs=load_molecules.inputs,
    count_correct=count_correct,
    predict=predict_numbers,
    metrics={"explained_variance": explained_variance, "rmse": root_of_mean},
    costs=("rmse", "mae"),
    target=lambda molecule: molecule.target,
)
