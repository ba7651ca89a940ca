"""Structures of tensors: tuples, lists, dicts and dataclasses, as arguments and results of torch functions."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import MemberDescriptorType
from typing import Any

from torch import Size, Tensor, return_types

from autobatch.ir.arguments import PLAIN_TUPLES, Key, is_structure, parts_of

PLAIN_TUPLES.add(Size)  # in a result, its numbers may be tensors


@cache
def _named(kind: Any) -> Any:
    """Return the named tuple with the fields of a torch result class, such as `torch.return_types.max`."""
    fields = [name for name, member in vars(kind).items() if type(member) is MemberDescriptorType]
    return namedtuple(kind.__name__, fields)


def __getattr__(name: str) -> Any:
    """Return the named tuple of this name, for pickles."""
    kind: Any = getattr(return_types, name, None)
    if kind is None:
        raise AttributeError(f"neither this module nor torch.return_types has an attribute {name!r}.")
    return _named(kind)


def on_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to all leaves of the tuples, lists, dicts and dataclasses in `x`."""
    if type(x).__module__ == "torch.return_types":
        kind: Any = type(x)
        return _named(kind)(*(on_leaves(function, part) for part in x))
    if is_dataclass(x) and is_structure(x):
        made = object.__new__(type(x))  # not by the constructor, which may compute with fields
        for name, part in getattr(x, "__dict__", {}).items():
            object.__setattr__(made, name, part)
        for f in fields(x):
            object.__setattr__(made, f.name, on_leaves(function, getattr(x, f.name)))
        return made
    if is_structure(x) and not isinstance(x, Size):
        return Key.of_structure(x, ()).build([on_leaves(function, part) for part in parts_of(x)])
    return function(x)


def on_tensors(function: Callable[[Tensor], Any], x: Any) -> Any:
    """Apply a function to the tensors in `x`."""
    return on_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, x)


def leaves_of(x: Any) -> Iterator[Any]:
    """Yield all leaves of the tuples, lists, dicts and dataclasses of a structure, in order."""
    if is_structure(x):
        for part in parts_of(x):
            yield from leaves_of(part)
    else:
        yield x


def tensors_in(x: Any) -> list[Tensor]:
    """Return the tensors in a structure, in order."""
    return [leaf for leaf in leaves_of(x) if isinstance(leaf, Tensor)]


def beside(given: Sequence[Tensor], x: Any) -> Any:
    """Move the tensors in `x` to the device of given ones, unless these are without numbers (on "meta")."""
    device = given[0].device if given else None
    return x if device is None or device.type == "meta" else on_tensors(lambda y: y.to(device), x)


def filled(x: Any, tensors: Iterator[Any]) -> Any:
    """Replace the tensors in `x` by others, in order."""
    return on_tensors(lambda _: next(tensors), x)
