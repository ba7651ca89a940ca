"""Test what lattice taggers share: the check for missing positions, correct tags and their names."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.lattice_tagger import LSTM_SPEC, LatticeGRU, LatticeLSTM, count_correct


def test_a_lattice_with_no_position_to_tag_has_no_loss_and_no_scores() -> None:
    model = LatticeLSTM(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))
    begin, other = Lattice([0], [[]]), Lattice([0, 1], [[], [(0, 1)]])
    assert float(model.loss(begin)) == 0.0
    assert ab.batched(model.loss)([begin, other, begin])[[0, 2]].tolist() == [0.0, 0.0]
    assert [len(scores) for scores in ab.batched(model.scores)([begin, other])] == [0, 1]


def test_counting_right_tags() -> None:
    sure = np.eye(4)
    lattices = [Lattice([1, 2, 3], [[], [(0, 1)], [(1, 1)]]), Lattice([1], [[]]), Lattice([1, 0], [[], [(0, 1)]])]
    outputs = [[sure[2], sure[1]], [], [sure[0]]]
    names = {"tags": Vocabulary(["a", "b", "c"])}
    assert count_correct(outputs, lattices, names) == {"tag_accuracy": (1, 3)}
    named = {"tags": Vocabulary(["a", "B-PER", "c"])}
    assert count_correct(outputs, lattices, named) == {"tag_accuracy": (1, 3), "entity_f1": (2, 2)}
    assert LSTM_SPEC.predict is not None
    assert LSTM_SPEC.predict(outputs, lattices, names) == [{"tags": ["b", "a"]}, {"tags": []}, {"tags": ["a"]}]


@pytest.mark.slow
def test_lattice_gru_learns_lattices_of_two_hundred_positions() -> None:
    """As long as real texts. At every second position a word of two characters ends, which is tagged 1."""
    rng = np.random.default_rng(0)
    n = 211
    arcs = [
        [(end - 1, int(rng.integers(4))), *([(end - 2, int(rng.integers(4)))] if end % 2 == 0 else [])]
        for end in range(1, n)
    ]
    lattices = [Lattice([0, *(int(end % 2 == 0) for end in range(1, n))], [[], *arcs])] * 4
    model = LatticeGRU(n_characters=4, n_words=4, n_tags=2, dim=8, rng=rng)
    loss, optimizer = ab.batched(model.loss), ab.optim.Adam(model, lr=0.01)
    graphs, losses = loss.record_all(lattices), list[float]()
    for _ in range(10):
        value, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)
        losses.append(float(value))
    assert losses[0] < n
    assert losses == sorted(set(losses), reverse=True)
    h = ab.batched(lambda lattice: [state[0] for state in model.states(lattice)], module=model)(lattices[:1])[0]
    assert np.abs(h).max() <= 1.0
