"""Tag the words of a sentence from left to right.

    python examples/files/from_conll.py train.conll tagger.ab

The script prints the loss of each epoch, and writes tagger.ab for `autobatch serve --model tagger.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_conll, values


class Tagger(ab.Module):
    tags = ab.scan("step", "start", each="best")

    def __init__(self, n_words, n_tags, dim, rng):
        self.words, self.cell = ab.Embedding(n_words, dim, rng=rng), ab.GRUCell(dim, dim, rng=rng)
        self.start, self.output = ab.Parameter(np.zeros(dim)), ab.Linear(dim, n_tags, rng=rng)

    @ab.cell
    def step(self, state, word):
        return self.cell(self.words(word), state)

    @ab.cell
    def best(self, state):
        return ab.argmax(self.output(state))

    @ab.cell
    def error(self, state, tag):
        return ab.cross_entropy(self.output(state), tag)

    def loss(self, sentence):
        return ab.mean_n(self.tags(sentence, each=self.error))


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
sentences = read_conll(path, {"word": 0, "tag": -1})
words, tags = Vocabulary.count(values(sentences, "word")), Vocabulary.of_labels(values(sentences, "tag"))
known = {"word": words, "tag": tags}
data, model = [encode(sentence, known) for sentence in sentences], Tagger(len(words), len(tags), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().tags, out, examples=data, about=describe(known))
