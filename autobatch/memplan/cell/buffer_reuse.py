"""Buffer reuse inside a cell: gradients that the weight stage reads overwrite dead residuals.

Backward computes the gradients of a cell's gates from the gates, and the weight stage reads these gradients but not the
gates. Stored over the gates, they take no columns of their own, and go to cache lines that the kernel has just read.
This module finds the saved values that may be overwritten, and the values that take their columns. Backends that
reorder instructions keep each read of a value before the write that takes its columns (`autobatch.compiler.fusion`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from autobatch.ir.derivative import Derivative
from autobatch.ir.program import Incoming, Instruction
from autobatch.ops.elementwise import add


class Piece(NamedTuple):
    """Elements of a value from `offset` on that are computed together, at instruction `time` or later."""

    value: int
    offset: int
    size: int
    time: float


Offsets = Callable[[int], list[tuple[int, int | None]]]  # the parts of a join, with the offset of each that is a range


def find_heirs(derivative: Derivative, excluded: set[int], parts_of: Offsets) -> dict[int, tuple[int, int]]:
    """Find saved values of the program whose columns a saved value of the backward stage may take.

    Args:
        derivative: the derivative of a cell.
        excluded: values that share their columns already.
        parts_of: returns the parts of a join.

    Returns:
        For each such value, the value that takes its columns, and the first element of that value to lie there.

    Cost: linear in the instructions and their arguments, except for sorting.
    """
    finder = _Finder(derivative, parts_of)
    n_forward = len(derivative.program.vars)
    pieces: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
    ending: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for index in derivative.saved:
        var = derivative.vars[index]
        if index in excluded or not var.size:
            continue
        if index >= n_forward:
            for piece in finder.pieces(index):
                pieces[var.domain, piece.size].append(piece)
        elif finder.last_read(index) < math.inf:
            ending[var.domain, var.size].append((finder.last_read(index), index))
    found: dict[int, tuple[int, int]] = {}
    for group, values in ending.items():
        free = sorted(pieces[group], key=lambda piece: piece.time)
        for last, index in sorted(values):
            later = next((piece for piece in free if piece.time > last), None)
            if later is not None:
                free.remove(later)
                found[index] = later.value, later.offset
    return found


class _Finder:
    """Find when backward reads and writes values; times are instruction numbers."""

    def __init__(self, derivative: Derivative, parts_of: Offsets) -> None:
        self.derivative, self.vars, self.parts_of = derivative, derivative.vars, parts_of
        self.made = frozenset(derivative.backward)
        self.last: dict[int, float] = {}
        self.from_gradients: set[int] = set()
        sums: dict[int, float] = {}
        for index in reversed(derivative.backward):
            source = self.vars[index].source
            assert isinstance(source, Instruction), "stages run instructions"
            if source.op.view:
                continue
            time = sums.get(index, index) if source.op is add else index
            for arg in source.args:
                if source.op is add:  # a sum of several terms may be computed when the last of them is known
                    sums[arg] = max(sums.get(arg, 0), time)
                self._read(arg, time if _is_simple(source) else math.inf)
        for index in (*self._read_by_weights(), *derivative.roots):
            self._read(index, math.inf)
        for index in (*derivative.incoming, *derivative.backward):
            source = self.vars[index].source
            if isinstance(source, Incoming) or self.from_gradients.intersection(source_args(source)):
                self.from_gradients.add(index)

    def last_read(self, index: int) -> float:
        """Return the last instruction that reads a value; infinity if that instruction is not element-wise."""
        return self.last.get(index, math.inf)

    def pieces(self, index: int) -> list[Piece]:
        """Return the pieces of a value; none if its parts leave gaps of zeros, or if it is not a gradient."""
        var = self.vars[index]
        if index not in self.from_gradients or not isinstance(var.source, Instruction):
            return []
        parts = self.parts_of(index)
        if not parts:
            return [Piece(index, 0, var.size, index)]
        if sum(self.vars[part].size for part, _ in parts) < var.size:
            return []
        return [
            Piece(index, offset, self.vars[part].size, self._made(part, index))
            for part, offset in parts
            if offset is not None
        ]

    def _made(self, index: int, reader: int) -> float:
        """Return the first instruction that may write a part of a join to its place.

        A view of a backward value may be made there too. The join copies views of element-wise results and of other
        values.
        """
        seen = self._seen(index)
        source = self.vars[seen].source
        if seen != index and (seen not in self.made or not isinstance(source, Instruction) or _is_simple(source)):
            return reader
        if not isinstance(source, Instruction):
            return -1
        parts = self.parts_of(seen)
        return min((self._made(part, seen) for part, _ in parts), default=seen)

    def _read(self, index: int, time: float) -> None:
        index = self._seen(index)
        self.last[index] = max(self.last.get(index, -1), time)

    def _seen(self, index: int) -> int:
        source = self.vars[index].source
        while isinstance(source, Instruction) and source.op.view:
            index = source.args[0]
            source = self.vars[index].source
        return index

    def _read_by_weights(self) -> list[int]:
        return [arg for index in self.derivative.weights for arg in source_args(self.vars[index].source)]


def _is_simple(source: Instruction) -> bool:
    """Return whether an instruction runs as a loop over elements."""
    return source.op.scalar is not None and not source.op.random


def source_args(source: object) -> tuple[int, ...]:
    """Return the values that a source reads."""
    return source.args if isinstance(source, Instruction) else ()
