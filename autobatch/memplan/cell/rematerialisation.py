"""Rematerialisation: choose the residuals that backward recomputes instead of reading them from memory.

A saved value is written once and read once per row, mostly to and from memory beyond the caches. Where element-wise ops
compute it from values that backward can read (inputs, which are kept; saved values; data of the node), recomputing it
may take less time. Matrix products, reductions and random draws are never recomputed. The same op on the same operands
gives the same bits, so gradients do not change on backends that run op by op.

The choice is greedy: a residual is recomputed if that costs less than keeping it, including everything else that must
be computed or kept for it. A minimum cut, which weighs all residuals together, chose differently in 1 of the 167
cells of the zoo, the models and the literature; in the zoo it saved 8 bytes per row fewer, of 9,800.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autobatch.ir.autodiff import compute_again
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import SHARED, Constant, Instruction, Weight
from autobatch.ir.program_check import check_derivative, may_be_made_again
from autobatch.ops.define import Op
from autobatch.system.unchecked import checking

FUNCTIONS = frozenset({
    "div", "pow", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "ndtr", "gelu", "gelu_tanh",
})  # fmt: skip
JOINS = frozenset({"concat", "assemble"})


class Prices(NamedTuple):
    """Costs per element of a row, in nanoseconds.

    Attributes:
        write, read: memory traffic: a saved value is written once, and read in backward.
        op, function: arithmetic; and functions that take a polynomial or a division.
    """

    write: float
    read: float
    op: float
    function: float

    def of(self, op: Op) -> float:
        return self.function if op.name in FUNCTIONS else self.op


PRICES = {
    "cheap": Prices(write=0.2, read=0.1, op=0.02, function=0.4),
    "more": Prices(write=0.6, read=0.3, op=0.02, function=0.4),
    "all": Prices(write=1.0, read=0.0, op=-100.0, function=-100.0),
}
"""Prices by name: as measured (docs/decisions/keep-or-recompute.md); with memory three times as slow; and with negative
cost for recomputing, so that as much as possible is recomputed, for tests."""


def rematerialise(derivative: Derivative, prices: Prices) -> Derivative:
    """Choose the residuals that the backward stage of a cell recomputes.

    Args:
        derivative: a derivative that saves every value that backward reads.
        prices: costs of keeping and of computing.

    Returns:
        The derivative with the same gradients and fewer residuals, or itself.

    Cost: O(residuals * values between them and the nearest ones in memory); both are few.
    """
    chosen = _Choice(derivative, prices).choose()
    if not chosen:
        return derivative
    changed = compute_again(derivative, chosen)
    if checking():
        check_derivative(changed)
    return changed


class _Needs(NamedTuple):
    """The needs of a value: the values to compute, to read, and to keep in addition."""

    made: set[int]
    read: set[int]
    kept: set[int]


class _Choice:
    """The residuals chosen so far, and the values that backward reads anyway."""

    def __init__(self, derivative: Derivative, prices: Prices) -> None:
        self.derivative, self.prices, self.vars = derivative, prices, derivative.vars
        roots = self._read_by(derivative.weights)
        # In memory whatever is chosen: values in the inputs, and saved values that the weight stage reads.
        self.known = {*derivative.kept, *(root for root in roots if root in derivative.saved)}
        self.free = self._read_by(derivative.backward)  # in a register already: reading them again costs nothing
        self.joined = {self._origin(arg) for arg in self._args_of_joins()}
        n_forward = len(derivative.program.vars)
        self.residuals = {i for i in derivative.saved if i < n_forward and i not in self.known}
        self.made: set[int] = set()

    def choose(self) -> set[int]:
        # Operands come before the values computed from them. `sorted` makes a list, because the loop adds residuals.
        for index in sorted(filter(self._can_be_made, self.residuals)):
            needs = self._cheapest(index)
            if index in needs.made:
                self.made |= needs.made
                self.free |= needs.read
                self.residuals |= needs.kept
        return self.made

    def _can_be_made(self, index: int) -> bool:
        source = self.vars[index].source
        return index not in self.known and index not in self.joined and may_be_made_again(source)

    def _cheapest(self, index: int) -> _Needs:
        """Return the cheapest way to get a value: keep it, or compute it from its operands at their cheapest."""
        cheapest: dict[int, _Needs] = {}
        for value in self._made_of(index):
            making = _Needs({value}, set(), set())
            for arg in self._operands(value):
                if arg in cheapest:
                    # Unions of sets, so that what several operands need is counted once.
                    for known, more in zip(making, cheapest[arg], strict=True):
                        known |= more
                else:
                    # An operand in memory is read; one that cannot be recomputed must be kept as well.
                    (making.read if self._is_read(arg) else making.kept).add(arg)
            keeping = _Needs(set(), set(), {value})
            cheapest[value] = making if self._cost(making) < self._cost_of_having(value) else keeping
        return cheapest[index]

    def _made_of(self, index: int) -> list[int]:
        """Return a value and the values that it can be computed from, operands first.

        The search ends at values that must be read or kept.
        """
        found, pending = {index}, [index]
        while pending:
            for arg in self._operands(pending.pop()):
                if arg not in found and not self._is_read(arg) and self._can_be_made(arg):
                    found.add(arg)
                    pending.append(arg)
        return sorted(found)

    def _operands(self, index: int) -> list[int]:
        """Return the operands of an instruction, except those that all nodes share or that are recomputed already."""
        source = self.vars[index].source
        assert isinstance(source, Instruction)
        args = map(self._origin, source.args)
        return [arg for arg in args if not self._is_at_hand(arg) and arg not in self.made]

    def _is_read(self, index: int) -> bool:
        """Return whether a value is in memory: saved, an input, or data."""
        return index in self.residuals or index in self.known or not isinstance(self.vars[index].source, Instruction)

    def _cost(self, needs: _Needs) -> float:
        """Return the cost of computing values, keeping others for them, and reading those not read anyway."""
        sources = [(self.vars[index].size, self.vars[index].source) for index in needs.made]
        making = sum(size * self.prices.of(source.op) for size, source in sources if isinstance(source, Instruction))
        reading = sum(self.vars[i].size * self.prices.read for i in needs.read - self.residuals - self.free)
        return making + reading + sum(map(self._cost_of_having, needs.kept))

    def _cost_of_having(self, index: int) -> float:
        return self.vars[index].size * (self.prices.write + self.prices.read)

    def _is_at_hand(self, index: int) -> bool:
        var = self.vars[index]
        return isinstance(var.source, Constant | Weight) or var.domain == SHARED

    def _read_by(self, stage: Iterable[int]) -> set[int]:
        """Return the values that the instructions of a stage read, except through views."""
        sources = (self.vars[i].source for i in stage)
        found = {self._origin(arg) for s in sources if isinstance(s, Instruction) and not s.op.view for arg in s.args}
        scatters = (s for _, scatters in self.derivative.tables for s in scatters)
        return found | ({self._origin(i) for s in scatters for i in s} if stage is self.derivative.weights else set())

    def _args_of_joins(self) -> Iterable[int]:
        """Yield values that forward computes in place, as parts of a join; recomputed elsewhere, they need copies."""
        for index in self.derivative.program.instructions:
            source = self.vars[index].source
            if isinstance(source, Instruction) and source.op.name in JOINS:
                yield from source.args

    def _origin(self, index: int) -> int:
        """Return the value that a view shows; the value itself if it is not a view."""
        source = self.vars[index].source
        return self._origin(source.args[0]) if isinstance(source, Instruction) and source.op.view else index
