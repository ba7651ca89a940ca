"""Split loops over several gates into loops over one gate each.

Gates are stacked: a cell adds their biases, or takes the sigmoid of some, in one loop over all of them, and then
combines slices. Split at the ends of the slices, these loops run over the same axis as the loops that read them, so
that all can be fused into one loop nest, and intermediate values stay in registers. Connected values and loops are
split together, and only if all pieces have the same length.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

from autobatch.compiler.lowered import Lowered
from autobatch.compiler.statement import Loop, Operand, Position, Statement
from autobatch.compiler.uses import Uses
from autobatch.compiler.view import View
from autobatch.ops.expression import Expression, replace_leaves


def split_loops(lowered: Lowered) -> None:
    """Split the loops of a stage in place. Cost: linear in the number of loops times the slices of a value."""
    splitter = _Splitter(lowered)
    for loops in splitter.components():
        length = splitter.piece_length(loops)
        if length:
            splitter.split(loops, length)


class _Splitter:
    """The loops and values of a stage that can be split."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.loops = [s for s in lowered.statements if isinstance(s, Loop) and _is_line(s)]
        self.values = self._values()

    def _values(self) -> set[int]:
        """Return the values whose elements are each made once, by loops that can be split."""
        lowered, lines = self.lowered, set(map(id, self.loops))

        def is_split(value: int, makers: list[Statement]) -> bool:
            return (
                value not in lowered.aliases
                and not lowered.parts.get(value)
                and all(id(maker) in lines for maker in makers)
                and sum(maker.size for maker in makers if isinstance(maker, Loop)) == lowered.sizes[value]
            )

        uses = Uses(lowered, lowered.statements)
        return {v for v, makers in uses.made.items() if is_split(v, [lowered.statements[k] for k in makers])}

    def ranges(self, loop: Loop) -> list[View]:
        """Return the ranges of splittable values that a loop writes or reads element by element."""
        views = [loop.target, *(operand.view for operand in loop.operands if operand.moved is None)]
        return [v for v in views if v.value in self.values and v.size == loop.size and v.is_contiguous]

    def components(self) -> list[list[Loop]]:
        """Return groups of loops that are connected by splittable values."""
        group: dict[int, int] = {value: value for value in self.values}

        def find(value: int) -> int:
            while group[value] != value:
                value = group[value]
            return value

        for loop in self.loops:
            values = [view.value for view in self.ranges(loop)]
            for value in values[1:]:
                group[find(value)] = find(values[0])
        found: defaultdict[int, list[Loop]] = defaultdict(list)
        for loop in self.loops:
            ranges = self.ranges(loop)
            if ranges:
                found[find(ranges[0].value)].append(loop)
        return list(found.values())

    def piece_length(self, loops: list[Loop]) -> int:
        """Return the length of the pieces of these loops; 0 if lengths differ or if there is nothing to split.

        Each loop begins with cuts at its ends. Cuts spread between loops through the values that they access, until
        nothing changes.
        """
        cuts: defaultdict[int, set[int]] = defaultdict(set)
        own: list[set[int]] = [{0, loop.size} for loop in loops]
        changed = True
        while changed:
            changed = False
            for loop, places in zip(loops, own, strict=True):
                for view in self.ranges(loop):
                    inside = {c - view.offset for c in cuts[view.value] if 0 <= c - view.offset <= loop.size}
                    outside = {place + view.offset for place in places}
                    changed = changed or not inside <= places or not outside <= cuts[view.value]
                    places |= inside
                    cuts[view.value] |= outside
        lengths = {b - a for places in own for a, b in pairwise(sorted(places))}
        if len(lengths) != 1 or all(len(places) == 2 for places in own):
            return 0
        return lengths.pop()

    def split(self, loops: list[Loop], length: int) -> None:
        """Replace loops, and the values that they access, by pieces of a length."""
        lowered = self.lowered
        pieces: dict[int, list[int]] = {}
        chosen = set(map(id, loops))
        whole = self._read_whole(chosen)
        for value in sorted({view.value for loop in loops for view in self.ranges(loop)}):
            if lowered.sizes[value] > length:
                pieces[value] = self._split_value(value, length, value in whole)
        made: list[Statement] = []
        for statement in lowered.statements:
            if id(statement) in chosen and isinstance(statement, Loop):
                made += [self._piece(statement, at, length, pieces) for at in range(0, statement.size, length)]
            else:
                made.append(statement)
        lowered.statements[:] = made

    def _read_whole(self, chosen: set[int]) -> set[int]:
        """Return the values that are read in any way but element by element by the chosen loops."""
        found: set[int] = set()
        for statement in self.lowered.statements:
            if not isinstance(statement, Loop):
                found.update(self.lowered.values_read(statement))
                continue
            in_step = {id(view) for view in self.ranges(statement)} if id(statement) in chosen else set()
            found.update(o.view.value for o in statement.operands if id(o.view) not in in_step)
        return found

    def _split_value(self, value: int, length: int, is_read_whole: bool) -> list[int]:
        lowered, found = self.lowered, []
        for start in range(0, lowered.sizes[value], length):
            lowered.sizes.append(length)
            lowered.domains.append(lowered.domains[value])
            piece = len(lowered.sizes) - 1
            location = lowered.locations.get(value)
            if location is not None:
                lowered.locations[piece] = location._replace(column=location.column + start)
            elif is_read_whole:  # the pieces must be adjacent
                lowered.aliases[piece] = View(value, start, (length,), (1,))
            lowered.parts[value].append(piece)
            found.append(piece)
        lowered.pieces.append(found)
        return found

    def _piece(self, loop: Loop, at: int, length: int, pieces: dict[int, list[int]]) -> Loop:
        """Return the piece of a loop that begins at index `at`."""
        strides = dict(zip(loop.operands, loop.nest[1][1:], strict=True))

        def part_of(operand: Operand) -> Operand:
            (stride,) = strides[operand] or (0,)
            moved = operand.moved and operand.moved._replace(at=part_of(operand.moved.at))
            return replace(operand, view=self._part(operand.view, at, length, stride, pieces), moved=moved)

        def part(leaf: Expression) -> Expression:
            return part_of(leaf) if isinstance(leaf, Operand) else leaf

        target = self._part(loop.target, at, length, 1, pieces)
        return replace(loop, shape=(length,), expression=replace_leaves(loop.expression, part), target=target)

    def _part(self, view: View, at: int, length: int, stride: int, pieces: dict[int, list[int]]) -> View:
        offset = view.offset + at * stride
        if view.value in pieces and stride == 1:
            return View(pieces[view.value][offset // length], offset % length, (length,), (1,))
        return View(view.value, offset, (length,), (stride,))


def _is_line(loop: Loop) -> bool:
    """Return whether a loop runs over one axis, writes adjacent elements once, and reads adjacent elements or one."""
    axes, strides = loop.nest
    return (
        loop.size > 0
        and not loop.combine
        and len(axes) == 1
        and strides[0] == (1,)
        and all(stride in ((0,), (1,)) for stride in strides[1:])
        and not loop.reads(Position)
    )
