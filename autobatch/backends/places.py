"""Find where the values of a compiled stage lie in the arrays of a run, for every backend with compiled steps."""

from __future__ import annotations

from typing import NamedTuple

from autobatch.compiler.lowered import Area, Location
from autobatch.compiler.piece_table import column_of, letter_of
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.view import View
from autobatch.ir.program import NODE

DATA = (Area.INTS, Area.FLOATS)


class Place(NamedTuple):
    """Where a view of a value lies, in the rows of its domain.

    Attributes:
        area: the area of memory.
        domain: whose rows it has.
        column: the column of the table of pieces that holds where rows begin; of data, it says the first node.
        rows: the column that holds the number of rows.
        offset: elements from the beginning of a row.
        width: elements from one row to the next.
        shape, strides: of the view, in a row.
    """

    area: Area
    domain: int
    column: int
    rows: int
    offset: int
    width: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StagePlaces:
    """Finds the places of the values of a stage."""

    def __init__(self, stage: StageProgram) -> None:
        self._stage = stage

    def place(self, view: View) -> Place:
        """The place of a view."""
        stage = self._stage
        location, view = stage.storage.locate(view)
        column = "start" if location.area in DATA else column_of(location, stage.lowered.stage)
        rows = f"rows_{letter_of(location.domain)}"
        return Place(
            location.area, location.domain, stage.columns.index(column), stage.columns.index(rows),
            location.column + view.offset, self._width(location), view.shape, view.strides,
        )  # fmt: skip

    def _width(self, location: Location) -> int:
        cell, storage = self._stage.cell, self._stage.storage
        match location.area:
            case Area.INTS | Area.FLOATS:
                return cell.program.words(location.area is Area.FLOATS, location.domain)
            case Area.BATCH:
                return storage.batch_width[location.domain]
            case Area.PERSISTENT:
                return storage.persistent_width
            case Area.SAVED:
                return cell.layout.saved_width[location.domain - NODE]
        return cell.layout.input_width[location.domain - NODE]
