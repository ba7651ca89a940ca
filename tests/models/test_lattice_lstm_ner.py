"""Test the gated Lattice-LSTM's cells, data and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.dag import draw_named_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.lattice_lstm_ner import SPEC, LatticeLSTMNER, load_character_lattices
from autobatch.models.metric import find_entities
from helpers.runs.recorded import types_of_nodes


def make_model() -> LatticeLSTMNER:
    return LatticeLSTMNER(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))


def test_a_text_without_characters_has_no_loss_and_no_tags() -> None:
    model, empty, other = make_model(), Lattice([0], [[]]), Lattice([0, 1], [[], [(0, 1)]])
    assert ab.batched(model.loss)([empty, other])[0] == 0.0
    assert [len(tags) for tags in ab.batched(model.tags)([empty, other])] == [0, 1]


def test_words_of_any_number_are_read_once_in_each_direction() -> None:
    """abcd with the words ab, bc, abc and bcd: two end at c and one each at b and d; two begin at a and two at b."""
    lattice = Lattice([0, 1, 2, 1, 2], [[], [(0, 1)], [(1, 2), (0, 1)], [(2, 3), (1, 2), (0, 3)], [(3, 1), (1, 1)]])
    model = make_model()
    loss = ab.batched(model.scores, backend="reference")
    loss([lattice])
    names = types_of_nodes(loss)
    assert Counter(name.partition("#")[0] for name in names) == {
        "constant": 1, "read_character": 8, "read_word": 8, "tag_scores": 4
    }  # fmt: skip
    of_characters = {name for name in names if name.startswith("read_character")}
    assert len(of_characters) == 2 * 2, "two directions, with and without words"


def test_parameters_of_tables_are_shared_by_the_directions() -> None:
    names = list(make_model().parameters())
    assert [name for name in names if "characters" in name or name.endswith("words")] == ["characters", "words"]


def test_entities_are_counted_unless_tags_are_numbers() -> None:
    lattice = Lattice([0, 1, 2], [[], [(0, 1)], [(1, 1)]])
    assert SPEC.count_correct is not None
    named, numbered = Vocabulary(["B-PER", "E-PER", "O"]), Vocabulary(["1", "2"])
    assert SPEC.count_correct([[1, 2]], [lattice], {"tags": named}) == {"tag_accuracy": (2, 2), "entity_f1": (2, 2)}
    assert SPEC.count_correct([[1, 1]], [lattice], {"tags": numbered}) == {"tag_accuracy": (1, 2)}


@pytest.mark.slow
def test_lattices_that_are_no_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"lattice 1 of random-dag must have one character from position 3 to 4 .*got 0"
    ):
        load_character_lattices("random-dag", np.random.default_rng(1))
    path = tmp_path / "two.txt"
    path.write_text("1\n2\n0 1\n0\n2 0 4 0 5\n")
    with pytest.raises(DataError, match=f"lattice 1 of {path} must have one character from position 0 to 1 .*got 2"):
        load_character_lattices(str(path), np.random.default_rng(0))


def test_names_in_lattices_are_words_of_one_kind_each() -> None:
    kinds: dict[str, str] = {}
    n_spelled = n_names = 0
    for lattice in draw_named_lattices(300, np.random.default_rng(0)):
        text, entities = "".join(lattice.characters()), find_entities(lattice.tags[1:])
        for kind, first, last in entities:
            assert (first, text[first : last + 1]) in lattice.arcs[last + 1]
            assert kinds.setdefault(text[first : last + 1], kind) == kind
        n_names += len(entities)
        n_spelled += sum(word in kinds for word in lattice.words())
    assert sorted(set(kinds.values())) == ["LOC", "ORG", "PER"]
    assert n_names < 0.9 * n_spelled, "all that look like names are names"
