"""Print the kernels of a stage as source for Numba, and list the arrays that they share."""

from __future__ import annotations

from dataclasses import dataclass

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.listing import list_steps
from autobatch.compiler.numba.source import Source, write_kernel
from autobatch.compiler.stage import StageProgram
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
        return list_steps(self.stage, ["" if source is None else source.text for source in self.kernels])


def write_sources(stage: StageProgram) -> StageSources:
    """Print the kernels of a stage."""
    slots = {name: number for number, name in enumerate(SLOTS)}
    common = Common(stage.lowered, stage.storage, stage.cell.layout, stage.fields, stage.cell.program.words, slots)
    kernels = [
        write_kernel(common, k, step) if isinstance(step, Kernel) else None for k, step in enumerate(stage.steps)
    ]
    return StageSources(stage, kernels, slots)
