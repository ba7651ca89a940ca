"""Copies of instances that arrive one by one; their producer may reuse the same arrays for the next instance.

Copies cover the arrays of an instance and their owners: tuples, lists, dicts, sets, and objects with attributes of any
class defined in Python. They also cover lists, dicts and sets that are reached from the instance through such
containers only. Anything else, such as an object without arrays, stays the same object.
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
"""Containers that hold all their instances, so none is overwritten while another is read."""
FILLED: tuple[type, ...] = (list, dict, set, deque, bytearray)


@singledispatch
def copy_of(x: Any) -> Any:
    """Copy an array; other libraries register copiers for their arrays, and objects to keep."""
    return x


PLAIN_COPY = copy_of.dispatch(object)


@copy_of.register
def _(x: np.ndarray) -> Any:
    return x.copy()


def list_owned(instances: Iterable[Any]) -> list[Any]:
    """Return the instances as a list, with copied arrays unless a container holds them all."""
    return list(instances) if isinstance(instances, KEPT) else [own(instance) for instance in instances]


def own(instance: Any) -> Any:
    """Return an instance with copied arrays; recorded graphs need no copy."""
    if isinstance(instance, Graph):
        return instance
    filled = _filled(instance)
    held = Held(instance, _is_copied, filled)
    if not held.arrays and not filled:
        return instance
    try:
        return held.rebuild(list(map(copy_of, held.arrays)), lambda part: part)
    except Exception as error:  # copying may run a user's class, which may raise anything
        raise DataError(
            f"instances from an iterator are copied as they arrive, because their arrays may be filled again, but "
            f"{type(instance).__name__} cannot be copied ({error}); give a list of instances."
        ) from error


def _is_copied(x: Any) -> bool:
    return copy_of.dispatch(type(x)) is not PLAIN_COPY and not (isinstance(x, np.ndarray) and x.dtype.hasobject)


def _filled(instance: Any) -> list[Any]:
    """Find the mutable containers that are reached through containers only."""
    found, met, pending = list[Any](), set[int](), [instance]
    while pending:
        x = pending.pop()
        if id(x) in met or type(x) not in (tuple, *FILLED):
            continue
        met.add(id(x))
        found += [x] if type(x) in FILLED else []
        pending += x.values() if type(x) is dict else () if type(x) is bytearray else x
    return found
