"""The compiled stages of a cell, in one float type, and their steps, which plans bind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cpu.rounding import RoundedStep
from autobatch.backends.cpu.stage_values import StageRun, StageValues, flat
from autobatch.backends.cpu.steps import InterpretedStep, KernelStep, ProductStep, Step
from autobatch.backends.cpu.weights import OuterStep, RemainderStep, RowSumStep, ScatterStep, WeightSteps
from autobatch.compiler.numba.sources import StageSources, write_sources
from autobatch.compiler.stages import COMPILE
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.compiler.writer import COMMON
from autobatch.jit.compiling import compiling
from autobatch.plan.plan import PlannedCell

Array = NDArray[Any]


class CompiledCell:
    """The stages of a planned cell in one float type and precision, each compiled when first needed."""

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any], jitted: bool, precision: str) -> None:
        self.cell, self.dtype, self.jitted, self.precision = cell, dtype, jitted, precision
        self._stages: dict[str, CompiledStage] = {}

    def stage(self, name: str) -> CompiledStage:
        """The stage "forward", "backward" or "weights"."""
        if name not in self._stages:
            with compiling(f"cell {self.cell.program.name!r} ({name})", is_kernel=True):
                stage = COMPILE[name](self.cell)
            self._stages[name] = CompiledStage(write_sources(stage), self.dtype, self.jitted, self.precision)
        return self._stages[name]


class CompiledStage(StageValues):
    """A stage with its steps."""

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], jitted: bool, precision: str) -> None:
        super().__init__(sources, dtype, jitted, precision)
        stage = sources.stage
        self.steps: list[Step | WeightSteps] = []
        counts = []
        last = len(stage.steps) - stage.n_after
        for part in (range(stage.n_before), range(stage.n_before, last), range(last, len(stage.steps))):
            before = len(self.steps)
            for number in part:
                self.steps += self._make_steps(sources, number, once=not stage.n_before <= number < last)
            counts.append(len(self.steps) - before)
        self.n_before, self.n_per_batch, self.n_after = counts

    def _make_steps(self, sources: StageSources, number: int, once: bool) -> Sequence[Step | WeightSteps]:
        step, source = sources.stage.steps[number], sources.kernels[number]
        match step:
            case Product():
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

    def enter(self, run: StageRun) -> None:
        """Take the arrays of a run, for steps that Python runs."""
        plan, self.run = run.plan, run
        if self.jitted:
            return
        common = run.buffer, run.scratch, run.kept, plan.dest_ptr, plan.dest, plan.adds
        self.arrays = [*common, *(self.packed for _ in range(len(COMMON), len(self.slots)))]
        own = self.plan_arrays(plan, run.kind, run.table) | self.shared_arrays()
        for slot, found in own.items():
            self.arrays[slot] = found if isinstance(found, int) else flat(found)

    def leave(self) -> None:
        """Drop the arrays of the run."""
        self.arrays = []
        vars(self).pop("run", None)
