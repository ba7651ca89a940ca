"""The compiled stages of a cell, in one float type, and their steps, which plans bind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.backends.cpu.rounding import RoundedStep
from autobatch.backends.cpu.stage_values import StageValues, flat
from autobatch.backends.cpu.steps import InterpretedStep, KernelStep, ProductStep
from autobatch.backends.cpu.weights import OuterStep, RemainderStep, RowSumStep, ScatterStep
from autobatch.backends.stages import CellStages
from autobatch.compiler.numba.sources import StageSources, write_sources
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.compiler.writer import COMMON
from autobatch.plan.plan import PlannedCell


class CompiledCell(CellStages["CompiledStage"]):
    """The stages of a planned cell in one float type and precision."""

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any], jitted: bool, precision: str) -> None:
        super().__init__(cell)
        self.dtype, self.jitted, self.precision = dtype, jitted, precision

    def _make(self, program: StageProgram) -> CompiledStage:
        return CompiledStage(write_sources(program), self.dtype, self.jitted, self.precision)


class CompiledStage(StageValues):
    """A stage with its steps."""

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], jitted: bool, precision: str) -> None:
        super().__init__(sources, dtype, jitted, precision)
        self._add_steps()

    def _make_steps(self, number: int) -> Sequence[Any]:
        program, step, source = self.program, self.program.steps[number], self.source.kernels[number]
        match step:
            case Product():
                once = not program.n_before <= number < len(program.steps) - program.n_after
                make = RoundedStep if self.precision == "bf16" else ProductStep
                return [make(self, step, at, once) for at in range(len(step.terms))]
            case Interpreted():
                return [InterpretedStep(self, step)]
            case Outer():
                return [OuterStep(self, step)]
            case RowSum():
                return [RowSumStep(self, step)]
            case Scatter():
                return [ScatterStep(self, step)]
            case Remainder():
                return [RemainderStep(self, step)]
        assert source is not None, "every kernel has a source"
        return [KernelStep(self, source)]

    def is_compiled(self, place: str) -> bool:
        """Whether the machine code of all kernels is at hand, see `KernelStep.is_compiled`."""
        found = [step.is_compiled(place) for step in self.steps if isinstance(step, KernelStep)]
        return all(found)

    def take_arrays(self) -> None:
        """Take the arrays of the run that is on its way, for kernels that run as plain Python."""
        run, plan = self.run, self.run.plan
        common = run.buffer, run.scratch, run.kept, plan.dest_ptr, plan.dest, plan.adds
        self.arrays = [*common, *(self.packed for _ in range(len(COMMON), len(self.slots)))]
        own = self.plan_arrays(plan, run.type_id, run.tiles.view(np.int64)) | self.shared_arrays()
        for slot, found in own.items():
            self.arrays[slot] = found if isinstance(found, int) else flat(found)
