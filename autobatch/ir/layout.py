"""Layouts of cells: the columns of one node's values in its rows.

A node has a row of *inputs*, in training a row of their gradients with the same layout, and a row of *saved* values.
Values per edge of a variadic group have rows of their own, one per edge. Ports have columns in the inputs. A join
(`concat`) of adjacent ports, in order, is a view of these columns and is not copied; values that the cell computes as
parts of such a join also have columns there. The parts of every other join are computed directly at their position in
the join.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from autobatch.ir.program import NODE

Index: TypeAlias = tuple[Any, ...]


class Place(NamedTuple):
    """Columns column:column + width of the block of this domain."""

    domain: int
    column: int
    width: int


class Join(NamedTuple):
    """A `concat` or `assemble` whose parts need not all be moved.

    Attributes:
        indices: the position of each argument in the result.
        copied: the numbers of the arguments that are computed elsewhere and copied.
        covered: whether the arguments cover the result; the rest is zero.
    """

    indices: tuple[Index, ...]
    copied: tuple[int, ...]
    covered: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """Columns inside a cell.

    Attributes:
        inputs: the place of each port, by port number.
        saved: the place of each value kept for the backward stages, by value.
        input_width, saved_width: width of the block of each domain, node rows first, then the variadic groups.
        inner: the places in the inputs of values other than ports: joins, and parts of them.
        gradients: the places in the row of gradients of backward values whose slices are gradients of ports.
        aliased: the ports whose gradients are computed in place.
        joins: the joins, by value.
        within: for a value that is computed as part of a join, the join and the position in it.
        taken: the saved values of the program that values of the backward stage overwrite.
    """

    inputs: tuple[Place, ...]
    saved: dict[int, Place]
    input_width: tuple[int, ...]
    saved_width: tuple[int, ...]
    inner: dict[int, Place] = field(default_factory=dict)
    gradients: dict[int, Place] = field(default_factory=dict)
    aliased: frozenset[int] = frozenset()
    joins: dict[int, Join] = field(default_factory=dict)
    within: dict[int, tuple[int, Index]] = field(default_factory=dict)
    taken: frozenset[int] = frozenset()

    def __str__(self) -> str:
        inputs = [(f"port {number}", place) for number, place in enumerate(self.inputs)]
        inner = [(f"%{index}", place) for index, place in self.inner.items()]
        saved = [(f"%{i}{' first' if i in self.taken else ''}", place) for i, place in self.saved.items()]
        areas = (("inputs", inputs + inner, self.input_width), ("saved", saved, self.saved_width))
        lines = [
            f"{what} of {'a node' if domain == NODE else f'an edge of group {domain}'}, {width} columns: "
            + ", ".join(f"{name} in {p.column}:{p.column + p.width}" for name, p in places if p.domain == domain)
            for what, places, widths in areas
            for domain, width in enumerate(widths, start=NODE)
            if width
        ]
        return "\n".join(lines)
