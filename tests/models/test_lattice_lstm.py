"""The Lattice-LSTM's batches and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.rewrite.passes import DEFAULT
from autobatch.models.data.dataset import load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.lattice_lstm import SPEC, LatticeLSTM, count_correct
from datasets import SMALL, real

UNFOLDED = tuple(name for name in DEFAULT if name != "fold")


def test_a_lattice_with_no_position_to_tag_has_no_loss_and_no_scores() -> None:
    model = LatticeLSTM(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))
    begin, other = Lattice([0], [[]]), Lattice([0, 1], [[], [(0, 1)]])
    assert float(model.loss(begin)) == 0.0
    assert ab.batched(model.loss)([begin, other, begin])[[0, 2]].tolist() == [0.0, 0.0]
    assert [len(scores) for scores in ab.batched(model.scores)([begin, other])] == [0, 1]


def test_a_position_with_one_arc_is_no_sum() -> None:
    """Four positions, one of them with two arcs: 0 → 1 → 2 → 3 and 0 → 2."""
    model = LatticeLSTM(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))
    lattice = Lattice([0, 1, 2, 1], [[], [(0, 1)], [(1, 2), (0, 3)], [(2, 3)]])
    loss = ab.batched(model.loss, rewrites=UNFOLDED)
    loss([lattice])
    assert loss.last is not None
    graph = loss.last.graph
    names = [graph.types.names[kind] for kind in graph.type_id]
    counted = {name: names.count(name) for name in names}
    assert counted == {
        "parameter#1": 1, "parameter#2": 1, "read_character": 3, "read_word": 1, "sum_n#1": 1, "tag_loss": 3,
        "sum_n#2": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "unfolded", "folded"),
    [(SMALL, (166, 108, 51), (91, 68, 36)), real((613, 443, 209), (338, 253, 150))],
)
def test_batches_of_lattices(folder: Path, unfolded: tuple[int, ...], folded: tuple[int, ...]) -> None:
    """As counted elsewhere, without nodes for the first state, whose parameters, h and c, are a batch each."""
    data = load_lattices(str(folder / "lattice"), np.random.default_rng(0))
    model = SPEC.build(data, 2, np.random.default_rng(0))
    assert isinstance(model, LatticeLSTM)
    for rewrites, (by_depth, by_agenda, bound) in ((UNFOLDED, unfolded), (DEFAULT, folded)):
        for policy, batches in (("depth", by_depth), ("agenda", by_agenda)):
            loss = ab.batched(model.loss, policy=policy, rewrites=rewrites)
            loss(data.train[:32])
            assert loss.last is not None
            assert (loss.last.batches, loss.last.lower_bound) == (batches + 2, bound + 2), (policy, rewrites)


def test_counting_right_tags() -> None:
    sure = np.eye(4)
    lattices = [Lattice([1, 2, 3], [[], [(0, 1)], [(1, 1)]]), Lattice([1], [[]]), Lattice([1, 0], [[], [(0, 1)]])]
    outputs = [[sure[2], sure[1]], [], [sure[0]]]
    assert count_correct(outputs, lattices, {}) == {"tag_accuracy": (1, 3)}
    assert SPEC.predict is not None
    names = {"tags": Vocabulary(["a", "b", "c"])}
    assert SPEC.predict(outputs, lattices, names) == [{"tags": ["b", "a"]}, {"tags": []}, {"tags": ["<unknown>"]}]
