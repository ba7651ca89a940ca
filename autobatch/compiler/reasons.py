"""Why neighbouring ops of a compiled stage are not in one loop nest, told from what they are.

Two statements are neighbours if one reads what the other makes. They are fused if they are in one block of one kernel.
The reasons are found from definitions, on the finished steps, and not by asking the pass that made them: each is a
fact that `tests/test_reasons.py` checks anew. A pair that nothing keeps apart is said to be so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from autobatch.compiler.fusing import Kernel, Step, is_made_at_once
from autobatch.compiler.loop import Alone, Loop, Product, Statement
from autobatch.compiler.lowered import STORED, Lowered
from autobatch.compiler.printing import name_of

NO_REASON = "nothing stands between; each is in the first loop nest that it may be in"
OFF = "fusion is switched off"


class Place(NamedTuple):
    """Where a statement runs: a step, and the block in it (-1 where it is no kernel)."""

    step: int
    block: int


class Apart(NamedTuple):
    """Two neighbours that are not fused, by their numbers among the statements, and why."""

    maker: int
    reader: int
    why: str


class Neighbours:
    """The statements of a stage in the order in which they run, and who reads whom.

    Args:
        lowered: the stage.
        steps: all of it.
        n_before, n_after: the first and the last steps that run once for all rows.
        fused: whether steps were fused at all.
    """

    def __init__(
        self, lowered: Lowered, steps: Sequence[Step], n_before: int = 0, n_after: int = 0, fused: bool = True
    ) -> None:
        self.lowered, self.steps, self.fused = lowered, steps, fused
        self.once = {*range(n_before), *range(len(steps) - n_after, len(steps))}
        self.statements: list[Statement] = []
        self.place: list[Place] = []
        for number, step in enumerate(steps):
            if isinstance(step, Kernel):
                for at, block in enumerate(step.blocks):
                    self.statements += block.loops
                    self.place += [Place(number, at)] * len(block.loops)
            else:
                self.statements.append(step)
                self.place.append(Place(number, -1))

    @cached_property
    def makers(self) -> dict[int, list[int]]:
        """The statements that make each value, or parts of it."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for k, statement in enumerate(self.statements):
            value = target_of(statement)
            if value != STORED:
                found[value].append(k)
        return found

    @cached_property
    def read(self) -> list[list[int]]:
        """For each statement those whose values it reads."""
        return [
            sorted({m for value in self.lowered.values_read(s) for m in self._making(value)} - {k})
            for k, s in enumerate(self.statements)
        ]

    @cached_property
    def needed(self) -> list[set[int]]:
        """For each statement all those that must run before it."""
        found: list[set[int]] = [set() for _ in self.statements]
        for k in sorted(range(len(self.statements)), key=lambda k: self.place[k]):
            for maker in self.read[k]:
                found[k] |= {maker} | found[maker]
        return found

    def _making(self, value: int) -> list[int]:
        found = list(self.makers.get(value, ()))
        for part in self.lowered.parts.get(value, ()):
            found += self._making(part)
        return found

    def apart(self) -> Iterator[Apart]:
        """The pairs of neighbours that are not fused."""
        for reader, makers in enumerate(self.read):
            for maker in makers:
                if self.place[maker] != self.place[reader] or self.place[maker].block < 0:
                    yield Apart(maker, reader, self.why(maker, reader))

    def why(self, maker: int, reader: int) -> str:
        """Why two neighbours are not fused."""
        for k in (maker, reader):
            statement = self.statements[k]
            if isinstance(statement, Product):
                return f"{name_of(statement)} is a product, which a library computes"
            if isinstance(statement, Alone):
                return f"{name_of(statement)} runs alone: {statement.why}"
        if not self.fused:
            return OFF
        here, there = self.place[maker], self.place[reader]
        if (here.step in self.once) != (there.step in self.once):
            return "one runs once for all rows of the type, the other for every batch"
        return self._why_blocks(maker, reader) if here.step == there.step else self._why_kernels(maker, reader)

    def _why_kernels(self, maker: int, reader: int) -> str:
        """Why two loops are in different kernels."""
        first, last = self.place[maker].step, self.place[reader].step
        between = [
            k for k, s in enumerate(self.statements) if not isinstance(s, Loop) and first < self.place[k].step < last
        ]
        late = [k for k in between if k in self.needed[reader]]
        early = [k for k in between if maker in self.needed[k]]
        for k in late:
            if k in early:
                return f"{self._name(k)} stands between: it reads the one and is read by the other"
        if early and late:
            return self._both_wait(maker, reader, early[0], late[0])
        others = [k for k, makers in enumerate(self.read) if maker in makers and self.place[k].step < last]
        if late and others:
            earlier = f"{self.name(others[0])} reads {self.name(maker)} in an earlier kernel"
            return f"{earlier}, and {self.name(reader)} waits for {self._name(late[0])}"
        readers = [k for k, makers in enumerate(self.read) if reader in makers and self.place[k].step == last]
        if between and readers:
            return f"{self.name(reader)} is made where {self.name(readers[0])} reads it, after {self._name(between[0])}"
        return NO_REASON

    def _both_wait(self, maker: int, reader: int, early: int, late: int) -> str:
        return f"{self._name(early)} waits for {self.name(maker)}, and {self.name(reader)} for {self._name(late)}"

    def _why_blocks(self, maker: int, reader: int) -> str:
        """Why two loops of a kernel are in different loop nests."""
        reason = self.why_not_one_nest(maker, reader)
        if reason:
            return reason
        for other in self.read[reader]:
            here, there, its = self.place[maker], self.place[reader], self.place[other]
            if other != maker and its.step == there.step and here.block <= its.block < there.block:
                return f"{self.name(reader)} reads {self.name(other)} too, which a later loop nest makes"
        return NO_REASON

    def why_not_one_nest(self, maker: int, reader: int) -> str:
        """What keeps two loops out of one loop nest, wherever they are; nothing if nothing does."""
        made, reads = self.statements[maker], self.statements[reader]
        assert isinstance(made, Loop)
        assert isinstance(reads, Loop)
        if made.domain != reads.domain:
            return f"one runs for every {_row(made.domain)}, the other for every {_row(reads.domain)}"
        value = made.target.value
        if made.combine:
            return f"{self.name(maker)} is a {made.combine}, known only after its loop"
        if made.axes != reads.axes:
            return f"one loop goes over {_axes(made.axes)}, the other over {_axes(reads.axes)}"
        operands = [operand for operand in reads.operands if operand.view.value == value]
        if not operands or len(self.makers[value]) > 1 or not is_made_at_once(self.lowered, made):
            return f"{self.name(maker)} is a part of what {self.name(reader)} reads"
        if any(operand.moved is not None for operand in operands):
            return f"data chooses the element of {self.name(maker)} that {self.name(reader)} reads"
        if not all(operand.view.is_whole(made.size) for operand in operands):
            return f"{self.name(reader)} reads other elements of {self.name(maker)} than were just made"
        return ""

    def name(self, k: int) -> str:
        """What a statement makes."""
        return name_of(self.statements[k])

    def _name(self, k: int) -> str:
        kind = "product" if isinstance(self.statements[k], Product) else "op"
        return f"the {kind} {self.name(k)}"


def show_apart(neighbours: Neighbours) -> str:
    """All pairs that are not fused; those with the same reason, and the same readers, in one line."""
    makers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for maker, reader, why in neighbours.apart():
        makers[why, reader].append(maker)
    readers: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for (why, reader), found in makers.items():
        readers[why, tuple(found)].append(reader)
    lines = [f"{_names(neighbours, found)} | {_names(neighbours, of)}: {why}" for (why, found), of in readers.items()]
    return "\n".join(lines) or "all neighbours are fused"


def _names(neighbours: Neighbours, found: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(map(neighbours.name, found)))


def target_of(statement: Statement) -> int:
    """The value that a statement makes, `STORED` for one that writes to places."""
    return statement.target.value if isinstance(statement, Loop) else statement.target


def _row(domain: int) -> str:
    return "node" if domain < 0 else f"edge of group {domain}"


def _axes(axes: tuple[int, ...]) -> str:
    return " x ".join(map(str, axes)) or "one element"
