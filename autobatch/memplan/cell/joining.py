"""Rewrite sums of products as one product: W x + U h becomes [W U] times the concatenation of x and h.

The product takes one launch, and no addition follows. With adjacent ports the concatenation is a view, and the matrices
are adjacent in one stacked parameter. A sum is joined if
- its products are of whole matrices by different vectors, all of the nodes or all of the edges of one group; nothing
  else reads the products or the matrices, so that no matrix is needed in two stacks, one of them a copy;
- every vector is computed as a whole, or is part of a port: a view of a computed value would be copied into the join;
- no vector depends on attributes only: such a product can be computed once for all rows of a type, not batch by batch;
- one order of all vectors makes the vectors of every sum adjacent, so that none is copied. A sum that fits no such
  order together with the more common sums is not joined. No sum is joined if a concatenation that the cell already has
  would then be copied;
- no matrix must stay contiguous, see `autobatch.params.parameter.Parameter`;
- the sums that share vectors take fewer launches than before. Products by one vector count as one, since they will be
  stacked: W x + U h saves nothing where V x remains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from autobatch.ir.builder import Builder, Traced
from autobatch.ir.program import SHARED, CellProgram, Instruction, Port, Weight, draws_of, origin
from autobatch.ir.program_check import check_cell
from autobatch.memplan.cell.constraints import fit_runs
from autobatch.memplan.cell.memory import ProgramMemory
from autobatch.memplan.pqtree.tree import PQTree
from autobatch.ops.define import Op
from autobatch.ops.elementwise import add
from autobatch.ops.linear import affine, matmul
from autobatch.ops.shaping import concat
from autobatch.params.parameter import Parameter
from autobatch.params.stacks import make_row
from autobatch.system.unchecked import checking

Launch: TypeAlias = tuple[Op, tuple[int, ...]]  # an op on matrices, and the vectors that it multiplies them by


class MatVec(NamedTuple):
    """A matrix times a vector, plus a bias if it is affine; all fields are numbers of values."""

    value: int
    weight: int
    input: int
    bias: int | None


class Sum(NamedTuple):
    """Products that become one, in the order of their vectors.

    Attributes:
        root: the value of the whole sum.
        products: two or more.
        others: the other terms.
        gone: the products, and the sums between them and the root.
    """

    root: int
    products: tuple[MatVec, ...]
    others: tuple[int, ...]
    gone: frozenset[int]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(product.input for product in self.products)

    @property
    def row(self) -> tuple[int, ...]:
        """Return the matrices, which become one row."""
        return tuple(product.weight for product in self.products)

    @property
    def op(self) -> Op:
        return matmul if all(product.bias is None for product in self.products) else affine

    def ordered(self, place: dict[int, int]) -> Sum:
        """Sort the products by the places of their vectors."""
        return self._replace(products=tuple(sorted(self.products, key=lambda product: place[product.input])))


def join_products(program: CellProgram) -> CellProgram:
    """Rewrite sums of products by parameters as single products, where that saves launches and copies nothing.

    Args:
        program: as traced.

    Returns:
        A program with the same name, ports, attributes and outputs, whose parameters may be rows of parameters; or the
        program itself.

    Cost: linear in the values; plus laying out all joins of vectors, if there is a sum to join.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> from autobatch.ir.arguments import Key
    >>> from autobatch.trace.tracer import Tracer
    >>> w, u = ab.Parameter(np.zeros((2, 2))), ab.Parameter(np.zeros((2, 3)))
    >>> keys = {"x": Key("value", (2,)), "h": Key("value", (3,))}
    >>> tracer = Tracer("step", {id(w): "w", id(u): "u"})
    >>> print(join_products(tracer.trace(lambda given: w @ given["x"] + u @ given["h"], keys)[0]))
    step(%0 x: (2,), %1 h: (3,))
      %2: (5,) = concat(%0, %1, axis=-1)
      %3: (2, 5) = parameter w|u
      %4: (2,) = matmul(%3, %2)
      return %4
    """
    reading = _Reading(program)
    sums = _saving(reading, _in_one_order(reading, reading.sums()))
    if not sums:
        return program
    joined = _rewrite(program, sums)
    if not _views_stay(program, joined, sums):
        return program
    if checking():
        check_cell(joined)
    return joined


class _Reading:
    """The readers of each value of a program, its products, and its sums."""

    def __init__(self, program: CellProgram) -> None:
        self.program = program
        self.uses = Counter(program.outputs)
        self.by_ports: set[int] = set(program.ports)  # values that depend on ports, directly or not
        self.products: dict[int, MatVec] = {}
        for index in program.instructions:
            source = self.instruction(index)
            assert source is not None
            self.uses.update(source.args)
            if self.by_ports.intersection(source.args):
                self.by_ports.add(index)
            if self._is_product(source):
                self.products[index] = MatVec(index, *source.args, *([None] if source.op is matmul else []))

    def instruction(self, index: int) -> Instruction | None:
        """Return the instruction that computes a value; None for other sources."""
        source = self.program.vars[index].source
        return source if isinstance(source, Instruction) else None

    def sums(self) -> list[Sum]:
        """Return the largest sums that have products to join."""
        inside: set[int] = set()
        found: list[Sum] = []
        for root in reversed(self.program.instructions):
            source = self.instruction(root)
            if root in inside or source is None or source.op is not add:
                continue
            leaves, between = self._leaves(root)
            inside |= between
            sum_ = self._sum(root, leaves, between)
            if len(sum_.products) > 1:
                found.append(sum_)
        return found[::-1]

    def _is_product(self, source: Instruction) -> bool:
        vars = self.program.vars
        if source.op not in (matmul, affine) or not isinstance(vars[source.args[0]].source, Weight):
            return False
        weight, input_ = (vars[arg] for arg in source.args[:2])
        return len(weight.shape) == 2 and len(input_.shape) == 1 and weight.size > 0 and input_.domain != SHARED

    def _leaves(self, root: int) -> tuple[list[int], set[int]]:
        """Return the terms of a tree of sums, in order, and the sums between them and the root."""
        leaves, between, pending = list[int](), set[int](), [root]
        shape, domain = self.program.vars[root].shape, self.program.vars[root].domain
        while pending:
            index = pending.pop()
            source, var = self.instruction(index), self.program.vars[index]
            alike = self.uses[index] == 1 and (var.shape, var.domain) == (shape, domain)
            if source is not None and source.op is add and (index == root or alike):
                between |= {index} - {root}
                pending += source.args[::-1]  # the left one is popped first
            else:
                leaves.append(index)
        return leaves, between

    def _sum(self, root: int, leaves: Sequence[int], between: set[int]) -> Sum:
        """Collect the terms that can be joined: products, one for each vector, all trainable or none."""
        var = self.program.vars[root]
        products: list[MatVec] = []
        for leaf in leaves:
            product = self.products.get(leaf)
            if product is None or product.input not in self.by_ports or not self._can_lie_in_a_join(product.input):
                continue
            if self.uses[leaf] > 1 or self.uses[product.weight] > 1 or self._parameter(product).stays_contiguous:
                continue
            known = {value for other in products for value in (other.weight, other.input)}
            like = not products or self._parameter(product).trainable == self._parameter(products[0]).trainable
            if like and self.program.vars[leaf].domain == var.domain and not known & {product.weight, product.input}:
                products.append(product)
        joined = {product.value for product in products}
        others = tuple(leaf for leaf in leaves if leaf not in joined)
        return Sum(root, tuple(products), others, frozenset(joined | between))

    def _can_lie_in_a_join(self, vector: int) -> bool:
        source = self.program.vars[vector].source
        is_view = isinstance(source, Instruction) and source.op.view
        return not is_view or self.is_of_port(vector)

    def is_of_port(self, value: int) -> bool:
        return isinstance(origin(self.program.vars, value).source, Port)

    def _parameter(self, product: MatVec) -> Parameter:
        source = self.program.vars[product.weight].source
        assert isinstance(source, Weight)
        return source.parameter


def _in_one_order(reading: _Reading, sums: Sequence[Sum]) -> list[Sum]:
    """Choose sums, most common first, whose vectors are adjacent in one order of all vectors; sort products by it.

    A computed vector is written directly into one join. Two joins can share it only if they lie in the inputs of the
    cell, as joins with ports do.
    """
    tree = PQTree(sorted({value for sum_ in sums for value in sum_.inputs}))
    wanted = Counter(frozenset(sum_.inputs) for sum_ in sums)
    ports = {value for value in tree.frontier() if isinstance(value, int) and reading.is_of_port(value)}
    kept: set[frozenset[int]] = set()
    for inputs, _ in wanted.most_common():
        shared = [other for other in kept if other & inputs]
        in_inputs = bool(ports & inputs.union(*shared))
        if (in_inputs or not shared) and tree.reduce(sorted(inputs)):
            kept.add(inputs)
    place = {value: at for at, value in enumerate(tree.frontier()) if isinstance(value, int)}
    return [sum_.ordered(place) for sum_ in sums if frozenset(sum_.inputs) in kept]


def _saving(reading: _Reading, sums: Sequence[Sum]) -> list[Sum]:
    """Return the sums that take fewer launches when joined, counted with all sums that share vectors with them."""
    groups: list[tuple[set[int], list[Sum]]] = []
    for sum_ in sums:
        inputs, members = set(sum_.inputs), [sum_]
        for group in [g for g in groups if not inputs.isdisjoint(g[0])]:
            inputs |= group[0]
            members = [*group[1], *members]
            groups.remove(group)
        groups.append((inputs, members))
    saving: list[Sum] = []
    for inputs, members in groups:
        gone = frozenset[int]().union(*(sum_.gone for sum_ in members))
        products = {p.value: p for p in reading.products.values() if p.input in inputs}
        # Sets: products by one vector will be stacked, so they are one launch.
        before = {_launch(reading, product) for product in products.values()}
        after = {_launch(reading, product) for value, product in products.items() if value not in gone}
        after |= {(sum_.op, sum_.inputs) for sum_ in members}
        if len(after) < len(before):
            saving += members
    return saving


def _launch(reading: _Reading, product: MatVec) -> Launch:
    source = reading.instruction(product.value)
    assert source is not None
    return source.op, (product.input,)


def _rewrite(program: CellProgram, sums: Iterable[Sum]) -> CellProgram:
    names = {id(v.source.parameter): v.source.name for v in program.vars if isinstance(v.source, Weight)}
    builder = Builder(program.name, weight_names=names)
    roots = {sum_.root: sum_ for sum_ in sums}
    gone = frozenset[int]().union(*(sum_.gone for sum_ in roots.values()))
    number: dict[int, Traced] = {}
    joins: dict[tuple[int, ...], Traced] = {}
    for index, var in enumerate(program.vars):
        source = var.source
        if index in gone:
            continue
        if index in roots:
            number[index] = _joined(program, builder, roots[index], number, joins)
        elif isinstance(source, Weight):
            number[index] = builder.wrap(source.parameter)
        else:
            if isinstance(source, Instruction):
                source = replace(source, args=tuple(number[arg].index for arg in source.args))
            number[index] = builder.add(source, var.shape, var.domain)
    # The draw's attribute stays even if no output needs it; `Builder.add` notes neither ties nor draws.
    made = builder.finish([number[output] for output in program.outputs], draws_of(builder.vars))
    return replace(made, ties=program.ties, draws=program.draws)


def _joined(
    program: CellProgram,
    builder: Builder,
    sum_: Sum,
    number: dict[int, Traced],
    joins: dict[tuple[int, ...], Traced],
) -> Traced:
    """Append one product in place of those of a sum, and the additions of the other terms."""
    if sum_.inputs not in joins:
        joins[sum_.inputs] = concat([number[value] for value in sum_.inputs])
    sources = [program.vars[weight].source for weight in sum_.row]
    parameters = [source.parameter for source in sources if isinstance(source, Weight)]
    row = make_row(parameters)
    builder.weight_names = {
        **builder.weight_names, id(row): "|".join(builder.weight_names[id(parameter)] for parameter in parameters)
    }  # fmt: skip
    biases = [number[product.bias] for product in sum_.products if product.bias is not None]
    total = builder.apply(sum_.op, (row, joins[sum_.inputs], *biases[:1]), {})
    for other in (*biases[1:], *(number[value] for value in sum_.others)):
        total = builder.apply(add, (total, other), {})
    return total


def _views_stay(program: CellProgram, joined: CellProgram, sums: Iterable[Sum]) -> bool:
    """Return whether all new joins of vectors are views, and all earlier joins still are."""
    memory = ProgramMemory(program)
    if not memory.joins and all(memory.reads[value].value == value for sum_ in sums for value in sum_.inputs):
        return True  # `_in_one_order` has made the new joins views
    n_new = _count_concats(joined) - _count_concats(program)
    return _count_views(ProgramMemory(joined)) >= _count_views(memory) + n_new


def _count_views(memory: ProgramMemory) -> int:
    if not memory.joins:
        return 0
    kept = fit_runs(memory, ()).kept
    return sum(("join", value) in kept for value in memory.joins)


def _count_concats(program: CellProgram) -> int:
    sources = (program.vars[index].source for index in program.instructions)
    return sum(isinstance(source, Instruction) and source.op.name == "concat" for source in sources)
