"""Predict a number of molecules by messages between their atoms.

    python examples/files/from_smiles.py train.smi molecules.ab

The script prints the loss of each epoch, and writes molecules.ab for `autobatch serve --model molecules.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_smiles, values


class Molecules(ab.Module):
    number = ab.fold_edges("edges", "node", "start", message="send", rounds=2, readout="read")

    def __init__(self, n_bonds, dim, rng):
        self.atoms, self.bonds = ab.Embedding(119, dim, rng=rng), ab.Embedding(n_bonds, dim, rng=rng)
        self.near, self.output = ab.Linear(dim, dim, rng=rng), ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def start(self, x):
        return self.atoms(x)

    @ab.cell
    def send(self, state, bond):
        return self.near(state) + self.bonds(bond)

    @ab.cell
    def node(self, state, messages):
        return ab.tanh(state + ab.sum_n(messages, shape=state.shape))

    @ab.cell
    def read(self, states):
        return self.output(ab.sum_n(states))[0]

    def loss(self, molecule):
        return ab.squared_error(self.number(molecule), molecule["target"])


molecules, out, rng = read_smiles(sys.argv[1]), sys.argv[2], np.random.default_rng(0)
vocabularies = {"bond": Vocabulary.count(values(molecules, "bond"))}
data = [encode(molecule, vocabularies) for molecule in molecules]
model = Molecules(len(vocabularies["bond"]), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().number, out, examples=data, about=describe(vocabularies))
