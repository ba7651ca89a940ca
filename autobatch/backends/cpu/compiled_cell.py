"""Build the compiled stages of a cell, in one float type and precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from autobatch.backends.compiled import CellStages
from autobatch.backends.cpu.operands import StageValues
from autobatch.backends.cpu.products import make_product
from autobatch.backends.cpu.step import Step, StepTemplate
from autobatch.backends.cpu.weights import make_outer, make_remainder, make_row_sum, make_scatter
from autobatch.compiler.llvm.loading import Code, find_module
from autobatch.compiler.llvm.source import Source, StageSources
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
        self.has_kernels = any(sources.kernels)
        self._add_steps()

    def _make_steps(self, number: int) -> Sequence[StepTemplate]:
        program, statement, source = self.program, self.program.steps[number], self.source.kernels[number]
        match statement:
            case Product():
                is_hoisted = not program.n_before <= number < len(program.steps) - program.n_after
                return [make_product(self, statement, at, is_hoisted) for at in range(len(statement.terms))]
            case Interpreted():
                return [StepTemplate(statement, partial(self._interpret, statement))]
            case Outer():
                return [make_outer(self, statement)]
            case RowSum():
                return [make_row_sum(self, statement)]
            case Scatter():
                return [make_scatter(self, statement)]
            case Remainder():
                return [make_remainder(self, statement)]
        assert source is not None, "every kernel has a source"
        return [StepTemplate(statement, partial(self._call_kernel, source), lambda sizes: (sizes.index_type,))]

    def _interpret(self, statement: Interpreted) -> Step:
        """Build the step that runs an instruction as the reference backend does, by NumPy and its library."""
        return Step(run=lambda k: self.run.run_interpreted(statement, k), calls_library=True)

    def _call_kernel(self, source: Source, index_type: str) -> Step:
        """Build the step that calls a kernel; waits for its machine code."""
        return Step(self.code(index_type).address(source.name), source.descriptor)

    def code(self, index_type: str) -> Code:
        """Return the machine code of all kernels for a type of destinations; start to compile it if it is missing."""
        if index_type not in self._codes:
            about = f"cell {self.lowered.name!r} ({self.lowered.stage})"
            self._codes[index_type] = find_module(self.source.text(index_type), about)
        return self._codes[index_type]
