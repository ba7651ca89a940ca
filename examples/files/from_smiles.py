"""Predict a number of molecules by messages between their atoms.

    python examples/files/from_smiles.py train.smi molecules.ab

The script prints the loss of each epoch, and writes molecules.ab for `autobatch serve --model molecules.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import read_smiles, unroll


class Molecules(ab.Module):
    number = ab.fold(edges="edges", node="node", root="read")

    def __init__(self, dim, rng):
        self.atoms, self.near = ab.Embedding(119, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def node(self, children, x):
        atom = self.atoms(x)
        return ab.relu(atom + self.near(ab.sum_n(children, shape=atom.shape)))

    @ab.cell
    def read(self, state):
        return self.output(state)[0]

    @ab.cell
    def error(self, number, target):
        return ab.squared_error(number, target)

    def loss(self, molecule):
        return self.error(self.number(molecule), molecule["target"])


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
data = [unroll(molecule, 2, {"x": 0}) for molecule in read_smiles(path)]  # 2 rounds; 0 is no atom, but the root
model = Molecules(16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().number, out, examples=data)
