"""The compiled stages of a cell, in one float type, and their steps, which plans bind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.backends.cpu.rounding import RoundedStep
from autobatch.backends.cpu.stage_values import StageValues
from autobatch.backends.cpu.steps import InterpretedStep, KernelStep, ProductStep
from autobatch.backends.cpu.weights import OuterStep, RemainderStep, RowSumStep, ScatterStep
from autobatch.backends.stages import CellStages
from autobatch.compiler.llvm.loading import Code, find_module
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.plan.plan import PlannedCell


class CompiledCell(CellStages["CompiledStage"]):
    """The stages of a planned cell in one float type and precision."""

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(cell)
        self.dtype, self.precision = dtype, precision

    def _make(self, program: StageProgram) -> CompiledStage:
        return CompiledStage(StageSources(program, self.dtype.name), self.dtype, self.precision)


class CompiledStage(StageValues):
    """A stage with its steps."""

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(sources, dtype, precision)
        self._codes: dict[str, Code] = {}
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
        return [KernelStep(self.code, source)]

    @property
    def has_kernels(self) -> bool:
        """Whether any step is a kernel."""
        return any(isinstance(step, KernelStep) for step in self.steps)

    def code(self, place: str) -> Code:
        """Find the machine code of all kernels for a type of destinations; start compiling it if it is missing."""
        if place not in self._codes:
            about = f"cell {self.lowered.name!r} ({self.lowered.stage})"
            self._codes[place] = find_module(self.source.text(place), about)
        return self._codes[place]
