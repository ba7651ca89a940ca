"""Print the kernels of a stage as a module in LLVM IR, and list the arrays and numbers that they take.

A kernel loops over the rows of a tile. For each row it runs the loop nests of its blocks, one after the other, and
sends outputs to their readers. Sizes, columns and widths are constants of the text, so that LLVM knows the lengths of
loops, which cuts compile time by 33%. Numbers of the cell are arguments, in `descriptor`; row `k` of `table` describes
the tile. The slots of `memory` hold the addresses of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.assignment import Spot, is_number
from autobatch.compiler.fusion import Block, Kernel
from autobatch.compiler.llvm.nest import LlvmNest
from autobatch.compiler.llvm.scalars import Module, Pointer, Scalar
from autobatch.compiler.llvm.writer import LlvmWriter, Types
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram, list_steps
from autobatch.compiler.statement import Loop
from autobatch.compiler.view import View
from autobatch.compiler.writer import SLOTS, Common, is_step, letter_of
from autobatch.ir.program import NODE

INITIAL = {"sum": 0.0, "max": -math.inf}


@dataclass(eq=False)
class Source:
    """The name and the arguments of a kernel.

    Attributes:
        name: the name of the function in the module.
        numbers: the numbers that the kernel reads from `descriptor`.
        arrays: the arrays that it takes from `memory`.
    """

    name: str
    numbers: tuple[float, ...]
    arrays: tuple[str, ...]

    @cached_property
    def descriptor(self) -> NDArray[np.int64]:
        """Return the bits of the numbers as float64."""
        return np.array(self.numbers, np.float64).view(np.int64)


class StageSources:
    """A printed stage.

    Args:
        real: the name of the model's float type in NumPy.

    Attributes:
        kernels: for each step, its name and arguments; None if it is not a kernel.
        slots: the slots of the addresses of arrays that kernels take, by name.
    """

    def __init__(self, stage: StageProgram, real: str) -> None:
        self.stage, self.real = stage, real
        self.slots = {name: number for number, name in enumerate(SLOTS)}
        self._modules: dict[str, Module] = {}
        self.kernels = self._print("int32")

    def text(self, index_type: str) -> str:
        """Return the text of the module for a type of destinations, given by its NumPy name; "" without kernels."""
        if index_type not in self._modules:
            # Names, numbers and slots do not depend on the type, so only the module is new.
            self._print(index_type)
        return str(self._modules[index_type]) if any(self.kernels) else ""

    def _print(self, index_type: str) -> list[Source | None]:
        stage, module = self.stage, Module()
        common = Common(
            stage.lowered, stage.storage, stage.cell.layout, stage.fields, stage.cell.program.words, self.slots
        )
        types, self._modules[index_type] = Types(self.real, index_type), module
        return [
            _KernelWriter(common, number, step, module, types).write() if isinstance(step, Kernel) else None
            for number, step in enumerate(stage.steps)
        ]

    def __str__(self) -> str:
        functions = self._modules["int32"].functions
        texts = ["" if source is None else functions[source.name] for source in self.kernels]
        return list_steps(self.stage, texts)


class _KernelWriter(LlvmWriter):
    """The writer of one kernel."""

    def write(self) -> Source:
        """Write the function, and add it to the module.

        The body of the loop over rows is written first, because it determines the fields, addresses and numbers that
        the code before it must set.
        """
        code, body = self.code, list[str]()
        code.lines = body
        code.begin("body")
        for at, block in enumerate(self.kernel.blocks):
            self._write_block(Spot(self.number, at), block)
        self._write_ends()
        tail = code.label  # the block in which the body ends
        row_top = self._write_row_top()
        entry = self._write_entry()
        text = [
            f"define void @{self.name_of_kernel}(i64 %memory, i64 %descriptor, i64 %k) {{",
            "entry:",
            *entry,
            *self._before_rows,
            "  br label %rows",
            "rows:",
            f"  %r = phi i64 [0, %entry], [%r.next, %{tail}]",
            f"  %is_row = icmp slt i64 %r, %{self.n_rows}",
            "  br i1 %is_row, label %row, label %end",
            "row:",
            *row_top,
            "  br label %body",
            *body,
            "  %r.next = add nsw i64 %r, 1",
            "  br label %rows",
            "end:",
            "  ret void",
            "}",
        ]
        code.module.functions[self.name_of_kernel] = "\n".join(text)
        return Source(self.name_of_kernel, tuple(self.numbers), tuple(self._arrays))

    @property
    def name_of_kernel(self) -> str:
        return f"kernel_{self.number}"

    # Blocks.

    def _write_block(self, spot: Spot, block: Block) -> None:
        self.spot = spot
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == NODE:
                self._write_initial(loop)
        nest = LlvmNest(self, spot, block)
        with ExitStack() as edges:
            if block.domain != self.kernel.domain:
                self.groups.add(block.domain)
                letter = letter_of(block.domain)
                first, end = self.value(f"first_{letter}"), self.value(f"end_{letter}")
                self.indices["e"] = edges.enter_context(self.code.loop(end, first))
                for loop in block.loops:
                    if loop.combine and self._domain_of(loop) != NODE:
                        self._write_initial(loop)
            nest.write()
            self._keep_numbers(block, block.domain)
        if block.domain != NODE:
            self._keep_numbers(block, NODE)

    def _domain_of(self, loop: Loop) -> int:
        return self.lowered.domains[loop.target.value]

    def _write_initial(self, loop: Loop) -> None:
        initial = self.constant(INITIAL[loop.combine])
        if is_number(self.lowered, loop):
            self.write_variable(self.variable(loop.target.value), initial)
            return
        size = self.lowered.sizes[loop.target.value]
        array, first = self.address(View(loop.target.value, 0, (size,), (1,)))
        target = self.pointer(array).moved(self.value(first))
        with self.code.loop(self.value(self.size(size, loop.target.value))) as i:
            target.store(i, initial)

    def _keep_numbers(self, block: Block, domain: int) -> None:
        """Store each number that the block reduced for the rows of a domain, if it has memory."""
        for loop in block.loops:
            value = loop.target.value
            if (
                loop.combine
                and self._domain_of(loop) == domain
                and is_number(self.lowered, loop)
                and self.storage.has_memory(value)
            ):
                array, first = self.address(View(value, 0, (), ()))
                self.pointer(array).store(self.value(first), self.read_variable(self.variable(value)))

    # After the blocks of a row.

    def _write_ends(self) -> None:
        """Send outputs to their other destinations: stores first, because other outputs may be added to these."""
        numbers = [number for area, number in self.kernel.spares if area is Area.OUTPUT]
        for adds in (None,) if len(numbers) == 1 else (False, True):
            for number in numbers:
                self._send(number, adds)

    def _send(self, number: int, adds: bool | None) -> None:
        """Send an output to its destinations: if `adds` is None, to all; else to those that (do not) add it."""
        code, places, flags = self.code, self.pointer("dest"), self.pointer("adds")
        window = self.pointer(f"output_{number}_w")
        with code.loop(self.value(f"last_{number}"), self.value(f"next_{number}")) as j, ExitStack() as inside:
            flag = flags.load(j).differs(0)
            if adds is not None:
                inside.enter_context(code.when(flag if adds else flag.equals(0)))
            place = places.load(j).to("i64")
            for first, size in self.kernel.written(number):
                length = self.value(self.size(size, "sent", number, first))
                start = self.value(self.size(first, Area.OUTPUT, number, first))
                self.support.send(code, self.pointer("buffer"), window.moved(start), length, place + start, flag)

    # Before the loop over rows, and at the top of each row.

    def _write_row_top(self) -> list[str]:
        """Set the names of each row: addresses, edges, and the places of outputs and their gradients."""
        code, lines = self.code, list[str]()
        code.lines, code.label = lines, "row"
        for group in self.groups:
            self.field("start")
            self.arguments[f"segments_{group}"] = None
        for (area, number), (column, size) in self.kernel.spares.items():
            self.need_window(area, number)
            place = self.value(self.size(column, Area.ROW, NODE, column))
            self._write_window(area, number, place, self.value(self.size(size, area, number)))
        rest, code.lines = lines, []
        for name, text in self.tops.items():
            self.set(name, self.value(text))
        for group in self.walked:
            segments, row = self.pointer(f"segments_{group}"), self.value("start") + self.value("r")
            base = self.value(f"base_{group}")
            self.set(f"first_{group}", segments.load(row) - base)
            self.set(f"end_{group}", segments.load(row + 1) - base)
        return code.lines + rest

    def _write_window(self, area: Area, number: int, place: Scalar, size: Scalar) -> None:
        """Choose the place where an output's gradient is read, or where an output is written.

        A gradient with one destination is read there; an output is written directly to its first destination if
        `Support.may_store` allows it. Otherwise both use the scratch row.
        """
        code, ptr, places = self.code, self.pointer("ptr"), self.pointer("dest")
        row = self.value(f"output_{number}") + self.value("r")
        first, last = ptr.load(row), ptr.load(row + 1)
        if area is Area.OUTPUT:
            self.set(f"last_{number}", last)
            # `set` has renamed the result of the load.
            last = self.value(f"last_{number}")
        spare = self.pointer("scratch").moved(place)
        spare = Pointer(code, self.real_type, spare.text)
        name = f"gather_{number}" if area is Area.GATHER else f"output_{number}_w"
        direct, other, after = (f"{word}_{area}_{number}" for word in ("direct", "spare", "after"))
        if area is Area.GATHER:
            code.branch((last - first).equals(1), direct, other)
        else:
            code.branch(self.support.may_store(code, self.pointer("adds"), first, last), direct, other)
        code.begin(direct)
        found = places.load(first).to("i64")
        if area is Area.GATHER:
            found = found + self.value("shift")
        there = self.pointer("buffer").moved(found)
        following = first + 1
        code.jump(after)
        code.begin(other)
        if area is Area.GATHER:
            shift = self.value("shift")
            self.support.collect(code, self.pointer("buffer"), spare, size, places, first, last, shift)
        code.jump(after)
        code.begin(after)
        code.line(f"%{name} = phi ptr [{there.text}, %{direct}], [{spare.text}, %{other}]")
        if area is Area.OUTPUT:
            code.line(f"%next_{number} = phi i64 [{following.text}, %{direct}], [{first.text}, %{other}]")

    def _write_entry(self) -> list[str]:
        """Set the names for the whole kernel: addresses of arrays, numbers and fields of the tile."""
        code, lines = self.code, list[str]()
        code.lines = lines
        for name in self.variables.values():
            code.line(f"%{name} = alloca {self.real_type}")
        slots = self._address("memory", "i64")
        for name in self._arrays:
            slot = slots.moved(code.number("i64", self.slot(name)))
            code.line(f"%{name} = load {'i64' if is_step(name) else 'ptr'}, ptr {slot.text}")
        if self.numbers:
            numbers = self._address("descriptor", "double")
            for number in range(len(self.numbers)):
                self.set(f"c{number}", numbers.load(code.number("i64", number)).to(self.real_type))
        tile = self.value("k") * len(self.fields)
        for name in dict.fromkeys((*self.used, self.n_rows)):
            self.set(name, self.pointer("table").load(tile + self.fields.index(name)))
        for group in sorted(self.groups):
            self.set(f"base_{group}", self.pointer(f"segments_{group}").load(self.value("start")))
        return lines

    @property
    def _arrays(self) -> Sequence[str]:
        """List the arrays that the kernel takes, in the order of their slots."""
        return sorted({**self.arguments, "table": None}, key=self.slot)

    def _address(self, name: str, element: str) -> Pointer:
        """Convert an int argument to an address."""
        return Pointer(self.code, element, self.code.emit(f"inttoptr i64 %{name} to ptr", "ptr").text)
