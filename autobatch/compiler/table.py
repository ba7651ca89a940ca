"""The table of pieces: for each piece of a batch a row of ints, which say where its rows of values begin.

A domain is the nodes of a type, or the edges of one of its variadic groups; each has rows of its own. This module says
which column holds what, for those who fill the table in, for compiled steps that read it, and for tests.
"""

from __future__ import annotations

from typing import NamedTuple

from autobatch.compiler.lowered import Area, Home
from autobatch.ir.program import NODE
from autobatch.jit.loops import compiled

STAGES = ("forward", "backward")  # each has scratch memory of its own


class Columns(NamedTuple):
    """What the columns of a row hold; where there is one column per domain, the first of them.

    Attributes:
        start: number of the first node among those of the type.
        shift: elements from a place in the buffer to that of its gradient.
        rows: per domain, how many rows the piece has.
        inputs, mirror, saved: per domain, the element of the buffer where its first row of inputs begins, of their
            gradients, and of residuals.
        forward, backward: per domain, the element of scratch memory where its first row begins, in each stage.
        kept: the element of persistent scratch where its first row begins.
        outputs: per output, the number of its first node's pointer into the destinations.
    """

    start: int
    shift: int
    rows: int
    inputs: int
    mirror: int
    saved: int
    forward: int
    backward: int
    kept: int
    outputs: int


PER_DOMAIN = ("rows", "inputs", "mirror", "saved", *STAGES)


@compiled
def columns_of(n_domains: int) -> Columns:
    """Give the columns of the table of a type with this many domains."""
    first, n = 2, n_domains
    return Columns(
        0, 1, first, first + n, first + 2 * n, first + 3 * n, first + 4 * n, first + 5 * n, first + 6 * n,
        first + 6 * n + 1,
    )  # fmt: skip


def name_columns(n_domains: int, n_outputs: int) -> tuple[str, ...]:
    """Name all columns of the table of a type, in order.

    >>> name_columns(2, 1)[:6]
    ('start', 'shift', 'rows_n', 'rows_0', 'inputs_n', 'inputs_0')
    """
    columns = columns_of.python(n_domains)
    names = {columns.start: "start", columns.shift: "shift", columns.kept: "kept_n"}
    for area in PER_DOMAIN:
        for domain in range(n_domains):
            names[getattr(columns, area) + domain] = f"{area}_{letter_of(NODE + domain)}"
    names |= {columns.outputs + number: f"output_{number}" for number in range(n_outputs)}
    return tuple(names[column] for column in range(len(names)))


def column_of(home: Home, stage: str) -> str:
    """Name the column that says where the rows of an area begin."""
    names = {Area.BATCH: stage, Area.PERSISTENT: "kept"}
    return f"{names.get(home.area, home.area)}_{letter_of(home.domain)}"


def letter_of(domain: int) -> str:
    """`n` for nodes, or the number of a group of edges."""
    return "n" if domain == NODE else str(domain)
