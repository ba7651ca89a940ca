"""Wrapping: the conversion of arrays and parameters in arguments and results to values of the recording."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch._native import array_key
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ops.eager import plain_array
from autobatch.params.parameter import Parameter
from autobatch.trace.handles import Handles, Value
from autobatch.trace.inputs import PLAIN, FloatInput


def never(name: str, x: Any) -> bool:
    """Treat no argument as static."""
    return False


LEFT, PARAMETER, INPUT, ELSE = range(4)  # as in `native/record/function.cpp`
KEPT = "kept"


def treatment_of(x: Any) -> int:
    """Return how wrapping treats objects of the class of `x`."""
    if isinstance(x, (Parameter, FloatInput)):
        return PARAMETER if isinstance(x, Parameter) else INPUT
    return ELSE if isinstance(x, (np.ndarray, np.generic)) or is_structure(x) else LEFT


class Wrapping:
    """Makes one node, a *source*, for each array, parameter and input that an instance uses outside cells.

    Args:
        handles: the handles of the recording.
        sources: the values of the current instance's sources, by content; those of parameters and inputs also by `id`.
        record: records a source and returns its value; the flag asks for one of any number of rows.

    Attributes:
        start_instance: drops the sources of the previous instance.
    """

    def __init__(self, handles: Handles, sources: dict[Any, Any], record: Callable[[Any, bool], Value]) -> None:
        self._handles, self._sources, self._record = handles, sources, record
        self.start_instance: Callable[[], None] = sources.clear

    def forget(self, parameter: Parameter) -> None:
        """Make a new node for a parameter when the instance uses it next."""
        self._sources.pop(id(parameter), None)

    def wrap(
        self,
        x: Any,
        is_static: Callable[[str, Any], bool] = never,
        is_result: bool = False,
        is_ragged: bool = False,
    ) -> Any:
        """Convert arrays and parameters in `x` to values of sources, and NumPy's scalars to Python's.

        In a result, NumPy's floats become values too, because an eager call returns computed scalars as such. If
        `is_ragged`, sources of arrays have any number of rows.
        """
        if type(x) in PLAIN:
            return x
        if type(x) is np.ndarray and x.dtype.char in "fd":
            return self._source_of_array(x, is_ragged)
        if isinstance(x, Value):
            self._handles.check(x)
            return x
        if is_static("", x):
            return x
        if isinstance(x, Parameter):
            return self._source(x, id(x))
        if isinstance(x, FloatInput):
            value = self._source(x, (x.inputs, x.shape, x.positions.tobytes()), is_ragged and x.ndim > 0)
            if not is_ragged:  # the core finds it by its `id`, which is unique as long as it is kept
                self._sources[id(x)], self._sources[KEPT, id(x)] = value, x
            return value
        if isinstance(x, np.ndarray):
            array = plain_array(x) if x.dtype.kind in "fiub" else x
            return self._source_of_array(array, is_ragged) if array.dtype.kind == "f" else array
        if isinstance(x, np.floating):
            return self._source_of_array(plain_array(x)) if is_result else float(x)
        if isinstance(x, (np.bool_, np.integer)):
            return x.item()
        if not is_structure(x) or (type(x) in (list, tuple) and self._handles.own_all(x)):
            return x
        own = parts_of(x)
        parts = [part if type(part) in PLAIN else self.wrap(part, is_static, is_result, is_ragged) for part in own]
        # Lists and dicts of subclasses become plain ones even if no part changes.
        is_same = all(map(operator.is_, parts, own)) and (type(x) in (list, dict) or not isinstance(x, (list, dict)))
        return x if is_same else Key.of_structure(x, ()).build(parts)

    def _source_of_array(self, x: np.ndarray[Any, Any], is_ragged: bool = False) -> Value:
        return self._source(x, array_key(x) or (x.shape, x.dtype.str, x.tobytes()), is_ragged and x.ndim > 0)

    def _source(self, x: Any, content: Any, is_ragged: bool = False) -> Value:
        """Return the value of an array, parameter or input; equal arrays, or parts of inputs, share one node."""
        # A source of any number of rows has another type, and so a node of its own.
        key = (content, is_ragged) if is_ragged else content
        if key not in self._sources:
            self._sources[key] = self._record(x, is_ragged)
        value: Value = self._sources[key]
        return value


def to_floats(x: Any) -> Any:
    """Convert ints, also in arrays, lists, tuples and dicts, to floats; return `x` itself if nothing changes.

    Ints that no float equals stay ints, and bools stay bools.
    """
    if type(x) is int:
        return float(x) if _is_exact(x) else x
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        floats = x.astype(np.float64)
        return floats if np.array_equal(floats, x) else x
    if type(x) not in (list, tuple, dict):
        return x
    own = parts_of(x)
    parts = list(map(to_floats, own))
    return x if all(map(operator.is_, parts, own)) else Key.of_structure(x, ()).build(parts)


def _is_exact(x: int) -> bool:
    """Return whether a float equals an int."""
    try:
        return float(x) == x
    except OverflowError:
        return False


def to_values(values: Sequence[Any]) -> list[Any]:
    """Convert a sequence that holds values to a list, with numbers as arrays, which are wrapped to values later."""
    parts = list(map(_as_values, values))
    return values if type(values) is list and all(map(operator.is_, parts, values)) else parts


def _as_values(x: Any) -> Any:
    if isinstance(x, (int, float, np.number)):
        return np.asarray(float(x))
    if type(x) is not tuple:
        return x
    parts = tuple(map(_as_values, x))
    return x if all(map(operator.is_, parts, x)) else parts
