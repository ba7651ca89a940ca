"""Keep cell layouts in the user's cache for other processes (`autobatch.system.cache`).

The key of an entry covers the program and the planner's source, so a changed planner lays out anew. A layout that is
read is checked like a new one (`layout_check`), because an invalid layout computes wrong numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from autobatch.errors import PlanError
from autobatch.ir.program import CellProgram, Instruction
from autobatch.memplan.cell.layout import CellLayout, Copy, InnerBatch
from autobatch.memplan.cell.layout_check import check_cell_layout
from autobatch.memplan.cell.memory import Item, Memory
from autobatch.system.cache import UNREADABLE, find_entry, keep_entry
from autobatch.system.files import write_whole

FORMAT = "autobatch layout 2"
LEAST_WORK = 2_000  # below this, about 5 ms, a layout is not written


def find_layout(program: CellProgram, rows: int) -> CellLayout | None:
    """Read the layout of a program; None if there is none, or, with a warning, if it cannot be read."""
    return find_entry("layouts", _sign(program, rows), partial(_load, program))


def keep_layout(layout: CellLayout, rows: int) -> None:
    """Write a layout that took at least `LEAST_WORK`."""
    if layout.work >= LEAST_WORK:
        content = json.dumps({"format": FORMAT, **_to_plain(layout)}).encode()
        keep_entry("layouts", _sign(layout.memory.program, rows), lambda path: write_whole(path, content))


def _sign(program: CellProgram, rows: int) -> str:
    """Make the key of a layout; it covers the names of values, which the reasons of copies use."""
    memory = Memory(program)
    ops = [s.op for v in program.vars if isinstance(s := v.source, Instruction)]
    of_ops = [(op.name, op.view, op.copies) for op in ops]
    values = [(var.shape, memory.area_of(at)) for at, var in enumerate(program.vars)]
    parts = (FORMAT, _planner(), rows, str(program), program.ties, values, memory.reads, of_ops)
    return sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def _planner() -> str:
    """A digest of the source files that make layouts."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _to_plain(layout: CellLayout) -> dict[str, Any]:
    batches = [[b.values, b.is_product, sorted(b.views.items())] for b in layout.batches]
    joins = sorted(layout.joins)
    plain = {"batches": batches, "areas": layout.areas, "joins": joins, "copies": layout.copies, "apart": layout.apart}
    return {**plain, "work": layout.work}


def _load(program: CellProgram, path: Path) -> CellLayout:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        layout = _from_plain(program, content)
        check_cell_layout(layout)
    except (*UNREADABLE, PlanError) as error:
        raise PlanError(f"reading a layout from {str(path)!r}: {error!r}; delete it.") from error
    return layout


def _from_plain(program: CellProgram, content: dict[str, Any]) -> CellLayout:
    return CellLayout(
        Memory(program),
        tuple(InnerBatch(tuple(values), is_product, dict(views)) for values, is_product, views in content["batches"]),
        {area: tuple(Item(*item) for item in items) for area, items in content["areas"].items()},
        frozenset(content["joins"]),
        _read_copies(content["copies"]),
        _read_copies(content["apart"]),
        content["work"],
    )


def _read_copies(copies: Sequence[Any]) -> tuple[Copy, ...]:
    return tuple(Copy(what, tuple(values), area, elements, reason) for what, values, area, elements, reason in copies)
