"""Metrics: accuracy and entity F1 of tags, F1 of trees, BLEU of translations, perplexity of texts, explained variance.

An entity is a run of words tagged with one type. B-type begins an entity; I-type continues one of the same type or else
begins one (this reads both IOB2 and IOB1, where B- only separates adjacent entities of one type); E-type ends an
entity; S-type is an entity of one word. Other tags, such as O, are outside entities. An entity is correct if its type,
its first and its last word are. Source: Tjong Kim Sang and Buchholz 2000, Introduction to the CoNLL-2000 shared task,
and the rules of its script conlleval.

Predicted trees are compared by brackets or edges. A bracket is an inner node with its label and the span of its words;
an edge is the labels of a node and its child.

sacrebleu computes BLEU, with the data's own tokens: Post 2018, A call for clarity in reporting BLEU scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree
from autobatch.models.data.tree import Tree, brackets_in, brackets_of, write_tree
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary
from autobatch.models.spec import Counts
from autobatch.readers.brackets import to_label

PREFIXES = ("B", "I", "E", "S")


class Entity(NamedTuple):
    """Words `first` to `last`, of a type such as LOC."""

    kind: str
    first: int
    last: int


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """List the entities of a sentence, from the first to the last.

    >>> find_entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [Entity(kind='PER', first=0, last=1), Entity(kind='LOC', first=3, last=3), Entity(kind='LOC', first=4, last=4)]
    """
    entities: list[Entity] = []
    before, kind_before = "O", ""
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix not in PREFIXES or not kind:
            prefix, kind = "O", ""
        elif prefix in "BS" or before in "OES" or kind != kind_before:  # E and S have ended the entity before
            entities.append(Entity(kind, place, place))
        else:
            entities[-1] = entities[-1]._replace(last=place)
        before, kind_before = prefix, kind
    return entities


def count_entities(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Count entities so that the ratio of the two counts is F1, also after summing the counts of many sentences.

    Args:
        predicted: predicted tags, per sentence.
        expected: correct tags, per sentence.

    Returns:
        Twice the number of correct entities, and the number of predicted plus expected entities.
    """
    return count_common(list(map(find_entities, predicted)), list(map(find_entities, expected)))


def count_common(predicted: Sequence[Iterable[Any]], expected: Sequence[Iterable[Any]]) -> tuple[int, int]:
    """Count for the F1 of collections: twice the common elements, and the elements of both.

    >>> count_common([[1, 2, 2], [3]], [[2, 2], [4]])
    (4, 7)
    """
    pairs = [(Counter(a), Counter(b)) for a, b in zip(predicted, expected, strict=True)]
    return 2 * sum((a & b).total() for a, b in pairs), sum(a.total() + b.total() for a, b in pairs)


def count_tags(predicted: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Count correct tags and all tags; a tag outside the vocabulary is never correct."""
    pairs = [
        pair for tags, correct in zip(predicted, expected, strict=True) for pair in zip(tags, correct, strict=True)
    ]
    return sum(tag == correct != UNKNOWN for tag, correct in pairs), len(pairs)


def count_squares(predicted: Any, expected: Any) -> tuple[float, ...]:
    """Sum the statistics for `explained_variance`: count, sum and squares of the correct numbers, and squared errors.

    Args:
        predicted: predicted numbers (N,).
        expected: correct numbers (N,).

    >>> count_squares([1.0, 2.5], [1.0, 2.0])
    (2, 3.0, 5.0, 0.25)
    """
    correct = np.asarray(expected, np.float64)
    errors = np.asarray(predicted, np.float64) - correct
    return len(correct), float(correct.sum()), float(correct @ correct), float(errors @ errors)


def explained_variance(n: float, total: float, squares: float, errors: float) -> float:
    """Compute the explained variance from sums of `count_squares`.

    It is 1 for perfect predictions, 0 for predicting the mean, and negative for worse ones. For constant numbers it is
    1 without errors, else 0.

    >>> explained_variance(2, 3.0, 5.0, 0.25)
    0.5
    """
    variance = squares - total * total / max(n, 1)
    return 1 - errors / variance if variance > 0 else float(errors == 0)


def count_errors(predicted: Any, expected: Any) -> tuple[tuple[float, int], tuple[float, int]]:
    """Sum the squared and the absolute errors of predicted numbers (N,); return each sum with N.

    The root of the first ratio is the RMSE, see `root_of_mean`, and the second ratio is the MAE.

    >>> count_errors([1.0, 2.5], [1.0, 2.0])
    ((0.25, 2), (0.5, 2))
    """
    errors = np.asarray(predicted, np.float64) - np.asarray(expected, np.float64)
    return (float(errors @ errors), len(errors)), (float(np.abs(errors).sum()), len(errors))


def root_of_mean(squares: float, n: float) -> float:
    """Compute the root mean square of `n` numbers from the sum of their squares; 0 without any."""
    return math.sqrt(squares / max(n, 1))


def predict_numbers(
    outputs: Any, instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Return the predicted number of each instance, {"value": -2.42}; a `ModelSpec.predict`."""
    return [{"value": float(found)} for found in outputs]


def pick_best(outputs: Sequence[Sequence[Any]], names: Vocabulary) -> list[list[int]]:
    """Choose the id with the highest logit, per instance and position, but never the id of unknown names."""
    return [_best(scores, names).tolist() if len(scores) else [] for scores in outputs]


def _best(scores: Any, names: Vocabulary) -> Any:
    """Choose the ids of the best names (N,) from logits (N, C)."""
    return names.first + np.argmax(np.asarray(scores)[:, names.first :], axis=1)


def name_tags(tags: Sequence[Sequence[int]], names: Vocabulary) -> list[list[str]]:
    """Replace ids by names."""
    return [[names.word(tag) for tag in sentence] for sentence in tags]


def count_tagged(
    predicted: Sequence[Sequence[int]], expected: Sequence[Sequence[int]], names: Vocabulary
) -> dict[str, tuple[int, int]]:
    """Count correct tags and all tags, and entities as in `count_entities`.

    Entities are left out if no tag marks one, as with parts of speech.

    Args:
        predicted: predicted tags, per sentence.
        expected: correct tags, per sentence.
        names: names of the tags, such as I-LOC.
    """
    counts = {"tag_accuracy": count_tags(predicted, expected)}
    if any(find_entities([name]) for name in names.words):
        counts["entity_f1"] = count_entities(name_tags(predicted, names), name_tags(expected, names))
    return counts


def describe_tags(
    predicted: Sequence[Sequence[int]], instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Name the predicted tags, {"tags": [...]} for each instance; a `ModelSpec.predict`."""
    return [{"tags": tags} for tags in name_tags(predicted, vocabularies["tags"])]


def predict_tags(
    outputs: Sequence[Sequence[Any]], instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Name the best tag at every position, from its logits; a `ModelSpec.predict`."""
    return describe_tags(pick_best(outputs, vocabularies["tags"]), instances, vocabularies)


def count_classes(
    outputs: Any, instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> dict[str, tuple[int, int]]:
    """Count correct and all classifications of instances with a `label`; a `ModelSpec.count_correct`.

    Args:
        outputs: logits (B, C).
    """
    found = _best(outputs, vocabularies["classes"])
    return {"accuracy": count_tags([found], [[instance.label for instance in instances]])}


def to_probabilities(logits: Any, names: Vocabulary) -> dict[str, float]:
    """Compute the probabilities of names, which sum to 1, from logits (C,), without that of unknown names.

    >>> to_probabilities(np.log([3.0, 1.0]), Vocabulary.of_labels(["no", "yes"]))
    {'no': 0.75, 'yes': 0.25}
    """
    known = np.asarray(logits, np.float64)[names.first :]
    with np.errstate(all="ignore"):
        weights = np.exp(known - known.max())
        return dict(zip(names.words, (weights / weights.sum()).tolist(), strict=True))


def class_probabilities(
    outputs: Any, instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, float]]:
    """Return the probabilities of the classes of each instance, from logits (B, C); a `ModelSpec.probabilities`."""
    return [to_probabilities(logits, vocabularies["classes"]) for logits in outputs]


def tag_probabilities(
    outputs: Sequence[Sequence[Any]], instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[list[dict[str, float]]]:
    """Return the probabilities of the tags at each position of each instance; a `ModelSpec.probabilities`."""
    return [[to_probabilities(logits, vocabularies["tags"]) for logits in of_one] for of_one in outputs]


def root_probabilities(
    outputs: Any, trees: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, float]]:
    """Return the probabilities of the classes of each root; a `ModelSpec.probabilities`.

    Args:
        outputs: logits of the roots (B, C), and per tree the logits of its nodes.
    """
    return class_probabilities(outputs[0], trees, vocabularies)


def label_of(instance: Any, vocabularies: Mapping[str, Vocabulary]) -> str:
    """Name the `label` of an instance; a `ModelSpec.label`."""
    return vocabularies["classes"].word(instance.label)


def predict_classes(
    outputs: Any, instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Name the best class of each instance, {"label": "..."}, from logits (B, C); a `ModelSpec.predict`."""
    classes = vocabularies["classes"]
    return [{"label": classes.word(label)} for label in _best(outputs, classes)]


def predict_labels(outputs: Any, trees: Sequence[Any], vocabularies: Mapping[str, Vocabulary]) -> list[dict[str, Any]]:
    """Return the best label of each tree, and of all its nodes in postorder; a `ModelSpec.predict`.

    Args:
        outputs: logits of the roots (B, C), and per tree the logits of its nodes, the root's last.
    """
    _, nodes = outputs
    classes = vocabularies["classes"]
    named = [list(map(to_label, names)) for names in name_tags(pick_best(nodes, classes), classes)]
    return [{"label": labels[-1], "labels": labels} for labels in named]


def perplexity(log_probability: float, n_words: float) -> float:
    """Compute perplexity from the log-probability of `n_words` words; 1 without words, inf on overflow."""
    try:
        return math.exp(-log_probability / max(n_words, 1))
    except OverflowError:
        return math.inf


def count_ngrams(predicted: Sequence[str], expected: Sequence[str]) -> tuple[int, ...]:
    """Count the statistics for BLEU: the correct n-grams for n from 1 to 4, all n-grams, and the words of each side.

    Args:
        predicted: one or more translations, with words separated by spaces.
        expected: their references.

    >>> count_ngrams(["a b c d e"], ["a b c d f"])
    (4, 3, 2, 1, 5, 4, 3, 2, 5, 5)
    """
    from sacrebleu.metrics.bleu import BLEU

    score = BLEU(tokenize="none", force=True).corpus_score(predicted, [expected])
    return (*score.counts, *score.totals, score.sys_len, score.ref_len)


def bleu(*counts: int) -> float:
    """Compute BLEU, 0 to 1, from sums of `count_ngrams`."""
    from sacrebleu.metrics.bleu import BLEU

    n_predicted, n_expected = counts[8:]
    score = BLEU.compute_bleu(list(counts[:4]), list(counts[4:8]), n_predicted, n_expected, smooth_method="exp")
    return float(score.score) / 100


def count_brackets(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count brackets for F1, as in `count_common`, and correct trees and all trees.

    Args:
        outputs: results of batched `StackLSTMParser.parse`: actions per text.
        trees: one per output.
        vocabularies: not used.
    """
    found, meant = list(map(brackets_of, outputs)), list(map(brackets_in, trees))
    right = sum(brackets == others for brackets, others in zip(found, meant, strict=True))
    return {"bracket_f1": count_common(found, meant), "exact": (right, len(trees))}


def predict_parses(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(3 good film)"}; a `ModelSpec.predict`."""
    texts = ([vocabularies["words"].word(word) for word in tree.words()] for tree in trees)
    labels = vocabularies["classes"].words
    return [{"tree": write_tree(actions, words, labels)} for actions, words in zip(outputs, texts, strict=True)]


def count_edges(
    outputs: Sequence[OrderedTree[int]], described: Sequence[DescribedTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count edges for F1, as in `count_common`, and correct trees and all trees.

    Args:
        outputs: results of batched `DoublyRecurrent.grow`: a tree per text.
        described: one per output.
        vocabularies: not used.
    """
    grown, meant = [tree.edges() for tree in outputs], [one.tree.edges() for one in described]
    right = sum(tree == one.tree for tree, one in zip(outputs, described, strict=True))
    return {"edge_f1": count_common(grown, meant), "exact": (right, len(described))}


def predict_trees(
    outputs: Sequence[OrderedTree[int]], described: Sequence[DescribedTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(turn left)"}; a `ModelSpec.predict`."""
    return [{"tree": repr(tree.map(vocabularies["labels"].word))} for tree in outputs]
