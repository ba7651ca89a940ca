"""Find the loops of a stage that run over the same axes at every width of the model.

Two loops do if they access the same elements of a value in the same order, if products by one matrix link the values
that they access, if a value was split in equal parts, or if a third loop shares axes with both. Axes of equal size are
not enough: the rows of a memory may happen to be as many as the elements of this model's vectors, and models that
differ in width alone would then not share compiled kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from autobatch.compiler.lowered import STORED, Lowered
from autobatch.compiler.statement import Loop, Product
from autobatch.ir.program import Instruction, Port
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
        yield ()
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
        yield [("axis", term.weight, term.transposed), (term.rows.value, term.rows.offset, (term.rows.size,), (1,))]
        yield [("axis", term.weight, not term.transposed), (product.target, 0, (size,), (1,))]
