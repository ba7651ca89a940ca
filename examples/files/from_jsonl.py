"""Compute logical expressions, which are trees in JSON.

    python examples/files/from_jsonl.py train.jsonl logic.ab

The script prints the loss of each epoch, and writes logic.ab for `autobatch serve --model logic.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_jsonl, values


class Logic(ab.Module):
    labels = ab.fold("children", "node", each="best")

    def __init__(self, n_words, n_labels, dim, rng):
        self.words, self.below = ab.Embedding(n_words, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_labels, rng=rng)

    @ab.cell
    def node(self, children, word):
        x = self.words(word)
        return ab.tanh(x + self.below(ab.sum_n(children, shape=x.shape)))

    @ab.cell
    def best(self, state):
        return ab.argmax(self.output(state))

    @ab.cell
    def error(self, state, label):
        return ab.cross_entropy(self.output(state), label)

    def loss(self, tree):
        return ab.mean_n(self.labels(tree, each=self.error))


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
trees = read_jsonl(path)
words, labels = Vocabulary.count(values(trees, "word")), Vocabulary.of_labels(values(trees, "label"))
known = {"word": words, "label": labels}
data, model = [encode(tree, known) for tree in trees], Logic(len(words), len(labels), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().labels, out, examples=data, about=describe(known))
