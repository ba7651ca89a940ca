"""Predict the heat of formation of molecules by passing messages between atoms along bonds.

    python examples/molecules.py

The script prints the mean error on new molecules in electronvolts, first for a constant prediction, and how many
batches their nodes took:

    constant prediction: error 1.48 eV
    ...
    epoch 8: error 0.31 eV
    4439 nodes ran in 19 batches
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.molecule import Molecule, draw_compounds

ATOMS, BONDS, N_STEPS = "CNOF", "-=#", 4


class MessagePassing(ab.Module):
    """Atoms exchange messages with their neighbours for N_STEPS steps; the prediction is a sum over atoms."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.atoms, self.update = ab.Embedding(len(ATOMS), dim, rng=rng), ab.GRUCell(dim, dim, rng=rng)
        self.bonds = {bond: ab.Linear(dim, dim, rng=rng) for bond in BONDS}
        self.hidden, self.output = ab.Linear(dim, dim, rng=rng), ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def embed(self, atom: int) -> Any:
        return self.atoms(atom)

    @ab.cell
    def send(self, bond: ab.Linear, h: Any) -> Any:
        return bond(h)

    @ab.cell
    def receive(self, h: Any, messages: list[Any]) -> Any:
        return self.update(ab.sum_n(messages, shape=h.shape), h)

    @ab.cell
    def part(self, h: Any) -> Any:
        return self.output(ab.relu(self.hidden(h)))[0]

    @ab.cell
    def square(self, found: Any, target: float) -> Any:
        return ab.squared_error(found, target)

    def number(self, molecule: Molecule[str]) -> Any:
        """Predict the heat of a molecule; an atom sees atoms that are at most N_STEPS bonds away."""
        states, near = [self.embed(ATOMS.index(atom)) for atom in molecule.atoms], molecule.neighbours()
        for _ in range(N_STEPS):
            sent = [[self.send(self.bonds[bond], states[other]) for other, bond in bonds] for bonds in near]
            states = [self.receive(h, messages) for h, messages in zip(states, sent, strict=True)]
        return ab.sum_n([self.part(h) for h in states])

    def loss(self, molecule: Molecule[str]) -> Any:
        return self.square(self.number(molecule), molecule.target)


def main() -> None:
    """Train on 1000 molecules and predict the heat of 200 others."""
    rng = np.random.default_rng(0)
    molecules, new = (draw_compounds(n, rng, max_atoms=7) for n in (1000, 200))
    heats, model = np.array([molecule.target for molecule in new]), MessagePassing(16, rng)
    loss, numbers, optimizer = ab.batched(model.loss), ab.batched(model.number), ab.optim.Adam(model, lr=0.01)
    print(f"constant prediction: error {np.abs(heats - np.mean([one.target for one in molecules])).mean():.2f} eV")
    graphs, new_graphs = loss.record_all(molecules), numbers.record_all(new)
    for epoch in range(1, 9):
        for batch in ab.minibatches(graphs, 40, rng):
            optimizer.step(loss.value_and_grad(batch)[1])
        print(f"epoch {epoch}: error {np.abs(numbers(new_graphs) - heats).mean():.2f} eV")
    print("{0.nodes} nodes ran in {0.batches} batches".format(numbers.explain(new)))


if __name__ == "__main__":
    main()
