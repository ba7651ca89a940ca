"""Keep or recompute: which values of a cell backward computes again, instead of having them saved.

A saved value is written once and read once, for every row, mostly through caches that it does not fit into. Where it is
made by element-wise ops from what backward has at hand (the inputs, which stay; saved values; data of the node), making
it again may take less. Neither matrix products and reductions are made again, nor random draws; the same op on the same
operands gives the same bits, so gradients do not change where backends run op by op.

Choosing is exact under the prices below. To make a value again saves what keeping it costs, less its arithmetic, and
needs its operands, which have to be kept, or made again themselves: projects and the tools that they need, which share
them. The best choice of projects is a minimum cut (Picard 1976).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from autobatch.ir.derivative import Derivative
from autobatch.ir.passes.autodiff import compute_again
from autobatch.ir.program import SHARED, Constant, Instruction, Weight
from autobatch.ir.program_check import check_derivative, may_be_made_again
from autobatch.memplan.cell.cuts import SINK, SOURCE, Network
from autobatch.ops.define import Op
from autobatch.system.trust import checking

FUNCTIONS = frozenset(
    {"div", "pow", "exp", "log", "sqrt", "tanh", "sigmoid", "softplus", "erf", "ndtr", "gelu", "gelu_tanh"}
)
JOINS = frozenset({"concat", "assemble"})


class Prices(NamedTuple):
    """What an element of a row costs, in nanoseconds.

    Attributes:
        write, read: a saved value is written once, and read in backward.
        op, function: arithmetic, and what takes a polynomial or a division.
    """

    write: float
    read: float
    op: float
    function: float

    def of(self, op: Op) -> float:
        """What an element of the result of an op costs."""
        return self.function if op.name in FUNCTIONS else self.op


PRICES = {
    "cheap": Prices(write=0.2, read=0.1, op=0.02, function=0.4),
    "more": Prices(write=0.6, read=0.3, op=0.02, function=0.4),
    "all": Prices(write=1.0, read=0.0, op=-100.0, function=-100.0),
}
"""How much is made again, and the prices under which that is best: as measured (docs/decisions/keep-or-recompute.md);
with memory three times as slow; and being paid for it, so that all is made again that can be, for tests."""


def recompute(derivative: Derivative, prices: Prices) -> Derivative:
    """Choose what the backward stage of a cell computes again.

    Args:
        derivative: with everything saved that backward reads.
        prices: of keeping and of computing.

    Returns:
        The derivative with the same gradients that is cheapest under the prices, or itself.

    Cost: polynomial in the values that saved ones are made of, up to the next that are known; they are few.
    Source: Picard, "Maximal closure of a graph and applications to combinatorial problems" (1976).
    """
    chosen = _Choice(derivative, prices).best()
    if not chosen:
        return derivative
    changed = compute_again(derivative, chosen)
    if checking():
        check_derivative(changed)
    return changed


class _Choice:
    """The values between what is known and what backward reads, as projects."""

    def __init__(self, derivative: Derivative, prices: Prices) -> None:
        self.derivative, self.prices, self.vars = derivative, prices, derivative.vars
        self.n_forward = len(derivative.program.vars)
        roots = self._read_by(derivative.weights)
        self.known = {*derivative.kept, *(root for root in roots if root in derivative.saved)}
        self.free = self._read_by(derivative.backward)  # in a register already: reading them again costs nothing
        self.joined = {self._origin(arg) for arg in self._args_of_joins()}
        self.wanted = [i for i in derivative.saved if i < self.n_forward and i not in self.known]

    def best(self) -> set[int]:
        """The values to make again."""
        network = Network()
        waiting, seen = deque(self.wanted), set(self.wanted)
        for index in self.wanted:
            network.add(SOURCE, ("need", index), math.inf)
        while waiting:
            index = waiting.popleft()
            var, keeping = self.vars[index], self._cost_of_having(index)
            network.add(("need", index), SINK, keeping)
            source = var.source
            if index in self.known or index in self.joined or not may_be_made_again(self.vars[index].source):
                continue
            assert isinstance(source, Instruction)
            gain = keeping - var.size * self.prices.of(source.op)
            if gain <= 0:
                continue
            network.add(SOURCE, ("make", index), gain)
            for need in {index, *map(self._origin, source.args)}:
                if self._is_at_hand(need):
                    continue
                network.add(("make", index), ("need", need), math.inf)
                if need not in seen:
                    seen.add(need)
                    waiting.append(need)
        return {node[1] for node in network.source_side() if isinstance(node, tuple) and node[0] == "make"}

    def _cost_of_having(self, index: int) -> float:
        """What it costs to keep a value, or to read what is known anyway."""
        var = self.vars[index]
        reading = 0.0 if index in self.free else self.prices.read
        is_known = index in self.known or not isinstance(var.source, Instruction)
        return var.size * (reading if is_known else self.prices.write + self.prices.read)

    def _is_at_hand(self, index: int) -> bool:
        var = self.vars[index]
        return isinstance(var.source, Constant | Weight) or var.domain == SHARED

    def _read_by(self, stage: Iterable[int]) -> set[int]:
        """What the instructions of a stage read, views apart."""
        sources = (self.vars[i].source for i in stage)
        found = {self._origin(arg) for s in sources if isinstance(s, Instruction) and not s.op.view for arg in s.args}
        scatters = (s for _, scatters in self.derivative.tables for s in scatters)
        return found | ({self._origin(i) for s in scatters for i in s} if stage is self.derivative.weights else set())

    def _args_of_joins(self) -> Iterable[int]:
        """What forward makes where a join wants it: made elsewhere as well, it would be copied."""
        for index in self.derivative.program.instructions:
            source = self.vars[index].source
            if isinstance(source, Instruction) and source.op.name in JOINS:
                yield from source.args

    def _origin(self, index: int) -> int:
        """What a value is a view of: itself, if it is none."""
        source = self.vars[index].source
        return self._origin(source.args[0]) if isinstance(source, Instruction) and source.op.view else index
