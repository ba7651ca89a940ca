"""Find where the values of a compiled stage lie in the arrays of a run, for every backend with compiled steps."""

from __future__ import annotations

from typing import NamedTuple

from autobatch.compiler.lowered import Area, Home
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
        home, view = stage.storage.home(view)
        column = "start" if home.area in DATA else column_of(home, stage.lowered.stage)
        rows = f"rows_{letter_of(home.domain)}"
        return Place(
            home.area, home.domain, stage.columns.index(column), stage.columns.index(rows), home.column + view.offset,
            self._width(home), view.shape, view.strides,
        )  # fmt: skip

    def _width(self, home: Home) -> int:
        cell, storage = self._stage.cell, self._stage.storage
        match home.area:
            case Area.INTS | Area.FLOATS:
                return cell.program.words(home.area is Area.FLOATS, home.domain)
            case Area.BATCH:
                return storage.batch_width[home.domain]
            case Area.PERSISTENT:
                return storage.persistent_width
            case Area.SAVED:
                return cell.layout.saved_width[home.domain - NODE]
        return cell.layout.input_width[home.domain - NODE]
