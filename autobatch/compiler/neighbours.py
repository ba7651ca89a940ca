"""Explain why neighbouring ops of a compiled stage are not fused into one loop nest.

Two statements are neighbours if one reads a value that the other makes. They are fused if they are in the same block of
the same kernel. The reasons (`autobatch.compiler.statement`) are derived from the finished steps alone, without the
fusion pass. `tests/compiler/test_neighbours.py` checks each reason independently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from autobatch.compiler.assignment import in_order
from autobatch.compiler.fusion import Step, is_made_at_once
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.printing import name_of, show_axes
from autobatch.compiler.statement import Interpreted, Loop, Product, Reason
from autobatch.compiler.uses import Uses

Why: TypeAlias = tuple[Reason, tuple[int, ...]]


class Apart(NamedTuple):
    """Two neighbours that are not fused, and the reason; statements are given by number.

    Attributes:
        others: further statements that the sentence of the reason names, in its order.
    """

    maker: int
    reader: int
    reason: Reason
    others: tuple[int, ...] = ()


class Neighbours:
    """The statements of a stage in the order in which they run, with their dependencies.

    Args:
        lowered: the stage.
        steps: all steps of the stage.
        n_before, n_after: the numbers of first and of last steps that run once for all rows.
        fused: whether fusion is on.
    """

    def __init__(
        self, lowered: Lowered, steps: Sequence[Step], n_before: int = 0, n_after: int = 0, fused: bool = True
    ) -> None:
        self.lowered, self.steps, self.fused = lowered, steps, fused
        self.once = {*range(n_before), *range(len(steps) - n_after, len(steps))}
        self.statements, self.place = in_order(steps)
        self.uses = Uses(lowered, self.statements)

    @cached_property
    def read(self) -> list[list[int]]:
        """Return, for each statement, the statements whose values it reads."""
        return [
            sorted({m for value in self.lowered.values_read(s) for m in self.uses.makers(value)} - {k})
            for k, s in enumerate(self.statements)
        ]

    @cached_property
    def needed(self) -> list[set[int]]:
        """Return, for each statement, all statements that must run before it."""
        found: list[set[int]] = [set() for _ in self.statements]
        # In the order of the steps, so that the sets of the makers are complete.
        for k in sorted(range(len(self.statements)), key=lambda k: self.place[k]):
            for maker in self.read[k]:
                found[k] |= {maker} | found[maker]
        return found

    def apart(self) -> Iterator[Apart]:
        """Yield the pairs of neighbours that are not fused."""
        for reader, makers in enumerate(self.read):
            for maker in makers:
                if self.place[maker] != self.place[reader] or self.place[maker].block < 0:
                    yield Apart(maker, reader, *self._why(maker, reader))

    def _why(self, maker: int, reader: int) -> Why:
        """Find the reason why two neighbours are not fused."""
        for k in (maker, reader):
            if not isinstance(self.statements[k], Loop):
                is_product = isinstance(self.statements[k], Product)
                return Reason.PRODUCT if is_product else Reason.INTERPRETED, (k,)
        if not self.fused:
            return Reason.OFF, ()
        if any(self.lowered.goes_between_nodes(self.statements[k]) for k in (maker, reader)):
            return Reason.EDGES, ()
        here, there = self.place[maker], self.place[reader]
        if (here.step in self.once) != (there.step in self.once):
            return Reason.ONCE, ()
        return self._why_nests(maker, reader) if here.step == there.step else self._why_kernels(maker, reader)

    def _why_kernels(self, maker: int, reader: int) -> Why:
        """Find the reason why two loops are in different kernels."""
        first, last = self.place[maker].step, self.place[reader].step
        between = [
            k for k, s in enumerate(self.statements) if not isinstance(s, Loop) and first < self.place[k].step < last
        ]
        # Only products and interpreted ops separate kernels: those that the reader needs, or that need the maker.
        late = [k for k in between if k in self.needed[reader]]
        early = [k for k in between if maker in self.needed[k]]
        for k in late:
            if k in early:
                return Reason.BETWEEN, (k,)
        if early and late:
            return Reason.BOTH_WAIT, (early[0], late[0])
        others = [k for k, makers in enumerate(self.read) if maker in makers and self.place[k].step < last]
        if late and others:
            return Reason.READ_BEFORE, (others[0], late[0])
        readers = [k for k, makers in enumerate(self.read) if reader in makers and self.place[k].step == last]
        if between and readers:
            return Reason.WITH_READER, (readers[0], between[0])
        return Reason.NONE, ()

    def _why_nests(self, maker: int, reader: int) -> Why:
        """Find the reason why two loops of a kernel are in different loop nests."""
        reason = self._why_not_one_nest(maker, reader)
        if reason is not None:
            return reason, ()
        for other in self.read[reader]:
            here, there, its = self.place[maker], self.place[reader], self.place[other]
            if other != maker and its.step == there.step and here.block <= its.block < there.block:
                return Reason.LATER_NEST, (other,)
        return Reason.NONE, ()

    def _why_not_one_nest(self, maker: int, reader: int) -> Reason | None:
        """Find the reason why two loops cannot share a loop nest in any kernel; None if they can."""
        made, reads = self.statements[maker], self.statements[reader]
        assert isinstance(made, Loop)
        assert isinstance(reads, Loop)
        if made.domain != reads.domain:
            return Reason.ROWS
        value = made.target.value
        if made.combine:
            return Reason.COMBINED
        if made.axes != reads.axes:
            return Reason.AXES
        operands = self.uses.operands(reads, value)
        is_part = any(operand.view.value != value for operand in operands)
        if is_part or len(self.uses.makers(value)) > 1 or not is_made_at_once(self.lowered, made):
            return Reason.PART
        if any(operand.moved is not None for operand in operands):
            return Reason.DATA
        if not all(operand.view.is_whole(made.size) for operand in operands):
            return Reason.ELEMENTS
        return None

    def sentence(self, apart: Apart) -> str:
        """Write the reason why two neighbours are not fused as a sentence for users."""
        pair = [self.statements[k] for k in (apart.maker, apart.reader)]
        others = [self.statements[k] for k in apart.others]
        return apart.reason.value.format(
            maker=name_of(pair[0]),
            reader=name_of(pair[1]),
            names=list(map(name_of, others)),
            kinds=["product" if isinstance(s, Product) else "op" for s in others],
            rows=["node" if s.domain < 0 else f"edge of group {s.domain}" for s in pair],
            axes=[show_axes(s.axes) for s in pair if isinstance(s, Loop)],
            combine=pair[0].combine if isinstance(pair[0], Loop) else "",
            rule=next((s.why.value for s in others if isinstance(s, Interpreted)), ""),
        )


def show_apart(neighbours: Neighbours) -> str:
    """List all pairs that are not fused; pairs with the same reason and the same readers share a line."""
    makers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for apart in neighbours.apart():
        makers[neighbours.sentence(apart), apart.reader].append(apart.maker)
    readers: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for (why, reader), found in makers.items():
        readers[why, tuple(found)].append(reader)
    lines = [f"{_names(neighbours, found)} | {_names(neighbours, of)}: {why}" for (why, found), of in readers.items()]
    return "\n".join(lines) or "all neighbours are fused"


def _names(neighbours: Neighbours, found: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(name_of(neighbours.statements[k]) for k in found))
