"""Check the content of a file before making cells from it: names, sizes, op options and all programs.

A file holds no code, but its content reaches code: names become attributes of classes, sizes become shapes, and options
go to kernels. Programs get the same checks as traced ones, and each op is run once on zeros.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from autobatch.arguments import RAW, is_int, kinds_of, show
from autobatch.errors import CheckpointError
from autobatch.ir.program import Attribute, CellProgram, Instruction, Port
from autobatch.ir.program_check import check_cell
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments

MOST_NUMBERS = 2**31  # in the value of one node
MOST_TRIED = 2**20  # largest total size of the values of an op that is run on zeros
CALL = "__call__"


def check_name(name: Any, what: str, taken: Collection[str] = ()) -> None:
    """Raise a CheckpointError for a name with a special meaning in Python or modules, such as `__del__`.

    Args:
        what: subject of the error message, such as "a cell".
        taken: attribute names of modules.
    """
    if not isinstance(name, str):
        raise CheckpointError(f"the name of {what} must be a str, got {show(name)}.")
    is_special = name.startswith("__") and name.endswith("__") and name != CALL
    if is_special or name in taken:
        raise CheckpointError(f"the name of {what} must not be reserved, got {name!r}.")


def check_program(program: CellProgram) -> None:
    """Raise an error for a program that tracing a cell cannot produce.

    Raises:
        CheckpointError: a size, name or option is invalid, or an op rejects its options.
        GraphError: as for `check_cell`.
    """
    for index, var in enumerate(program.vars):
        sizes_are_ints = all(is_int(size) and 0 <= size < MOST_NUMBERS for size in var.shape)
        if not sizes_are_ints or not is_int(var.domain) or math.prod(var.shape) >= MOST_NUMBERS:
            raise _refused(program, index, f"has the invalid shape {show(var.shape)}")
        source = var.source
        if isinstance(source, (Port, Attribute)):
            for name, wanted in kinds_of(Port if isinstance(source, Port) else Attribute).items():
                if not wanted.kind.holds(getattr(source, name)):
                    raise _refused(program, index, f"has the invalid {name} {show(getattr(source, name))}")
        if isinstance(source, Instruction) and not all(map(is_int, source.args)):
            raise _refused(program, index, f"reads the invalid values {show(source.args)}")
    if not all(is_int(x) for x in (*program.outputs, *(group for tie in program.ties for group in tie))):
        raise CheckpointError(f"the outputs of cell {program.name!r} must be ints, got {show(program.outputs)}.")
    check_cell(program)
    for index, var in enumerate(program.vars):
        if isinstance(var.source, Instruction):
            _try(program, index, var.source)


def _refused(program: CellProgram, index: int, fault: str) -> CheckpointError:
    return CheckpointError(f"malformed program: value {index} of {program.name!r} {fault}; export the model again.")


def _try(program: CellProgram, index: int, source: Instruction) -> None:
    """Run an op once on zeros, because shape rules do not check all options that its kernel relies on."""
    op, static = source.op, dict(source.static)
    vars = [program.vars[arg] for arg in (*source.args, index)]
    if sum(math.prod(var.shape) for var in vars) > MOST_TRIED or op.segments == "move" or op.sums_rows:
        return
    n = 1 if op.least is None else max(1, op.least(**static))  # the smallest number of rows that the op takes
    *arrays, out = [np.zeros((1 if var.domain < 0 else n, *var.shape)) for var in vars]
    if op.index_axis is not None:
        arrays[1] = arrays[1].astype(np.int64)
    if op.random:
        static["random"] = Randomness()
    if op.segments is not None:
        one = Segments(np.array([0, n]))
        of_each = [one if var.domain >= 0 else None for var in vars]
        static["segments"] = {"choose": of_each, "pairs": (one, one)}.get(op.segments, one)
    try:
        with np.errstate(all="ignore"):
            if op.view:
                op.kernel(np, arrays[0], **static)
            else:
                run_kernel(op, np, arrays, out, static)
    except RAW as error:
        raise _refused(program, index, f"applies {op.name!r} with options that it rejects ({error})") from error


def check_outputs(structure: Any, n_outputs: int) -> None:
    """Raise a CheckpointError for a result structure that refers to missing outputs of a program."""
    if isinstance(structure, bool) or (isinstance(structure, int) and not 0 <= structure < n_outputs):
        raise CheckpointError(f"a result must be one of {n_outputs} outputs, got {structure}.")
    for part in structure if isinstance(structure, tuple) else getattr(structure, "children", ()):
        check_outputs(part, n_outputs)
