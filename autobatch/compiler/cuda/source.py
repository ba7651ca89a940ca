"""Print the kernels of a stage as CUDA C++, and the text of their module.

    for (int64 r = team.first; r < rows_n; r += team.step) { // rows of the batch, one per team of threads
        for (int i = team.lane; i < s2; i += team.size) {    // a block: its indices are dealt out to the threads
            v7 = tanh(buffer[inputs_n_r + i]);
            row[s3 + i] = v7;
        }
        team.sync();                                         // only where a thread reads what another one wrote

A kernel is a function that all blocks of a launch call together (`sweep.cuh`). It takes the address of the slots of its
stage's memory, the address of its descriptor, the number of the tile that describes the batch, and the number of
threads that work on a row. Sizes, columns and widths are in the descriptor, so that one source serves every width of a
model. The name is a digest of the text, so that equal kernels are compiled once.

A module has types, the functions that kernels call, the kernels, and the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.assignment import Spot, is_number
from autobatch.compiler.cuda.mapping import Access, Hazards, divide, whole
from autobatch.compiler.cuda.nest import CUDA_SLOTS, CudaNest, CudaWriter, slot_type
from autobatch.compiler.fusion import Block, Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram, list_steps
from autobatch.compiler.statement import Loop
from autobatch.compiler.view import View
from autobatch.compiler.writer import Common, add, is_step, letter_of
from autobatch.ir.program import NODE

PARAMETERS = "const Worker &worker, int64 memory_, int64 descriptor_, int64 k, int team_size"
INITIAL = {"sum": 0.0, "max": -math.inf}


@dataclass(eq=False)
class CudaKernel:
    """The source of a kernel and its descriptor.

    Attributes:
        name: the name of the function, a digest of its text.
        text: the definition of the function.
        sizes, numbers: the sizes and numbers that the text reads from the descriptor.
        arrays: the slots that the kernel reads.
        width: the largest number of threads that can work on one row at the same time.
        uses_row: whether the kernel needs memory for a row.
        n_rows: the field of a tile with the number of the kernel's rows.
    """

    name: str
    text: str
    sizes: tuple[int, ...]
    numbers: tuple[float, ...]
    arrays: tuple[str, ...]
    width: int
    uses_row: bool
    n_rows: str

    @cached_property
    def descriptor(self) -> NDArray[np.int64]:
        """Return the sizes, and the bits of the other numbers as float64."""
        return np.concatenate((np.array(self.sizes, np.int64), np.array(self.numbers, np.float64).view(np.int64)))


@dataclass(frozen=True, eq=False)
class CudaSource:
    """A printed stage.

    Attributes:
        kernels: for each step, its kernel; None if it is not a kernel.
        slots: the slots of the addresses of arrays, by name.
    """

    stage: StageProgram
    kernels: list[CudaKernel | None]
    slots: dict[str, int]

    @property
    def texts(self) -> dict[str, str]:
        """Return the definitions of all kernels, by name."""
        return {kernel.name: kernel.text for kernel in self.kernels if kernel is not None}

    def __str__(self) -> str:
        return list_steps(self.stage, ["" if kernel is None else kernel.text for kernel in self.kernels])


def print_stage(stage: StageProgram) -> CudaSource:
    """Print the kernels of a stage."""
    program, slots = stage.cell.program, {name: number for number, name in enumerate(CUDA_SLOTS)}
    common = Common(stage.lowered, stage.storage, stage.cell.layout, stage.fields, program.words, slots)
    kernels = [
        _KernelWriter(common, k, step).write() if isinstance(step, Kernel) else None
        for k, step in enumerate(stage.steps)
    ]
    return CudaSource(stage, kernels, slots)


class _KernelWriter(CudaWriter):
    """The writer of one kernel."""

    def write(self) -> CudaKernel:
        """Write the function: the body of the loop over rows first, because it determines the code before it."""
        self.hazards, self.width = Hazards(), 1
        windows = self._windows()
        for at, block in enumerate(self.kernel.blocks):
            self._write_block(Spot(self.number, at), block)
        self._write_ends()
        body, self.lines = self.lines, []
        row_width = ""
        # A name in use has the value None. The team's next row uses the same memory, so all its threads must be done.
        if self.arguments.pop("row", "no") is None:
            body.append("        team.sync();")
            row_width = self.size(self.storage.row_width, "row width")
            self.arguments["rows"] = None
        head, top = self._tops(row_width)
        body = [
            *head,
            f"    for (int64 r = team.first; r < {self.n_rows}; r += team.step) {{",
            *top,
            *windows,
            *body,
            "    }",
            "}",
        ]
        name = f"kernel_{sha256(chr(10).join(body).encode()).hexdigest()[:16]}"
        sizes, numbers = tuple(number for _, number in self.sizes.values()), tuple(self.numbers)
        text = "\n".join([f"__device__ __noinline__ void {name}({PARAMETERS}) {{", *body, ""])
        return CudaKernel(name, text, sizes, numbers, tuple(self.arguments), self.width, bool(row_width), self.n_rows)

    # Blocks.

    def _write_block(self, spot: Spot, block: Block) -> None:
        self.spot = spot
        nests = [CudaNest(self, spot, block, part) for part in divide(self.lowered, block)]
        self.width = max(self.width, *(nest.mapping.width for nest in nests))
        is_edges = block.domain != self.kernel.domain
        for loop in block.loops:
            if loop.combine and self._domain_of(loop) == NODE:
                self._write_initial(loop)
        depth, outer = self.indent, self.hazards
        if is_edges:
            # Edges need no barrier between each other: an edge writes to rows of its own, and an element to which all
            # edges add always belongs to the same thread.
            self._wait_for([found for nest in nests for is_store in (False, True) for found in nest.accesses(is_store)])
            self.hazards = Hazards()
            self.groups.add(block.domain)
            letter = letter_of(block.domain)
            self.open(f"for (int64 e = first_{letter}; e < end_{letter}; ++e)")
            for loop in block.loops:
                if loop.combine and self._domain_of(loop) != NODE:
                    self._write_initial(loop)
        for nest in nests:
            self._wait_for(nest.accesses(is_store=False))
            nest.write()
            self._wait_for(nest.accesses(is_store=True))
            nest.store()
            for loop, text in nest.numbers():
                if self._domain_of(loop) == block.domain:
                    self._finish_number(loop, text)
        if is_edges:
            self.close(depth)
            outer.note(self.hazards)
            self.hazards = outer
            for nest in nests:
                for loop, text in nest.numbers():
                    if self._domain_of(loop) == NODE:
                        self._finish_number(loop, text)

    def _wait_for(self, accesses: list[Access]) -> None:
        """Write a barrier if these accesses need one before them."""
        if self.hazards.need_barrier(accesses):
            self.line("team.sync();")

    def _domain_of(self, loop: Loop) -> int:
        return self.lowered.domains[loop.target.value]

    def _write_initial(self, loop: Loop) -> None:
        initial = self.real(INITIAL[loop.combine])
        value = loop.target.value
        if is_number(self.lowered, loop):
            self.line(f"{self.variable(value)} = {initial};")
            return
        size = self.lowered.sizes[value]
        view = View(value, 0, (size,), (1,))
        self._wait_for([whole(*self.region(view), size, is_write=True)])
        array, first = self.address(view)
        head = f"for (int i = team.lane; i < {self.size(size, value)}; i += team.size)"
        self.line(f"{head} {array}[{add([first, 'i'])}] = {initial};")

    def _finish_number(self, loop: Loop, text: str) -> None:
        """Write the lines that combine a reduced number over threads and store it in its place, if it has one."""
        if text:
            self.line(text)
        value = loop.target.value
        if self.storage.has_memory(value):
            view = View(value, 0, (), ())
            region, start = self.region(view)
            self._wait_for([whole(region, start, 1, is_write=True)._replace(who="one")])
            array, first = self.address(view)
            self.line(f"if (team.lane == 0) {array}[{first}] = {self.variable(value)};")

    # Before and after the blocks.

    def _windows(self) -> list[str]:
        """Choose the place where the gradient of an output is read, or where an output is written.

        A gradient with one destination is read there, and an output is written to its first destination if it has one.
        Otherwise both use the row.
        """
        lines = []
        for (area, number), (column, size) in self.kernel.spares.items():
            self.need_window(area, number)
            self.arguments["row"] = None
            place = add(["row", self.size(column, Area.ROW, NODE, column)])
            lines.append(
                f"int64 next_{number} = ptr[output_{number} + r], last_{number} = ptr[output_{number} + r + 1];"
            )
            if area is Area.OUTPUT:
                lines += [
                    f"real *output_{number}_w = next_{number} < last_{number} ? buffer + to[next_{number}] : {place};",
                    f"++next_{number};",
                ]
                continue
            # Only recorded: it is the first access of the row, so it needs no barrier itself.
            self.hazards.need_barrier([whole((area, number), 0, size, is_write=True)])
            length = self.size(size, area, number)
            lines += [
                f"const real *gather_{number} = {place};",
                f"if (last_{number} - next_{number} == 1) gather_{number} = buffer + dest[next_{number}] + shift;",
                f"else collect(team, buffer, {place}, {length}, dest, next_{number}, last_{number}, shift);",
            ]
        return ["        " + line for line in lines]

    def _write_ends(self) -> None:
        """Copy outputs to their other destinations."""
        for number in [number for area, number in self.kernel.spares if area is Area.OUTPUT]:
            written = self.kernel.written(number)
            reads = [whole((Area.OUTPUT, number), first, size, is_write=False) for first, size in written]
            self._wait_for(reads)
            depth = self.indent
            self.open(f"for (int64 j = next_{number}; j < last_{number}; ++j)")
            for first, size in written:
                start, length = self.size(first, Area.OUTPUT, number, first), self.size(size, "sent", number, first)
                source, target = add([f"output_{number}_w", start]), add(["buffer + to[j]", start])
                self.line(f"send(team, {source}, {length}, {target});")
            self.close(depth)

    def _tops(self, row_width: str) -> tuple[list[str], list[str]]:
        """Return the lines before the loop over rows, and the first lines in it.

        Args:
            row_width: the text of the number of elements of the row that the kernel needs; "" for none.
        """
        for group in self.groups:
            self.field("start")
            self.arguments[f"segments_{group}"] = None
        row = [f"const int64 {name} = {text};" for name, text in self.tops.items()]
        for group in self.walked:
            row += [
                f"const int64 first_{group} = segments_{group}[start + r] - base_{group};",
                f"const int64 end_{group} = segments_{group}[start + r + 1] - base_{group};",
            ]
        if self.variables:
            row.append(f"real {', '.join(self.variables.values())};")
        top = ["const int64 *slots = (const int64 *)memory_;"]
        for name in sorted({**self.arguments, "table": None}, key=self.slot):
            of = slot_type(name)
            top.append(
                f"const int64 {name} = slots[{self.slot(name)}];"
                if is_step(name)
                else f"{of} *{name} = ({of} *)slots[{self.slot(name)}];"
            )
        top += ["const int64 *sizes = (const int64 *)descriptor_;"] if self.sizes else []
        top += [f"const int {name} = (int)sizes[{k}];" for k, (name, _) in enumerate(self.sizes.values())]
        top.append(f"table += k * {len(self.fields)};")
        top += [
            f"const int64 {name} = table[{self.fields.index(name)}];"
            for name in dict.fromkeys((*self.used, self.n_rows))
        ]
        top += [f"const real {name} = (real){_literal(literal)};" for literal, name in self.literals.items()]
        top += ["const double *numbers = (const double *)descriptor_;"] if self.numbers else []
        first = len(self.sizes)
        top += [f"const real c{k} = (real)numbers[{first + k}];" for k in range(len(self.numbers))]
        top += [f"const int64 base_{group} = segments_{group}[start];" for group in sorted(self.groups)]
        top.append("const Team team(worker, team_size);")
        top += [f"real *row = team.row(worker, rows, {row_width});"] if row_width else []
        return ["    " + line for line in top], ["        " + line for line in row]


def _literal(literal: str) -> str:
    return {"inf": "INF", "-inf": "-INF", "nan": "NAN_"}.get(literal, literal)


REALS = {"float32": "float", "float64": "double"}
INDEX_TYPES = {"int32": "int", "int64": "long long"}
ENTRY = "entry_"
MULTIPLY, ADD_UP, ADD_OUTER, ADD_ROW_SUM, MOVE_ROWS, FIRST_KERNEL = range(6)
"""The numbers of the functions that steps of a sweep call: first those of `sweep.cuh`, then kernels sorted by name."""


def module_text(kernels: Mapping[str, str], dtype: str, index_type: str, blocks: int = 1) -> str:
    """Return the text of a module that runs these kernels by its function `sweep`.

    Args:
        kernels: the definitions of the kernels, by name.
        dtype: the model's float type.
        index_type: the type of destinations.
        blocks: the number of blocks that a multiprocessor of the device runs at the same time.
    """
    bound = f"const int BLOCKS = {blocks};  // that a processor runs at the same time"
    names = sorted(kernels)
    cases = [
        f"    case {number}: {name}(worker, step.memory, step.descriptor, step.k, (int)step.team); break;"
        for number, name in enumerate(names, FIRST_KERNEL)
    ]
    call = [
        "__device__ void call(const Worker &worker, const Step &step) {",
        "    switch (step.function) {",
        f"    case {ADD_UP}: add_up(worker, step.memory, step.k); break;",
        f"    case {MOVE_ROWS}: move_rows(worker, step.memory, step.k); break;",
        f"    case {ADD_ROW_SUM}: add_row_sum(worker, step.memory, step.descriptor, step.k); break;",
        *cases,
        "    }",
        "}",
    ]
    return "\n".join(
        [_kernels_text(kernels, dtype, index_type), bound, _text("products.cuh"), _text("sweep.cuh"), *call, ""]
    )


def entries_text(kernels: Mapping[str, str], dtype: str, index_type: str) -> str:
    """Return the text of a module with a function `entry_NAME` per kernel, which runs it alone; see `module_text`."""
    entries = [
        f'extern "C" __global__ void __launch_bounds__(THREADS, 1)\n{ENTRY}{name}(int64 memory, int64 descriptor, '
        "int64 k, int team) {\n    BLOCK_MEMORY(shared);\n    const Worker worker = {shared, blockIdx.x, gridDim.x};\n"
        f"    {name}(worker, memory, descriptor, k, team);\n}}\n"
        for name in sorted(kernels)
    ]
    return "\n".join([_kernels_text(kernels, dtype, index_type), *entries])


def _kernels_text(kernels: Mapping[str, str], dtype: str, index_type: str) -> str:
    types = f"typedef {REALS[dtype]} real;\ntypedef {INDEX_TYPES[index_type]} index_type;\n"
    return "\n".join([types, _text("support.cuh"), *(kernels[name] for name in sorted(kernels))])


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
