"""Cache cell layouts in memory; cells that differ only in parameters share one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from autobatch.ir.program import Attribute, CellProgram, Constant, Instruction, Port, Var
from autobatch.memplan.cell.fitting import ROWS
from autobatch.memplan.cell.layout import CellLayout, plan_cell
from autobatch.memplan.cell.memory import ProgramMemory

_NO_PROGRAM = ProgramMemory(CellProgram("", (), ()))  # cached layouts hold no parameters
_known: dict[Hashable, CellLayout] = {}


def lay_out(program: CellProgram, rows: int = ROWS) -> CellLayout:
    """Return the layout of a program, shared by programs that differ only in parameters and names.

    A layout refers to values by number, so it holds for every program with the same ops, arguments and shapes. The
    reasons of copies name values, so for a layout with copies the names must match too.

    Cost: that of `plan_cell` for a new form of program, else linear in its values.
    """
    form = (rows, program.outputs, program.ties, *(_form(var) for var in program.vars))
    named = (program.name, form, *(getattr(var.source, "name", None) for var in program.vars))
    layout = _known.get(form) or _known.get(named)
    if layout is None:
        layout = plan_cell(program, rows)
        _known[named if layout.copies or layout.apart else form] = replace(layout, memory=_NO_PROGRAM)
    return replace(layout, memory=ProgramMemory(program))


def _form(var: Var) -> Hashable:
    """Return a key of everything about a value that a layout depends on."""
    match var.source:
        case Instruction(op, args, static):
            source: Hashable = op, args, repr(sorted(static.items()))
        case Port(number=number):
            source = number
        case Attribute(is_float=is_float, column=column):
            source = is_float, column
        case Constant(data) if np.ndim(data) == 0:
            source = np.asarray(data).item()
        case _:
            source = None
    return type(var.source), source, var.shape, var.domain
