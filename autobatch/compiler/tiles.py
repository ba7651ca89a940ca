"""Name the fields of a tile: some rows of a type that go through all steps together, and the places of their values.

A domain is the nodes of a type, or the edges of one of its variadic groups; each has its own rows. A tile is a record
of int64 numbers. The core fills in tiles (`native/plan/tiles.cpp`), and compiled steps read them:

    start: the number of the first node of the tile, among the nodes of the type.
    shift: elements from a place in the buffer to the place of its gradient.
    rows: per domain, the number of rows of the tile.
    inputs, gradients, saved: per domain, the element of the buffer where the first row of inputs, of their gradients
        and of residuals begins.
    forward, backward: per domain, the element of the stage's scratch memory where the first row begins.
    kept: the element of persistent scratch where the first row begins.
    output: per output, the number of its first node's pointer into the destinations.
    strip: the number of the strip of gradients that a call for all rows computes.
"""

from __future__ import annotations

from autobatch.compiler.lowered import Area, Location
from autobatch.ir.program import NODE

STAGES = ("forward", "backward")  # the stages with batches; each has its own scratch memory
WEIGHTS = "weights"  # the stage of the gradients of parameters, after these


PER_DOMAIN = ("rows", "inputs", "gradients", "saved", *STAGES)


def name_fields(n_domains: int, n_outputs: int) -> tuple[str, ...]:
    """Name all fields of the tiles of a type, in order.

    >>> name_fields(2, 1)[:6]
    ('start', 'shift', 'rows_n', 'rows_0', 'inputs_n', 'inputs_0')
    """
    per_domain = (f"{quantity}_{letter_of(NODE + domain)}" for quantity in PER_DOMAIN for domain in range(n_domains))
    return "start", "shift", *per_domain, "kept_n", *(f"output_{number}" for number in range(n_outputs)), "strip"


def field_of(location: Location, stage: str) -> str:
    """Name the field that holds the beginning of the rows of an area."""
    names = {Area.BATCH: stage, Area.PERSISTENT: "kept"}
    return f"{names.get(location.area, location.area)}_{letter_of(location.domain)}"


def letter_of(domain: int) -> str:
    """Return the suffix of a domain in names: `n` for nodes, or the number of a group of edges."""
    return "n" if domain == NODE else str(domain)
