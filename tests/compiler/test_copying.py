"""Test what a compiled stage only copies, for simple cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiler.copying import find_copies, only_copy
from autobatch.compiler.printing import name_of
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.ir.arguments import Key
from autobatch.ir.typetable import NodeType
from autobatch.memplan.planner import MemoryPlanner
from autobatch.trace.tracer import Tracer

W = ab.Parameter(np.arange(9.0).reshape(3, 3) / 7)

CELLS: dict[str, tuple[Callable[..., Any], list[str], list[str]]] = {
    "made in a register": (lambda x: ab.tanh(W @ x), [], []),
    "a product": (lambda x: W @ x, ["output 0"], ["gathered 0"]),
    "a port": (lambda x: (x, ab.tanh(x)), ["output 0"], []),
    "turned round": (lambda x: ab.tanh(x)[::-1], ["output 0"], ["gathered 0"]),
    "a sum of terms": (lambda x, y: x + y, [], ["gathered 0"]),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_by_hand(name: str) -> None:
    """Outputs that are already in memory, and gradients that pass through unchanged."""
    body, *expected = CELLS[name]
    keys = {arg: Key("value", (3,)) for arg in body.__code__.co_varnames[: body.__code__.co_argcount]}
    program = Tracer("hand", {}).trace(lambda given: body(**given), keys)[0]
    cell = MemoryPlanner().plan_cell(NodeType(0, "hand", program, None, ()), training=True)
    for stage, copied in zip((compile_forward(cell), compile_backward(cell)), expected, strict=True):
        copies = list(find_copies(stage))
        found = [f"gathered {copy.gathered}" if copy.gathered >= 0 else name_of(copy.loop) for copy in copies]
        assert found == copied
        kernels = {copy.step for copy in copies}
        loops = {k: [loop for block in stage.steps[k].blocks for loop in block.loops] for k in kernels}
        assert only_copy(stage) == {k for k in kernels if len(loops[k]) == sum(copy.step == k for copy in copies)}
