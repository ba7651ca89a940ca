"""Checks of arguments against the annotations of a function: "n_in of Linear must be an int, got None."

Annotations are read once per function, on first use. Elements of a container are checked too, unless the container is
an iterator. Anything that an annotation leaves open (`Any`, arrays of any kind) is left to the function.
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
"""Exceptions that Python and NumPy raise for unusable arguments."""
LONGEST = 60  # characters of an argument in a message
MOST_CHECKED = 1000  # elements of a container
OPEN = (Any, npt.ArrayLike, npt.DTypeLike, object)  # annotations that restrict nothing
ALIASES = getattr(typing, "TypeAliasType", ())  # from Python 3.12 on; npt.NDArray is one from NumPy 2.5 on
TEXTS = (str, bytes, bytearray)
WORDS: dict[Any, str] = {
    int: "an int", float: "a number", bool: "True or False", str: "a str", bytes: "bytes", type(None): "None",
    np.ndarray: "an array", os.PathLike: "a path", dict: "a dict",
    Hashable: "a hashable value",
}  # fmt: skip
CONVERSIONS: dict[tuple[str, str], str] = {
    ("Graph", "Dag"): "make a Graph of a Dag with ab.policies.to_graph(dag, names)",
    ("Dag", "Graph"): "make a Dag of a Graph with ab.policies.to_dag(graph)",
}
"""Advice by the name of the expected class and the class of the argument, or of an element of it."""


class Kind(NamedTuple):
    """A kind of argument: its description and its test."""

    words: str
    holds: Callable[[Any], bool]


class Wanted(NamedTuple):
    """A checked argument: its kind, and whether it applies to each of `*args`."""

    kind: Kind
    is_each: bool


def show(x: Any) -> str:
    """Format an argument for messages: short, and arrays by their shape.

    >>> show("wide"), show(np.ones((2, 3))), show([0] * 100)
    ("'wide'", 'an array of shape (2, 3)', 'a list of 100 elements')
    """
    if isinstance(x, np.ndarray) or (hasattr(x, "shape") and hasattr(x, "dtype")):
        what = "an array" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        return f"{what} of shape {tuple(x.shape)}" if np.ndim(x) or not isinstance(x, np.generic) else repr(x)
    try:
        text = repr(x)
    except Exception:  # from a user's class, or an int with too many digits
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
    """Make the error for a wrong argument: "X must be Y, got Z.", with a remedy: `advice`, or one of `CONVERSIONS`."""
    advice = advice or _advise(must_be, got)
    return error(f"{what} must be {must_be}, got {show(got)}{'; ' + advice if advice else ''}.")


def _advise(must_be: str, got: Any) -> str:
    """Return the conversion of `got`, or of its elements, to the class that `must_be` names; "" if none is known."""
    found = {type(x).__name__ for x in (got, *(got if isinstance(got, (list, tuple)) else ()))}
    known = (advice for (to, of), advice in CONVERSIONS.items() if to in must_be and of in found)
    return next(known, "")


def check_arguments(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    called: str,
    errors: Mapping[str, type[AutobatchError] | None] = types.MappingProxyType({}),
) -> None:
    """Raise an error for the first argument that does not match its annotation, if any.

    Args:
        function: the annotated function.
        arguments: the arguments, by parameter name.
        called: name of the function in messages.
        errors: error class per parameter, or None if the function checks the argument itself; DataError by default.
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
    """Return the kind of each parameter whose annotation restricts it."""
    found: dict[str, Wanted] = {}
    space = getattr(unwrap(function), "__globals__", {})
    for name, parameter in signature(function).parameters.items():
        kind = kind_of(_resolve(parameter.annotation, space))
        if parameter.default is None and kind is not None and not kind.holds(None):
            kind = None  # the default contradicts its own annotation
        if kind is not None and parameter.kind is not Parameter.VAR_KEYWORD:
            found[name] = Wanted(kind, parameter.kind is Parameter.VAR_POSITIONAL)
    return found


def _resolve(annotation: Any, space: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(space), {})  # of our own source
    except (NameError, TypeError, AttributeError):
        return Any  # a name that only type checkers know


def kind_of(annotation: Any) -> Kind | None:
    """Return the kind of argument that an annotation allows; None if it allows anything, or is checked elsewhere."""
    if annotation in (None, type(None)):
        return Kind("None", lambda x: x is None)
    if isinstance(annotation, TypeVar):
        annotation = annotation.__bound__ or Any
    if any(annotation is open_ for open_ in OPEN) or annotation is Parameter.empty:
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if isinstance(origin or annotation, ALIASES):
        meant = (origin or annotation).__value__
        return kind_of(meant[parts] if parts else meant)
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
    """Return the kind of a container. Any list-like object is accepted as a sequence; strings and dicts never are."""
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


def to_plain(x: Any) -> Any:
    """Convert NumPy's numbers in an option of an op to Python's: axes, sizes, slices, factors, and tuples of them.

    A row of ints becomes a tuple, and other arrays are copied, because they may be changed in place before the op runs;
    anything else is returned unchanged.

    >>> to_plain((np.int64(2), slice(np.int8(1), None))), to_plain(np.array([3, 1])), to_plain(np.bool_(True))
    ((2, slice(1, None, None)), (3, 1), True)
    """
    kind = type(x)
    if kind is tuple or kind is list:
        return kind(map(to_plain, x))
    if kind is slice:
        return slice(to_plain(x.start), to_plain(x.stop), to_plain(x.step))
    if isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "iu":
        return tuple(x.tolist())
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not x.ndim):
        to = {"b": bool, "i": int, "u": int, "f": float}.get(x.dtype.kind)
        return x if to is None else to(x)
    return x.copy() if isinstance(x, np.ndarray) else x


def is_int(x: Any) -> bool:
    """Return whether `x` is an int of Python or NumPy, but not a bool; an int array without axes counts as an int."""
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return x.dtype.kind in "iu"
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def is_bool(x: Any) -> bool:
    """Return whether `x` is a bool of Python or NumPy."""
    return isinstance(x, (bool, np.bool_))


def is_number(x: Any) -> bool:
    """Return whether `x` is a real number that fits a float and is not NaN; infinities are left to the function."""
    if isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "iuf":
        x = x[()]  # e.g. an optimizer's learning rate
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        return False
    try:
        return float(x) == float(x)
    except OverflowError:
        return False


def check_int(what: str, x: Any, at_least: int, error: type[AutobatchError] = DataError, below: int = 2**63) -> int:
    """Convert the argument to a Python int within its limits, or raise `error`."""
    if not is_int(x) or not at_least <= x < below:
        limit = f" of at least {at_least}" if not is_int(x) or x < at_least else f" below {below}"
        raise refusal(what, f"an int{limit}", x, error)
    return int(x)
