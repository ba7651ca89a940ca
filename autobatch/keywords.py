"""Errors for unknown keyword arguments, which suggest the nearest valid one, as Python 3.13 does by itself.

    @suggesting()
    def minibatches(instances, size, rng=None): ...

    minibatches(graphs, 64, rgn=rng)    # TypeError: minibatches() got an unexpected keyword argument 'rgn'. Did you ...

Names and kinds of arguments are only checked after a call has failed. A correct call costs one extra function call.
Functions that run in every step avoid even that: they take `**wrong`, pass it to `refuse`, and are marked `refusing`.

`checked` also compares all arguments with the annotations before each call. Use it for rare calls: constructors of
models, optimizers and servers, and functions that read or write files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, TypeVar, cast

from autobatch.arguments import RAW, check_arguments
from autobatch.errors import AutobatchError
from autobatch.tracebacks import hide_frames

F = TypeVar("F", bound=Callable[..., Any])
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the name spelled most like another, ignoring case; None if none is similar enough.

    Args:
        likeness: least similarity, from 0 to 1.

    >>> nearest("polcy", ["module", "policy"]), nearest("Relu", ["relu"]), nearest("xyzzy", ["relu"])
    ('policy', 'relu', None)
    """
    from difflib import get_close_matches

    written = {other.lower(): other for other in names}
    close = get_close_matches(name.lower(), written, n=1, cutoff=likeness)
    return written[close[0]] if close else None


def suggesting(*takers: Callable[..., Any]) -> Callable[[F], F]:
    """Make a function, or the constructor of a class, suggest the nearest keyword when it is given an unknown one.

    Args:
        takers: the functions that receive its `**options`, if it has any.
    """

    def wrap(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = wrap(function.__init__)  # type: ignore[misc]
            return function

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if isinstance(error, RAW):
                    refuse(function, kwargs, *takers, owner=args[:1])
                    refuse_arguments(function, args, kwargs)
                hide_frames(error)
                raise

        return cast(F, call)

    return wrap


def checked(*takers: Callable[..., Any], **errors: type[AutobatchError] | None) -> Callable[[F], F]:
    """Do what `suggesting` does, and check arguments against their annotations before each call.

    Args:
        takers: the functions that receive its `**options`, if it has any.
        errors: error class per parameter, or None if the function checks the argument itself; DataError by default.
    """

    def wrap(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = wrap(function.__init__)  # type: ignore[misc]
            return function

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if takers:
                    refuse(function, kwargs, *takers, owner=args[:1])
                refuse_arguments(function, args, kwargs, errors)
                return function(*args, **kwargs)
            except Exception as error:
                if isinstance(error, TypeError):
                    refuse(function, kwargs, *takers, owner=args[:1])
                hide_frames(error)
                raise

        return cast(F, call)

    return wrap


def refuse_arguments(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    errors: Mapping[str, type[AutobatchError] | None] = MappingProxyType({}),
) -> None:
    """Raise an error for the first argument that does not match its annotation; see `check_arguments`."""
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError:
        return  # the call itself reports missing or unexpected arguments
    check_arguments(function, bound.arguments, name_of(function, args), errors)


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> Signature:
    return signature(function)


def name_of(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return the name of a function in messages; for a constructor, that of its class."""
    name: str = getattr(function, "__name__", repr(function))
    return type(args[0]).__name__ if name == "__init__" and args else name


def refusing(function: F) -> F:
    """Hide the `**wrong` keywords of a function, which it passes to `refuse`, from its visible signature."""
    shown = signature(function)
    named = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
    vars(function)["__signature__"] = shown.replace(parameters=named)
    return function


def refuse(
    function: Callable[..., Any], given: Iterable[str], *takers: Callable[..., Any], owner: tuple[Any, ...] = ()
) -> None:
    """Raise a TypeError for the first unknown keyword, if any.

    Args:
        function: the called function.
        given: the keywords of the call.
        takers: the functions that receive its `**options`.
        owner: the first argument of the call; for a constructor, the new object, whose class the message names.
    """
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature(function).parameters.values())
    if takes_any and not takers:
        return  # it checks its `**options` itself
    names = list(dict.fromkeys(name for one in (function, *takers) for name in _keywords(one)))
    wrong = [name for name in given if name not in names]
    if not wrong:
        return
    near = nearest(wrong[0], names)
    called = name_of(function, owner)
    told = f"Did you mean {near!r}?" if near else f"It takes {', '.join(names)}."
    raise TypeError(f"{called}() got an unexpected keyword argument {wrong[0]!r}. {told}") from None


def _keywords(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters of a function that can be passed by keyword."""
    for name, parameter in signature(function).parameters.items():
        if parameter.kind in NAMED and name != "self":
            yield name
