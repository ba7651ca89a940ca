"""Print a kernel as source: Python that Numba compiles, and that tests run as it is, slowly.

    for r in range(rows_n):              # rows of the batch
        x1 = part(buffer, inputs_n + 16, s2)   # one name for each range that a loop reads or writes
        for i in range(s2):              # a block
            v7 = tanh(x1[i])
            x2[i] = v7

Sizes, columns and widths are arguments (`sizes`), so that one source serves every width of a model; row `k` of `table`
describes the batch. The slots of `memory` hold the addresses of arrays. Constants have the model's float type (`real`),
because a wider one would widen the whole expression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.assignment import Spot, is_number
from autobatch.compiler.fusion import Block, Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.numba.nest import NumbaNest
from autobatch.compiler.statement import Loop
from autobatch.compiler.tiles import letter_of
from autobatch.compiler.view import View
from autobatch.compiler.writer import Common, Writer
from autobatch.ir.program import NODE

INITIAL = {"sum": 0.0, "max": -math.inf}


@dataclass(eq=False)
class Source:
    """A kernel's source and arguments.

    Attributes:
        text: the text of a module with a function `kernel`.
        sizes: the sizes that the text leaves out.
        numbers: the other numbers that it leaves out.
        arrays: the arrays that it takes from `memory`.
    """

    text: str
    sizes: tuple[int, ...]
    numbers: tuple[float, ...]
    arrays: tuple[str, ...]

    @cached_property
    def own(self) -> NDArray[np.int64]:
        """The sizes, and the bits of the other numbers."""
        return np.concatenate((np.array(self.sizes, np.int64), np.array(self.numbers, np.float64).view(np.int64)))


def write_kernel(common: Common, number: int, kernel: Kernel) -> Source:
    """Write the source of a kernel, which is step `number` of its stage."""
    return _KernelWriter(common, number, kernel).write()


class _KernelWriter(Writer):
    """Writes one kernel."""

    def write(self) -> Source:
        """Write the whole module."""
        body: list[str] = []
        for at, block in enumerate(self.kernel.blocks):
            self.lines = []
            self._write_block(Spot(self.number, at), block)
            body += self.lines
        self.lines = []
        ends = self._write_ends()
        prologue, row_top = self._write_tops()
        head = ["def kernel(memory, own, k):", "    slots = array_at(memory, int64)"]
        arrays = sorted({**self.arguments, "table": None}, key=self.slot)
        head += [f"    {name} = {self._slot_read(name)}" for name in arrays]
        head += ["    sizes = array_at(own, int64)"] if self.sizes else []
        head += ["    numbers = array_at(own, float64)"] if self.numbers else []
        lines = [*head, *prologue, f"    for r in range({self.n_rows}):", *row_top, *body, *ends]
        sizes, numbers = tuple(number for _, number in self.sizes.values()), tuple(self.numbers)
        return Source("\n".join(lines) + "\n", sizes, numbers, tuple(arrays))

    # Blocks.

    def _write_block(self, spot: Spot, block: Block) -> None:
        self.spot = spot
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == NODE:
                self._write_initial(loop)
        if block.domain == self.kernel.domain:
            self._write_rows(spot, block)
        else:
            self.groups.add(block.domain)
            letter = letter_of(block.domain)
            with self.inside(f"for e in range(first_{letter}, end_{letter}):"):
                for loop in block.loops:
                    if loop.combine and self._domain_of(loop) != NODE:
                        self._write_initial(loop)
                self._write_rows(spot, block)
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == NODE and block.domain != NODE:
                self._keep_number(spot, loop)

    def _domain_of(self, loop: Loop) -> int:
        return self.lowered.domains[loop.target.value]

    def _write_initial(self, loop: Loop) -> None:
        """Write the initial value of a sum or a maximum."""
        initial = self.real(INITIAL[loop.combine])
        if is_number(self.lowered, loop):
            self.line(f"{self.variable(loop.target.value)} = {initial}")
            return
        size = self.lowered.sizes[loop.target.value]
        array, first = self.address(View(loop.target.value, 0, (size,), (1,)))
        length = self.size(size, loop.target.value)
        name = self._part(array, first, length)
        with self.inside(f"for i in range({length}):"):
            self.line(f"{name}[i] = {initial}")

    def _write_rows(self, spot: Spot, block: Block) -> None:
        """Write the loop nest of a block."""
        nest = NumbaNest(self, spot, block)
        lines = nest.statements()
        for line in nest.before:
            self.line(line)
        depth = 0
        for axis, size in enumerate(block.axes):
            last = axis == len(block.axes) - 1
            self.line(f"for {'i' if last else f'i{axis}'} in range({self.size(size, spot, axis)}):")
            self.indent += 1
            depth += 1
        for line in lines:
            self.line(line)
        self.indent -= depth
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == block.domain:
                self._keep_number(spot, loop)

    def _keep_number(self, spot: Spot, loop: Loop) -> None:
        """Write the line that stores a reduced number in its place, if it has one."""
        value = loop.target.value
        if is_number(self.lowered, loop) and self.storage.has_memory(value):
            array, first = self.address(View(value, 0, (), ()))
            self.line(f"{array}[{first}] = {self.variable(value)}")

    def _part(self, array: str, first: str, size: str) -> str:
        name = self.name()
        self.line(f"{name} = part({array}, {first}, {size})")
        return name

    # Before and after the blocks.

    def _write_tops(self) -> tuple[list[str], list[str]]:
        windows = []
        for (area, number), (column, size) in self.kernel.spares.items():
            self.need_window(area, number)
            place = self.size(column, Area.ROW, NODE, column)
            windows += _window_lines(area, number, place, self.size(size, area, number))
        for group in self.groups:
            self.field("start")
            self.arguments[f"segments_{group}"] = None
        row: list[str] = [f"        {name} = {text}" for name, text in self.tops.items()]
        for group in self.walked:
            row += [
                f"        first_{group} = segments_{group}[start + r] - base_{group}",
                f"        end_{group} = segments_{group}[start + r + 1] - base_{group}",
            ]
        row += windows
        top = [f"    {name} = sizes[{k}]" for k, (name, _) in enumerate(self.sizes.values())]
        top.append(f"    at = k * {len(self.fields)}")
        top += [
            f"    {name} = table[at + {self.fields.index(name)}]" for name in dict.fromkeys((*self.used, self.n_rows))
        ]
        top += [f"    {name} = real({_literal(literal)})" for literal, name in self.literals.items()]
        names = [f"c{k}" for k in range(len(self.numbers))]
        top += [f"    {name} = real(numbers[{k}])" for k, name in enumerate(names, len(self.sizes))]
        top += [f"    base_{group} = segments_{group}[start]" for group in sorted(self.groups)]
        top += [f"    {name} = {text}" for name, text in self.shared.items()]
        return top, row

    def _write_ends(self) -> list[str]:
        """Send outputs to their other destinations: stores first, because other outputs may be added to these."""
        numbers = [number for area, number in self.kernel.spares if area is Area.OUTPUT]
        passes = [""] if len(numbers) == 1 else ["if not adds[j]:", "if adds[j]:"]
        lines: list[str] = []
        for condition in passes:
            for number in numbers:
                lines.append(f"        for j in range(next_{number}, last_{number}):")
                lines += [f"            {condition}"] if condition else []
                indent = " " * (16 if condition else 12)
                lines += [f"{indent}send(buffer, {sent}, adds[j])" for sent in self._sent(number)]
        return lines

    def _sent(self, number: int) -> list[str]:
        """The ranges of an output that the kernel makes: source, size and destination of each."""
        found = []
        for first, size in self.kernel.written(number):
            window, place, length = f"output_{number}_w", "dest[j]", self.size(size, "sent", number, first)
            if first:
                start = self.size(first, Area.OUTPUT, number, first)
                window, place = f"part({window}, {start}, {length})", f"{place} + {start}"
            found.append(f"{window}, {length}, {place}")
        return found


def _window_lines(area: Area, number: int, column: str, size: str) -> list[str]:
    """Lines that choose where an output's gradient is read or an output is written.

    A gradient with one destination is read there; an output is written directly to its first destination if that is
    allowed. Otherwise both use the scratch row.
    """
    head = [
        f"        next_{number} = ptr[output_{number} + r]",
        f"        last_{number} = ptr[output_{number} + r + 1]",
    ]
    if area is Area.GATHER:
        return [
            *head,
            f"        if last_{number} - next_{number} == 1:",
            f"            gather_{number} = part(buffer, dest[next_{number}] + shift, {size})",
            "        else:",
            f"            gather_{number} = part(scratch, {column}, {size})",
            f"            collect(buffer, gather_{number}, {size}, dest, next_{number}, last_{number}, shift)",
        ]
    return [
        *head,
        f"        if may_store(adds, next_{number}, last_{number}):",
        f"            output_{number}_w = part(buffer, dest[next_{number}], {size})",
        f"            next_{number} += 1",
        "        else:",
        f"            output_{number}_w = part(scratch, {column}, {size})",
    ]


def _literal(literal: str) -> str:
    return {"inf": "INF", "-inf": "-INF", "nan": "NAN"}.get(literal, literal)
