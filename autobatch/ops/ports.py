"""Variadic ports, which replace list arguments of any length inside a cell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.ops.operators import STAGE


class VariadicPort(ABC):
    """A variadic list argument inside a traced cell: symbolic `values`, one row per edge.

    The tracer subclasses it; a traced body may also iterate over it, see `autobatch.trace.elements`.
    """

    @abstractmethod
    def values(self, shape: Any) -> Any:
        """Return the element (a value or a tuple of values) of a list that is reduced to one value.

        `shape`, of one element, is required if the list may be empty.
        """

    @abstractmethod
    def elements(self) -> Any:
        """Return the element of a list that is mapped to another list."""

    @abstractmethod
    def each(self, function: Callable[..., Any], lists: Sequence[Any]) -> Any:
        """Return the port whose elements are `function` of the elements of all lists, one of which is this port."""

    @abstractmethod
    def like(self, element: Any) -> Any:
        """Return a port with this element over the same edges."""

    @abstractmethod
    def stacked(self) -> Any:
        """Return the elements as one value, a row each."""


def as_port(values: Any) -> Any:
    """Return values as a list, or as a variadic port if they are one or are the elements of one."""
    current = STAGE.current
    return list(values) if current is None else current.as_list(values)
