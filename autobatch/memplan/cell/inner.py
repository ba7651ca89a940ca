"""Inner batches: which instructions of a cell run as one.

It is the problem of batching nodes once more: instructions of one signature (op, shapes, static arguments) may run
together if none needs another, and of the sequences of batches one with the fewest is wanted. Branch and bound over
sets of finished instructions, under the chain bound: running all that is ready of a signature never costs batches, and
where no instruction of it waits for anything but others of it, running it now is part of some best sequence.
Which instructions share a batch matters for memory where the op is hard (a matrix product reads blocks), so all
groupings of hard instructions that reach a number of batches are listed, for the memory plan to choose among.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from autobatch.graph.dag import Dag, chains_ahead
from autobatch.ir.program import SHARED, Constant, Instruction
from autobatch.memplan.cell.memory import Memory, Read, is_number
from autobatch.ops.linear import affine, matmul, outer

HARD_OPS = (matmul, affine, outer)
MAX_STATES = 50_000  # sets of finished instructions; beyond, only the likeliest signature is run
MAX_GROUPINGS = 200  # of the hard instructions that the memory plan is asked to judge

Batches: TypeAlias = tuple[tuple[int, ...], ...]
Price: TypeAlias = tuple[int, int]  # copies per batch, bytes


@dataclass(frozen=True, eq=False)
class Steps:
    """The computing instructions of a cell as nodes whose types are their signatures.

    Attributes:
        values: the value that each node computes, in program order.
        dag: who reads whom, through views and joins.
        hard: per type, whether its op wants its operands as blocks.
    """

    values: tuple[int, ...]
    dag: Dag
    hard: tuple[bool, ...]


@dataclass(frozen=True)
class Choice:
    """Batches of the values that they compute, in an order in which they can run.

    Attributes:
        batches: each a tuple of values of the program.
        fewest: no sequence has fewer batches (if `proven`).
        price: copies and copied bytes of the hard batches.
        proven: whether no other choice has fewer launches, or as many and fewer bytes.
    """

    batches: Batches
    fewest: int
    price: Price
    proven: bool


def choose_batches(steps: Steps, price: Callable[[Batches], Price | None], max_states: int = MAX_STATES) -> Choice:
    """Choose batches with the fewest launches, that is batches and copies, then with the fewest copied bytes.

    Args:
        steps: of the cell.
        price: what a choice of hard batches costs: copies made whenever the cell runs, and bytes copied; None, but not
            the first time, to end the search with the best so far.
        max_states: sets of finished instructions that are tried before the search takes the likeliest.

    Cost: exponential at worst, and bounded: `max_states` states, `MAX_GROUPINGS` calls of `price`.
    """
    search = _Search(steps, max_states)
    fewest = n_batches = search.fewest()
    best: tuple[int, int] | None = None
    batches: Batches = ()
    found: Price = (0, 0)
    while best is None or (best[1] > 0 and n_batches <= best[0]):
        for candidate in search.groupings(n_batches):
            told = price(tuple(tuple(steps.values[n] for n in b) for b in candidate if search.is_hard(b)))
            if told is None:
                return _to_choice(steps, batches, fewest, found, proven=False)
            copies, moved = told
            if best is None or (n_batches + copies, moved) < best:
                best, batches, found = (n_batches + copies, moved), candidate, (copies, moved)
            if moved == 0:
                break
        n_batches += 1
    return _to_choice(steps, batches, fewest, found, proven=not search.gave_up)


def _to_choice(steps: Steps, batches: Batches, fewest: int, price: Price, proven: bool) -> Choice:
    return Choice(tuple(tuple(steps.values[n] for n in b) for b in batches), fewest, price, proven)


def make_steps(memory: Memory, one_input: bool = False) -> Steps:
    """Number the computing instructions of a program, and their signatures in order of appearance.

    Args:
        memory: of the cell.
        one_input: products by parameters may run together only if they read the same input: a backend without grids
            of products runs one for each input anyway.
    """
    number = {value: n for n, value in enumerate(memory.steps)}
    kinds: dict[Any, int] = {}
    hard: list[bool] = []
    type_id, edge_ptr, edge_src = [], [0], list[int]()
    for value in memory.steps:
        source = memory.program.vars[value].source
        assert isinstance(source, Instruction)
        shared_input = _input_of_product(memory, source) if one_input else None
        type_id.append(kinds.setdefault((signature(memory, value), shared_input), len(kinds)))
        hard += [source.op in HARD_OPS] if len(hard) < len(kinds) else []
        edge_src += sorted({number[read] for arg in source.args for read in computed(memory, arg)})
        edge_ptr.append(len(edge_src))
    dag = Dag(np.array(type_id, np.int32), np.array(edge_ptr, np.int32), np.array(edge_src, np.int32), len(kinds))
    return Steps(memory.steps, dag, tuple(hard))


def run_late(steps: Steps, batches: Batches) -> Batches:
    """Move the soft instructions into the last batches of their signature that run before any reader of theirs.

    Args:
        steps: of the cell.
        batches: of values, as `choose_batches` gives them; hard ones stay.
    """
    type_id, edge_ptr, edge_src, _ = steps.dag
    number = {value: n for n, value in enumerate(steps.values)}
    place = {number[value]: at for at, batch in enumerate(batches) for value in batch}
    kind = [int(type_id[number[batch[0]]]) for batch in batches]
    latest = dict.fromkeys(place, len(batches) - 1)
    for n in sorted(place, reverse=True):
        if not steps.hard[type_id[n]]:
            place[n] = max(at for at in range(place[n], latest[n] + 1) if kind[at] == type_id[n])
        for source in edge_src[edge_ptr[n] : edge_ptr[n + 1]].tolist():
            latest[source] = min(latest[source], place[n] - 1)
    moved = [tuple(steps.values[n] for n in sorted(place) if place[n] == at) for at in range(len(batches))]
    return tuple(batch for batch in moved if batch)


def computed(memory: Memory, index: int) -> set[int]:
    """The values that instructions compute and that this value shows or copies."""
    value = memory.reads[index].value
    source = memory.program.vars[value].source
    if not isinstance(source, Instruction):
        return set()
    if source.op.copies:
        return {read for part in source.args for read in computed(memory, part)}
    return {value}


def signature(memory: Memory, value: int) -> tuple[Any, ...]:
    """What instructions that may run as one have in common: all but where their arguments lie."""
    vars, source = memory.program.vars, memory.program.vars[value].source
    assert isinstance(source, Instruction)
    arguments: list[Any] = []
    for index in source.args:
        read, var = memory.reads[index], vars[index]
        origin = vars[read.value]
        if is_number(origin) and isinstance(origin.source, Constant):
            arguments.append(np.asarray(origin.source.data).item())
        else:
            arguments.append((var.shape, memory.area_of(read.value), read.strided))
    return source.op, repr(sorted(source.static.items())), vars[value].shape, vars[value].domain, tuple(arguments)


def _input_of_product(memory: Memory, source: Instruction) -> Read | None:
    """What a product of a parameter and a value of the node reads; None for other instructions."""
    if source.op not in (matmul, affine) or memory.program.vars[source.args[0]].domain != SHARED:
        return None
    return memory.reads[source.args[1]]


@dataclass(eq=False)
class _Search:
    """Branch and bound over sets of finished nodes, as bits of an int."""

    steps: Steps
    max_states: int = MAX_STATES
    gave_up: bool = False
    _failed: dict[int, int] = field(default_factory=dict)  # the most batches that were too few to finish from a set
    _enough: dict[int, int] = field(default_factory=dict)  # batches that were enough
    _given: set[frozenset[tuple[int, ...]]] = field(default_factory=set)
    _kind: list[int] = field(default_factory=list)
    _ahead: list[list[int]] = field(default_factory=list)
    _needs: list[int] = field(default_factory=list)
    _same_above: list[int] = field(default_factory=list)  # the nodes of one's own type that a node waits for

    def __post_init__(self) -> None:
        type_id, edge_ptr, edge_src, _ = self.steps.dag
        self._kind, self._ahead = type_id.tolist(), chains_ahead(self.steps.dag).tolist()
        above: list[int] = []
        for n, kind in enumerate(self._kind):
            sources = edge_src[edge_ptr[n] : edge_ptr[n + 1]].tolist()
            self._needs.append(sum(1 << s for s in sources))
            above.append(_union(above[s] | 1 << s for s in sources))
            self._same_above.append(_union(1 << m for m in range(n) if above[n] >> m & 1 and self._kind[m] == kind))
        self._all = (1 << len(self._kind)) - 1

    def is_hard(self, batch: tuple[int, ...]) -> bool:
        """Whether the op of a batch wants its operands as blocks."""
        return self.steps.hard[self._kind[batch[0]]]

    def fewest(self) -> int:
        """The fewest batches that run all nodes."""
        n_batches = self._bound(0)
        while not self._can_finish(0, n_batches):
            n_batches += 1
        return n_batches

    def groupings(self, n_batches: int) -> Iterator[Batches]:
        """Sequences of at most this many batches, one for each way to group the hard nodes that was not given yet."""
        seen: dict[Any, int] = {}
        stack: list[tuple[int, Batches]] = [(0, ())]
        while stack:
            done, batches = stack.pop()
            grouped = frozenset(batch for batch in batches if self.is_hard(batch))
            left = n_batches - len(batches)
            if seen.get((done, grouped), -1) >= left or not self._can_finish(done, left):
                continue
            seen[done, grouped] = left
            if done == self._all:
                if grouped not in self._given:
                    self._given.add(grouped)
                    yield batches
            elif len(self._given) >= MAX_GROUPINGS or len(seen) >= self.max_states:
                self.gave_up = True
                return
            else:
                moves = self._grouped_moves(done)[::-1]
                stack += [(done | _union(1 << n for n in batch), (*batches, batch)) for batch in moves]

    def _grouped_moves(self, done: int) -> list[tuple[int, ...]]:
        """Batches to try next: all that is ready of a soft type, any part of it, large ones first, of a hard one."""
        moves: list[tuple[int, ...]] = []
        for ready, is_safe in self._moves(done):
            if not self.is_hard(ready):
                if is_safe:
                    return [ready]
                moves.append(ready)
            else:
                moves += [part for size in range(len(ready), 0, -1) for part in combinations(ready, size)]
        return moves

    def _can_finish(self, done: int, n_batches: int) -> bool:
        """Whether that many batches can run what is left."""
        if done == self._all or self._enough.get(done, n_batches + 1) <= n_batches:
            return True
        if self._failed.get(done, -1) >= n_batches or self._bound(done) > n_batches:
            return False
        moves = self._moves(done)
        safe = [move for move in moves if move[1]]
        if len(self._failed) > self.max_states:
            self.gave_up = True
            moves = moves[:1]
        for ready, _ in safe[:1] or moves:
            if self._can_finish(done | _union(1 << n for n in ready), n_batches - 1):
                self._enough[done] = n_batches
                return True
        self._failed[done] = n_batches
        return False

    def _moves(self, done: int) -> list[tuple[tuple[int, ...], bool]]:
        """Per type, all that is ready, and whether that is all that waits for no other node of the type."""
        ready: dict[int, list[int]] = {}
        first: dict[int, int] = {}
        for n, kind in enumerate(self._kind):
            if not done >> n & 1 and not self._same_above[n] & ~done:
                first[kind] = first.get(kind, 0) + 1
                if not self._needs[n] & ~done:
                    ready.setdefault(kind, []).append(n)
        moves = [(tuple(nodes), len(nodes) == first[kind]) for kind, nodes in ready.items()]
        share = {nodes: len(nodes) / first[self._kind[nodes[0]]] for nodes, _ in moves}
        return sorted(moves, key=lambda move: -share[move[0]])

    def _bound(self, done: int) -> int:
        """The chain bound of what is left."""
        left = [ahead for n, ahead in enumerate(self._ahead) if not done >> n & 1]
        return sum(map(max, zip(*left, strict=True)))


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
