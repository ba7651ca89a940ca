"""Memory planning: decide where every value of a mini-batch lives."""

from __future__ import annotations

from autobatch.memplan.cell.layout import CellLayout, plan_cell
from autobatch.memplan.cell.layout_check import check_cell_layout
from autobatch.memplan.pqtree.tree import PQTree

__all__ = ["CellLayout", "PQTree", "check_cell_layout", "plan_cell"]
