"""Vocabularies: words and their ids, with one id for all words not seen in training; and encoding of instances.

Encoding replaces the words and labels of instances with ints, in flat and nested instances alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, overload

import numpy as np

from autobatch.arguments import check_int, refusal
from autobatch.errors import DataError
from autobatch.keywords import checked, nearest
from autobatch.readers.brackets import to_label

UNKNOWN = 0
OUTSIDE = -1  # returned by a closed vocabulary for unknown words; not an id
MOST_SHOWN = 8  # labels in a message


class Mapped(Protocol):
    """A structure of words or ids, such as a tree, that can be copied with others in their place."""

    def map(self, replace: Callable[[Any], Any]) -> Any:
        """Copy the structure."""


@checked()
class Vocabulary:
    """A bijection between words and ids from 0 to len - 1, except that id 0 stands for all unknown words.

    In a `closed` vocabulary, such as that of labels, every id is a word, and encoding an unknown one is an error.
    `Vocabulary(vocabulary.words, vocabulary.closed)` is an equal vocabulary, so these two values are enough to store it
    as JSON.

    Args:
        words: the words in the order of their ids, from 1, or from 0 if closed; they must be unique.
        closed: whether there are no unknown words.

    >>> vocabulary = Vocabulary.count("a rose is a rose".split(), min_count=2)
    >>> len(vocabulary), vocabulary.encode(["a", "rose", "tulip"]), vocabulary.decode([1, 2])
    (3, [1, 2, 0], ['a', 'rose'])
    """

    def __init__(self, words: Iterable[str], closed: bool = False) -> None:
        self.closed = closed
        self.first = 0 if closed else 1
        """The smallest id of a word."""
        self._words = [*["<unknown>"] * self.first, *words]
        self._ids = {word: number for number, word in enumerate(self._words) if number >= self.first}
        if len(self._ids) != len(self.words):
            repeated = next(word for word, count in Counter(self.words).items() if count > 1)
            raise refusal("words of Vocabulary", "unique", repeated)

    @classmethod
    @checked()
    def count(cls, words: Iterable[str], min_count: int = 1) -> Vocabulary:
        """Collect the `words` that occur at least `min_count` times, most frequent first, ties in alphabetical order.

        With `min_count` 2 or more, rare words of the training data share the unknown word's id, and so train it.
        """
        counts = Counter(words)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    @classmethod
    @checked()
    def of_labels(cls, labels: Iterable[str]) -> Vocabulary:
        """Collect `labels` in a closed vocabulary: numbers first, in numeric order, then text, in alphabetical order.

        >>> Vocabulary.of_labels(["S", "10", "NP", "2", "S"]).words
        ['2', '10', 'NP', 'S']
        """

        def rank(label: str) -> tuple[bool, int, str]:
            number = to_label(label)
            return (False, number, "") if isinstance(number, int) else (True, 0, label)

        return cls(sorted(set(labels), key=rank), closed=True)

    def __len__(self) -> int:
        return len(self._words)

    def __repr__(self) -> str:
        return f"<{'closed ' * self.closed}vocabulary of {len(self.words)} words: {self._shown}>"

    @property
    def _shown(self) -> str:
        return ", ".join(map(repr, self.words[:MOST_SHOWN])) + ", ..." * (len(self.words) > MOST_SHOWN)

    @property
    def words(self) -> list[str]:
        """List the words in the order of their ids: `Vocabulary(words, closed)` is the same vocabulary."""
        return self._words[self.first :]

    def id(self, word: str) -> int:
        """Return the id of a word; if unknown, `UNKNOWN`, or `OUTSIDE` if closed."""
        return self._ids.get(word, OUTSIDE if self.closed else UNKNOWN)

    def word(self, number: int) -> str:
        """Return the word of an id.

        Raises:
            DataError: the number is not an id of the vocabulary.
        """
        return self._words[check_int("an id to decode", number, at_least=0, below=len(self))]

    @overload
    def encode(self, words: str) -> int: ...
    @overload
    def encode(self, words: list[str]) -> list[int]: ...
    @overload
    def encode(self, words: Mapped) -> Any: ...
    def encode(self, words: Any) -> Any:
        """Return the id of a word, a list of ids for a list of words, or a copy of a built-in model's tree.

        Args:
            words: a word, a list, which may be nested, or a tree.

        Raises:
            DataError: the vocabulary is closed and lacks a word, or `words` has another type.

        >>> Vocabulary.of_labels(["O", "B-PER"]).encode(["O", "B-LOC"])
        Traceback (most recent call last):
        ...
        autobatch.errors.DataError: a label must be one of the 2 labels 'B-PER', 'O', got 'B-LOC'.
        """
        if hasattr(words, "map"):
            return words.map(self.id)
        if isinstance(words, list):
            try:
                return [self.encode(word) for word in words]
            except RecursionError:  # from a request, perhaps
                raise refusal("words to encode", "nested less deeply", words) from None
        if not isinstance(words, str):
            raise refusal("words to encode", "a str or a list of str", words)
        number = self.id(words)
        if number == OUTSIDE:
            raise refusal("a label", f"one of the {len(self)} labels {self._shown}", words)
        return number

    @overload
    def decode(self, numbers: int) -> str: ...
    @overload
    def decode(self, numbers: list[int]) -> list[str]: ...
    @overload
    def decode(self, numbers: Mapped) -> Any: ...
    def decode(self, numbers: Any) -> Any:
        """Return the word of an id, a list of words for a list of ids, or a copy of a built-in model's tree.

        Args:
            numbers: an id, a list or an array, which may be nested, or a tree.

        Raises:
            DataError: a number is not an id of the vocabulary.
        """
        if hasattr(numbers, "map"):
            return numbers.map(self.word)
        if isinstance(numbers, list) or (isinstance(numbers, np.ndarray) and numbers.ndim):
            return [self.decode(number) for number in numbers]
        return self.word(numbers)


@checked()
def describe(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """Return vocabularies as JSON values, for `autobatch.export(..., about=describe(vocabularies))`.

    Commands then read strings in place of ids: `autobatch predict --model FILE` and `autobatch serve --model FILE`.

    Args:
        vocabularies: the vocabularies by field name, as for `encode`.

    >>> described = describe({"word": Vocabulary(["a"]), "tag": Vocabulary.of_labels(["NN", "DT"])})
    >>> described
    {'vocabularies': {'word': ['a'], 'tag': ['DT', 'NN']}, 'closed': ['tag']}
    >>> restore(described)["tag"].encode("NN")
    1
    """
    check_vocabularies(vocabularies)
    return {
        "vocabularies": {name: vocabulary.words for name, vocabulary in vocabularies.items()},
        "closed": [name for name, vocabulary in vocabularies.items() if vocabulary.closed],
    }


@checked()
def restore(described: Mapping[str, Any]) -> dict[str, Vocabulary]:
    """Return the vocabularies of `describe`, such as those in the `about` of a loaded model; {} if it has none.

    Args:
        described: the result of `describe`, which may have other keys.

    Raises:
        DataError: it is malformed.
    """
    words, closed = described.get("vocabularies", {}), described.get("closed", [])
    if not isinstance(words, dict) or not isinstance(closed, list):
        raise refusal("described of restore", "a result of describe", described)
    return {name: Vocabulary(words[name], name in closed) for name in words}


def check_vocabularies(vocabularies: Mapping[str, Vocabulary]) -> None:
    """Raise a DataError for a value that is not a vocabulary."""
    for name, vocabulary in vocabularies.items():
        if not isinstance(vocabulary, Vocabulary):
            raise refusal(f"the vocabulary of {name!r}", "a Vocabulary", vocabulary)


LEAST_ALIKE = 0.75  # similarity from which a name counts as a misspelling of another


@checked()
def values(instances: Iterable[Any], field: str) -> Iterator[str]:
    """Yield the strings of a field in all instances, also in nested ones of any depth, to count them.

    A node of an instance that several nodes share counts once.

    Args:
        instances: dicts, as readers return them.
        field: its name, such as "word"; each value is a string or a list of strings, which may be nested.

    Raises:
        DataError: a value of the field is neither, or no instance has the field.

    >>> tree = {"label": "NP", "children": [{"word": "the"}, {"word": "film"}]}
    >>> sorted(values([tree, {"word": ["a", "film"]}], "word"))
    ['a', 'film', 'film', 'the']
    """
    seen = dict[str, None]()
    for instance in instances:
        waiting, visited = [instance], set[int]()
        while waiting:
            value = waiting.pop()
            if isinstance(value, (dict, list, tuple)):
                if id(value) in visited:
                    continue
                visited.add(id(value))
            if isinstance(value, dict):
                seen.update(dict.fromkeys(value))
                if field in value:
                    yield from _strings(value[field], field)
                waiting += [x for name, x in value.items() if name != field]
            elif _is_nested(value):
                waiting += value
    if seen and field not in seen:
        raise DataError(f"field {field!r} must be in the instances, which have the fields {_listed(seen)}.")


@checked()
def encode(instance: Any, vocabularies: Mapping[str, Vocabulary]) -> Any:
    """Copy an instance with ids in place of the strings of some fields, also in nested dicts of any depth.

    Tuples that hold dicts, lists or tuples become lists. A node that several nodes share stays one node.

    Args:
        instance: a dict, as readers return it; it is not changed.
        vocabularies: the vocabularies by field name.

    Raises:
        DataError: a value is neither a string nor a list of strings, or a label is not in its closed vocabulary. Or
            the instance lacks a field, but has strings in one with almost the same name.

    >>> words, tags = Vocabulary(["the", "film"]), Vocabulary.of_labels(["DT", "NN"])
    >>> encode({"word": ["the", "old", "film"], "parent": [2, 2, -1]}, {"word": words})
    {'word': [1, 0, 2], 'parent': [2, 2, -1]}
    >>> encode({"children": [{"label": "DT", "word": "the"}]}, {"word": words, "label": tags})
    {'children': [{'label': 0, 'word': 1}]}
    """
    check_vocabularies(vocabularies)
    found, texts = set[str](), dict[str, None]()  # fields that are encoded, and others with strings
    copies: dict[int, Any] = {}  # by the `id` of the value, so that shared nodes stay shared
    whole: list[Any] = [instance]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]  # containers with the key of a value to copy
    while waiting:
        holder, key = waiting.pop()
        value = holder[key]
        if id(value) in copies:
            holder[key] = copies[id(value)]
        elif isinstance(value, dict):
            holder[key] = copies[id(value)] = copy = dict(value)
            for name, x in value.items():
                if name in vocabularies:
                    copy[name] = _encode(vocabularies[name], x, name)
                    found.add(name)
                else:
                    waiting.append((copy, name))
                    if isinstance(x, str) or (isinstance(x, list) and x and isinstance(x[0], str)):
                        texts[name] = None
        elif _is_nested(value):
            holder[key] = copies[id(value)] = items = list(value)
            waiting += [(items, i) for i in range(len(items))]
    # An instance may lack a field, but not because of a misspelled name.
    for name in vocabularies.keys() - found if texts else ():
        if near := nearest(name, texts, LEAST_ALIKE):
            raise DataError(f"field {name!r} must be in the instance; did you mean {near!r}?")
    return whole[0]


def _listed(fields: Iterable[str]) -> str:
    names = list(map(str, fields))
    return ", ".join(names[:MOST_SHOWN]) + ", ..." * (len(names) > MOST_SHOWN)


def _encode(vocabulary: Vocabulary, value: Any, field: str) -> Any:
    try:
        return vocabulary.encode(value)
    except DataError as error:
        raise DataError(f"field {field!r}: {error}") from None


def _is_nested(value: Any) -> bool:
    """Return whether a value is a list or a tuple that may hold nodes with fields of their own."""
    return isinstance(value, (list, tuple)) and any(isinstance(x, (dict, list, tuple)) for x in value)


def _strings(value: Any, field: str) -> Iterator[str]:
    waiting = [value]
    while waiting:
        x = waiting.pop()
        if isinstance(x, list):
            waiting += reversed(x)
        elif isinstance(x, str):
            yield x
        else:
            raise refusal(f"field {field!r}", "a string or a list of strings", x)
