"""The statements inside a loop nest, and the names of ranges that must come before it."""

from __future__ import annotations

import re

from autobatch.compiler.fusing import Block
from autobatch.compiler.loop import Loop, Number, Operand
from autobatch.compiler.lowered import Home
from autobatch.compiler.numba.writer import Writer, add, multiply, table_and_step
from autobatch.compiler.storing import Spot, is_number, is_row_number
from autobatch.ir.program import SHARED


class Nest:
    """The statements inside a loop nest, and what must come before it."""

    def __init__(self, writer: Writer, spot: Spot, block: Block) -> None:
        self.writer, self.spot, self.block = writer, spot, block
        self.before: list[str] = []
        self.known: dict[tuple[str, str, tuple[int, ...]], str] = {}

    def scoped(self, lines: list[str]) -> list[str]:
        """The lines with elements of ranges as calls that say which range; see `autobatch.compiler.numba.scoped`.

        No range that is written overlaps another one: a block reads what it makes as numbers, and parts of one value
        are disjoint.
        """
        names = [name for (_, _, strides), name in self.known.items() if strides == (1,)]
        written = {line.split("[")[0] for line in lines}
        if len(names) < 2 or written.isdisjoint(names):
            return lines
        tags = {name: f"{self.spot.block}, {tag}, {len(names)}" for tag, name in enumerate(names)}

        def read(found: re.Match[str]) -> str:
            return f"get({found[1]}, i, {tags[found[1]]})" if found[1] in tags else found[0]

        changed = []
        for line in lines:
            target, _, expression = line.partition(" = ")
            expression = re.sub(r"\b(x\d+)\[i\]", read, expression)
            name = target.split("[")[0]
            in_range = name in tags and target == f"{name}[i]"
            changed.append(f"put({name}, i, {expression}, {tags[name]})" if in_range else f"{target} = {expression}")
        return changed

    def statement(self, loop: Loop) -> list[str]:
        """The lines of a loop."""
        writer = self.writer
        axes, strides = loop.nest
        names = iter([self._read(o, s) for o, s in zip(loop.operands, strides[1:], strict=True)])
        texts = [writer.real(read.data) if isinstance(read, Number) else next(names) for read in loop.reads]
        for group in re.findall(r"edges_(\d+)", loop.text):
            writer.groups.add(int(group))
        expression = loop.text.format(*texts, i="i" if axes else "0")
        value = loop.target.value
        if loop.combine:
            return self._combine(loop, expression, strides[0])
        if loop.stored is not None:
            return [f"{self._stored(loop, strides[0])} = {expression}"]
        lines = []
        is_number_here = writer.storage.made.get(value) == self.spot
        if is_number_here:
            lines.append(f"v{value} = {expression}")
            expression = f"v{value}"
        if not is_number_here or value in writer.storage.homes or value in writer.storage.aliases:
            lines.append(f"{self._element_of(*writer.address(loop.target), strides[0])} = {expression}")
        return lines

    def _combine(self, loop: Loop, expression: str, strides: tuple[int, ...]) -> list[str]:
        writer = self.writer
        if is_number(writer.lowered, loop):
            place = f"v{loop.target.value}"
        else:
            place = self._element_of(*writer.address(loop.target), strides)
        joined = f"plus({place}, {expression})" if loop.combine == "+" else f"larger({place}, {expression})"
        return [f"{place} = {joined}"]

    def _stored(self, loop: Loop, strides: tuple[int, ...]) -> str:
        """Where an output or the gradient of a port is written."""
        writer = self.writer
        assert loop.stored is not None
        what, number = loop.stored
        if what == "output":
            writer.need_window("output", number)
            return self._element_of(f"output_{number}_w", writer.size(loop.target.offset), strides)
        place = writer.layout.inputs[number]
        home = Home("mirror", place.domain, place.column)
        writer.arguments["buffer"] = None
        return self._element_of(
            "buffer", add([writer.row_of(home), writer.size(home.column + loop.target.offset)]), strides
        )

    def _read(self, operand: Operand, strides: tuple[int, ...]) -> str:
        """The text of what a loop reads at an index."""
        writer, storage = self.writer, self.writer.storage
        value = operand.view.value
        row_number = is_row_number(writer.lowered, value) and value in storage.made
        if operand.moved is None and storage.made.get(value) == self.spot:
            return f"v{value}"
        if row_number and storage.made[value].step == self.spot.step:
            return f"v{value}"
        moved = ""
        if operand.moved is not None and writer.lowered.domains[value] == SHARED:
            array, step = table_and_step(value)
            writer.arguments.update({array: None, step: None})
            ids, first = writer.address(operand.moved.view)
            first = add([writer.size(operand.view.offset), multiply(f"{ids}[{first}]", step)])
        else:
            if operand.moved is not None:
                ids, first = writer.address(operand.moved.view)
                moved = multiply(f"{ids}[{first}]", writer.size(operand.moved.step))
            array, first = writer.address(operand.view, moved)
        text = self._element_of(array, first, strides)
        return f"real({text})" if array in ("ints", "floats") and not operand.is_int else text

    def _element_of(self, array: str, first: str, strides: tuple[int, ...]) -> str:
        """The element of a range at the index of the nest; the range gets a name before the nest."""
        writer, axes = self.writer, self.block.axes
        if not axes:
            return f"{array}[{first}]"
        key = (array, first, strides)
        if key not in self.known:
            name = self.known[key] = writer.name()
            if not any(strides):
                text = f"{array}[{first}]"
            elif strides == (1,):
                text = f"part({array}, {first}, {writer.size(axes[0])})"
            else:
                text = first
            if array == "shared" and (strides == (1,) or not any(strides)):
                writer.shared[name] = text
            else:
                self.before.append(f"{name} = {text}")
        name = self.known[key]
        if not any(strides):
            return name
        if strides == (1,):
            return f"{name}[i]"
        indices = [f"i{axis}" for axis in range(len(axes) - 1)] + ["i"]
        moves = [multiply(i, writer.size(s)) for i, s in zip(indices, strides, strict=True) if s]
        return f"{array}[{add([name, *moves])}]"
