"""Shrink a failing case: take it apart into nodes, and leave out whatever can be left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch._native import data_starts
from autobatch.deploy.cases import Case
from autobatch.errors import AutobatchError
from autobatch.graph.graph import Graph
from autobatch.graph.words import OUTPUT, words_size, write_header
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.program import NODE, SHARED, Attribute, CellProgram, Constant, Instruction, Port
from autobatch.ir.program_check import check_cell
from autobatch.ir.typetable import NodeType
from autobatch.ops.define import Shape
from fuzzing.shrinking import shrink_by

WIDTHS = (64, 16, 4, 1)  # nodes to cut at once
SIMPLE: dict[str, Any] = {
    "policy": {"name": "agenda"},
    "rewrites": (),
    "planner": {},
    "precision": "float32",
    "threads": 1,
    "max_bytes": None,
}
"""The simplest value of each option."""


class Edge(NamedTuple):
    """An input of a node: the source node in its instance, its output and row as in graphs, and the node's port."""

    node: int
    word: int
    port: int


class Node(NamedTuple):
    """A node of an instance: the number of its type, its inputs, and its data."""

    type: int
    edges: tuple[Edge, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]


class Output(NamedTuple):
    """A value that an instance returns, and the number of its slot."""

    node: int
    word: int
    slot: int


class Instance(NamedTuple):
    """An instance; `key` is that of its random numbers."""

    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    key: int

    def without_the_unread(self) -> Instance:
        """Return the instance without nodes that no output needs."""
        needed = set[int]()
        waiting = [output.node for output in self.outputs]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += [edge.node for edge in self.nodes[node].edges]
        number = {old: new for new, old in enumerate(sorted(needed))}
        return self._replace(
            nodes=tuple(
                self.nodes[old]._replace(edges=tuple(e._replace(node=number[e.node]) for e in self.nodes[old].edges))
                for old in number
            ),
            outputs=tuple(output._replace(node=number[output.node]) for output in self.outputs),
        )


class Pieces(NamedTuple):
    """A case in pieces; it may have unused types and slots."""

    case: Case
    instances: tuple[Instance, ...]

    @property
    def size(self) -> int:
        """Return the size to minimize, from numbers of instances, nodes, edges, data, outputs, and values of types."""
        nodes = [node for instance in self.instances for node in instance.nodes]
        used = {node.type for node in nodes}
        n_values = sum(len(self.case.types[number].program.vars) for number in used)
        n_read = sum(1 + len(node.edges) + len(node.ints) + len(node.floats) for node in nodes)
        n_outputs = sum(len(instance.outputs) for instance in self.instances)
        return 20 * len(self.instances) + 10 * len(nodes) + 5 * n_read + n_values + n_outputs

    def with_type(self, program: CellProgram) -> tuple[Pieces, int]:
        """Return the pieces with a program's type, and the type's number; types with equal names are the same."""
        for node_type in self.case.types:
            if node_type.name == program.name:
                return self, node_type.number
        number = len(self.case.types)
        added = NodeType(number, program.name, program, None, (), trace=number)
        return self._replace(case=self.case._replace(types=(*self.case.types, added))), number

    def with_slot(self, shape: Shape) -> tuple[Pieces, int]:
        """Return the pieces with a slot of this shape, and its number; a known slot is used."""
        slots = tuple(dict.fromkeys((*self.case.slots, (shape, ""))))
        return self._replace(case=self.case._replace(slots=slots)), slots.index((shape, ""))

    def with_instance(self, k: int, instance: Instance) -> Pieces:
        """Return the pieces with one instance replaced."""
        kept = instance.without_the_unread()
        return self._replace(instances=(*self.instances[:k], kept, *self.instances[k + 1 :]))


def shrink_case(pieces: Pieces, fails: Callable[[Case], bool], seconds: float) -> Pieces:
    """Shrink and simplify a failing case until nothing can be left out or the time is up."""
    end, before = time.monotonic() + seconds, None

    def is_smaller(new: Pieces, old: Pieces) -> bool:
        return new.case.setting != old.case.setting or new.size < old.size

    while pieces is not before:
        before = pieces
        for candidates in WAYS:
            left = end - time.monotonic()
            pieces = shrink_by(pieces, candidates, is_smaller, lambda smaller: fails(put_together(smaller)), left)
    return pieces


def take_apart(case: Case) -> Pieces:
    """Split a case into its instances and nodes."""
    _, graphs = case.batched(backend="reference")
    return Pieces(case, tuple(map(_take_apart, graphs)))


def _take_apart(graph: Graph) -> Instance:
    ints, floats = data_starts(graph.type_id, graph.attr, graph.types.arrays())
    edges = [Edge(*row) for row in zip(*(x.tolist() for x in (graph.edge_src, graph.edge_out, graph.edge_in)))]  # noqa: B905
    spans = zip(*(pairwise(x.tolist()) for x in (graph.edge_ptr, ints, floats)), strict=True)
    nodes = [
        Node(number, tuple(edges[slice(*of)]), tuple(graph.attr[slice(*i)].tolist()), tuple(graph.floats[slice(*f)]))
        for number, (of, i, f) in zip(graph.type_id.tolist(), spans, strict=True)
    ]
    outputs = zip(*(x.tolist() for x in (graph.out_node, graph.out_port, graph.out_slot)), strict=True)
    return Instance(tuple(nodes), tuple(Output(*row) for row in outputs), graph.key)


def put_together(pieces: Pieces) -> Case:
    """Make a case from its pieces, without what nothing reads."""
    instances = pieces.instances
    first_nodes = np.cumsum([0, *(len(instance.nodes) for instance in instances)])
    nodes = [node for instance in instances for node in instance.nodes]
    edges = [
        (edge.node + first, edge.word, edge.port)
        for first, instance in zip(first_nodes.tolist(), instances, strict=False)
        for node in instance.nodes
        for edge in node.edges
    ]
    outputs = [
        (output.node + first, output.word, output.slot)
        for first, instance in zip(first_nodes.tolist(), instances, strict=False)
        for output in instance.outputs
    ]
    ints = [x for node in nodes for x in node.ints]
    floats = np.array([x for node in nodes for x in node.floats], np.float64)
    sizes = len(instances), len(nodes), len(edges), len(ints), len(outputs)
    words = np.empty(words_size(*sizes), np.int32)
    parts = write_header(words, *sizes, floats.size)
    parts.instance_ptr[:] = first_nodes
    parts.output_ptr[:] = np.cumsum([0, *(len(instance.outputs) for instance in instances)])
    parts.type_id[:] = [node.type for node in nodes]
    parts.edge_ptr[:] = np.cumsum([0, *(len(node.edges) for node in nodes)])
    parts.edge_src[:], parts.edge_out[:], parts.edge_in[:] = np.array(edges, np.int32).reshape(-1, 3).T
    parts.attr[:] = ints
    parts.out_node[:], parts.out_port[:], parts.out_slot[:] = np.array(outputs, np.int32).reshape(-1, 3).T
    keys = np.array([instance.key for instance in instances], np.int64)
    return pieces.case._replace(words=words, floats=floats, keys=keys).without_the_unread()


def _simpler_settings(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case on the reference backend, and with each option simplified."""
    setting = pieces.case.setting
    simpler = [setting._replace(backend="reference")]
    simpler += [setting._replace(**{name: value}) for name, value in SIMPLE.items()]
    simpler += [setting._replace(dtype="float64", precision="float32")]
    yield from (pieces._replace(case=pieces.case._replace(setting=other)) for other in simpler if other != setting)


def _fewer_instances(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case with half of its instances, and without each instance."""
    given = pieces.instances
    half = len(given) // 2
    if half > 1:
        yield pieces._replace(instances=given[:half])
        yield pieces._replace(instances=given[half:])
    if len(given) > 1:
        yield from (pieces._replace(instances=given[:k] + given[k + 1 :]) for k in range(len(given)))


def _focused(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case with one value of an instance as its only result, or its sum in training; early nodes first."""
    for k in range(len(pieces.instances)):
        yield from _focused_instance(pieces, k)


def _focused_instance(pieces: Pieces, k: int) -> Iterator[Pieces]:
    instance = pieces.instances[k]
    for n, node in enumerate(instance.nodes):
        program = pieces.case.types[node.type].program
        for number, index in enumerate(program.outputs):
            shape, domain = program.vars[index].shape, program.vars[index].domain
            if domain < 0 and not pieces.case.setting.training:
                with_slot, slot = pieces.with_slot(shape)
                yield with_slot.with_instance(k, instance._replace(outputs=(Output(n, number, slot),)))
            elif domain < 0:
                summing, added = _with_sum(pieces, shape)
                last = Node(added, (Edge(n, number, 0),), (), ())
                loss = instance.outputs[0]._replace(node=len(instance.nodes), word=0)
                changed = instance._replace(nodes=(*instance.nodes, last), outputs=(loss,))
                yield summing.with_instance(k, changed)


def _cut(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case with some nodes of an instance replaced by constants, which read nothing; many first."""
    for width in WIDTHS:
        for k, instance in enumerate(pieces.instances):
            if width == 1 or width < len(instance.nodes):
                for stop in range(len(instance.nodes), 0, -width):
                    yield from _cut_nodes(pieces, k, range(max(stop - width, 0), stop))


def _cut_nodes(pieces: Pieces, k: int, cut: range) -> Iterator[Pieces]:
    nodes, changed = [*pieces.instances[k].nodes], pieces
    for n in cut:
        program = pieces.case.types[nodes[n].type].program
        is_constant = all(isinstance(var.source, Constant) for var in program.vars)
        if not is_constant and all(program.vars[index].domain < 0 for index in program.outputs):
            changed, number = _with_constants(changed, [program.vars[index].shape for index in program.outputs])
            nodes[n] = Node(number, (), (), ())
    if [*pieces.instances[k].nodes] != nodes:
        yield changed.with_instance(k, pieces.instances[k]._replace(nodes=tuple(nodes)))


def _with_constants(pieces: Pieces, shapes: Sequence[Shape]) -> tuple[Pieces, int]:
    """Return the pieces with the type of constants of these shapes, and its number."""
    builder = Builder(f"constants {', '.join(map(str, shapes))}")
    values = [np.linspace(-0.5, 0.5, int(np.prod(shape)) or 1).reshape(shape) for shape in shapes]
    return pieces.with_type(builder.finish([builder.add(Constant(value), value.shape, SHARED) for value in values]))


def _with_sum(pieces: Pieces, shape: Shape) -> tuple[Pieces, int]:
    """Return the pieces with the type of the sum of a value of this shape, and its number."""
    builder = Builder(f"sum {shape}")
    return pieces.with_type(builder.finish([ab.sum(builder.add(Port("x", 0, 0), shape, NODE))]))


def _shorter_lists(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case with half of the elements of the lists that a node reads, and without each element."""
    for k, instance in enumerate(pieces.instances):
        for n in range(len(instance.nodes)):
            yield from _shorter_lists_of(pieces, k, n)


def _shorter_lists_of(pieces: Pieces, k: int, n: int) -> Iterator[Pieces]:
    instance = pieces.instances[k]
    node = instance.nodes[n]
    program = pieces.case.types[node.type].program
    if program.derived or program.data_groups:
        return
    plain = {number for number, index in enumerate(program.ports) if program.vars[index].domain == NODE}
    by_port = {port: [e for e in node.edges if e.port == port] for port in sorted({e.port for e in node.edges})}
    length = max((len(edges) for port, edges in by_port.items() if port not in plain), default=0)
    for kept in [range(length // 2), range(length // 2, length)] * (length > 2) + [
        [i for i in range(length) if i != gone] for gone in range(length if length > 1 else 0)
    ]:
        edges = [e for port, of in by_port.items() for i, e in enumerate(of) if port in plain or i in kept]
        nodes = (*instance.nodes[:n], node._replace(edges=tuple(edges)), *instance.nodes[n + 1 :])
        yield pieces.with_instance(k, instance._replace(nodes=nodes))


def _simpler_programs(pieces: Pieces) -> Iterator[Pieces]:
    """Yield the case with one value of a type's program replaced by a constant or by one of its arguments."""
    for number in sorted({node.type for instance in pieces.instances for node in instance.nodes}):
        yield from _simpler_program(pieces, number)


def _simpler_program(pieces: Pieces, number: int) -> Iterator[Pieces]:
    node_type = pieces.case.types[number]
    program = node_type.program
    read = {
        edge.word & OUTPUT
        for instance in pieces.instances
        for node in instance.nodes
        for edge in node.edges
        if instance.nodes[edge.node].type == number
    }
    read |= {
        output.word & OUTPUT
        for instance in pieces.instances
        for output in instance.outputs
        if instance.nodes[output.node].type == number
    }
    if len(read) < len(program.outputs):
        some = program.outputs[min(read)]
        outputs = [index if place in read else some for place, index in enumerate(program.outputs)]
        yield _retyped(pieces, number, _again(program, outputs))
    for index in reversed(program.instructions):
        var = program.vars[index]
        args = var.source.args if isinstance(var.source, Instruction) else ()
        alike = [arg for arg in args if (program.vars[arg].shape, program.vars[arg].domain) == (var.shape, var.domain)]
        for instead in (*alike, None):
            if instead is None and (var.domain >= 0 or isinstance(var.source, Constant)):
                continue
            try:
                changed = _again(program, program.outputs, index, instead)
                check_cell(changed)
            except (AutobatchError, ArithmeticError, TypeError, ValueError, IndexError, KeyError):
                continue  # later ops do not accept the replacement
            yield _retyped(pieces, number, changed)


def _again(program: CellProgram, outputs: Sequence[int], gone: int = -1, instead: int | None = None) -> CellProgram:
    """Return the program with other outputs, and with one value replaced by an earlier one or a constant."""
    builder, value = Builder(program.name), dict[int, Traced]()
    for index, var in enumerate(program.vars):
        if index == gone:
            half = Constant(np.full(var.shape, 0.5))
            value[index] = builder.add(half, var.shape, SHARED) if instead is None else value[instead]
        elif isinstance(var.source, Instruction):
            args = tuple(value[arg] for arg in var.source.args)
            value[index] = builder.value(builder.apply(var.source.op, args, var.source.static).index)
        else:
            value[index] = builder.add(var.source, var.shape, var.domain)
    made = builder.finish([value[index] for index in outputs])
    groups = {var.domain for var in made.vars}
    return replace(made, ties=tuple(tie for tie in program.ties if groups.issuperset(tie)), draws=program.draws)


def _retyped(pieces: Pieces, number: int, program: CellProgram) -> Pieces:
    """Return the pieces with another program for a type; its nodes keep the edges and data that this program reads."""
    node_type = pieces.case.types[number]
    before = node_type.program
    port = {_source(before, old).leaf: place for place, old in enumerate(before.ports)}
    new_port = {port[_source(program, new).leaf]: place for place, new in enumerate(program.ports)}
    types = [*pieces.case.types]
    types[number] = replace(node_type, program=program, sum_type=-1)
    changed = pieces._replace(case=pieces.case._replace(types=tuple(types)))

    def change(node: Node) -> Node:
        if node.type != number:
            return node
        edges = tuple(e._replace(port=new_port[e.port]) for e in node.edges if e.port in new_port)
        return Node(number, edges, *_data(node, before, program))

    for k, instance in enumerate(pieces.instances):
        changed = changed.with_instance(k, instance._replace(nodes=tuple(map(change, instance.nodes))))
    return changed


def _source(program: CellProgram, index: int) -> Any:
    return program.vars[index].source


def _data(node: Node, before: CellProgram, after: CellProgram) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the ints and floats of a node that a program reads, out of those that the earlier one reads."""
    ints, floats = list[int](), list[float]()
    int_at = float_at = 0
    for domain in (NODE, *before.data_groups):
        n_rows = 1
        if domain != NODE:
            n_rows, int_at = node.ints[int_at], int_at + 1
            if domain in after.data_groups:
                ints.append(n_rows)
        for _ in range(n_rows):
            ints += [node.ints[int_at + column] for column in _columns(before, after, domain, is_float=False)]
            floats += [node.floats[float_at + column] for column in _columns(before, after, domain, is_float=True)]
            int_at, float_at = int_at + before.words(False, domain), float_at + before.words(True, domain)
    return tuple(ints), tuple(floats)


def _columns(before: CellProgram, after: CellProgram, domain: int, is_float: bool) -> list[int]:
    """Return the columns of a program's data in a domain among those of another program, in order."""
    places = {source.leaf: source.column for source, _ in _attributes(before, domain, is_float)}
    wanted = sorted(_attributes(after, domain, is_float), key=lambda found: found[0].column)
    return [places[source.leaf] + column for source, size in wanted for column in range(size)]


def _attributes(program: CellProgram, domain: int, is_float: bool) -> list[tuple[Attribute, int]]:
    return [
        (var.source, var.size)
        for var in program.vars
        if isinstance(var.source, Attribute) and var.domain == domain and var.source.is_float == is_float
    ]


WAYS = _simpler_settings, _fewer_instances, _focused, _cut, _shorter_lists, _simpler_programs
"""The candidates to try, in this order, each repeated while it helps."""
