"""Print the kernels of a stage as source for Numba, and list the arrays that they share."""

from __future__ import annotations

from dataclasses import dataclass

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.numba.source import Source, write_kernel
from autobatch.compiler.printing import show_axes
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.writer import SLOTS, Common


@dataclass(frozen=True, eq=False)
class StageSources:
    """A printed stage.

    Attributes:
        kernels: for each step, its source; None if it is not a kernel.
        slots: the slots of the addresses of arrays that kernels take, by name.
    """

    stage: StageProgram
    kernels: list[Source | None]
    slots: dict[str, int]

    def __str__(self) -> str:
        stage = self.stage
        lines = [f"{stage.lowered.name}, {stage.lowered.stage}"]
        for number, (step, source) in enumerate(zip(stage.steps, self.kernels, strict=True)):
            if number == stage.n_before > 0:
                lines.append("for every batch:")
            if number == len(stage.steps) - stage.n_after:
                lines.append("after all batches:")
            match step:
                case Kernel(blocks=blocks):
                    lines.append(f"step {number}: kernel")
                    lines += [
                        f"  block {b} over {show_axes(block.axes)}, loops: {len(block.loops)}"
                        for b, block in enumerate(blocks)
                    ]
                    assert source is not None
                    lines += ["  | " + line for line in source.text.splitlines()]
                case Product(terms=terms, target=target):
                    text = " + ".join(f"%{t.rows.value} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms)
                    lines.append(f"step {number}: product %{target} {'+=' if step.adds else '='} {text}")
                case Interpreted(target=target, why=why):
                    lines.append(f"step {number}: %{target} is interpreted: {why.value}")
        return "\n".join(lines)


def write_sources(stage: StageProgram) -> StageSources:
    """Print the kernels of a stage."""
    program, slots = stage.cell.program, {name: number for number, name in enumerate(SLOTS)}
    words = program.words(False), program.words(True)
    common = Common(stage.lowered, stage.storage, stage.cell.layout, stage.columns, words, slots)
    kernels = [
        write_kernel(common, k, step) if isinstance(step, Kernel) else None for k, step in enumerate(stage.steps)
    ]
    return StageSources(stage, kernels, slots)
