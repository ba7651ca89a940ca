"""Checks of arguments against the annotations of a function: "n_in of Linear must be an int, got None."

Annotations are read once per function, when they are first needed. Of a container the elements are checked as well,
unless they arrive one at a time. What an annotation leaves open (`Any`, arrays of any kind) is left to the function.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature, unwrap
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import numpy as np
import numpy.typing as npt

from autobatch.errors import AutobatchError, DataError

RAW = (TypeError, ValueError, LookupError, AttributeError, OverflowError, ZeroDivisionError)
"""What Python and NumPy raise for arguments that they cannot use."""
LONGEST = 60  # characters of an argument in a message
MOST_CHECKED = 1000  # elements of a container
OPEN = (Any, npt.ArrayLike, npt.DTypeLike, object)
TEXTS = (str, bytes, bytearray)
WORDS: dict[Any, str] = {
    int: "an int", float: "a number", bool: "True or False", str: "a str", bytes: "bytes", type(None): "None",
    np.ndarray: "an array", os.PathLike: "a path", dict: "a dict",
    Hashable: "a hashable value",
}  # fmt: skip


class Kind(NamedTuple):
    """What an argument may be: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


class Wanted(NamedTuple):
    """An argument that is checked: its kind, and whether it stands for each of `*args`."""

    kind: Kind
    is_each: bool


def show(x: Any) -> str:
    """An argument as messages show it: short, and an array by its shape.

    >>> show("wide"), show(np.ones((2, 3))), show([0] * 100)
    ("'wide'", 'an array of shape (2, 3)', 'a list of 100 elements')
    """
    if isinstance(x, np.ndarray) or (hasattr(x, "shape") and hasattr(x, "dtype")):
        what = "an array" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        return f"{what} of shape {tuple(x.shape)}" if np.ndim(x) or not isinstance(x, np.generic) else repr(x)
    try:
        text = repr(x)
    except Exception:  # of a user's class, or of an int of too many digits
        text = ""
    if text and len(text) <= LONGEST and "\n" not in text and " at 0x" not in text:
        return text
    name = type(x).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    n = f" of {len(x)} elements" if isinstance(x, Collection) and not isinstance(x, str) else ""
    return f"{article} {name}{n}" if not isinstance(x, str) else f"{text[: LONGEST - 3]}..."


def refusal(
    what: str, must_be: str, got: Any, error: type[AutobatchError] = DataError, advice: str = ""
) -> AutobatchError:
    """The error of a wrong argument: "X must be Y, got Z.", and what to do."""
    return error(f"{what} must be {must_be}, got {show(got)}{'; ' + advice if advice else ''}.")


def check_arguments(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    called: str,
    errors: Mapping[str, type[AutobatchError] | None] = types.MappingProxyType({}),
) -> None:
    """Raise the error of the first argument that is not of the kind of its annotation, if there is one.

    Args:
        function: whose annotations count.
        arguments: by the names of its parameters.
        called: how messages name the function.
        errors: for some parameters the class of the error, or None where the function checks the argument itself;
            DataError for all others.
    """
    for name, wanted in kinds_of(function).items():
        if name not in arguments or errors.get(name, DataError) is None:
            continue
        given = arguments[name]
        for x in given if wanted.is_each else (given,):
            if not wanted.kind.holds(x):
                raise refusal(f"{name} of {called}", wanted.kind.words, x, errors.get(name) or DataError)


@cache
def kinds_of(function: Callable[..., Any]) -> dict[str, Wanted]:
    """The kind of each annotated parameter of a function, where its annotation says something."""
    found: dict[str, Wanted] = {}
    space = getattr(unwrap(function), "__globals__", {})
    for name, parameter in signature(function).parameters.items():
        kind = kind_of(_resolve(parameter.annotation, space))
        if parameter.default is None and kind is not None and not kind.holds(None):
            kind = None  # an annotation that its own default contradicts
        if kind is not None and parameter.kind is not Parameter.VAR_KEYWORD:
            found[name] = Wanted(kind, parameter.kind is Parameter.VAR_POSITIONAL)
    return found


def _resolve(annotation: Any, space: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(space), {})  # of our own source
    except (NameError, TypeError, AttributeError):
        return Any  # a name for type checkers alone


def kind_of(annotation: Any) -> Kind | None:
    """What an annotation admits; None if that is anything, or said elsewhere."""
    if annotation in (None, type(None)):
        return Kind("None", lambda x: x is None)
    if isinstance(annotation, TypeVar):
        annotation = annotation.__bound__ or Any
    if any(annotation is open_ for open_ in OPEN) or annotation is Parameter.empty:
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _union([kind_of(part) for part in parts])
    if origin is Literal:
        return Kind(_listed(map(repr, parts)), lambda x: any(type(x) is type(y) and x == y for y in parts))
    return _of_class(origin or annotation, parts)


def _union(kinds: Sequence[Kind | None]) -> Kind | None:
    if any(kind is None for kind in kinds):
        return None
    known = [kind for kind in kinds if kind is not None]
    words = [*dict.fromkeys(kind.words for kind in known)]
    if {"a str", "a path"} <= {*words}:
        words = ["a path", *(word for word in words if word not in ("a str", "a path"))]
    return Kind(_listed(words), lambda x: any(kind.holds(x) for kind in known))


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _of_class(kind: Any, parts: tuple[Any, ...]) -> Kind | None:
    if not isinstance(kind, type):
        return Kind("a function", callable) if kind is Callable else None
    if kind in (int, float, bool):
        return Kind(WORDS[kind], {int: is_int, float: is_number, bool: is_bool}[kind])
    if kind is Callable:
        return Kind("a function", callable)
    if kind.__name__ == "Generator" and kind.__module__.startswith("numpy."):  # numpy.random is imported late
        return Kind("a np.random.Generator", lambda x: isinstance(x, np.random.Generator | np.random.RandomState))
    if issubclass(kind, np.ndarray):
        return Kind("an array", lambda x: isinstance(x, np.ndarray) or hasattr(x, "__array_interface__"))
    if issubclass(kind, Mapping) or typing.is_typeddict(kind):
        return Kind("a dict", lambda x: isinstance(x, Mapping))
    if kind in (Sequence, Collection, Iterable, list, tuple, set, frozenset):
        return _of_elements(kind, parts)
    if getattr(kind, "_is_protocol", False):
        names = [name for name in dir(kind) if not name.startswith("_")] or ["__call__"]
        return Kind(f"a {kind.__name__}", lambda x: not isinstance(x, type) and all(hasattr(x, n) for n in names))
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return Kind(WORDS.get(kind, f"{article} {kind.__name__}"), lambda x: isinstance(x, kind))


def _of_elements(kind: Any, parts: tuple[Any, ...]) -> Kind:
    """Containers: any list-like object serves where a sequence is wanted; no text, and no dict, ever does."""
    element = kind_of(parts[0]) if parts and (kind is not tuple or parts[1:] in ((), (...,))) else None

    def holds(x: Any) -> bool:
        if isinstance(x, (*TEXTS, Mapping)) or not _is_container(kind, x):
            return False
        if element is None or not isinstance(x, (list, tuple, set, frozenset, np.ndarray)):
            return True
        return all(element.holds(part) for part, _ in zip(x, range(MOST_CHECKED), strict=False))

    words = "an iterable" if kind is Iterable else "a list" if kind is not tuple else "a tuple"
    return Kind(f"{words} of {_plural(element.words)}" if element is not None else words, holds)


def _is_container(kind: Any, x: Any) -> bool:
    if kind is Iterable:
        return not isinstance(x, type) and (isinstance(x, Iterable) or hasattr(x, "__getitem__"))
    if kind is Collection:
        return isinstance(x, Collection)
    if kind is tuple:
        return isinstance(x, (tuple, list))
    if isinstance(x, np.ndarray):
        return x.ndim > 0
    return not isinstance(x, type) and hasattr(x, "__len__") and hasattr(x, "__getitem__")


def _plural(words: str) -> str:
    article, _, rest = words.partition(" ")
    return f"{rest}s" if article in ("a", "an") and " " not in rest else f"elements that are each {words}"


def is_int(x: Any) -> bool:
    """Whether this is an int, of Python or NumPy, and not a bool; an array of one int without axes counts as one."""
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return x.dtype.kind in "iu"
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def is_bool(x: Any) -> bool:
    """Whether this is True or False, of Python or NumPy."""
    return isinstance(x, (bool, np.bool_))


def is_number(x: Any) -> bool:
    """Whether this is a real number that a float holds, and not NaN; infinities are left to the function."""
    if isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "iuf":
        x = x[()]  # as an optimizer may be given its rate
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        return False
    try:
        return float(x) == float(x)
    except OverflowError:
        return False


def check_int(what: str, x: Any, at_least: int, error: type[AutobatchError] = DataError, below: int = 2**63) -> int:
    """The argument as an int of Python, if it is one within its limits; else raise `error`."""
    if not is_int(x) or not at_least <= x < below:
        limit = f" of at least {at_least}" if not is_int(x) or x < at_least else f" below {below}"
        raise refusal(what, f"an int{limit}", x, error)
    return int(x)
