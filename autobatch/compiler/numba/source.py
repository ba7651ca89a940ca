"""A kernel as source: Python that Numba compiles, and that runs as it is, slowly, for tests.

    for r in range(rows_n):              # rows of the batch
        x1 = part(buffer, inputs_n + 16, s2)   # one name for each range that a loop reads or writes
        for i in range(s2):              # a block
            v7 = tanh(x1[i])
            x2[i] = v7

Sizes, columns and widths are not in the source but in `sizes`, so that one source serves every width of a model; a
batch is row `k` of `table`. Arrays come by their addresses, listed in the slots of `memory`. Numbers have the model's
float type (`real`), or the whole expression would be widened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autobatch.compiler.fusing import Block, Kernel
from autobatch.compiler.loop import Loop
from autobatch.compiler.lowering import Home, Lowered
from autobatch.compiler.nest import Nest, add, multiply
from autobatch.compiler.storing import Spot, Storage, is_number
from autobatch.compiler.view import View
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED

ARRAYS = {
    "inputs": "buffer", "mirror": "buffer", "saved": "buffer",
    "scratch": "scratch", "kept": "kept", "row": "scratch", "shared": "shared", "ints": "ints", "floats": "floats",
}  # fmt: skip
STAGES = ("forward", "backward")  # each has scratch memory of its own
SLOTS = {
    "buffer": "real", "scratch": "real", "kept": "real", "ptr": "int64", "dest": "place", "adds": "bool_",
    "shared": "real", "table": "int64", "ints": "int32", "floats": "float64",
}  # fmt: skip
"""The first slots of the memory of a stage: arrays and their types. Edges of groups and tables of rows follow."""
COMMON = ("buffer", "scratch", "kept", "ptr", "dest", "adds")  # the first slots, the same for all types
INITIAL = {"+": 0.0, "max": -math.inf}


@dataclass(eq=False)
class Source:
    """A kernel's source, and the numbers that it leaves out.

    Attributes:
        text: of a module with a function `kernel`.
        sizes: its own numbers.
        arrays: those that it takes from memory.
    """

    text: str
    sizes: tuple[int, ...]
    arrays: tuple[str, ...]


def columns_of(layout: Layout, n_outputs: int) -> tuple[str, ...]:
    """The columns of the table that says where the rows of each batch are."""
    domains = [letter_of(d) for d in range(NODE, len(layout.input_width) - 1)]
    areas = [f"{area}_{domain}" for area in ("rows", "inputs", "mirror", "saved", *STAGES) for domain in domains]
    return ("start", "shift", *areas, "kept_n", *(f"output_{number}" for number in range(n_outputs)))


def letter_of(domain: int) -> str:
    """`n` for nodes, or the number of a group of edges."""
    return "n" if domain == NODE else str(domain)


def is_step(name: str) -> bool:
    """Whether a slot holds the elements from one row of a table to the next, and no address."""
    return name.startswith("step_")


def type_of(array: str) -> str:
    """The type of the elements of an array, as sources name it."""
    return SLOTS.get(array, "int64" if array.startswith("segments") else "real")


def write_kernel(
    lowered: Lowered,
    storage: Storage,
    number: int,
    kernel: Kernel,
    layout: Layout,
    columns: tuple[str, ...],
    words: tuple[int, int],
    slots: dict[str, int],
) -> Source:
    """Write the source of a kernel.

    Args:
        number: of the kernel among the steps of its stage.
        columns: of the table.
        words: ints and floats of data per node.
        slots: of the memory of the stage; those that the kernel needs beside them are added.
    """
    return Writer(lowered, storage, number, kernel, layout, columns, words, slots).write()


class Writer:
    """Writes one kernel."""

    def __init__(
        self, lowered: Lowered, storage: Storage, number: int, kernel: Kernel, layout: Layout, columns: tuple[str, ...],
        words: tuple[int, int], slots: dict[str, int],
    ) -> None:  # fmt: skip
        self.lowered, self.storage, self.number, self.kernel = lowered, storage, number, kernel
        self.layout, self.columns, self.words, self.slots = layout, columns, words, slots
        self.sizes: dict[int, str] = {}
        self.numbers: dict[str, str] = {}
        self.used: dict[str, None] = {}  # columns of the table
        self.arguments: dict[str, None] = {}
        self.tops: dict[str, str] = {}  # names set once per row
        self.shared: dict[str, str] = {}  # names set once
        self.groups: set[int] = set()
        self.lines: list[str] = []
        self.indent = 2
        self.n_names = 0

    def write(self) -> Source:
        """The whole module."""
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
        lines = [*head, *prologue, "    for r in range(rows_n):", *row_top, *body, *ends]
        return Source("\n".join(lines) + "\n", tuple(self.sizes), tuple(arrays))

    def slot(self, name: str) -> int:
        """Where the address of an array is."""
        return self.slots.setdefault(name, len(self.slots))

    def _slot_read(self, name: str) -> str:
        """What a slot holds: a number, or the address of an array."""
        slot = f"slots[{self.slot(name)}]"
        return slot if is_step(name) else f"array_at({slot}, {type_of(name)})"

    # Names.

    def size(self, number: int) -> str:
        """A size, column or width; 0 and 1 are written as they are."""
        if number in (0, 1):
            return str(number)
        if number < 0:
            return f"-{self.size(-number)}" if number != -1 else "-1"
        return self.sizes.setdefault(number, f"s{len(self.sizes)}")

    def real(self, data: float) -> str:
        """A number of the model's float type."""
        literal = "inf" if data == math.inf else "-inf" if data == -math.inf else "nan" if data != data else repr(data)
        return self.numbers.setdefault(literal, f"c{len(self.numbers)}")

    def column(self, name: str) -> str:
        """A column of the table."""
        self.used[name] = None
        return name

    def name(self) -> str:
        """A new name of a range."""
        self.n_names += 1
        return f"x{self.n_names}"

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """Add a compound statement."""
        self.line(head)
        self.indent += 1
        yield
        self.indent -= 1

    # Addresses.

    def address(self, operand: View, moved: str = "") -> tuple[str, str]:
        """The array that a view is in, and where it begins there."""
        home, view = self.storage.home(operand) if operand.value not in self.storage.shared else self._shared(operand)
        terms = [self.row_of(home), self.size(home.column + view.offset), moved]
        if home.area in ("gather", "output"):
            name = f"{home.area}_{home.domain}"
            self.need_window(home.area, home.domain)
            return name, add([self.size(view.offset), moved])
        self.arguments[ARRAYS[home.area]] = None
        return ARRAYS[home.area], add(terms)

    def _shared(self, view: View) -> tuple[Home, View]:
        return Home("shared", SHARED, self.storage.shared[view.value]), view

    def row_of(self, home: Home) -> str:
        """Where the row of an area begins."""
        area, domain = home.area, home.domain
        if area in ("row", "shared", "gather", "output"):
            return ""
        if area in ("ints", "floats"):
            words = self.size(self.words[0 if area == "ints" else 1])
            self.tops[f"{area}_r"] = multiply(f"({self.column('start')} + r)", words)
            return f"{area}_r"
        letter = letter_of(domain)
        base = self.column(f"{self.lowered.stage if area == 'scratch' else area}_{letter}")
        width = self.size(self._width(area, domain))
        if domain != NODE:
            self.groups.add(domain)
            return add([base, multiply("e", width)])
        self.tops[f"{base}_r"] = add([base, multiply("r", width)])
        return f"{base}_r"

    def _width(self, area: str, domain: int) -> int:
        if area in ("scratch", "kept"):
            return self.storage.kept_width if area == "kept" else self.storage.scratch_width[domain]
        widths = self.layout.saved_width if area == "saved" else self.layout.input_width
        return widths[domain - NODE]

    def need_window(self, area: str, number: int) -> None:
        self.arguments.update(dict.fromkeys(("buffer", "scratch", "ptr", "dest")))
        self.column(f"output_{number}")
        if area == "gather":
            self.column("shift")
        else:
            self.arguments["adds"] = None

    # Blocks.

    def _write_block(self, spot: Spot, block: Block) -> None:
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == NODE:
                self._write_initial(loop)
        if block.domain == NODE:
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
        """What sums and largest elements begin with."""
        initial = self.real(INITIAL[loop.combine])
        if is_number(self.lowered, loop):
            self.line(f"v{loop.target.value} = {initial}")
            return
        size = self.lowered.sizes[loop.target.value]
        array, first = self.address(View(loop.target.value, 0, (size,), (1,)))
        name = self._part(array, first, self.size(size))
        with self.inside(f"for i in range({self.size(size)}):"):
            self.line(f"{name}[i] = {initial}")

    def _write_rows(self, spot: Spot, block: Block) -> None:
        """The loop nest of a block."""
        nest = Nest(self, spot, block)
        texts = [nest.statement(loop) for loop in block.loops]
        for line in nest.before:
            self.line(line)
        depth = 0
        for axis, size in enumerate(block.axes):
            last = axis == len(block.axes) - 1
            self.line(f"for {'i' if last else f'i{axis}'} in range({self.size(size)}):")
            self.indent += 1
            depth += 1
        for line in nest.scoped([line for lines in texts for line in lines]):
            self.line(line)
        self.indent -= depth
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == block.domain:
                self._keep_number(spot, loop)

    def _keep_number(self, spot: Spot, loop: Loop) -> None:
        """Write what was combined into one number to its place, if it has one."""
        value = loop.target.value
        if is_number(self.lowered, loop) and (value in self.storage.homes or value in self.storage.aliases):
            array, first = self.address(View(value, 0, (), ()))
            self.line(f"{array}[{first}] = v{value}")

    def _part(self, array: str, first: str, size: str) -> str:
        name = self.name()
        self.line(f"{name} = part({array}, {first}, {size})")
        return name

    # Before and after the blocks.

    def _write_tops(self) -> tuple[list[str], list[str]]:
        for _, (column, size) in self.kernel.spares.items():
            self.size(column), self.size(size)
        for area, number in self.kernel.spares:
            self.need_window(area, number)
        for group in self.groups:
            self.column("start")
            self.arguments[f"segments_{group}"] = None
        row: list[str] = [f"        {name} = {text}" for name, text in self.tops.items()]
        for group in sorted(self.groups):
            row += [
                f"        first_{group} = segments_{group}[start + r] - base_{group}",
                f"        end_{group} = segments_{group}[start + r + 1] - base_{group}",
                f"        edges_{group} = end_{group} - first_{group}",
            ]
        for (area, number), (column, size) in self.kernel.spares.items():
            row += _window_lines(area, number, self.size(column), self.size(size))
        top = [f"    {name} = sizes[{k}]" for k, name in enumerate(self.sizes.values())]
        top.append(f"    at = k * {len(self.columns)}")
        top += [
            f"    {name} = table[at + {self.columns.index(name)}]" for name in dict.fromkeys((*self.used, "rows_n"))
        ]
        top += [f"    {name} = real({_literal(literal)})" for literal, name in self.numbers.items()]
        top += [f"    base_{group} = segments_{group}[start]" for group in sorted(self.groups)]
        top += [f"    {name} = {text}" for name, text in self.shared.items()]
        return top, row

    def _write_ends(self) -> list[str]:
        """Outputs that have more than one destination: what is stored first, for other outputs may be added to it."""
        numbers = [number for area, number in self.kernel.spares if area == "output"]
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
        """What a kernel makes of an output: where it is, its size, and where it goes."""
        found = []
        for first, size in self.kernel.written(number):
            window, place, length = f"output_{number}_w", "dest[j]", self.size(size)
            if first:
                window, place = f"part({window}, {self.size(first)}, {length})", f"{place} + {self.size(first)}"
            found.append(f"{window}, {length}, {place}")
        return found


def _window_lines(area: str, number: int, column: str, size: str) -> list[str]:
    """Where the gradient of an output is read, or an output written: at its only or first place, if it can be."""
    head = [
        f"        next_{number} = ptr[output_{number} + r]",
        f"        last_{number} = ptr[output_{number} + r + 1]",
    ]
    if area == "gather":
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
