"""Test that pullbacks consist of ops with pullbacks, to any order, except for piecewise constant ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import autobatch as ab
from autobatch import ops
from autobatch.ir.program import Instruction, Var
from autobatch.ops.operators import OPS
from helpers.programs.gradient_cases import EVERY, RowsCase, instances_of, slope_cell
from helpers.programs.inner_gradients import differentiable
from helpers.programs.op_cases import Case

DEPTH = 3
TRUTH = "0 or 1, which jumps where its arguments are equal"
POSITION = "an int, which jumps where elements are equal"
WITHOUT_PULLBACK = {
    "less": TRUTH, "less_equal": TRUTH, "greater": TRUTH, "greater_equal": TRUTH, "equal": TRUTH, "not_equal": TRUTH,
    "argmax": POSITION, "top_k": POSITION, "argmax_n": POSITION, "top_k_n": POSITION, "argmax_pairs": POSITION,
    "one_hot": "reads ints alone",
    "count_n": "depends on the number of edges, and on none of their values",
    "normal": "reads the number of a draw alone",
    "perturb": "only argmax reads it, for a random position",
    "stop_gradient": "is there to have none",
}  # fmt: skip
"""Why an op has no pullback."""
DROPOUT = Case("dropout", lambda x: ops.dropout(x, 0.5), lambda x: x, ((3,),))


def ops_of(case: Case | RowsCase) -> tuple[set[str], set[str]]:
    """Return the ops in third-order pullbacks: those that pass a gradient on, and those where one ends."""
    found: list[tuple[set[str], set[str]]] = []

    def note(values: Sequence[Any]) -> None:
        vars: list[Var] = values[0].builder.vars
        reached, through, ends = differentiable(vars, {value.index for value in values}), set[str](), set[str]()
        for index, var in enumerate(vars):
            if isinstance(var.source, Instruction) and reached.intersection(var.source.args):
                (through if index in reached else ends).add(var.source.op.name)
        found.append((through, ends))

    ab.batched(slope_cell(case, DEPTH + 1, note))(instances_of(case)[:1])
    return found[-1]


def test_gradients_of_gradients_end_only_at_ops_that_are_constant_in_pieces() -> None:
    through = set[str]()
    for case in (*EVERY, DROPOUT):
        parts = ops_of(case)
        assert parts[1] <= {*WITHOUT_PULLBACK}, f"{case}: gradients end at {parts[1] - {*WITHOUT_PULLBACK}}"
        through |= parts[0]
    ours = [op for op in OPS.values() if op.kernel.__module__.startswith("autobatch.ops")]
    assert {op.name for op in ours if op.pullback is None} == {*WITHOUT_PULLBACK}
    assert {op.name for op in ours if op.pullback is not None} <= through
