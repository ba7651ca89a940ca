"""Tracing: running a cell's body once on symbolic arguments, so that each op appends an instruction to a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from autobatch._native import stage
from autobatch.errors import AutobatchError, GraphError
from autobatch.ir.arguments import Key, Static, is_structure, parts_of
from autobatch.ir.builder import NeedsData
from autobatch.ir.program import NODE, Attribute, CellProgram, Port, first_leaf
from autobatch.ir.program_check import check_cell
from autobatch.ops.operators import Operators
from autobatch.system.unchecked import checking
from autobatch.trace.elements import SINGLE, Element, ListBuilder, NeedsLength, TracedList
from autobatch.trace.pairs import Moved, Pairs
from autobatch.trace.ragged import Ragged
from autobatch.tracebacks import in_cell


def _key_of_shape(shape: Any) -> Key:
    """Return the key of an element described by its shape, or by a tuple of its parts' shapes."""
    if isinstance(shape, Key):
        return shape
    if all(isinstance(s, int) for s in shape):
        return Key("value", shape)
    return Key("tuple", None, tuple(_key_of_shape(s) for s in shape))


NOT_TRACKED: AbstractContextManager[None] = nullcontext()


class Tracer:
    """Runs a function once on symbolic arguments built from their keys.

    Args:
        lengths: lengths of the list arguments of the call, by variadic group.
        returns_rows: whether a list whose rows the body returns may have any length.

    Attributes:
        resolved: keys of the elements of empty lists, which only the body's `shape=` gives, by variadic group.
    """

    def __init__(
        self, name: str, weight_names: Mapping[int, str], lengths: Sequence[int] = (), returns_rows: bool = True
    ) -> None:
        self.builder = ListBuilder(name, weight_names, lengths)
        self.resolved: dict[int, Key] = {}
        self.n_leaves: Counter[int] = Counter()
        self._returns_rows = returns_rows

    def trace(
        self, call: Callable[..., Any], keys: Mapping[str, Key], tracking: AbstractContextManager[None] = NOT_TRACKED
    ) -> tuple[CellProgram, Any]:
        """Trace `call(arguments by name)`; return the program and the structure of its result over output numbers.

        Args:
            tracking: the context in which the body runs.
        """
        arguments = {name: self.argument(key, name, NODE) for name, key in keys.items()}
        with stage(self.builder):
            try:
                with tracking:
                    result = call(arguments)
            except NeedsData:
                raise
            except AutobatchError as error:
                shown = ", ".join(f"{name}: {key}" for name, key in keys.items())
                raise in_cell(error, self.builder.name, shown) from None
        outputs: list[Any] = []
        structure = collect_outputs(result, outputs, set() if self._returns_rows else self.builder.lists)
        if not outputs:
            raise GraphError(f"cell {self.builder.name!r} must return at least one value, got {result!r}.")
        program = self.builder.finish(outputs)
        if checking():
            check_cell(program)
        return program, structure

    def argument(self, key: Key, name: str, domain: int) -> Any:
        """Make a symbolic argument; its leaves are numbered in order, separately for each domain."""
        match key.kind:
            case "value":
                port = Port(name, self._leaf(domain), below=key.below, dtype=key.dtype)
                return self.builder.add(port, key.detail, domain)
            case "int" | "float":
                data = Attribute(name, self._leaf(domain), key.kind == "float", dtype=key.dtype)
                return self.builder.add(data, key.detail, domain)
            case "static":
                return key.detail.value
            case "each":
                return self._list(key, name, self.builder.add_group(name))
            case "rows":
                row = self.argument(key.children[0], name, self.builder.add_group(name))
                return Ragged(self.builder, row.index)
        children = [
            self.argument(child, f"{name}.{label}", domain)
            for label, child in zip(key.labels, key.children, strict=True)
        ]
        return key.build(children)

    def _list(self, key: Key, name: str, group: int) -> TracedList:
        self.builder.lists.add(group)

        def make(shape: Any) -> Any:
            self.resolved[group] = element = _key_of_shape(shape)
            return self.argument(element, name, group)

        element = self.argument(key.children[0], name, group) if key.children else None
        return TracedList(self.builder, name, group, element, make)

    def _leaf(self, domain: int) -> int:
        self.n_leaves[domain] += 1
        return first_leaf(domain) + self.n_leaves[domain] - 1


def collect_outputs(result: Any, outputs: list[Any], apart: Collection[int] = ()) -> Any:
    """Append the values in `result` to `outputs`; return its structure, with output numbers in their place.

    Args:
        apart: groups of lists; NeedsLength if rows of one are returned, so that its elements become separate values.
    """
    if isinstance(result, TracedList):
        raise NeedsLength(result.group, "returns it")
    if isinstance(result, Element):
        raise NeedsLength(result.var.domain, SINGLE)
    if isinstance(result, (Pairs, Moved)):
        result.builder.refuse_returned(result)
    if isinstance(result, Ragged) and result.var.domain in apart:
        raise NeedsLength(result.var.domain, "returns a row per element")
    if isinstance(result, (Operators, np.ndarray, np.number, int, float)) and not isinstance(result, bool):
        outputs.append(result)
        return len(outputs) - 1
    if isinstance(result, (tuple, list)):
        parts = [collect_outputs(part, outputs, apart) for part in result]
        return tuple(parts) if type(result) is tuple else Key.of_structure(result, parts)
    if is_structure(result):
        return Key.of_structure(result, [collect_outputs(part, outputs, apart) for part in parts_of(result)])
    return Static(result)
