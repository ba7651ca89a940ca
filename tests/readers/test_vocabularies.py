"""Test vocabularies and the encoding of instances, flat or nested, of any depth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.readers import Vocabulary, encode, values
from helpers.data.files import draw_sentence, draw_tree
from helpers.runs.ways import each


def collect(tree: dict[str, Any], field: str) -> list[str]:
    below = [text for child in tree.get("children", []) for text in collect(child, field)]
    return [*([tree[field]] if field in tree else []), *below]


def replace(tree: dict[str, Any], known: dict[str, list[str]]) -> dict[str, Any]:
    found = {name: known[name].index(tree[name]) for name in known if name in tree}
    return found | ({"children": [replace(child, known) for child in tree["children"]]} if "children" in tree else {})


def test_nested_instances_are_encoded() -> None:
    rng = np.random.default_rng(0)
    trees = [draw_tree(rng, 4) for _ in range(20)]
    words, labels = Vocabulary.count(values(trees, "word")), Vocabulary.of_labels(values(trees, "label"))
    for tree in trees:
        assert sorted(values([tree], "word")) == sorted(collect(tree, "word"))
        before = json.dumps(tree)
        found = encode(tree, {"word": words, "label": labels})
        assert found == replace(tree, {"word": ["<unknown>", *words.words], "label": labels.words})
        assert json.dumps(tree) == before


def test_flat_instances_are_encoded_and_decoded() -> None:
    sentences = [draw_sentence(np.random.default_rng(seed)) for seed in range(20)]
    words = Vocabulary.count(values(sentences, "word"))
    for sentence in sentences:
        found = encode(sentence, {"word": words})
        assert words.decode(found["word"]) == sentence["word"]
        assert {**found, "word": sentence["word"]} == sentence
    number: Any = np.array(1)
    assert words.decode(number) == words.decode(1)
    assert encode({"word": [["a", "the"], []], "edges": [[0, 1]]}, {"word": Vocabulary(["the"])}) == {
        "word": [[0, 1], []], "edges": [[0, 1]],
    }  # fmt: skip


def test_nodes_are_found_in_tuples_after_none_and_in_nested_lists() -> None:
    a, b, c = ({"word": word} for word in "abc")
    instance = {"pair": (a, 1), "maybe": [None, b], "rows": [[], [[c]]], "edges": [(0, 1)], "word": [["d"], ["e", []]]}
    found = list(values([instance, (a, [b])], "word"))
    assert sorted(found) == ["a", "a", "b", "b", "c", "d", "e"]
    assert encode([None, instance], {"word": Vocabulary(["a", "b", "c", "d", "e"])}) == [
        None,
        {"pair": [{"word": 1}, 1], "maybe": [None, {"word": 2}], "rows": [[], [[{"word": 3}]]], "edges": [(0, 1)],
         "word": [[4], [5, []]]},
    ]  # fmt: skip
    assert instance["pair"] == ({"word": "a"}, 1)


def test_trees_may_have_any_depth() -> None:
    tree: dict[str, Any] = {"word": "film"}
    for _ in range(100_000):
        tree = {"word": "the", "children": [tree]}
    words = Vocabulary.count(values([tree], "word"))
    found = encode(tree, {"word": words})
    depth = 0
    while "children" in found:
        assert found["word"] == 1
        found, depth = found["children"][0], depth + 1
    assert (found["word"], depth) == (2, 100_000)


def test_shared_nodes_stay_shared() -> None:
    """As they do for `autobatch.fold`, which visits each once."""
    node: Any = {"word": "a"}
    for _ in range(100):  # 2**100 paths
        node = {"word": "a", "children": [node, node], "pair": (node, [node])}
    assert len(list(values([node, node], "word"))) == 2 * 101
    found = encode(node, {"word": Vocabulary(["a"])})
    for _ in range(100):
        first, second = found["children"]
        assert first is second is found["pair"][0] is found["pair"][1][0]
        found = first
    assert found == {"word": 1}


def test_unknown_words_have_an_id_and_unknown_labels_are_refused() -> None:
    words, labels = Vocabulary.count(["a", "b", "a", "c"], min_count=2), Vocabulary.of_labels(["yes", "no"])
    assert (words.encode("b"), words.encode("d"), words.encode(["a", "c"])) == (0, 0, [1, 0])
    assert labels.encode(["no", "yes"]) == [0, 1]
    with pytest.raises(DataError, match="a label must be one of the 2 labels 'no', 'yes', got 'maybe'"):
        encode({"children": [{"label": "maybe"}]}, {"label": labels})
    many = Vocabulary.of_labels(map(str, range(100)))
    with pytest.raises(DataError, match=r"one of the 100 labels '0', '1', .* '7', \.\.\., got '100'"):
        many.encode("100")


def test_a_vocabulary_is_shown_by_its_words() -> None:
    assert repr(Vocabulary(["a", "b"])) == "<vocabulary of 2 words: 'a', 'b'>"
    assert repr(Vocabulary.of_labels(map(str, range(20)))).startswith("<closed vocabulary of 20 words: '0', '1', ")
    assert repr(Vocabulary(map(str, range(20)))).endswith("'7', ...>")


def test_misspelled_fields_are_refused() -> None:
    words, tree = Vocabulary(["a", "b"]), {"children": [{"word": ["a"]}, {"label": "b"}], "text": "c"}
    with pytest.raises(
        DataError, match=r"'wrd' must be in the instances, which have the fields children, text, .*word"
    ):
        list(values([{}, tree], "wrd"))
    for misspelled in ("wrd", "words", "Label"):
        with pytest.raises(DataError, match=f"{misspelled!r} must be in the instance; did you mean '(word|label)'"):
            encode(tree, {misspelled: words})
    assert list(values([], "word")) == list(values([{}, []], "word")) == []
    assert list(values([{"word": []}], "word")) == []
    lacking: list[dict[str, Any]] = [{}, {"children": []}, {"words": [1]}, {"tag": "x"}]
    for instance in lacking:  # a field may be optional
        assert encode(instance, {"word": words}) == instance


@each("wrong", [1, None, 1.5, ["a", 1], {"a": 1}, np.zeros(2)])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match="words to encode must be a str or a list of str, got"):
        Vocabulary(["a"]).encode(wrong)
    with pytest.raises(DataError, match="field 'word' must be a string or a list of strings, got"):
        list(values([{"word": wrong}], "word"))


def test_lists_that_are_too_deep_are_refused() -> None:
    words: Any = "a"
    for _ in range(100_000):
        words = [words]
    with pytest.raises(DataError, match="words to encode must be nested less deeply"):
        encode({"word": words}, {"word": Vocabulary(["a"])})


@each("wrong", [-1, 2, 1.5, "a", None])
def test_what_is_no_id_is_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match="an id to decode must be an int"):
        Vocabulary(["a"]).decode([1, wrong])


def test_vocabularies_are_stored_as_json() -> None:
    for vocabulary in (Vocabulary.count(["a", "b", "a"]), Vocabulary.of_labels(["10", "9", "b"])):
        stored = json.loads(json.dumps({"words": vocabulary.words, "closed": vocabulary.closed}))
        again = Vocabulary(**stored)
        assert [again.encode(word) for word in vocabulary.words] == [vocabulary.encode(w) for w in vocabulary.words]
        assert len(again) == len(vocabulary)


def test_words_are_unique() -> None:
    with pytest.raises(DataError, match="words of Vocabulary must be unique, got 'b'"):
        Vocabulary(["a", "b", "b"])


@pytest.mark.parametrize("number", [-1, 2, 0.0, "a"])
def test_numbers_that_are_no_ids_have_no_word(number: Any) -> None:
    with pytest.raises(DataError, match="an id to decode must be an int"):
        Vocabulary.of_labels(["A", "B"]).word(number)
