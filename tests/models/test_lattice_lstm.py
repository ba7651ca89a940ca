"""Test the Lattice-LSTM's batches; test_twins.py compares it with its twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.rewrite import DEFAULT
from autobatch.models.data.dataset import load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.lattice_tagger import LSTM_SPEC, LatticeLSTM
from helpers.data.datasets import SMALL, real
from helpers.runs.recorded import types_of_nodes

UNFOLDED = tuple(name for name in DEFAULT if name != "fold")


def test_a_position_with_one_arc_is_no_sum() -> None:
    """Four positions, one of them with two arcs: 0 → 1 → 2 → 3 and 0 → 2."""
    model = LatticeLSTM(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))
    lattice = Lattice([0, 1, 2, 1], [[], [(0, 1)], [(1, 2), (0, 3)], [(2, 3)]])
    loss = ab.batched(model.loss, rewrites=UNFOLDED)
    loss([lattice])
    assert Counter(types_of_nodes(loss)) == {
        "parameter#1": 1, "parameter#2": 1, "read_character": 3, "read_word": 1, "sum_n#1": 1, "tag_loss": 3,
        "sum_n#2": 1,
    }  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "unfolded", "folded"),
    [(SMALL, (166, 108, 51), (91, 68, 36)), real((613, 443, 209), (338, 253, 150))],
)
def test_batches_of_lattices(folder: Path, unfolded: tuple[int, ...], folded: tuple[int, ...]) -> None:
    """The counts leave out the first state, whose parameters, h and c, are a batch each."""
    data = load_lattices(str(folder / "lattice"), np.random.default_rng(0))
    model = LSTM_SPEC.build(data, 2, np.random.default_rng(0))
    assert isinstance(model, LatticeLSTM)
    for rewrites, (by_depth, by_agenda, bound) in ((UNFOLDED, unfolded), (DEFAULT, folded)):
        for policy, batches in (("depth", by_depth), ("agenda", by_agenda)):
            loss = ab.batched(model.loss, policy=policy, rewrites=rewrites)
            loss(data.train[:32])
            assert loss.last is not None
            assert (loss.last.batches, loss.last.lower_bound) == (batches + 2, bound + 2), (policy, rewrites)
