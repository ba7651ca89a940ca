"""Classify the texts in a column of a CSV file.

    python examples/files/from_csv.py train.csv classifier.ab

The script prints the loss of each epoch, and writes classifier.ab for `autobatch serve --model classifier.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_csv, values


class Classifier(ab.Module):
    best = ab.scan("step", "start", last="choose")

    def __init__(self, n_words, n_labels, dim, rng):
        self.words, self.cell = ab.Embedding(n_words, dim, rng=rng), ab.GRUCell(dim, dim, rng=rng)
        self.start, self.output = ab.Parameter(np.zeros(dim)), ab.Linear(dim, n_labels, rng=rng)

    @ab.cell
    def step(self, state, text):
        return self.cell(self.words(text), state)

    @ab.cell
    def choose(self, state):
        return ab.argmax(self.output(state))

    @ab.cell
    def error(self, state, label):
        return ab.cross_entropy(self.output(state), label)

    def loss(self, row):
        *_, last = self.best(row, each=lambda state: state)
        return self.error(last, row["label"])


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
rows = read_csv(path, {"text": str.split, "label": str})
words, labels = Vocabulary.count(values(rows, "text")), Vocabulary.of_labels(values(rows, "label"))
known = {"text": words, "label": labels}
data, model = [encode(row, known) for row in rows], Classifier(len(words), len(labels), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().best, out, examples=data, about=describe(known))
