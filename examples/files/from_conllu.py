"""Tag the words of dependency trees, each from the words below it.

    python examples/files/from_conllu.py train.conllu tagger.ab

The script prints the loss of each epoch, and writes tagger.ab for `autobatch serve --model tagger.ab`.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.readers import Vocabulary, describe, encode, read_conllu, values


class Tagger(ab.Module):
    tags = ab.fold(parents="parent", node="node", each="tag")

    def __init__(self, n_words, n_tags, dim, rng):
        self.words, self.below = ab.Embedding(n_words, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_tags, rng=rng)

    @ab.cell
    def node(self, children, word):
        x = self.words(word)
        return ab.tanh(x + self.below(ab.sum_n(children, shape=x.shape)))

    @ab.cell
    def tag(self, state):
        return ab.argmax(self.output(state))

    @ab.cell
    def error(self, state, upos):
        return ab.cross_entropy(self.output(state), upos)

    def loss(self, sentence):
        return ab.mean_n(self.tags(sentence, each=self.error))


path, out = sys.argv[1:]
rng = np.random.default_rng(0)
sentences = read_conllu(path)
words, tags = Vocabulary.count(values(sentences, "word")), Vocabulary.of_labels(values(sentences, "upos"))
known = {"word": words, "upos": tags}
data, model = [encode(sentence, known) for sentence in sentences], Tagger(len(words), len(tags), 16, rng)
loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.02)
graphs = loss.record_all(data)
for epoch in range(1, 11):
    for batch in ab.minibatches(graphs, 32, rng):
        optimizer.step(loss.value_and_grad(batch)[1])
    print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.3f}")
ab.export(model.eval().tags, out, examples=data, about=describe(known))
