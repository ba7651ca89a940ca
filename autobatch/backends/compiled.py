"""Define the compiled stages of a cell, for every backend that compiles: the places of values, and the steps in order.

`locate` finds the elements of a view in the rows of a tile; `SharedValues` holds the values that all rows share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import SILENT, rounded
from autobatch.backends.values import Array, RowRange, constant_row
from autobatch.blas.provider import find_step
from autobatch.blas.threads import limit_threads
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward, compile_weights
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import View
from autobatch.compiler.writer import WEIGHTS, field_of, letter_of, width_of
from autobatch.devices.store import Store
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import SHARED, Attribute, Constant, Instruction, Weight
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.params.parameter import Parameter, versions_of
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.plan import Batch, Plan, PlannedCell

S = TypeVar("S", bound="Stage[Any]")
T = TypeVar("T")
DATA = (Area.INTS, Area.FLOATS)
COMPILE: dict[str, Callable[[PlannedCell], StageProgram]] = {
    "forward": compile_forward, "backward": compile_backward, WEIGHTS: compile_weights,
}  # fmt: skip
"""The compiler of each stage, by its name."""


class CellStages(ABC, Generic[S]):
    """The stages of a planned cell, each compiled on first use."""

    def __init__(self, cell: PlannedCell) -> None:
        self.cell = cell
        self._stages: dict[str, S] = {}

    def stage(self, name: str) -> S:
        """Return the stage "forward", "backward" or "weights"."""
        if name not in self._stages:
            self._stages[name] = self._make(COMPILE[name](self.cell))
        return self._stages[name]

    @abstractmethod
    def _make(self, program: StageProgram) -> S:
        """Build the stage of the backend."""


class Stage(ABC, Generic[T]):
    """A compiled stage of a cell, as a list of steps.

    Attributes:
        program: the stage for any target; `cell`, `lowered`, `storage` and `fields` are its attributes.
        shared: the values that all rows share.
        slots: the numbers of the slots of the stage's memory, by name.
        gradients: the first of the three slots of each gradient that steps write, by the number of the parameter.
        keys: the key of each parameter in the gradients of a run, by its number.
        scratch_width: elements of scratch memory per tile that do not depend on the number of its rows.
        n_before, n_per_batch, n_after: the number of steps that run once before all batches, per batch, and once after
            them. In the weight stage: the number of compiled steps, 0, and the number of steps that Python runs.
    """

    scratch_width = 0
    steps: list[T]

    def __init__(
        self, program: StageProgram, slots: dict[str, int], store: Store, dtype: np.dtype[Any], precision: str
    ) -> None:
        self.program, self.slots, self.dtype, self.precision = program, slots, dtype, precision
        self.cell, self.lowered, self.storage = program.cell, program.lowered, program.storage
        self.fields, self.shared = program.fields, SharedValues(program, store, dtype)
        self.gradients: dict[int, int] = {}
        self.keys = {} if self.cell.derivative is None else self.cell.derivative.keys

    def _add_steps(self) -> None:
        """Build the steps of all parts of the stage, and count them."""
        self.steps, counts, first = [], [], 0
        n_steps, n_after = len(self.program.steps), self.program.n_after
        # A step of the program may become several steps, or none, so the parts are counted in both.
        for end in (self.program.n_before, n_steps - n_after, n_steps):
            n_before = len(self.steps)
            for number in range(first, end):
                self.steps += self._make_steps(number)
            counts.append(len(self.steps) - n_before)
            first = end
        self.n_before, self.n_per_batch, self.n_after = counts

    @abstractmethod
    def _make_steps(self, number: int) -> Sequence[T]:
        """Build the steps that execute one step of the program."""

    def locate(self, view: View) -> RowLocation:
        return locate(self.program, view)

    def gradient_slot(self, parameter: int) -> int:
        """Return the first of the three slots of a parameter's gradient, which the first call reserves."""
        if parameter not in self.gradients:
            self.gradients[parameter] = first = len(self.slots)
            self.slots |= {f"gradient_{parameter}_{part}": first + part for part in range(3)}
        return self.gradients[parameter]


@dataclass(eq=False)
class StageRun(ABC):
    """A stage of a type in a run, with the memory of the steps that Python runs.

    Attributes:
        type_id, block: the number of the type, and of its block of nodes.
        tiles: the tiles of the type.
        randomness: the randomness of the mini-batch.
        interpret: computes gradients of parameters, given the type and the numbers of their values.
    """

    stage: Stage[Any]
    store: Store
    plan: Plan
    type_id: int
    block: int
    tiles: NDArray[Any]
    randomness: Randomness
    interpret: Callable[[int, tuple[int, ...]], None]

    @abstractmethod
    def _array(self, location: RowLocation) -> Array:
        """Return the flat array that contains an area."""

    @abstractmethod
    def _strided(self, array: Array, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """View a flat array from element `first` on; strides are in elements."""

    def rows(self, k: int) -> RowRange:
        """Return the rows of a tile."""
        tile = self.tiles[k]
        start = int(tile["start"])
        return RowRange(self.plan, Batch(self.type_id, start, start + int(tile["rows_n"]), ()), self.store)

    def view(self, view: View, k: int) -> Array:
        """Return the elements of a view in all rows of a tile: `(rows, *shape)`."""
        at, tile = self.stage.locate(view), self.tiles[k]
        array, shape = self._array(at), (int(tile[at.rows]), *at.shape)
        if not all(shape):
            return self.store.empty(0, array.dtype).reshape(shape)
        # Data are arrays of all rows of the type; other areas begin at an offset that is a field of the tile.
        first = self.rows(k).of(at.domain)[0] * at.width if at.area in DATA else int(tile[at.first])
        return self._strided(array, first + at.offset, shape, (at.width, *at.strides))

    def run_interpreted(self, step: Interpreted, k: int) -> None:
        """Run an instruction for a tile, as the reference backend does."""
        stage, vars, xp = self.stage, self.stage.lowered.vars, self.store.xp
        source = vars[step.target].source
        assert isinstance(source, Instruction)
        static = self.rows(k).static(vars, step.target, self.randomness, stage.cell.type.owner)
        args = [self._argument(arg, k) for arg in step.args]
        if stage.precision == "bf16":
            for at in rounded_args(vars, step.target):
                args[at] = rounded(args[at], xp)
        run_kernel(source.op, xp, args, self.view(stage.lowered.views[step.target], k), static)

    def _argument(self, arg: int, k: int) -> Any:
        stage, lowered = self.stage, self.stage.lowered
        if lowered.domains[arg] == SHARED:
            return stage.shared.arrays[arg]
        array = self.view(lowered.views[arg], k)
        source = lowered.vars[lowered.views[arg].value].source
        return array.astype(stage.dtype) if isinstance(source, Attribute) and source.is_float else array


class RowLocation(NamedTuple):
    """The location of a view of a value, in the rows of its domain.

    Attributes:
        area: the area of memory.
        domain: the domain of the rows.
        first: the field of a tile that holds the beginning of its rows; for data, the field of the first node.
        rows: the field of a tile that holds the number of rows.
        offset: elements from the beginning of a row to the view.
        width: elements from one row to the next.
        shape, strides: the shape and strides of the view within a row.
    """

    area: Area
    domain: int
    first: str
    rows: str
    offset: int
    width: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def locate(stage: StageProgram, view: View) -> RowLocation:
    """Locate a view of a value of a compiled stage."""
    location, view = stage.storage.locate(view)
    area, domain = location.area, location.domain
    if area in DATA:
        first, width = "start", stage.cell.program.words(area is Area.FLOATS, domain)
    else:
        first, width = field_of(location, stage.lowered.stage), width_of(area, domain, stage.storage, stage.cell.layout)
    rows = f"rows_{letter_of(domain)}"
    return RowLocation(area, domain, first, rows, location.column + view.offset, width, view.shape, view.strides)


class SharedValues:
    """The values that all rows of a stage share and that its steps read, as arrays `(1, *shape)` of a store.

    They are parameters, constants, and values computed from these whenever a parameter changes.

    Attributes:
        arrays: the array of each value, by its number.
        parameters: the parameters that are read.
        followed: the parameters that are copied, or computed with, once per change; kernels read others in place.
    """

    def __init__(self, stage: StageProgram, store: Store, dtype: np.dtype[Any]) -> None:
        self._vars, self._store, self._dtype = stage.lowered.vars, store, dtype
        vars = self._vars
        followed = {*stage.storage.shared, *_read_by_steps(stage)}
        read = {*followed, *_looked_up(stage)}
        # In reverse, a value is visited after all values that are computed from it.
        for index in reversed(stage.lowered.shared):
            if index in read:
                followed.update(_instruction(vars[index].source).args)
                read.update(followed)
        self._computed = [index for index in stage.lowered.shared if index in read]
        sources = [_instruction(vars[index].source) for index in self._computed]
        self._multiplies = any(not source.op.view and source.op.scalar is None for source in sources)
        self._weights = [(i, source.parameter) for i in sorted(read) if isinstance(source := vars[i].source, Weight)]
        self.parameters = [parameter for _, parameter in self._weights]
        self.followed = [parameter for i, parameter in self._weights if i in followed]
        self._data: list[Any] | None = None
        self._versions: list[int] | None = None  # of the parameters from which all values were computed
        self._seen: list[int] | None = None
        self._copies: set[int] = set()  # results of view ops that had to copy, such as a reshaped transpose
        self.arrays: dict[int, Any] = {}
        for i in sorted(read):
            if isinstance(source := vars[i].source, Constant):
                row = constant_row(source.data, dtype)
                self.arrays[i] = row if isinstance(row, (int, float)) else store.put(row)

    @property
    def is_computed(self) -> bool:
        """Return whether any value is computed from parameters."""
        return bool(self._computed)

    def has_changed(self) -> bool:
        """Return whether a parameter may have changed since the last complete update."""
        # Versions are read before `update` reads the numbers, so that numbers that change in between count as new.
        self._seen = versions_of((), self.parameters)
        return self._seen != self._versions

    def update(self, data_of: Callable[[Parameter], Any]) -> bool:
        """Compute all values from the current parameters; return whether any array was replaced by another one.

        Args:
            data_of: returns the array of a parameter in the store.
        """
        arrays = self.arrays
        # Versions are stored at the end only, because an interrupt or a lack of memory may break off the update.
        seen, self._seen, self._versions = self._seen, None, None
        data = [data_of(parameter) for parameter in self.parameters]
        moved = self._data is None or not all(map(is_, data, self._data))
        if moved:
            self._copies.clear()
            arrays.update((i, array[None]) for (i, _), array in zip(self._weights, data, strict=True))
        if self._computed:
            # Element-wise ops and views call no library whose threads would have to be limited.
            with np.errstate(**SILENT), limit_threads(1) if self._multiplies else nullcontext():
                self._compute(moved)
        self._data, self._versions = data, seen
        return moved

    def _compute(self, moved: bool) -> None:
        """Compute the values; `moved` says that the array of a parameter was replaced by another one."""
        vars, arrays, xp = self._vars, self.arrays, self._store.xp
        # Kernels know the addresses of these arrays. So new memory and new views are made only if a parameter has
        # moved; otherwise results are overwritten, and views already show the new numbers, unless they had to be
        # copies.
        for index in self._computed:
            source = _instruction(vars[index].source)
            args = [arrays[arg] for arg in source.args]
            if not source.op.view:
                if moved:
                    arrays[index] = xp.empty((1, *vars[index].shape), self._dtype)
                run_kernel(source.op, xp, args, arrays[index], source.static)
            elif moved:
                arrays[index] = source.op.kernel(xp, args[0], **source.static)
                if not xp.may_share_memory(args[0], arrays[index]):
                    self._copies.add(index)
            elif index in self._copies:
                arrays[index][...] = source.op.kernel(xp, args[0], **source.static)


def dense(gradient: Gradient) -> Any:
    """Return a gradient, which is an array because its parameter is not read by lookup alone."""
    assert not isinstance(gradient, Rows), "only the parameters in row_parameters have Rows"
    return gradient


def as_matrix(gradient: Any) -> Any:
    """View a gradient as a matrix whose rows are its first axis; with fewer than two axes, it becomes a single row."""
    return gradient.reshape(1, -1) if gradient.ndim < 2 else gradient.reshape(len(gradient), prod(gradient.shape[1:]))


def slots_of(gradient: Gradient, address_of: Callable[[Any], int]) -> tuple[int, int, int]:
    """Return the address of a gradient, and its row and column strides in elements, one of which is 1.

    Raises:
        ShapeError: neither its rows nor its columns are contiguous.
    """
    matrix = as_matrix(dense(gradient))
    is_flipped, step = find_step("the gradient of a matrix", matrix)
    return (address_of(matrix), 1, step) if is_flipped else (address_of(matrix), step, 1)


def _read_by_steps(stage: StageProgram) -> set[int]:
    """Return the shared values that products and interpreted ops read."""
    found: set[int] = set()
    for step in stage.steps:
        match step:
            case Product(terms=terms):
                found.update(term.weight for term in terms)
            case Interpreted(args=args):
                found.update(arg for arg in args if stage.lowered.domains[arg] == SHARED)
    return found


def _looked_up(stage: StageProgram) -> set[int]:
    """Return the parameters whose rows kernels look up."""
    kernels = [step for step in stage.steps if isinstance(step, Kernel)]
    loops = [loop for kernel in kernels for block in kernel.blocks for loop in block.loops]
    read = {operand.view.value for loop in loops for operand in loop.operands if operand.moved is not None}
    return {value for value in read if stage.lowered.domains[value] == SHARED}


def _instruction(source: object) -> Instruction:
    assert isinstance(source, Instruction), "other shared values are computed by instructions"
    return source
