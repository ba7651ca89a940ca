"""Predict each concept of AMR graphs from the concepts below it.

    python examples/files/from_penman.py train.amr concepts.ab

The script prints the loss of each epoch, and writes concepts.ab for `autobatch serve --model concepts.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_penman, values


class Concepts(ab.Module):
    concepts = ab.fold(edges="edges", node="node", each="best")

    def __init__(self, n_concepts, dim, rng):
        self.known, self.hidden = ab.Embedding(n_concepts, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_concepts, rng=rng)

    @ab.cell
    def node(self, children, concept):
        x = self.known(concept)
        below = ab.tanh(self.hidden(ab.sum_n([h for h, _ in children], shape=x.shape)))
        return ab.tanh(x + below), below

    @ab.cell
    def best(self, state):
        return ab.argmax(self.output(state[1]))

    @ab.cell
    def error(self, state, concept):
        return ab.cross_entropy(self.output(state[1]), concept)

    def loss(self, graph):
        return ab.mean_n(self.concepts(graph, each=self.error))


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
graphs = read_penman(path)
known = {"concept": Vocabulary.count(values(graphs, "concept"))}
data, model = [encode(graph, known) for graph in graphs], Concepts(len(known["concept"]), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().concepts, out, examples=data, about=describe(known))
