"""Test the spelling tagger's batches and data; test_twins.py compares it with its twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import autobatch as ab
from autobatch.models.bilstm_tagger import BiLSTMCharTagger
from autobatch.models.data.dataset import load_spelled_sentences
from autobatch.models.data.sentence import ENDINGS, SpelledSentence, draw_rare_names
from autobatch.models.data.vocabulary import UNKNOWN


def test_words_that_are_spelled_and_others_share_the_steps_of_sentences() -> None:
    """The longest word has five letters and the longest sentence three words; both are read in two directions."""
    model = BiLSTMCharTagger(n_words=3, n_characters=4, n_tags=2, dim=6, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss)
    loss([SpelledSentence([1, [1, 2, 3, 1, 2], 2], [1, 1, 1]), SpelledSentence([[3], 2], [0, 1])])
    assert loss.last is not None
    assert loss.last.batches == loss.last.lower_bound == 2 * 5 + 2 * 3 + 5
    assert loss.last.nodes - 2 == 2 * 6 + 5 + 2 * 5 + 5 + 2, "spelled, made vectors, read, compared, summed"


def test_a_word_is_a_word_wherever_it_stands() -> None:
    model = BiLSTMCharTagger(n_words=3, n_characters=4, n_tags=2, dim=6, rng=np.random.default_rng(0))
    alone, other = model.spell([1, 2]), model.spell([2, 1])
    assert not np.allclose(alone, other)
    assert np.array_equal(alone, model.spell([1, 2]))


def test_rare_words_are_spelled(tmp_path: Path) -> None:
    """Words that occur less than six times in training are spelled; characters that occur once are unknown."""
    (tmp_path / "train.txt").write_text("Paris|B " * 6 + "Dax|O Rax|O\n")
    (tmp_path / "dev.txt").write_text("Pax|B Paris|O\n")
    data = load_spelled_sentences(str(tmp_path), np.random.default_rng(0))
    d, a, x = (data.vocabularies["characters"].id(letter) for letter in "Dax")
    assert (d, a, x) == (UNKNOWN, 1, 6)
    assert data.train[0].words == [*[1] * 6, [UNKNOWN, a, x], [UNKNOWN, a, x]]
    assert (data.dev[0].words, data.dev[0].tags) == ([[data.vocabularies["characters"].id("P"), a, x], 1], [1, 2])
    assert dict(data.sizes) == {"n_words": 2, "n_characters": 7, "n_tags": 3}


def test_rare_names_are_told_by_their_endings_alone() -> None:
    sentences = draw_rare_names(500, np.random.default_rng(0))
    pairs = [pair for sentence in sentences for pair in zip(sentence.words, sentence.tags, strict=True)]
    for word, tag in pairs:
        kinds = [kind for kind, endings in ENDINGS.items() if word[0].isupper() and word.endswith(endings)]
        assert [tag] == ([f"B-{kind}" for kind in kinds] or ["O"]), word
    names = Counter(word for word, tag in pairs if tag != "O")
    assert sum(count for count in names.values() if count < 3) > 0.6 * names.total()
