"""Test the language model's batches, data and perplexity; test_twins.py compares it with its twin."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.agreement import ADVERBS, NOUNS, PREPOSITIONS, VERBS, draw_texts, log_probability
from autobatch.models.lstm_lm import LSTMLM, SPEC
from autobatch.models.metric import perplexity
from helpers.runs.commands import Command


def test_sentences_of_all_lengths_share_their_batches() -> None:
    """One batch for each word of the longest sentence and for the end, and one per other type."""
    model = LSTMLM(n_words=3, dim=6, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss)
    loss([[1] * 7, [2] * 3, []])
    assert loss.last is not None
    assert loss.last.batches == loss.last.lower_bound == 8 + 3


def test_probabilities_of_all_sentences_sum_to_one() -> None:
    """Over all sentences of up to two words and all longer ones by their prefix. Also checks losses against scores."""
    model = LSTMLM(n_words=2, dim=3, rng=np.random.default_rng(0)).astype("float64")
    ended = [[], *([a] for a in range(2)), *([a, b] for a in range(2) for b in range(2))]
    longer = sum(math.exp(sum(map(float, model.scores([a, b])[:2]))) for a in range(2) for b in range(2))
    two = sum(math.exp(-float(model.loss(words))) for words in ended if len(words) == 2)
    assert sum(math.exp(-float(model.loss(words))) for words in ended) + longer - two == pytest.approx(1.0)
    for words in ended:
        assert float(model.loss(words)) == pytest.approx(-sum(map(float, model.scores(words))))


# --- the language ---


def test_verbs_agree_with_the_first_noun() -> None:
    seen = set()
    for text in draw_texts(300, np.random.default_rng(0)):
        *places, verb, adverb = text
        nouns = places[1::3]
        assert (places[::3], adverb in ADVERBS) == (["the"] * len(nouns), True)
        assert nouns
        assert {noun.removesuffix("s") for noun in nouns} <= set(NOUNS)
        assert set(places[2::3]) <= set(PREPOSITIONS)
        assert verb in (VERBS.values() if nouns[0].endswith("s") else VERBS)
        seen.add((nouns[0].endswith("s"), nouns[-1].endswith("s")))
    assert len(seen) == 4


def test_probabilities_of_the_language_are_those_of_its_choices() -> None:
    """All sentences with n places are equally likely, and together have the probability 2 ** -(n + 1)."""
    for n_places, text in enumerate(("the key falls slowly", "the key near the lamps falls slowly")):
        n_texts = (2 * len(NOUNS)) ** (n_places + 1) * len(PREPOSITIONS) ** n_places * len(VERBS) * len(ADVERBS)
        assert n_texts * math.exp(log_probability(text.split())) == pytest.approx(0.5 ** (n_places + 1))


# --- perplexity ---


def test_perplexity_is_of_all_words_however_they_are_batched() -> None:
    assert SPEC.count_correct is not None
    assert SPEC.predict is not None
    halves = [[np.log(0.5)] * 3, [np.log(0.125)]]
    counts = SPEC.count_correct(halves, [[1, 1], []], {})["perplexity"]
    assert perplexity(*counts) == pytest.approx(2 ** (6 / 4))
    parts = [SPEC.count_correct([one], [[]], {})["perplexity"] for one in halves]
    assert np.sum(parts, axis=0) == pytest.approx(counts)
    told = SPEC.predict(halves, [[1, 1], []], {})
    assert [one["perplexity"] for one in told] == pytest.approx([2.0, 8.0])
    assert [one["log_probability"] for one in told] == pytest.approx([-3 * math.log(2)] * 2)
    assert perplexity(0, 0) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_perplexity_grows_to_infinity(seed: int) -> None:
    """It is infinite for words so unlikely that it overflows, as for impossible ones."""
    found = [perplexity(-x, 1) for x in (*np.sort(np.random.default_rng(seed).uniform(0, 3000, 30)).tolist(), math.inf)]
    assert found == sorted(found)
    assert found[-2:] == [math.inf] * 2
    assert math.isfinite(found[0])
    assert perplexity(-3e38, 2) == math.inf
    assert math.isnan(perplexity(math.nan, 2))


def test_a_language_model_that_diverges_goes_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    options = "--dim", 8, "--epochs", 2, "--batch-size", 16, "--lr", 1000, "--checkpoint", tmp_path / "run"
    status, out, err = command("train", "lstm-lm", *options)
    assert (status, err) == (0, "")
    assert out.count("dev perplexity inf") == 2
    status, out, err = command("eval", "lstm-lm", "--checkpoint", tmp_path / "run")
    assert (status, out.split()[-1], err) == (0, "inf", "")
    status, out, err = command("predict", "lstm-lm", "--checkpoint", tmp_path / "run")
    assert (status, out.count('"perplexity": null'), err) == (0, 10, "")


def test_perplexity_is_told_as_a_number(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    options = "--dim", 8, "--epochs", 2, "--batch-size", 16, "--lr", 0.02, "--checkpoint", tmp_path / "run"
    status, out, err = command("train", "lstm-lm", *options)
    assert (status, err) == (0, "")
    first, second = (float(number) for number in re.findall(r"  dev perplexity (\d+\.\d\d)  ", out))
    assert second < first
    status, out, err = command("eval", "lstm-lm", "--checkpoint", tmp_path / "run")
    assert (status, out) == (0, f"agreement, 10 instances:  perplexity {second:.2f}\n")
    status, out, _ = command("predict", "lstm-lm", "--checkpoint", tmp_path / "run")
    assert [sorted(json.loads(line)) for line in out.splitlines()] == [["log_probability", "perplexity"]] * 10
