"""Find names in texts without spaces, with a tagger over lattices of characters and dictionary words.

    python examples/ner_lattice.py

The script prints the loss, how many names in new texts it finds, and the tags of a text: B and I for a name, O for
anything else:

    epoch 6: loss 0.71
    new texts: 306 of 317 names found, 15 false ones
    fadeacecebdacecebbbee -> OOOOOOOBIIBIIIBIIOOOO
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import autobatch as ab

LETTERS, TAGS = "abcdef", "OBI"
NAMES, OTHERS = ("dace", "fab", "eda", "ceb"), ("ad", "cab", "bee", "fade", "ace", "dab")
WORDS = {word: number for number, word in enumerate(NAMES + OTHERS)}


def draw(rng: np.random.Generator) -> tuple[str, str]:
    """Draw a text of names, other words and letters, and its tags."""
    words = [str(rng.choice((NAMES, OTHERS, [*LETTERS])[rng.integers(3)])) for _ in range(rng.integers(2, 8))]
    tags = ["B" + "I" * (len(word) - 1) if word in NAMES else "O" * len(word) for word in words]
    return "".join(words), "".join(tags)


class Reader(ab.Module):
    """Reads a text in one direction: each letter, and each dictionary word that ends with it."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.letters, self.words = ab.Embedding(len(LETTERS), dim, rng=rng), ab.Embedding(len(WORDS), dim, rng=rng)
        self.lstm, self.jump = ab.LSTMCell(2 * dim, dim, rng=rng), ab.Linear(2 * dim, dim, rng=rng)
        self.zeros = np.zeros(dim)

    @ab.cell
    def read_word(self, word: int, state: Any) -> Any:
        return ab.tanh(self.jump(ab.concat((self.words(word), state[0]))))

    @ab.cell
    def read_letter(self, letter: int, words: list[Any], state: Any) -> Any:
        return self.lstm(ab.concat((self.letters(letter), ab.sum_n(words, shape=self.zeros.shape))), state)

    def states(self, text: str, dictionary: dict[str, int]) -> list[Any]:
        """Return the state after each letter; a word continues from the state before its first letter."""
        states: list[Any] = [(self.zeros, self.zeros)]
        for end in range(1, len(text) + 1):
            found = [(start, dictionary.get(text[start:end])) for start in range(max(0, end - 4), end)]
            words = [self.read_word(word, states[start]) for start, word in found if word is not None]
            states.append(self.read_letter(LETTERS.index(text[end - 1]), words, states[-1]))
        return states[1:]


class Tagger(ab.Module):
    """One reader per direction, and a layer that scores tags from the states of both."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.rightward, self.leftward = Reader(dim, rng), Reader(dim, rng)
        self.output = ab.Linear(2 * dim, len(TAGS), rng=rng)
        self.reversed = {word[::-1]: number for word, number in WORDS.items()}

    @ab.cell
    def score(self, right: Any, left: Any) -> Any:
        return self.output(ab.concat((right[0], left[0])))

    def scores(self, text: str) -> list[Any]:
        left = self.leftward.states(text[::-1], self.reversed)[::-1]
        return [self.score(*both) for both in zip(self.rightward.states(text, WORDS), left, strict=True)]

    def loss(self, item: tuple[str, str]) -> Any:
        return ab.sum_n(list(map(ab.cross_entropy, self.scores(item[0]), map(TAGS.index, item[1]))))


def main() -> None:
    """Train on 1200 texts and find the names in 200 others."""
    rng = np.random.default_rng(1)
    model, items, new = Tagger(16, rng), *([draw(rng) for _ in range(n)] for n in (1200, 200))
    loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.01)
    graphs = loss.record_all(items)
    for epoch in range(1, 7):
        for batch in ab.minibatches(graphs, 40, rng):
            optimizer.step(loss.value_and_grad(batch)[1])
        print(f"epoch {epoch}: loss {np.mean(loss(graphs)):.2f}")
    scores = ab.batched(model.scores)([text for text, _ in new])
    tagged = ["".join(TAGS[tag] for tag in np.argmax(rows, axis=1)) for rows in scores]
    texts = (" ".join(tagged), " ".join(tags for _, tags in new))
    found, meant = ({name.span() for name in re.finditer("BI*", text)} for text in texts)
    print(f"new texts: {len(found & meant)} of {len(meant)} names found, {len(found - meant)} false ones")
    print(f"{new[2][0]} -> {tagged[2]}")


if __name__ == "__main__":
    main()
