"""Copies of instances that come one by one: what makes them may fill the same arrays again for the next one.

Only the arrays of an instance are copied, and what holds them: tuples, lists, dicts, sets and objects with attributes,
of any class that Python code defines. Lists, dicts and sets that are reached from the instance through such containers
alone are copied as well. Anything else, such as an object without arrays, stays the same object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

import numpy as np

from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.trace.inputs import Held

KEPT: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque, type({}.values()))
"""Containers that hold their instances: none of these is filled again while others are read."""
FILLED: tuple[type, ...] = (list, dict, set, deque, bytearray)


@singledispatch
def copy_of(x: Any) -> Any:
    """A copy of an array; other libraries register what copies their arrays, and what stays as it is."""
    return x


PLAIN_COPY = copy_of.dispatch(object)


@copy_of.register
def _(x: np.ndarray) -> Any:
    return x.copy()


def list_owned(instances: Iterable[Any]) -> list[Any]:
    """The instances as a list, with arrays of their own unless a container holds them all."""
    return list(instances) if isinstance(instances, KEPT) else [own(instance) for instance in instances]


def own(instance: Any) -> Any:
    """An instance with arrays of its own; a recorded one has them."""
    if isinstance(instance, Graph):
        return instance
    filled = _filled(instance)
    held = Held(instance, _is_copied, filled)
    if not held.arrays and not filled:
        return instance
    try:
        return held.rebuild(list(map(copy_of, held.arrays)), lambda part: part)
    except Exception as error:  # whatever a class raises when its instances are copied
        raise DataError(
            f"instances from an iterator are copied as they arrive, because their arrays may be filled again, but "
            f"{type(instance).__name__} cannot be copied ({error}); give a list of instances."
        ) from error


def _is_copied(x: Any) -> bool:
    return copy_of.dispatch(type(x)) is not PLAIN_COPY and not (isinstance(x, np.ndarray) and x.dtype.hasobject)


def _filled(instance: Any) -> list[Any]:
    """The containers that can be filled again, as far as they are reached through containers alone."""
    found, met, pending = list[Any](), set[int](), [instance]
    while pending:
        x = pending.pop()
        if id(x) in met or type(x) not in (tuple, *FILLED):
            continue
        met.add(id(x))
        found += [x] if type(x) in FILLED else []
        pending += x.values() if type(x) is dict else () if type(x) is bytearray else x
    return found
