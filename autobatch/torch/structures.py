"""Structures of tensors: tuples, lists, dicts and dataclasses of them, as functions of torch take and give them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from types import MemberDescriptorType
from typing import Any

from torch import Size, Tensor, return_types

from autobatch.ir.arguments import PLAIN_TUPLES, Key, is_structure, parts_of

PLAIN_TUPLES.add(Size)  # of numbers that may be tensors, in a result


@cache
def _named(kind: Any) -> Any:
    """The named tuple of the fields of what a function of torch returns, such as `torch.return_types.max`."""
    fields = [name for name, member in vars(kind).items() if type(member) is MemberDescriptorType]
    return namedtuple(kind.__name__, fields)


def __getattr__(name: str) -> Any:
    """Such a named tuple, which pickles find here."""
    kind: Any = getattr(return_types, name, None)
    if kind is None:
        raise AttributeError(f"there is no {name!r} here, nor in torch.return_types.")
    return _named(kind)


def on_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """`x` with a function applied to all that is in its tuples, lists, dicts and dataclasses."""
    if type(x).__module__ == "torch.return_types":
        kind: Any = type(x)
        return _named(kind)(*(on_leaves(function, part) for part in x))
    if is_structure(x) and not isinstance(x, Size):
        return Key.of_structure(x, ()).build([on_leaves(function, part) for part in parts_of(x)])
    return function(x)


def on_tensors(function: Callable[[Tensor], Any], x: Any) -> Any:
    """`x` with a function applied to the tensors in it."""
    return on_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, x)


def leaves_of(x: Any) -> Iterator[Any]:
    """All that is in the tuples, lists, dicts and dataclasses of a structure, in order."""
    if is_structure(x):
        for part in parts_of(x):
            yield from leaves_of(part)
    else:
        yield x


def tensors_in(x: Any) -> list[Tensor]:
    """The tensors in a structure, in order."""
    return [leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor)]


def filled(x: Any, tensors: Iterator[Any]) -> Any:
    """`x` with others in the place of its tensors, in order."""
    return on_tensors(lambda _: next(tensors), x)
