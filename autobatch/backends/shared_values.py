"""The values that all rows of a stage share: parameters, constants, and what is computed from them once per run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.backends.values import constant_row
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Product
from autobatch.devices.store import Store
from autobatch.ir.program import SHARED, Constant, Instruction, Weight
from autobatch.ops.define import run_kernel
from autobatch.params.parameter import Parameter


class SharedValues:
    """The shared values that the steps of a stage read, as arrays `(1, *shape)` of a store.

    Attributes:
        arrays: by value.
        parameters: those that are read.
        multiplies: whether computing them may multiply matrices, by the library of the store.
    """

    def __init__(self, stage: StageProgram, store: Store, dtype: np.dtype[Any]) -> None:
        self._vars, self._store, self._dtype = stage.lowered.vars, store, dtype
        vars = self._vars
        read = {*stage.storage.shared, *_looked_up(stage), *_read_by_steps(stage)}
        for index in reversed(stage.lowered.shared):
            if index in read:
                read.update(_instruction(vars[index].source).args)
        self._computed = [index for index in stage.lowered.shared if index in read]
        sources = [_instruction(vars[index].source) for index in self._computed]
        self.multiplies = any(not source.op.view and source.op.scalar is None for source in sources)
        self._weights = [(i, source.parameter) for i in sorted(read) if isinstance(source := vars[i].source, Weight)]
        self.parameters = [parameter for _, parameter in self._weights]
        self._data: list[Any] | None = None
        self._versions: list[int] | None = None  # with which all values were computed
        self._seen: list[int] | None = None
        self._copies: set[int] = set()  # what views give that are none: a reshaped transpose is a copy
        self.arrays: dict[int, Any] = {}
        for i in sorted(read):
            if isinstance(source := vars[i].source, Constant):
                row = constant_row(source.data, dtype)
                self.arrays[i] = row if isinstance(row, (int, float)) else store.put(row)

    def has_changed(self) -> bool:
        """Whether a parameter may have changed since the last update that was not broken off."""
        self._seen = [parameter.version for parameter in self.parameters]
        return self._seen != self._versions

    def update(self, data_of: Callable[[Parameter], Any]) -> bool:
        """Compute all values from the parameters as they are now; return whether any array is another one than before.

        Args:
            data_of: the array of a parameter in the store.
        """
        vars, arrays, xp = self._vars, self.arrays, self._store.xp
        seen, self._seen, self._versions = self._seen, None, None  # memory may run out, or an interrupt may come
        data = [data_of(parameter) for parameter in self.parameters]
        moved = self._data is None or any(a is not b for a, b in zip(data, self._data, strict=True))
        if moved:
            self._copies.clear()
            arrays.update((i, array[None]) for (i, _), array in zip(self._weights, data, strict=True))
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
        self._data, self._versions = data, seen
        return moved


def _read_by_steps(stage: StageProgram) -> set[int]:
    """The shared values that products and interpreted ops read."""
    found: set[int] = set()
    for step in stage.steps:
        match step:
            case Product(terms=terms):
                found.update(term.weight for term in terms)
            case Interpreted(args=args):
                found.update(arg for arg in args if stage.lowered.domains[arg] == SHARED)
    return found


def _looked_up(stage: StageProgram) -> set[int]:
    """The parameters whose rows kernels look up."""
    kernels = [step for step in stage.steps if isinstance(step, Kernel)]
    loops = [loop for kernel in kernels for block in kernel.blocks for loop in block.loops]
    read = {operand.view.value for loop in loops for operand in loop.operands if operand.moved is not None}
    return {value for value in read if stage.lowered.domains[value] == SHARED}


def _instruction(source: object) -> Instruction:
    assert isinstance(source, Instruction), "shared values that are no parameters are computed"
    return source
