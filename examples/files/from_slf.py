"""Predict the language scores of words in a folder of lattices in HTK's format.

    python examples/files/from_slf.py lattices/ scorer.ab

The script prints the loss of each epoch, and writes scorer.ab for `autobatch serve --model scorer.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_slf, values


class Scorer(ab.Module):
    scores = ab.fold(edges="edges", node="node", each="score_of")

    def __init__(self, n_words, dim, rng):
        self.words, self.before = ab.Embedding(n_words, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def node(self, children, word):
        x = self.words(word)
        return ab.tanh(x + self.before(ab.max_n(children, shape=x.shape)))

    @ab.cell
    def score_of(self, state):
        return self.output(state)[0]

    @ab.cell
    def error(self, state, language):
        return ab.squared_error(self.output(state)[0], language)

    def loss(self, lattice):
        return ab.mean_n(self.scores(lattice, each=self.error))


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
lattices = read_slf(path)
known = {"word": Vocabulary.count(values(lattices, "word"))}
data, model = [encode(lattice, known) for lattice in lattices], Scorer(len(known["word"]), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().scores, out, examples=data, about=describe(known))
