"""The three stages of a cell, and what compiles each."""

from __future__ import annotations

from collections.abc import Callable

from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.tiles import WEIGHTS
from autobatch.compiler.weights import compile_weights
from autobatch.plan.plan import PlannedCell

COMPILE: dict[str, Callable[[PlannedCell], StageProgram]] = {
    "forward": compile_forward, "backward": compile_backward, WEIGHTS: compile_weights,
}  # fmt: skip
"""By the name of the stage."""
