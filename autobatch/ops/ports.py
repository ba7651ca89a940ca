"""Variadic ports: what functions of lists are given inside a cell in place of a list argument of any length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.errors import ShapeError
from autobatch.ops.operators import STAGE


class VariadicPort(ABC):
    """A variadic list argument inside a traced cell: `values`, symbolic, one row per edge.

    The tracer subclasses it; there a body may also walk through it, see `autobatch.trace.elements`.
    """

    @abstractmethod
    def values(self, shape: Any) -> Any:
        """The element (a value or a tuple of values); `shape` describes it if all lists so far were empty."""

    @abstractmethod
    def each(self, function: Callable[..., Any], lists: Sequence[Any]) -> Any:
        """The port whose elements are `function` of those of all lists, of which this is one."""

    @abstractmethod
    def like(self, element: Any) -> Any:
        """A port over the same edges."""

    @abstractmethod
    def stacked(self) -> Any:
        """The elements as one value, a row each."""


def as_port(values: Any) -> Any:
    """A list of any values; a variadic port where it is one, or holds the elements of one."""
    current = STAGE.current
    return list(values) if current is None else current.as_list(values)


def no_elements(which: str) -> ShapeError:
    """The error for an empty list that is reduced to a value of which nothing says the shape; begins with `which`."""
    return ShapeError(
        f"{which}, so the shape of the result is not known; give the shape of one element, as in "
        f"ab.sum_n(values, shape=(8,))."
    )
