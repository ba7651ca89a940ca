"""The parameters of a module, found by a walk that is repeated only after something was assigned there."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from autobatch.params.module import Module, holders_in
from autobatch.params.parameter import Parameter


class KnownParameters:
    """Knows the parameters of a module.

    A walk visits modules, lists, tuples and dicts. As long as each of them holds the same objects under the same names,
    another walk would find the same parameters.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._found: dict[str, Parameter] | None = None
        self._seen: list[tuple[Any, list[Any], list[Any]]] = []

    def find(self) -> dict[str, Parameter]:
        """The same as `Module.parameters`; the same dict until something has changed.

        Raises:
            GraphError: as there.

        Cost: half a microsecond per module, list and dict.
        """
        if self._found is None or not all(_holds(*seen) for seen in self._seen):
            self._found = None  # until the walk has succeeded
            self._seen = [(holder, *_contents(holder)) for holder in holders_in(self.module)]
            self._found = self.module.parameters()
        return self._found


def _contents(holder: Any) -> tuple[list[Any], list[Any]]:
    """The objects that a holder has, and before them their names, except in lists and tuples."""
    contents = vars(holder) if isinstance(holder, Module) else holder
    return (list(contents), list(contents.values())) if isinstance(contents, dict) else ([], list(contents))


def _holds(holder: Any, names: list[Any], values: list[Any]) -> bool:
    """Whether a holder has the same objects under the same names as before."""
    contents = vars(holder) if isinstance(holder, Module) else holder
    if isinstance(contents, dict):
        return _are(contents, names) and _are(contents.values(), values)
    return _are(contents, values)


def _are(found: Collection[Any], seen: list[Any]) -> bool:
    """Whether a collection holds the same objects as before."""
    return len(found) == len(seen) and all(map(operator.is_, found, seen))
