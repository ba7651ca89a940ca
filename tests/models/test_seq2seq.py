"""Test the translator's decoders, batches and BLEU; test_twins.py compares it with its twin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.pair import Pair, make_pair
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import bleu, count_ngrams
from autobatch.models.seq2seq import SPEC, Seq2Seq, count_correct, max_words
from helpers.runs.ways import each
from helpers.twins.seq2seq import Seq2SeqTwin


def make_decisive(seed: int, n_words: int = 5) -> Seq2Seq:
    """Return a model whose parameters are large enough that its translations differ."""
    model = Seq2Seq(n_source_words=4, n_target_words=n_words, dim=6, rng=np.random.default_rng(seed)).astype("float64")
    for parameter in model.parameters().values():
        parameter.data *= 5.0
    return model


def test_pairs_of_all_lengths_share_their_batches() -> None:
    """A batch per word of the longest sentence and of the longest translation with its end, and one per other type."""
    model = Seq2Seq(n_source_words=4, n_target_words=4, dim=6, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss, policy="agenda")
    loss([Pair([1] * 7, [1] * 3, ""), Pair([2] * 3, [2] * 5, ""), Pair([], [], "")])
    assert loss.last is not None
    assert loss.last.lower_bound == 7 + 6 + 3
    assert loss.last.batches <= 7 + 6 + 5


Extend = Callable[[Sequence[int]], Sequence[float]]


def search(extend: Extend, end: int, width: int, limit: int) -> list[int]:
    """Run beam search over whole sentences; `extend(words)` returns the log probability of each next word."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for _ in range(limit):
        grown = []
        for total, words in beams:
            scores = extend(words)
            likeliest = sorted(range(len(scores)), key=lambda word: -scores[word])[:width]
            grown += [(total + scores[word], [*words, word]) for word in likeliest]
        best = sorted(grown, reverse=True)[:width]
        ended += [beam for beam in best if beam[1][-1] == end]
        beams = [beam for beam in best if beam[1][-1] != end]
        if len(ended) >= width or not beams:
            break
    _, words = max((total / len(words), words) for total, words in ended or beams)
    return [word for word in words if word != end]


@each("seed, width", [(0, 1), (1, 2), (2, 3)])
def test_beam_search_is_a_search_over_whole_sentences(seed: int, width: int) -> None:
    model = make_decisive(seed)
    twin = Seq2SeqTwin.with_state(model.state_dict())
    rng = np.random.default_rng(seed)
    sources = [rng.integers(0, 4, n).tolist() for n in (0, 1, 2, 3)]
    found = ab.batched(partial(model.beam, width=width))(sources)
    for source, words in zip(sources, found, strict=True):

        def extend(before: Sequence[int], source: list[int] = source) -> list[float]:
            logits = twin.scores(source, [twin.end, *before])[-1]
            return [-math.inf, *torch.log_softmax(logits, dim=0).tolist()[1:]]  # the unknown word is never written

        assert words == search(extend, model.end, width, max_words(source))
    assert len(set(map(len, found))) > 1
    if width == 1:
        assert found == ab.batched(model.translate)(sources)


@pytest.mark.slow
@each("backend", ["reference", "cpu"])
def test_searches_side_by_side_find_what_each_finds_alone(backend: str) -> None:
    """The number of rounds is that of the longest search."""
    model = make_decisive(1)
    sources = [[1, 2, 3], [], [2]]
    beam = ab.batched(partial(model.beam, width=2), backend=backend)
    assert beam(sources) == [ab.eager(model.beam, source, 2) for source in sources]
    assert beam.last is not None
    together, alone = beam.last.rounds, list[int]()
    for source in sources:
        beam([source])
        alone.append(beam.last.rounds)
    assert together == max(alone) > min(alone)


def test_a_translation_that_never_ends_is_cut() -> None:
    model = Seq2Seq(n_source_words=4, n_target_words=3, dim=4, rng=np.random.default_rng(0))
    model.parameters()["output.bias"].data = np.array([0.0, 9.0, 0.0, -9.0])
    assert ab.eager(model.translate, [1, 2]) == [1] * max_words([1, 2])
    assert max_words([]) == 10


# --- BLEU ---


def exact_bleu(found: Sequence[str], meant: Sequence[str]) -> float:
    """Return BLEU by its definition (Papineni et al. 2002) for positive n-gram counts."""
    precisions = []
    for n in range(1, 5):
        right = total = 0
        for text, reference in zip(found, meant, strict=True):
            counts, right_counts = (Counter(zip(*(t.split()[i:] for i in range(n)))) for t in (text, reference))  # noqa: B905
            right += sum((counts & right_counts).values())
            total += sum(counts.values())
        precisions.append(Fraction(right, total))
    n_found, n_meant = (sum(len(text.split()) for text in side) for side in (found, meant))
    penalty = min(1.0, math.exp(1 - n_meant / n_found))
    return penalty * math.exp(sum(math.log(p) for p in precisions) / 4)


def test_bleu_is_that_of_all_sentences_however_they_are_batched() -> None:
    found = ["a b c d e f", "a b c d x", "g h a b c d &apos;s .", "a b c d"]
    meant = ["a b c d e g", "a b c d y z w v", "g a b c d &apos;s .", "a b c d e"]
    counts = [count_ngrams(found[part], meant[part]) for part in (slice(1), slice(1, 3), slice(3, None))]
    summed = [sum(column) for column in zip(*counts, strict=True)]
    assert summed == list(count_ngrams(found, meant))
    assert bleu(*summed) == pytest.approx(exact_bleu(found, meant), rel=1e-12)
    assert 0.3 < bleu(*summed) < 0.9


def test_words_that_are_unknown_are_never_right() -> None:
    names = {"target_words": Vocabulary(["a", "b", "c", "d"])}
    pairs = [Pair([1], [1, 2, 3, 4], make_pair("", "a b c  d").reference), Pair([1], [0], "rare")]
    outputs = [[1, 2, 3, 4], [0]]
    counts = count_correct(outputs, pairs, names)
    assert counts == {"bleu": (4, 3, 2, 1, 5, 3, 2, 1, 5, 5), "exact": (1, 2)}
    assert SPEC.predict is not None
    assert SPEC.predict(outputs, pairs, names) == [{"translation": "a b c d"}, {"translation": "<unknown>"}]
