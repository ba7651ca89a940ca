"""DAG-RNN that labels every pixel of a picture in four sweeps, one from each corner.

In sweep d, a pixel i follows its neighbours P_d(i) that are nearer to the corner, up to three. Its state h_i^d depends
on their states and on the pixel's word x_i, and its scores o_i on the states of all sweeps:

    h_i = tanh(U_d x_i + W_d sum_{j in P_d(i)} h_j + b_d)
    o_i = sum_d V_d h_i^d + c

Source: Shuai, Zuo, Wang and Wang 2015, DAG-recurrent neural networks for scene labeling (arXiv:1509.00552), section 3,
with features of a convolutional network instead of words. Sums over preceding nodes of a graph are also the benchmark
"DAG-RNN" of Fegade et al. 2021, Cortex: a compiler for recursive deep learning models (arXiv:2011.01383).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import PICTURES, load_pictures
from autobatch.models.data.picture import Picture
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tags, name_tags, pick_best, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class Sweep(ab.Module):
    """A sweep over the pixels; `down` and `right` are its directions, 1 or -1."""

    def __init__(self, n_words: int, dim: int, down: int, right: int, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.weigh = ab.Linear(dim, dim, rng=rng)
        self.dim, self.down, self.right = dim, down, right

    @ab.cell
    def read(self, word: int, before: Any) -> Any:
        """Return the state (H,) of a pixel; `before` (H,) is the sum of the states before it."""
        return ab.tanh(ab.lookup(self.words, word) + self.weigh(before))

    def states(self, picture: Picture[int]) -> list[Any]:
        """Compute the states of all pixels, row by row."""
        rows = [row.words for row in picture.rows]
        states: dict[tuple[int, int], Any] = {}
        for y in range(len(rows))[:: self.down]:
            for x in range(len(rows[y]))[:: self.right]:
                near = (y - self.down, x), (y, x - self.right), (y - self.down, x - self.right)
                before = ab.sum_n([states[place] for place in near if place in states], shape=self.dim)
                states[y, x] = self.read(rows[y][x], before)
        return [states[place] for place in sorted(states)]  # row by row from the top, whatever the corner


class DagRNN(ab.Module):
    """Four sweeps, and one output layer for all pixels.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        self.sweeps = [Sweep(n_words, dim, down, right, rng) for down in (1, -1) for right in (1, -1)]
        self.output = ab.Linear(4 * dim, n_tags, rng=rng)

    @ab.cell
    def pixel_loss(self, states: Sequence[Any], tag: int) -> Any:
        """Compute the cross-entropy of a pixel's tag, from its states in the four sweeps: a scalar."""
        return ab.cross_entropy(self.output(ab.concat(states)), tag)

    @ab.cell
    def pixel_scores(self, states: Sequence[Any]) -> Any:
        """Score the tags of a pixel: logits (C,)."""
        return self.output(ab.concat(states))

    def states(self, picture: Picture[int]) -> list[tuple[Any, ...]]:
        """Compute the states of all pixels in the four sweeps, row by row."""
        return list(zip(*(sweep.states(picture) for sweep in self.sweeps), strict=True))

    def loss(self, picture: Picture[int]) -> Any:
        """Sum the cross-entropies of all pixels: a scalar."""
        pixels = zip(self.states(picture), picture.tags(), strict=True)
        return ab.sum_n([self.pixel_loss(states, tag) for states, tag in pixels])

    def scores(self, picture: Picture[int]) -> Any:
        """Score the tags of all pixels, row by row: a list of (C,)."""
        return [self.pixel_scores(states) for states in self.states(picture)]


def count_correct(outputs: Any, pictures: Sequence[Picture[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct pixels and all pixels."""
    found = pick_best(outputs, vocabularies["tags"])
    return {"pixel_accuracy": count_tags(found, [list(picture.tags()) for picture in pictures])}


def predict(
    outputs: Any, pictures: Sequence[Picture[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Name the best tag of every pixel, row by row, {"tags": [["sky", "sky"], ["sea", "boat"]]}."""
    tags = [iter(names) for names in name_tags(pick_best(outputs, vocabularies["tags"]), vocabularies["tags"])]
    return [
        {"tags": [[next(names) for _ in row.words] for row in picture.rows]}
        for names, picture in zip(tags, pictures, strict=True)
    ]


def probabilities(
    outputs: Any, pictures: Sequence[Picture[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[list[list[dict[str, float]]]]:
    """Return the probabilities of the tags of every pixel, row by row; a `ModelSpec.probabilities`."""
    pixels = map(iter, tag_probabilities(outputs, pictures, vocabularies))
    return [
        [[next(found) for _ in row.words] for row in picture.rows]
        for found, picture in zip(pixels, pictures, strict=True)
    ]


SPEC = ModelSpec(
    name="dag-rnn",
    summary="recurrent over four graphs of a picture's pixels, which it labels (Shuai et al. 2015)",
    model=DagRNN,
    generators=tuple(PICTURES.generators),
    reads=PICTURES.reads,
    default_data="scenes",
    load=load_pictures,
    load_inputs=load_pictures.inputs,
    count_correct=count_correct,
    predict=predict,
    probabilities=probabilities,
)
