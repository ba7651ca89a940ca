"""Print the statements inside a loop nest for Numba, and the names of ranges that are set before it."""

from __future__ import annotations

from autobatch.compiler.assignment import Spot
from autobatch.compiler.fusion import Block
from autobatch.compiler.nest import Element, Nest
from autobatch.compiler.writer import DATA, Writer, add, multiply


class NumbaNest(Nest):
    """Prints the statements inside a loop nest, and the names that are set before it."""

    select = "{x} if {condition} else {y}"

    def __init__(self, writer: Writer, spot: Spot, block: Block) -> None:
        super().__init__(writer, spot, block)
        self.before: list[str] = []
        self.known: dict[tuple[str, str, tuple[int, ...]], str] = {}
        self.tags: dict[str, str] = {}

    def statements(self) -> list[str]:
        """The lines of all loops."""
        reads, targets = [], []
        for loop in self.block.loops:
            reads.append(self.reads(loop))
            targets.append(self.targets(loop))
        self.tags = self._tag({element.array for elements in targets for element in elements})
        return [
            line
            for loop, read, elements in zip(self.block.loops, reads, targets, strict=True)
            for line in self.lines(loop, read, elements)
        ]

    def _tag(self, written: set[str]) -> dict[str, str]:
        """Tag each range, to tell LLVM that it overlaps no other one; see `autobatch.compiler.numba.scoped`.

        No range that is written overlaps another one: a block reads its own values from variables, and parts of one
        value are disjoint.
        """
        names = [name for (_, _, strides), name in self.known.items() if strides == (1,)]
        if len(names) < 2 or written.isdisjoint(names):
            return {}
        return {name: f"{self.spot.block}, {tag}, {len(names)}" for tag, name in enumerate(names)}

    def load(self, element: Element) -> str:
        """The text that reads an element."""
        array, at, _ = element
        if array in self.tags and at == "i":
            return f"get({array}, i, {self.tags[array]})"
        return f"{array}[{at}]" if at else array

    def assign(self, element: Element, text: str) -> str:
        """The statement that writes an element."""
        array, at, _ = element
        if array in self.tags and at == "i":
            return f"put({array}, i, {text}, {self.tags[array]})"
        return f"{array}[{at}] = {text}" if at else f"{array} = {text}"

    def element(self, array: str, first: str, strides: tuple[int, ...]) -> Element:
        """The element of a range at the index of the nest; the range is named before the nest."""
        writer, axes, is_data = self.writer, self.block.axes, array.partition("_")[0] in DATA
        if not axes:
            return Element(array, first, is_data)
        key = (array, first, strides)
        if key not in self.known:
            name = self.known[key] = writer.name()
            if not any(strides):
                text = f"{array}[{first}]"
            elif strides == (1,):
                text = f"part({array}, {first}, {writer.size(axes[0], self.spot, 0)})"
            else:
                text = first
            if array == "shared" and (strides == (1,) or not any(strides)):
                writer.shared[name] = text
            else:
                self.before.append(f"{name} = {text}")
        name = self.known[key]
        if not any(strides):
            return Element(name, is_data=is_data)
        if strides == (1,):
            return Element(name, "i", is_data)
        indices = [f"i{axis}" for axis in range(len(axes) - 1)] + ["i"]
        moves = [
            multiply(i, writer.size(stride, self.spot, "stride", axis, stride))
            for axis, (i, stride) in enumerate(zip(indices, strides, strict=True))
            if stride
        ]
        return Element(array, add([name, *moves]), is_data)
