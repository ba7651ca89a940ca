"""Test growing graphs against simple Python: what a round runs, reads and keeps, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autobatch._native import (
    append_phase,
    choose_nodes,
    count_readers,
    drop_pending,
    emit_graph,
    find_kept,
    set_in_use,
    sketch_pending,
)
from autobatch.arrays import IntArray
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.growing import KEPT as KEPT_ROW
from autobatch.graph.growing import (
    MADE_BY,
    MARK,
    NONE,
    NOWHERE,
    ROW,
    RUN,
    SLOT,
    Chosen,
    GrowingGraph,
    KeptRows,
    Nodes,
    OutputSlots,
    Request,
    Results,
)  # fmt: skip
from autobatch.graph.words import OUTPUT, OUTPUT_BITS, words_size, write_header
from helpers.programs.graphs import CELL, TOYS, ToyType, ToyTypes
from helpers.runs.ways import each

N_INSTANCES, N_SLOTS, N_ROUNDS = 3, 3, 6
KEPT = len(TOYS.types)
RAGGED, ROWS_OF = (CELL, 1), 1  # the output has a row per value read at the port
TYPES = ToyTypes((*TOYS.types, *(ToyType(f"kept {slot}", n_ints=1) for slot in range(N_SLOTS))))
Read = tuple[int, int, int]  # node, output, port


@dataclass(frozen=True)
class Node:
    """A node with its type and instance, its inputs and its attributes."""

    kind: int
    owner: int
    reads: tuple[Read, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]


@dataclass
class Plain:
    """A growing graph by definition.

    Attributes:
        nodes: by number; values: the node and the output of each; done: the nodes that have run.
        in_use: values that the program may use; held: number of results for each value.
        kept: values that a round kept; returned: the values that the last phase returned.
    """

    nodes: list[Node] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    in_use: set[int] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    returned: list[int] = field(default_factory=list)

    def value(self, node: int, output: int) -> int:
        return self.values.index((node, output))

    def reads(self, node: int) -> list[int]:
        return [self.value(source, output) for source, output, _ in self.nodes[node].reads]

    def needed(self, wanted: list[int]) -> list[int]:
        """Return the unrun nodes that these values depend on, grouped by instance."""
        found, left = set[int](), [self.values[v][0] for v in wanted]
        while left:
            node = left.pop()
            if node not in found and node not in self.done:
                found.add(node)
                left.extend(source for source, _, _ in self.nodes[node].reads)
        return sorted(found, key=lambda node: (self.nodes[node].owner, node))

    def usable(self) -> list[int]:
        """Return the values that a program may ask for: those not yet computed, or kept for it."""
        return [v for v, (node, _) in enumerate(self.values) if node not in self.done or v in self.in_use & self.kept]

    def to_keep(self, nodes: list[int], wanted: list[int]) -> list[int]:
        """Return the values of these nodes that may be read after they have run."""
        waiting = set(range(len(self.nodes))) - self.done
        read = {v for node in waiting for v in self.reads(node)} | set(self.held) | self.in_use | set(wanted)
        return [v for node in nodes for v, (made_by, _) in enumerate(self.values) if made_by == node and v in read]


class Tables:
    """The tables of kept values, with the value in each row of each slot."""

    def __init__(self, growing: GrowingGraph) -> None:
        self.growing, self.kept, self.last = growing, KeptRows(growing), np.zeros(0, np.int32)
        self.values: dict[tuple[int, int], int] = {}

    def settle(self, chosen: Chosen) -> None:
        """Copy values kept from the last run; check that each source of the chosen round is in its row."""
        values = self.growing.values
        placed = {(int(values[SLOT, v]), int(values[ROW, v])): v for v in self.last.tolist()}
        found, rows, ptr = self.kept.move(self.last)
        for slot in range(len(ptr) - 1):
            for k in range(ptr[slot], ptr[slot + 1]):
                assert 0 <= rows[k] < self.kept.size[slot]
                self.values[slot, int(rows[k])] = placed[slot, int(found[k])]
        for v in chosen.sources.tolist():
            assert self.values[int(values[SLOT, v]), int(values[KEPT_ROW, v])] == v
        self.last = chosen.kept.values

    def flush(self) -> None:
        """Copy values kept from the last run, if there was one since they were last copied."""
        if self.last.size:
            self.settle(Chosen(self.last[:0], self.last[:0], Results(self.last[:0], self.last[:0], self.last[:0])))

    def renumber(self, of_value: IntArray) -> None:
        self.kept.renumber(of_value)
        held, free, n_free, _ = self.kept.tables(0, 0)
        for slot in range(len(held)):
            assert sorted(free[slot, : n_free[slot]].tolist()) == np.flatnonzero(held[slot] == NOWHERE).tolist()
        self.values = {place: int(of_value[v]) for place, v in self.values.items()}


def words_of(node: Node) -> list[int]:
    """Return the words of a node's values: its outputs, or their rows."""
    words = list[int]()
    for output in range(TOYS.types[node.kind].n_outputs):
        is_ragged = (node.kind, output) == RAGGED
        n_rows = sum(port == ROWS_OF for _, _, port in node.reads) if is_ragged else 1
        words.extend(output | k << OUTPUT_BITS for k in range(n_rows))
    return words


def owned(plain: Plain, owner: int) -> list[int]:
    """Return the values of an instance that its program may use."""
    return [v for v in plain.usable() if plain.nodes[plain.values[v][0]].owner == owner]


def draw_phase(rng: np.random.Generator, plain: Plain) -> Graph:
    """Add nodes to instances; return the graph of the phase, in which earlier values are numbered -1, -2, ..."""
    first, fresh = len(plain.nodes), list[list[Node]]()
    for owner in range(N_INSTANCES):
        fresh.append([])
        for _ in range(rng.integers(0, 5)):
            known = owned(plain, owner)
            kind = int(rng.integers(len(TOYS.types))) if known else 0
            toy = TOYS.types[kind]
            reads = [
                (*plain.values[rng.choice(known)], port)
                for port, letter in enumerate(toy.ports)
                for _ in range(1 if letter == "p" else rng.integers(0, 4))
            ]
            ints = tuple(int(x) for x in rng.integers(0, 5, toy.n_ints))
            node = Node(kind, owner, tuple(reads), ints, tuple(rng.random(toy.n_floats)))
            fresh[-1].append(node)
            plain.values.extend((len(plain.nodes), word) for word in words_of(node))
            plain.nodes.append(node)
    returned = [
        [int(v) for v in rng.choice(known, rng.integers(0, 3))] if (known := owned(plain, owner)) else []
        for owner in range(N_INSTANCES)
    ]
    plain.returned = [v for own in returned for v in own]
    nodes = [node for own in fresh for node in own]
    edges = [read for node in nodes for read in node.reads]
    attr, floats = ([x for node in nodes for x in getattr(node, name)] for name in ("ints", "floats"))
    sizes = N_INSTANCES, len(nodes), len(edges), len(attr), len(plain.returned)
    words = np.zeros(words_size(*sizes), np.int32)
    parts = write_header(words, *sizes, len(floats))
    parts.instance_ptr[1:] = np.cumsum([len(own) for own in fresh])
    parts.output_ptr[1:] = np.cumsum([len(own) for own in returned])
    parts.out_node[:] = [plain.values[v][0] - first for v in plain.returned]
    parts.out_port[:] = [plain.values[v][1] for v in plain.returned]
    parts.type_id[:] = [node.kind for node in nodes]
    parts.edge_ptr[1:] = np.cumsum([len(node.reads) for node in nodes])
    table = np.array(edges, np.int32).reshape(-1, 3)
    parts.edge_src[:], parts.edge_out[:], parts.edge_in[:] = table[:, 0] - first, table[:, 1], table[:, 2]
    parts.attr[:] = attr
    return Graph(words, np.array(floats, np.float64), TYPES, (None,) * N_INSTANCES)


def draw_output_slots(rng: np.random.Generator) -> OutputSlots:
    """Draw the slot in which each output is kept; return it with the types that read it there."""
    slots = rng.integers(0, N_SLOTS, TYPES.arrays().out_ptr[-1]).astype(np.int32)
    rows = np.full(slots.size, NOWHERE, np.int32)
    rows[TYPES.arrays().out_ptr[RAGGED[0]] + RAGGED[1]] = TYPES.arrays().port_group[
        TYPES.arrays().port_ptr[RAGGED[0]] + ROWS_OF
    ]
    return OutputSlots(slots, rows, np.arange(KEPT, KEPT + N_SLOTS, dtype=np.int32))


def check_emitted(plain: Plain, growing: GrowingGraph, graph: Graph, nodes: list[int], sources: list[int]) -> list[int]:
    """Check that nodes and sources occur once, with the right inputs and attributes; return the outputs."""
    check_graph(graph)
    rows = growing.values[KEPT_ROW]
    by_owner = [
        item
        for owner in range(N_INSTANCES)
        for item in (
            *(("source", v) for v in sources if plain.nodes[plain.values[v][0]].owner == owner),
            *(("node", node) for node in nodes if plain.nodes[node].owner == owner),
        )
    ]
    assert graph.n_nodes == len(by_owner)
    place = {item: number for number, item in enumerate(by_owner)}
    ints, floats = iter(graph.attr.tolist()), iter(graph.floats.tolist())
    for number, (sort, which) in enumerate(by_owner):
        edges = range(graph.edge_ptr[number], graph.edge_ptr[number + 1])
        found = [(int(graph.edge_src[e]), int(graph.edge_out[e]), int(graph.edge_in[e])) for e in edges]
        if sort == "source":
            assert graph.type_id[number] >= KEPT
            assert (next(ints), found) == (rows[which], [])
            continue
        node = plain.nodes[which]
        assert graph.type_id[number] == node.kind
        expected = [
            (place["node", made_by], output, port)
            if ("node", made_by) in place
            else (place["source", plain.value(made_by, output)], 0, port)
            for made_by, output, port in node.reads
        ]
        assert found == expected
        assert tuple(next(ints) for _ in node.ints) == node.ints
        assert tuple(next(floats) for _ in node.floats) == node.floats
    returned = list[int]()
    for number, port in zip(graph.out_node.tolist(), graph.out_port.tolist(), strict=True):
        sort, which = by_owner[number]
        if sort == "source":
            assert port == 0
            returned.append(which)
        else:
            returned.append(plain.value(which, port))
    return returned


def check_round(
    plain: Plain, growing: GrowingGraph, output_slots: OutputSlots, tables: Tables, wanted: list[int], run: int,
    picks: bool,
) -> None:  # fmt: skip
    """Run a round that computes these values and compare it with the definition; `picks` names its nodes."""
    needed = plain.needed(wanted)
    sources = {v for node in needed for v in plain.reads(node) if plain.values[v][0] in plain.done}
    if picks:
        nodes, sketch = growing.sketch(np.array(wanted, np.int32), TYPES)
        check_sketch(plain, nodes.tolist(), sketch, needed)
        growing.pick(nodes)
    request = Request(NONE if picks else np.array(wanted, np.int32), output_slots, run)
    chosen = growing.choose(request, TYPES)
    check_chosen(plain, chosen, needed, sources)
    tables.settle(chosen)
    plain.done.update(needed)
    expected = plain.to_keep(needed, wanted)
    graph = growing.emit(chosen, request, TYPES)
    assert chosen.kept.values.tolist() == expected
    assert check_emitted(plain, growing, graph, needed, chosen.sources.tolist()) == expected
    assert graph.out_slot.tolist() == [
        output_slots.slot[TYPES.arrays().out_ptr[kind_of(plain, v)] + (plain.values[v][1] & OUTPUT)] for v in expected
    ]
    per_slot = [0] * N_SLOTS
    for v, slot in zip(expected, graph.out_slot.tolist(), strict=True):
        values = growing.values
        assert (values[RUN, v], values[SLOT, v], values[ROW, v]) == (run, slot, per_slot[slot])
        per_slot[slot] += 1
    plain.kept.update(expected)
    check_found(growing, np.array([*expected[::-1], *plain.in_use & plain.kept], np.int32), run)


def check_found(growing: GrowingGraph, values: IntArray, run: int) -> None:
    """Check that values are found once, in the results of the last run or in their table."""
    table, found, groups = growing.values, dict[int, tuple[int, bool, int]](), find_kept(growing.values, values, run)
    for slot, is_new, places, rows in groups:
        assert (places is None) == (len(groups) == 1)
        for place, row in zip(range(values.size) if places is None else places.tolist(), rows.tolist(), strict=True):
            assert found.setdefault(place, (slot, is_new, row)) == (slot, is_new, row)
    assert found == {
        k: (int(table[SLOT, v]), bool(table[RUN, v] == run), int(table[ROW if table[RUN, v] == run else KEPT_ROW, v]))
        for k, v in enumerate(values.tolist())
    }
    assert [group[:2] for group in groups] == sorted({(slot, is_new) for slot, is_new, _ in found.values()})


def check_sketch(plain: Plain, nodes: list[int], sketch: Graph, needed: list[int]) -> None:
    """Check that a sketch has the needed nodes' types and the edges between them."""
    assert nodes == sorted(needed)
    assert sketch.type_id.tolist() == [plain.nodes[node].kind for node in nodes]
    for number, node in enumerate(nodes):
        assert sketch.inputs_of(number) == [
            nodes.index(read) for read, _, _ in plain.nodes[node].reads if read in nodes
        ]


def compact(plain: Plain, growing: GrowingGraph, tables: Tables) -> None:
    """Forget what can no longer be read, and renumber the rest as the growing graph does."""
    readable = set(plain.held) | (plain.in_use & plain.kept)
    readable |= {v for node in range(len(plain.nodes)) if node not in plain.done for v in plain.reads(node)}
    needed = {node for node in range(len(plain.nodes)) if node not in plain.done}
    needed |= {plain.values[v][0] for v in readable}
    last = {plain.values[v][0] for v in np.flatnonzero(growing.values[MARK] == -growing.round)}
    tables.flush()
    of_node, of_value = growing.compact()
    left = np.flatnonzero(of_node != NOWHERE).tolist()
    used = {plain.values[v][0] for v in plain.in_use}
    assert needed <= set(left) <= needed | last | used
    assert of_node[left].tolist() == list(range(len(left)))
    tables.renumber(of_value)
    values = np.flatnonzero(of_value != NOWHERE).tolist()
    assert values == [v for v, (node, _) in enumerate(plain.values) if node in left]
    plain.values = [(int(of_node[node]), word) for node, word in (plain.values[v] for v in values)]
    nodes = [plain.nodes[node] for node in left]
    plain.nodes = [
        Node(x.kind, x.owner, () if node in plain.done else renumbered(x.reads, of_node), x.ints, x.floats)
        for node, x in zip(left, nodes, strict=True)
    ]
    plain.done = {int(of_node[node]) for node in plain.done if node in left}
    plain.held = of_value[plain.held].tolist()
    plain.in_use, plain.kept = (
        {int(of_value[v]) for v in own if of_value[v] >= 0} for own in (plain.in_use, plain.kept)
    )


def renumbered(reads: tuple[Read, ...], of_node: IntArray) -> tuple[Read, ...]:
    return tuple((int(of_node[node]), output, port) for node, output, port in reads)


def kind_of(plain: Plain, v: int) -> int:
    return plain.nodes[plain.values[v][0]].kind


def check_chosen(plain: Plain, chosen: Chosen, needed: list[int], sources: set[int]) -> None:
    """Check that a round runs the needed nodes in order, and reads each kept value once."""
    assert chosen.nodes.tolist() == needed
    assert len(chosen.sources) == len(sources)
    assert set(chosen.sources.tolist()) == sources <= plain.kept
    owners = [plain.nodes[plain.values[v][0]].owner for v in chosen.sources]
    assert owners == sorted(owners)


@pytest.mark.slow
@pytest.mark.parametrize("compacts", [0.0, 0.7])
@each("seed", range(150))
def test_rounds_run_what_is_needed_once_and_keep_what_may_be_read(seed: int, compacts: float) -> None:
    rng = np.random.default_rng(seed)
    plain, growing, output_slots, n_runs = Plain(), GrowingGraph(N_INSTANCES), draw_output_slots(rng), 0
    tables = Tables(growing)
    for _ in range(rng.integers(1, N_ROUNDS)):
        phase = draw_phase(rng, plain)
        assert growing.append(phase, output_slots.rows).tolist() == plain.returned
        assert growing.n_nodes == len(plain.nodes)
        assert growing.values[MADE_BY, : growing.n_values].tolist() == [node for node, _ in plain.values]
        use(rng, plain, growing)
        known = plain.usable()
        if not known:
            continue
        for _ in range(rng.integers(0, 3)):  # a program has ended with results
            held = rng.choice(known, rng.integers(0, 3)).astype(np.int32)
            growing.hold(held, 1)
            plain.held.extend(held.tolist())
        wanted = rng.choice(known, rng.integers(0, 4)).tolist()
        growing.hold(np.array(wanted, np.int32), 1)
        check_round(plain, growing, output_slots, tables, wanted, n_runs, picks=rng.random() < 0.5)
        growing.hold(np.array(wanted, np.int32), -1)
        n_runs += 1
        if rng.random() < compacts:
            compact(plain, growing, tables)
            use(rng, plain, growing)  # without a run, so that values are dropped that no move has looked at
            compact(plain, growing, tables)
    check_last(plain, growing, output_slots, tables)
    if not compacts:
        check_whole(plain, growing, output_slots)


def use(rng: np.random.Generator, plain: Plain, growing: GrowingGraph) -> None:
    """Let the program use all values of some nodes that are new or were usable before."""
    before = {plain.values[v][0] for v in plain.in_use}
    may = [n for n in range(len(plain.nodes)) if n not in plain.done or n in before]
    nodes = {int(n) for n in rng.choice(may, rng.integers(0, 4))} if may else set[int]()
    growing.use(*(np.array(sorted(numbers), np.int32) for numbers in (nodes, before - nodes)))
    plain.in_use = {v for v, (node, _) in enumerate(plain.values) if node in nodes}


def check_last(plain: Plain, growing: GrowingGraph, output_slots: OutputSlots, tables: Tables) -> None:
    """Check the last step, which computes the results and reads earlier rounds as sources."""
    held = plain.held
    needed = plain.needed(held)
    sources = {v for node in needed for v in plain.reads(node) if plain.values[v][0] in plain.done}
    sources |= {v for v in held if plain.values[v][0] in plain.done}
    results, expected = results_of(plain)
    request = Request(np.array(held, np.int32), output_slots, NOWHERE, results)
    chosen = growing.choose(request, TYPES)
    assert not chosen.kept.values.size
    check_chosen(plain, chosen, needed, sources)
    tables.settle(chosen)
    graph = growing.emit(chosen, request, TYPES)
    assert check_emitted(plain, growing, graph, needed, chosen.sources.tolist()) == expected
    assert graph.output_ptr.tolist() == results.ptr.tolist()


def check_whole(plain: Plain, growing: GrowingGraph, output_slots: OutputSlots) -> None:
    """Check that the whole graph has everything that results depend on, and no source."""
    plain.done.clear()
    results, expected = results_of(plain)
    graph = growing.emit_whole(results.values, output_slots, results, TYPES, (None,) * N_INSTANCES)
    assert check_emitted(plain, growing, graph, plain.needed(plain.held), []) == expected


def results_of(plain: Plain) -> tuple[Results, list[int]]:
    owners = [plain.nodes[plain.values[v][0]].owner for v in plain.held]
    own = [[v for v, owner in zip(plain.held, owners, strict=True) if owner == i] for i in range(N_INSTANCES)]
    values = [v for some in own for v in some]
    ptr = np.cumsum([0, *map(len, own)]).astype(np.int32)
    return Results(np.array(values, np.int32), np.arange(len(values), dtype=np.int32), ptr), values


def spoil(rng: np.random.Generator, array: Any) -> None:
    """Put invalid ints at some places."""
    peculiar = [-(2**31), -2, -1, 0, 1, 2, 5, 63, 64, 256, 2**30, 2**31 - 1]
    array.flat[rng.integers(array.size, size=rng.integers(1, 5))] = rng.choice(peculiar)


@each("seed", range(150))
def test_wrong_numbers_in_tables_do_no_harm(seed: int) -> None:
    """There may be an error or a result, but no crash, also for invalid arguments."""
    rng = np.random.default_rng(seed)
    plain, growing, output_slots = Plain(), GrowingGraph(N_INSTANCES), draw_output_slots(rng)
    for _ in range(3):
        growing.append(draw_phase(rng, plain), output_slots.rows)
    phase, arrays = draw_phase(rng, plain), TYPES.arrays()
    for _ in range(30):
        tables: list[Any] = [array.copy() for array in growing.nodes]
        values = growing.values.copy()
        spoil(rng, values if rng.random() < 0.4 else tables[rng.integers(3)])
        nodes, some = Nodes(*tables), rng.integers(-1, 40, rng.integers(6)).astype(np.int32)
        pending = growing._pending if rng.random() < 0.5 else some
        n, n_edges = (int(rng.choice([growing.n_nodes, growing._n_edges, -1, 0, 63, 2**31 - 1])) for _ in range(2))
        results = Results(some, np.zeros(some.size, np.int32), np.array([0, 0, 0, some.size], np.int32))
        kept, slots = results, output_slots.slot
        with suppress(ValueError):
            chosen, sources, _, *found = choose_nodes(
                nodes, values, arrays.out_ptr, slots, some, pending, 2, int(rng.integers(-1, 2)), N_INSTANCES
            )
            kept = Results(*found)
            emit_graph(nodes, values, output_slots.source, chosen, sources, kept)
        new = (phase.words, phase.floats, arrays, output_slots.rows, n, n_edges, pending)
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (sketch_pending, (some, pending)),
            (emit_graph, (output_slots.source, pending, some, results)),
            (append_phase, new),
            (set_in_use, (some, some[::-1].copy())),
            (count_readers, (some, -1)),
            (drop_pending, (pending, 1)),
        ]
        for call, arguments in calls:
            with suppress(ValueError):
                call(nodes, values, *arguments)
        with suppress(ValueError):
            find_kept(values, some, int(rng.integers(-1, 3)))


def test_a_phase_without_nodes_is_appended_where_tables_end() -> None:
    nothing = np.zeros(words_size(N_INSTANCES, 0, 0, 0, 0), np.int32)
    write_header(nothing, N_INSTANCES, 0, 0, 0, 0, 0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        growing, output_slots = GrowingGraph(N_INSTANCES), draw_output_slots(rng)
        growing.append(draw_phase(rng, Plain()), output_slots.rows)
        growing.nodes = growing.nodes._replace(table=growing.nodes.table[:, : growing.n_nodes + 1].copy())
        before = growing.n_nodes, growing.n_values
        growing.append(Graph(nothing, np.zeros(0), TYPES, (None,) * N_INSTANCES), output_slots.rows)
        assert (growing.n_nodes, growing.n_values) == before


def test_types_that_no_node_has_need_not_be_known() -> None:
    """Another thread may record types between two steps. Only types of nodes must be known."""
    rng = np.random.default_rng(0)
    plain, output_slots = Plain(), draw_output_slots(rng)
    phase = draw_phase(rng, plain)
    whole, part = GrowingGraph(N_INSTANCES), GrowingGraph(N_INSTANCES)
    whole.append(phase, output_slots.rows)
    part.append(phase, output_slots.rows[:-N_SLOTS])
    assert part.n_values == whole.n_values == len(plain.values)
    with pytest.raises(ValueError, match="tables of nodes and values must be consistent"):
        GrowingGraph(N_INSTANCES).append(phase, output_slots.rows[:1])


def test_tables_of_another_form_are_refused() -> None:
    growing = GrowingGraph(1)
    floats: Any = growing.nodes.attr
    nodes, values, none = growing.nodes, growing.values, np.zeros(0, np.int32)
    for wrong in (nodes[:4], list(nodes), nodes._replace(table=nodes.table[:6]), nodes._replace(floats=floats)):
        with pytest.raises((TypeError, ValueError)):
            set_in_use(wrong, values, none, none)  # type: ignore[arg-type]
    for wrong_values in (values[:9], values.T, values[:, ::2], None):
        with pytest.raises((TypeError, ValueError)):
            set_in_use(nodes, wrong_values, none, none)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tables of nodes and values must be consistent"):
        set_in_use(nodes, values, np.array([-1], np.int32), none)
