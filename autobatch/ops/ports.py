"""Variadic ports: what functions of lists are given inside a cell in place of a list argument of any length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.ops.operators import STAGE


class VariadicPort(ABC):
    """A variadic list argument inside a traced cell: `values`, symbolic, one row per edge.

    The tracer subclasses it; there a body may also walk through it, see `autobatch.trace.elements`.
    """

    @abstractmethod
    def values(self, shape: Any) -> Any:
        """Return the element (a value or a tuple of values) of a list that becomes one value. `shape`, of one element,
        is required if the list may be empty."""

    @abstractmethod
    def elements(self) -> Any:
        """Return the element of a list that becomes another list."""

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
