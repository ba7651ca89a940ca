"""A stage of a cell, compiled: its steps, where its values are, and a function for each kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.kernels.cutting import cut
from autobatch.kernels.fusing import Kernel, Step, fuse
from autobatch.kernels.hoisting import hoist
from autobatch.kernels.loading import load
from autobatch.kernels.loop import Alone, Product
from autobatch.kernels.lowering import Lowered, lower_backward, lower_forward
from autobatch.kernels.source import Source, columns_of, write_kernel
from autobatch.kernels.storing import Storage, store
from autobatch.plan import PlannedCell


@dataclass(frozen=True, eq=False)
class Stage:
    """What runs per batch.

    Attributes:
        sources: of each step that is a kernel; None for others.
        columns: of the table of batches that kernels take.
        n_before, n_after: the first and the last steps that run once for all rows of a type.
    """

    lowered: Lowered
    steps: list[Step]
    storage: Storage
    sources: list[Source | None]
    columns: tuple[str, ...]
    n_before: int
    n_after: int

    def load(self, dtype: np.dtype[Any], jitted: bool) -> list[Callable[..., None] | None]:
        """The functions of the kernels."""
        return [None if source is None else load(source.text, dtype, jitted) for source in self.sources]

    def __str__(self) -> str:
        lines = [f"{self.lowered.name}, {self.lowered.stage}"]
        for number, (step, source) in enumerate(zip(self.steps, self.sources, strict=True)):
            if number == self.n_before > 0:
                lines.append("for every batch:")
            if number == len(self.steps) - self.n_after:
                lines.append("after all batches:")
            match step:
                case Kernel(why=why):
                    lines.append(f"step {number}: kernel" + (f", apart because {why}" if why else ""))
                    lines += [
                        f"  block {b} over {_show_axes(block.axes)}, loops: {len(block.loops)}{_because(block.why)}"
                        for b, block in enumerate(step.blocks)
                    ]
                    assert source is not None
                    lines += ["  | " + line for line in source.text.splitlines()]
                case Product(terms=terms, target=target):
                    text = " + ".join(f"%{t.rows.value} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms)
                    lines.append(f"step {number}: product %{target} {'+=' if step.adds else '='} {text}")
                case Alone(target=target, why=why):
                    lines.append(f"step {number}: %{target} runs alone, for {why}")
        return "\n".join(lines)


def compile_forward(cell: PlannedCell) -> Stage:
    """Compile what runs per batch, forward."""
    return _compile(lower_forward(cell), cell)


def compile_backward(cell: PlannedCell) -> Stage:
    """Compile what runs per batch, backward."""
    return _compile(lower_backward(cell), cell)


def _compile(lowered: Lowered, cell: PlannedCell) -> Stage:
    cut(lowered)
    before, per_batch, after = (fuse(lowered, statements) for statements in hoist(lowered))
    steps = [*before, *per_batch, *after]
    storage = store(lowered, steps, len(before))
    columns = columns_of(cell.layout, len(cell.program.outputs))
    words = cell.program.words(False), cell.program.words(True)
    sources = [
        write_kernel(lowered, storage, number, step, cell.layout, columns, words) if isinstance(step, Kernel) else None
        for number, step in enumerate(steps)
    ]
    return Stage(lowered, steps, storage, sources, columns, len(before), len(after))


def _show_axes(axes: tuple[int, ...]) -> str:
    return " x ".join(map(str, axes)) or "one element"


def _because(why: str) -> str:
    return f" (apart: {why})" if why else ""
