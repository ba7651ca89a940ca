"""Gradients of parameters on the CPU: a cell's weight stage, prepared once and run once per run of a plan.

Most weight stages consist of three operations over the rows of the type, read where they lie in the buffer: matrix
products, sums of rows, and rows for tables. The layout fixes the places of the operands, so that per run only the
number of rows and some addresses change: products are called by their library's address, write into the gradients
themselves, and allocate nothing. The interpreter runs stages that compute anything else, and mini-batches in which the
loss does not depend on some rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cpu.rounding import Outers
from autobatch.backends.cpu.team import Sweeps
from autobatch.backends.pieces import Calls
from autobatch.blas.calling import call_product
from autobatch.blas.choosing import FLOAT32, Chooser
from autobatch.blas.own.gemm import NAME as PACKED
from autobatch.blas.product import find_step
from autobatch.blas.threads import threads_now
from autobatch.compiler.lowering import homes_of
from autobatch.compiler.view import views_of
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.program import NODE, Instruction
from autobatch.jit.addresses import address_of, array_at
from autobatch.jit.loops import by_address, compiled
from autobatch.ops.indexing import to_ids
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.plan import Plan, PlannedCell

Array = NDArray[Any]
LongArray = NDArray[np.int64]
Area: TypeAlias = tuple[str, int]
"""Rows of the buffer, "saved" or "inputs", of a domain."""
ROUTINE, M, N, K, A, A_STEP, B, B_STEP, OUT, OUT_STEP, N_NUMBERS = range(11)
STRIP_ROWS = 12
"""The rows of a strip of a gradient are a multiple of this, so that products take whole tiles of them."""
unsigned = np.uint64


class Operand(NamedTuple):
    """Consecutive elements of every row of an area."""

    area: Area
    column: int
    size: int


class Outer(NamedTuple):
    """A product left' @ right, which is the gradient of a parameter."""

    left: Operand
    right: Operand
    parameter: int


class Column(NamedTuple):
    """A column of the int attributes of the rows of a domain."""

    domain: int
    number: int


class Lookup(NamedTuple):
    """Rows for the gradient of a table; their ids are a column of the attributes, or where a cell left them."""

    rows: Operand
    ids: Column | Operand
    parameter: int


class Place(NamedTuple):
    """The place of an area in a run: its first element, elements from row to row, and number of rows."""

    first: int
    step: int
    n_rows: int


def dense(gradient: Gradient) -> Array:
    """A gradient that must be an array, because its parameter is not read by lookup alone."""
    assert not isinstance(gradient, Rows), "only the parameters in row_parameters have Rows"
    return gradient


class WeightStage:
    """The weight stage of a planned cell in one float type.

    Attributes:
        is_direct: whether this class can run all of it; else it is left to the interpreter.
        n_launches: launches of a run.
    """

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any]) -> None:
        assert cell.derivative is not None, "backward follows a forward run in training"
        self.cell, self.derivative, self.dtype = cell, cell.derivative, dtype
        self._views = views_of(self.derivative.vars)
        self._homes = homes_of(self.derivative.vars, cell.layout, forward=False)
        self.outers: list[Outer] = []
        self.sums: defaultdict[Operand, list[int]] = defaultdict(list)
        self.lookups: list[Lookup] = []
        self.is_direct = self._find_sums() and self._find_lookups()
        self.n_launches = len(self.outers) + sum(map(len, self.sums.values())) + len(self.lookups)
        operands = [operand for outer in self.outers for operand in outer[:2]]
        operands += [*self.sums, *(place for lookup in self.lookups for place in lookup if isinstance(place, Operand))]
        self._areas = list(dict.fromkeys(operand.area for operand in operands))
        pairs = (*self.derivative.parameters, *self.derivative.tables)
        self._keys = {index: id(self.derivative.parameter(index)) for index, _ in pairs}
        self._bound: dict[int, Gradient] = {}
        self._factors: list[tuple[Operand, Operand]] = []
        self._numbers = np.zeros((len(self.outers), N_NUMBERS), np.int64)
        self._totals: list[tuple[Operand, Array, list[tuple[Array, Array]]]] = []
        self._routines: dict[tuple[int, int, int, bool, str], int | None] = {}
        self._strips = np.zeros((0, N_NUMBERS), np.int64)
        self._addresses: LongArray
        self._calls: Calls
        self._sweeps = Sweeps()

    def _find_sums(self) -> bool:
        derivative = self.derivative
        owners: defaultdict[int, list[int]] = defaultdict(list)
        for parameter, gradient in derivative.parameters:
            owners[gradient].append(parameter)
        made: set[int] = set()
        for index in derivative.weights:
            source = derivative.vars[index].source
            assert isinstance(source, Instruction)
            if source.op.view:
                continue
            operands = [operand for arg in source.args if (operand := self._operand(arg)) is not None]
            if index not in owners or len(operands) < len(source.args):
                return False
            per_node = [operand.area[1] == NODE for operand in operands]  # groups in one op have equally many rows
            if source.op.name == "row_sum_outer" and per_node[0] == per_node[1]:
                self.outers += [Outer(operands[0], operands[1], owner) for owner in owners[index]]
            elif source.op is ROW_SUM:
                self.sums[operands[0]] += owners[index]
            else:
                return False
            made.add(index)
        return made.issuperset(owners)

    def _find_lookups(self) -> bool:
        for parameter, scatters in self.derivative.tables:
            for values, ids in scatters:
                rows, at = self._operand(values), self._ids(ids)
                if rows is None or at is None or self.derivative.vars[ids].shape:
                    return False
                self.lookups.append(Lookup(rows, at, parameter))
        return all(lookup.rows.area[1] == _domain_of(lookup.ids) for lookup in self.lookups)

    def _ids(self, index: int) -> Column | Operand | None:
        """The place of ids: a column of the attributes, or in the buffer."""
        home = self._homes.get(self._views[index].value)
        if home is not None and home.area == "ints":
            return Column(home.domain, home.column + self._views[index].offset)
        return self._operand(index)

    def _operand(self, index: int) -> Operand | None:
        """The place of a value in the buffer; None if it is not there, or not contiguous."""
        view = self._views[index]
        home = self._homes.get(view.value)
        if home is None or home.area not in ("saved", "inputs") or not view.is_contiguous:
            return None
        return Operand((home.area, home.domain), home.column + view.offset, math.prod(view.shape))

    # A run.

    def run(
        self,
        plan: Plan,
        kind: int,
        buffer: Array,
        chooser: Chooser,
        gradients: Mapping[int, Gradient],
        outers: Outers | None = None,
        n_threads: int = 1,
    ) -> bool:
        """Add to the gradients over all rows of a type.

        Args:
            plan, kind, buffer: the plan, the number of the type in it, and the values of the run.
            chooser: chooses the library.
            gradients: by the `id` of the parameter or stack.
            outers: multiplies operands that are rounded to bf16, with one thread.
            n_threads: threads that share each library product; each computes some rows of the gradient.

        Returns:
            False, with nothing done, if a library has no address.

        Cost: some microseconds beside the arithmetic.
        """
        if not self._keys:
            return True
        self._bind(gradients)
        places = {area: self._place(plan, kind, area) for area in self._areas}
        if not self._multiply(buffer, chooser, places, outers, n_threads):
            return False
        for operand, total, targets in self._totals:
            first, step, n_rows = places[operand.area]
            sum_rows(buffer, first + operand.column, step, n_rows, total)
            for target, numbers in targets:
                target += numbers
        for rows, at, parameter in self.lookups:
            if isinstance(at, Operand):
                ids = to_ids(rows_of(buffer, places[at.area], at)[:, 0])
            else:
                ids = plan.data(kind, at.domain)[0][:, at.number]
            look_up(buffer, places[rows.area], rows, ids, self._bound[parameter])
        return True

    def _bind(self, gradients: Mapping[int, Gradient]) -> None:
        """Store the addresses of the gradients, unless they are those of the last run."""
        found = {index: gradients[key] for index, key in self._keys.items()}
        if self._bound and all(map(is_, found.values(), self._bound.values())):
            return
        self._bound, self._factors, self._totals = {}, [], []
        for numbers, (left, right, parameter) in zip(self._numbers, self.outers, strict=True):
            target = dense(found[parameter])
            is_flipped, step = find_step("the gradient of a matrix", target)
            if is_flipped:
                left, right = right, left
            self._factors.append((left, right))
            numbers[[M, N, OUT, OUT_STEP]] = left.size, right.size, address_of(target), step
        for operand, parameters in self.sums.items():
            total, targets = np.empty(operand.size, self.dtype), [dense(found[index]) for index in parameters]
            self._totals.append((operand, total, [(target, total.reshape(target.shape)) for target in targets]))
        self._bound = found  # last: an array may be refused, and compiling may be interrupted

    def _place(self, plan: Plan, kind: int, area: Area) -> Place:
        name, number = area[0], area[1] - NODE
        block = plan.first_block(kind) + number
        n_rows = int(plan.block_rows[block])
        if name == "saved":
            return Place(int(plan.saved_base[block]), self.cell.layout.saved_width[number], n_rows)
        return Place(plan.type_bases[kind][number], self.cell.layout.input_width[number], n_rows)

    def _multiply(
        self, buffer: Array, chooser: Chooser, places: Mapping[Area, Place], outers: Outers | None, n_threads: int
    ) -> bool:
        """Add all products to the gradients."""
        size, numbers = self.dtype.itemsize, self._numbers
        memory = address_of(buffer)
        for at, (left, right) in enumerate(self._factors):
            of_left, of_right = places[left.area], places[right.area]
            routine = self._routine(chooser, at, of_left.n_rows, outers is not None)
            if routine is None:
                return False
            numbers[at, ROUTINE], numbers[at, K] = routine, of_left.n_rows
            numbers[at, A], numbers[at, A_STEP] = memory + (of_left.first + left.column) * size, of_left.step
            numbers[at, B], numbers[at, B_STEP] = memory + (of_right.first + right.column) * size, of_right.step
        if outers is not None:
            outers.add_all(numbers)
        elif n_threads > 1 and len(numbers):
            self._multiply_together(n_threads)
        else:
            multiply_all(numbers, size)
        return True

    def _multiply_together(self, n_threads: int) -> None:
        """Add all products to the gradients in several threads, cut into strips."""
        n_strips = len(self._numbers) * n_threads
        if len(self._strips) != n_strips:
            strips = np.zeros((n_strips, N_NUMBERS), np.int64)
            step = multiply_strip.address, address_of(strips), self.dtype.itemsize
            self._addresses = np.array([[step]] * n_threads, np.int64)
            calls, one_by_one = np.zeros((n_strips, 2), np.int64), np.arange(n_strips + 1)
            calls[:, 1] = one_by_one[:-1]
            self._calls = Calls(calls, one_by_one, np.array([0, n_strips]), np.zeros(0, np.bool_))
            self._strips = strips
        cut_in_strips(self._numbers, self._strips, self.dtype.itemsize)
        self._sweeps.run(self._addresses, self._calls, 0, 1)

    def _routine(self, chooser: Chooser, at: int, n_rows: int, is_rounded: bool) -> int | None:
        """The address of the fastest product for this many rows; None if that library has none.

        For operands rounded to bf16 it is 0 if our own product is faster.
        """
        size = (2 * n_rows * n_rows).bit_length()  # the resolution at which the chooser distinguishes sizes
        key = at, size, threads_now(), is_rounded, chooser.name
        if key not in self._routines:
            m, n = int(self._numbers[at, M]), int(self._numbers[at, N])
            provider = chooser.choose(m, n, n_rows, self.dtype.name, a_flipped=True)
            way = chooser.choose_bf16(m, n, n_rows, a_flipped=True) if is_rounded else FLOAT32
            routine = provider.addresses.get(self.dtype.name)
            self._routines[key] = {FLOAT32: routine, PACKED: 0}.get(way)
        return self._routines[key]


def _domain_of(ids: Column | Operand) -> int:
    return ids.area[1] if isinstance(ids, Operand) else ids.domain


def look_up(buffer: Array, place: Place, rows: Operand, ids: Array, gradient: Gradient) -> None:
    """Add the rows that a type looked up to the gradient of their table."""
    if isinstance(gradient, Rows):
        gradient.add(ids, buffer, place.first + rows.column, place.step)
    else:
        values = rows_of(buffer, place, rows).reshape(-1, *gradient.shape[1:])
        Rows.summed(ids, values, gradient.shape).add_to(gradient)


def rows_of(buffer: Array, place: Place, operand: Operand) -> Array:
    """The elements of an operand, by row."""
    first, step, n_rows = place
    return buffer[first : first + n_rows * step].reshape(n_rows, step)[
        :, operand.column : operand.column + operand.size
    ]


@compiled
def multiply_all(numbers: LongArray, size: int) -> None:
    """Add products a' @ b to their targets, in order; each has a row of numbers; elements have `size` bytes."""
    for at in range(len(numbers)):
        add_product(numbers[at], size)


@by_address
def multiply_strip(memory: int, own: int, k: int) -> None:
    """Add the k-th product of an array of numbers; `own` is the size of elements in bytes."""
    add_product(array_at(memory, np.int64)[N_NUMBERS * k :], own)


@compiled
def add_product(numbers: LongArray, size: int) -> None:
    """Add a product a' @ b to its target."""
    if numbers[M] and numbers[N]:
        call_product(
            size, numbers[ROUTINE],
            (
                1, 0, numbers[M], numbers[N], numbers[K], numbers[A], numbers[A_STEP], numbers[B], numbers[B_STEP],
                numbers[OUT], numbers[OUT_STEP],
            ),
            1.0,
        )  # fmt: skip


@compiled
def cut_in_strips(numbers: LongArray, strips: LongArray, size: int) -> None:
    """Cut each product into equally many strips; a strip computes some rows of the result completely."""
    n_strips = len(strips) // len(numbers)
    for at in range(len(numbers)):
        m = numbers[at, M]
        at_once = (m + n_strips * STRIP_ROWS - 1) // (n_strips * STRIP_ROWS) * STRIP_ROWS
        for number in range(n_strips):
            strip = strips[at * n_strips + number]
            strip[:] = numbers[at]
            first = min(number * at_once, m)
            strip[M] = min(at_once, m - first)
            strip[A] += first * size
            strip[OUT] += first * numbers[at, OUT_STEP] * size


@compiled
def sum_rows(buffer: Array, first: int, step: int, n_rows: int, total: Array) -> None:
    """Write the sum of rows to `total`, which has the length of a row; rows begin `step` elements apart.

    Four rows are read at a time, so that sums are written a quarter as often; unsigned indices let LLVM vectorise it.
    """
    total[:] = 0
    done = n_rows - n_rows % 4
    for row in range(0, done, 4):
        a = first + row * step
        b, c, d = a + step, a + 2 * step, a + 3 * step
        for i in range(total.size):
            one, other = buffer[unsigned(a + i)] + buffer[unsigned(b + i)], buffer[unsigned(c + i)]
            total[i] += one + (other + buffer[unsigned(d + i)])
    for row in range(done, n_rows):
        for i in range(total.size):
            total[i] += buffer[unsigned(first + row * step + i)]
