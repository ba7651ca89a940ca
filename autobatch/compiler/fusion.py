"""Fuse the statements of a stage into few kernels of few loop nests.

A stage becomes kernel, products, kernel, products, ..., kernel, with as few kernels as the products between them allow.
A loop that could be in several kernels joins the kernel of its readers, so that intermediate values stay in registers.
Inside a kernel, loops over the same axes form one *block*, a loop nest, if each reads the values of the others at its
own index only.

Two loops run over the same axes at every width of the model if they access the same elements of a value in the same
order, if products by one matrix link the values that they access, if a value was split in equal parts, or if a third
loop shares axes with both. Axes of equal size are not enough: the rows of a memory may happen to be as many as the
elements of this model's vectors, and models that differ in width alone would then not share compiled kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from autobatch.compiler.lowered import STORED, Area, Lowered
from autobatch.compiler.statement import Interpreted, Loop, Product, Statement
from autobatch.compiler.uses import Uses, overwritings
from autobatch.ir.program import NODE, Instruction, Port
from autobatch.ops.shaping import assemble


def common_axes(lowered: Lowered) -> dict[int, Hashable]:
    """Return a key for each loop, by its `id`; the keys of two loops are equal if and only if their axes are the same.

    Cost: about linear in the number of statements and operands.
    """
    group: dict[Hashable, Hashable] = {}

    def find(elements: Hashable) -> Hashable:
        while group.setdefault(elements, elements) != elements:
            elements = group[elements]
        return elements

    ports = {var.source.number: index for index, var in enumerate(lowered.vars) if isinstance(var.source, Port)}
    loops = {id(s): list(_accessed(s, ports)) for s in lowered.statements if isinstance(s, Loop)}
    links = [*loops.values(), *_equal_parts(lowered)]
    links += [link for s in lowered.statements if isinstance(s, Product) for link in _links(lowered, s)]
    for link in links:
        for other in link[1:]:
            group[find(other)] = find(link[0])
    return {loop: find(accessed[0]) for loop, accessed in loops.items()}


def _accessed(loop: Loop, ports: dict[int, int]) -> Iterator[Hashable]:
    """Yield the ranges of values in which a loop accesses another element at each index; then the loop itself."""
    axes, strides = loop.nest
    value = loop.target.value
    if loop.stored is not None and loop.stored[0] == "port":
        value = ports[loop.stored[1]]  # the gradient of a port has the axes of the port
    if not axes:
        yield ()  # all loops over a single element have the same axes: none
    elif value != STORED and all(strides[0]):
        yield value, loop.target.offset, axes, strides[0]
    for operand, along in zip(loop.operands, strides[1:], strict=True):
        if axes and all(along) and operand.moved is None:
            yield operand.view.value, operand.view.offset, axes, along
    yield id(loop), axes


def _equal_parts(lowered: Lowered) -> Iterator[list[Hashable]]:
    """Yield the parts of values with equal parts: split by loop splitting, or assembled from parts of equal size."""
    for pieces in lowered.pieces:
        yield [(piece, 0, (lowered.sizes[piece],), (1,)) for piece in pieces]
    for var in lowered.vars:
        if isinstance(var.source, Instruction) and var.source.op is assemble:
            views = [lowered.views[arg] for arg in var.source.args]
            if len({view.size for view in views}) == 1:
                yield [(view.value, view.offset, (view.size,), (1,)) for view in views]


def _links(lowered: Lowered, product: Product) -> Iterator[list[Hashable]]:
    """Yield the elements of a product's rows and of its target, each with the axis of the matrix that it matches."""
    size = lowered.sizes[product.target]
    for term in product.terms:
        # The rows run along one axis of the matrix, and the target along the other.
        yield [("axis", term.weight, term.transposed), (term.rows.value, term.rows.offset, (term.rows.size,), (1,))]
        yield [("axis", term.weight, not term.transposed), (product.target, 0, (size,), (1,))]


@dataclass(eq=False)
class Block:
    """Loops over the same rows and axes."""

    domain: int
    axes: tuple[int, ...]
    loops: list[Loop] = field(default_factory=list)


@dataclass(eq=False)
class Kernel:
    """Blocks that run one after the other for each row.

    Attributes:
        domain: the domain of the rows: nodes, or the edges of a group if loops read from or write to other nodes.
        spares: for each gathered gradient and each output, by number, its place in the scratch row and its size.
    """

    blocks: list[Block] = field(default_factory=list)
    domain: int = NODE
    spares: dict[tuple[Area, int], tuple[int, int]] = field(default_factory=dict)

    def written(self, number: int) -> list[tuple[int, int]]:
        """Return the ranges of an output that the kernel makes, as (first element, size); several if it was split."""
        loops = [loop for block in self.blocks for loop in block.loops if loop.stored == ("output", number)]
        found: list[tuple[int, int]] = []
        for first, size in sorted((loop.target.offset, loop.size) for loop in loops):
            if found and sum(found[-1]) == first:
                first, size = found[-1][0], found[-1][1] + size
                found.pop()
            found.append((first, size))
        return found


Step: TypeAlias = Kernel | Product | Interpreted


def fuse(lowered: Lowered, statements: list[Statement]) -> list[Step]:
    """Divide the statements of a stage into steps, in an executable order."""
    order = _Order(lowered, statements)
    levels = order.levels()
    steps: list[Step] = []
    for level in range(max(levels, default=-1) + 1):
        here = [k for k, found in enumerate(levels) if found == level]
        loops = [k for k in here if order.may_fuse(k)]
        if loops:
            steps.append(_make_blocks(order, loops))
        steps += [_alone(lowered, statements[k]) for k in here if not order.may_fuse(k)]
    return steps


def keep_apart(lowered: Lowered, statements: list[Statement]) -> list[Step]:
    """Turn every statement into a step of its own: the baseline against which `fuse` is measured."""
    return [_alone(lowered, statement) for statement in statements]


def _alone(lowered: Lowered, statement: Statement) -> Step:
    if not isinstance(statement, Loop):
        return statement
    domain = statement.domain if lowered.goes_between_nodes(statement) else NODE
    return Kernel([Block(statement.domain, statement.axes, [statement])], domain)


class _Order:
    """The order that dependencies between statements require."""

    def __init__(self, lowered: Lowered, statements: list[Statement]) -> None:
        self.lowered, self.statements = lowered, statements
        self.uses = Uses(lowered, statements)
        self.read: list[set[int]] = []
        self.before: list[list[int]] = []
        self.after: list[list[int]] = [[] for _ in statements]
        self.overwrites = overwritings(lowered, statements)
        self.axes = common_axes(lowered)
        for k, statement in enumerate(statements):
            self.read.append({m for value in lowered.values_read(statement) for m in self.uses.makers(value) if m < k})
            found = self.read[k].union(self._zeros(k), self.overwrites.get(k, ()))
            self.before.append(sorted(found))
            for maker in found:
                self.after[maker].append(k)

    def _zeros(self, k: int) -> Iterator[int]:
        """Yield the loops that fill elements with zeros before a statement makes them."""
        statement = self.statements[k]
        if isinstance(statement, Loop) and statement.stored is None:
            first, end = statement.target.bounds
            for earlier in self.uses.made[statement.target.value]:
                zeros = self.statements[earlier]
                if earlier < k and isinstance(zeros, Loop) and not zeros.operands:
                    start, stop = zeros.target.bounds
                    if start < end and first < stop:
                        yield earlier

    def levels(self) -> list[int]:
        """Return the number of the kernel of each loop that may be fused; for others, that of the kernel before them.

        Computes the earliest and the latest level of each statement. Loops without a choice fix the levels that have a
        kernel; each other loop then moves to the last such level before its readers, or to the first if it has none.
        """
        # Level n has kernel n, and then the products that read its values; a loop that reads these is in level n + 1.
        earliest: list[int] = []
        for k in range(len(self.statements)):
            fuses = self.may_fuse(k)
            earliest.append(max((earliest[b] + (fuses and not self.may_fuse(b)) for b in self.before[k]), default=0))
        last = max(earliest, default=0)
        latest = [last] * len(earliest)
        for k in reversed(range(len(earliest))):
            latest[k] = min(
                (latest[a] - (not self.may_fuse(k) and self.may_fuse(a)) for a in self.after[k]), default=last
            )
            if not self.may_fuse(k):
                latest[k] = earliest[k]
        filled = {e for k, e in enumerate(earliest) if self.may_fuse(k) and e == latest[k]}
        # From the last statement on, so that the levels of a loop's readers are final when it moves.
        for k in reversed(range(len(earliest))):
            if not self.may_fuse(k):
                continue
            bound = min((earliest[a] for a in self.after[k]), default=last)
            fits = [level for level in sorted(filled) if earliest[k] <= level <= bound]
            if self.after[k]:
                earliest[k] = fits[-1] if fits else bound
            else:
                earliest[k] = fits[0] if fits else earliest[k]
            filled.add(earliest[k])
        return earliest

    def may_share_nest(self, k: int, earlier: int) -> bool:
        """Return whether two loops over the same rows and axes can share a loop nest, although one must come first."""
        loop, made = self.statements[k], self.statements[earlier]
        assert isinstance(loop, Loop)
        assert isinstance(made, Loop)
        # Loop k may overwrite what the earlier one reads, or read what it makes, or both; each has its own condition.
        overwrites = self.overwrites.get(k, {}).get(earlier)
        if overwrites is not None and earlier not in self.read[k]:
            return overwrites
        return overwrites is not False and is_read_in_step(self.lowered, self.uses, made, loop)

    def may_fuse(self, k: int) -> bool:
        """Return whether a statement may share a kernel with others."""
        return isinstance(self.statements[k], Loop) and not self.lowered.goes_between_nodes(self.statements[k])


def _make_blocks(order: _Order, chosen: list[int]) -> Kernel:
    """Divide the loops of a kernel into blocks; each loop joins the first block that can hold it."""
    kernel = Kernel()
    place: dict[int, int] = {}
    for k in chosen:
        loop = order.statements[k]
        assert isinstance(loop, Loop)
        axes, earliest = order.axes[id(loop)], 0
        for maker in order.before[k]:
            if maker in place:
                at, block = place[maker], kernel.blocks[place[maker]]
                alike = (block.domain, order.axes[id(block.loops[0])]) == (loop.domain, axes)
                earliest = max(earliest, at if alike and order.may_share_nest(k, maker) else at + 1)
        for at in range(earliest, len(kernel.blocks)):
            if (kernel.blocks[at].domain, order.axes[id(kernel.blocks[at].loops[0])]) == (loop.domain, axes):
                break
        else:
            at = len(kernel.blocks)
            kernel.blocks.append(Block(loop.domain, loop.axes))
        kernel.blocks[at].loops.append(loop)
        place[k] = at
    return kernel


def is_read_in_step(lowered: Lowered, uses: Uses, made: Loop, loop: Loop) -> bool:
    """Return whether a loop reads each element at the index at which another makes it; both can then share a nest."""
    value = made.target.value
    if not is_made_at_once(lowered, made) or len(uses.makers(value)) > 1 or made.domain != loop.domain:
        return False
    reads = uses.operands(loop, value)
    return bool(reads) and all(o.view.value == value and o.moved is None and o.view.is_whole(made.size) for o in reads)


def is_made_at_once(lowered: Lowered, loop: Loop) -> bool:
    """Return whether a loop makes every element of a value once, in order."""
    value = loop.target.value
    return not loop.combine and value != STORED and loop.target.is_whole(lowered.sizes[value])
