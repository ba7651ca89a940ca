"""Replace the words and labels of instances with ints, in flat and nested instances alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autobatch.arguments import refusal
from autobatch.errors import DataError
from autobatch.keywords import checked, nearest
from autobatch.readers.vocabulary import MOST_SHOWN, Vocabulary, check_vocabularies

LEAST_ALIKE = 0.75  # of misspelled names


@checked()
def values(instances: Iterable[Any], field: str) -> Iterator[str]:
    """Yield the strings of a field in all instances, also in nested ones of any depth, to count them.

    Args:
        instances: dicts, as readers return them.
        field: its name, such as "word"; each value is a string or a list of strings, which may be nested.

    Raises:
        DataError: a value of the field is neither, or the instances have other fields only.

    >>> tree = {"label": "NP", "children": [{"word": "the"}, {"word": "film"}]}
    >>> sorted(values([tree, {"word": ["a", "film"]}], "word"))
    ['a', 'film', 'film', 'the']
    """
    seen = dict[str, None]()
    for instance in instances:
        waiting = [instance]
        while waiting:
            value = waiting.pop()
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

    Tuples that hold dicts, lists or tuples become lists.

    Args:
        instance: a dict, as readers return it; it is not changed.
        vocabularies: by the name of the field.

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
    whole: list[Any] = [instance]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]  # containers with the key of a value to copy
    while waiting:
        holder, key = waiting.pop()
        value = holder[key]
        if isinstance(value, dict):
            holder[key] = copy = dict(value)
            for name, x in value.items():
                if name in vocabularies:
                    copy[name] = _encode(vocabularies[name], x, name)
                    found.add(name)
                else:
                    waiting.append((copy, name))
                    if isinstance(x, str) or (isinstance(x, list) and x and isinstance(x[0], str)):
                        texts[name] = None
        elif _is_nested(value):
            holder[key] = items = list(value)
            waiting += [(items, i) for i in range(len(items))]
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
