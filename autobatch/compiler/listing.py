"""List the steps of a stage with the source of its kernels, for any target."""

from __future__ import annotations

from collections.abc import Sequence

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.printing import show_axes
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Product


def list_steps(stage: StageProgram, texts: Sequence[str]) -> str:
    """List the steps of a stage.

    Args:
        texts: for each step, the source of its kernel; "" if it is not a kernel.
    """
    lines = [f"{stage.lowered.name}, {stage.lowered.stage}"]
    for number, (step, text) in enumerate(zip(stage.steps, texts, strict=True)):
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
                lines += ["  | " + line for line in text.splitlines()]
            case Product(terms=terms, target=target):
                text = " + ".join(f"%{t.rows.value} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms)
                lines.append(f"step {number}: product %{target} {'+=' if step.adds else '='} {text}")
            case Interpreted(target=target, why=why):
                lines.append(f"step {number}: %{target} is interpreted: {why.value}")
    return "\n".join(lines)
