"""Classify the graphs of a folder in the format of TU Dortmund, such as MUTAG.

    python examples/files/from_tu.py MUTAG/ graphs.ab

The script prints the loss of each epoch, and writes graphs.ab for `autobatch serve --model graphs.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import read_tu


class Graphs(ab.Module):
    scores = ab.fold_edges("edges", "node", "start", rounds=3, readout="score")

    def __init__(self, n_kinds, n_labels, dim, rng):
        self.kinds, self.near = ab.Embedding(n_kinds, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_labels, rng=rng)

    @ab.cell
    def start(self, x):
        return self.kinds(x)

    @ab.cell
    def node(self, state, messages):
        return ab.relu(state + self.near(ab.sum_n(messages, shape=state.shape)))

    @ab.cell
    def score(self, states):
        return self.output(ab.mean_n(states))

    def loss(self, graph):
        return ab.cross_entropy(self.scores(graph), graph["label"])


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
graphs = read_tu(path)
n_kinds, labels = 1 + max(x for graph in graphs for x in graph["x"]), sorted({graph["label"] for graph in graphs})
data = [{**graph, "label": labels.index(graph["label"])} for graph in graphs]
model = Graphs(n_kinds, len(labels), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().scores, out, examples=data, about={"labels": labels})
