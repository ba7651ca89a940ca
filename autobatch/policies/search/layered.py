"""Search for the cheapest sequence of types, breadth first: all sequences grow by one step at a time.

A state is the remaining work, an antichain of suffixes (`autobatch.policies.search.suffix`); a layer holds the states
that sequences of one length lead to. A state is dropped if another state of its layer costs no more and its remaining
suffixes are all within those of the first. This rule matters most: few states of a layer survive it. A state is also
dropped if its cost plus the chain bound of its remaining work exceeds a limit. From a layer of more than `width` states
only those with the least such sum are kept, and among equals those with the fewest suffixes. Unless a state is dropped
for the width, no sequence up to the limit is missed: the search is breadth-first heuristic search (Zhou and Hansen
2006, Artificial Intelligence 170), else a beam search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.arrays import FloatArray, IntArray, LongArray, blank, empty, filled, zeros
from autobatch.jit.bits import count_ones
from autobatch.jit.loops import compiled
from autobatch.policies.search.suffix import BitArray, Suffixes, chains_after, grow, run_type

TOLERANCE = 1e-9
"""Costs whose difference, relative to the largest, is below this are equal: a sum of floats depends on its order."""


class Outcome(NamedTuple):
    """The result of a search, and what remains open."""

    sequence: IntArray  # int32[K], the cheapest that was found
    cost: float  # its cost; inf if none was found
    unseen: float  # a lower bound on the cost of all sequences not examined
    n_states: int  # states created
    gave_up: bool  # too many states; `unseen` is then meaningless


class _Problem(NamedTuple):
    suffixes: Suffixes
    ahead: IntArray  # [S, T]
    cost: FloatArray  # [T]
    slack: float


class _Layer(NamedTuple):
    """States: state s has left[ptr[s]:ptr[s+1]] to run."""

    ptr: LongArray
    left: IntArray
    paid: FloatArray
    total: FloatArray  # the cost so far, plus the chain bound of the rest
    parent: IntArray  # its place in the layer before
    type_id: IntArray  # the type that ran last


class _Trie(NamedTuple):
    """A trie of antichains, each read from its last suffix to its first."""

    suffix: IntArray
    child: IntArray
    sibling: IntArray
    paid: FloatArray  # the least cost so far of a state with this antichain, or inf
    size: IntArray  # [1]


@compiled
def search_layers(suffixes: Suffixes, cost: FloatArray, limit: float, width: int, max_states: int) -> Outcome:
    """Search for the cheapest sequence that finishes the graph of the suffixes.

    Args:
        suffixes: S suffixes of T types, compared.
        cost: float64[T], of a batch of each type, positive.
        limit: sequences that cost more are not examined.
        width: the most states of a layer that are kept.
        max_states: give up when more states than this are created.

    Returns:
        A sequence of the least cost up to the limit, unless `unseen` is less than its cost.

    Cost: per state O(T) steps and bounds, W = S/64 words for each suffix left, and a walk over the states kept.
    """
    ahead = chains_after(suffixes)
    slack = TOLERANCE * (1.0 + _rest(ahead, suffixes.first, cost))
    problem = _Problem(suffixes, ahead, cost, slack)
    layer = _first_layer(problem)
    parents, type_ids, offset = filled(1, -1), filled(1, -1), 0
    best, best_at, unseen, n_states = np.inf, -1, np.inf, 1
    while layer.paid.size > 0:
        for s in range(layer.paid.size):
            if layer.ptr[s] == layer.ptr[s + 1] and layer.paid[s] < best:
                best, best_at = layer.paid[s], offset + s
        children, beyond = _expand(problem, layer, min(limit, best - 2 * slack))
        n_states += children.paid.size
        unseen = min(unseen, beyond)
        if n_states > max_states:
            return Outcome(blank(0), np.inf, -np.inf, n_states, True)
        stay, dropped = _select(problem, children, width)
        unseen = min(unseen, dropped)
        next_layer = _take(children, stay)
        end = offset + layer.paid.size
        parents, type_ids = grow(parents, end + stay.size), grow(type_ids, end + stay.size)
        for s in range(stay.size):
            parents[end + s], type_ids[end + s] = next_layer.parent[s] + offset, next_layer.type_id[s]
        offset = end
        layer = next_layer
    return Outcome(_trace(parents, type_ids, best_at), best, unseen, n_states, False)


@compiled
def _rest(ahead: IntArray, left: IntArray, cost: FloatArray) -> float:
    """Bound the cost of the remaining work by its chains."""
    total = 0.0
    for type_id in range(cost.size):
        most = 0
        for n in left:
            if ahead[n, type_id] > most:
                most = ahead[n, type_id]
        total += most * cost[type_id]
    return total


@compiled
def _first_layer(problem: _Problem) -> _Layer:
    first = problem.suffixes.first
    ptr, total = zeros(2, np.int64), empty(1, np.float64)
    ptr[1], total[0] = first.size, _rest(problem.ahead, first, problem.cost)
    return _Layer(
        ptr, first, zeros(1, np.float64), total,
        filled(1, -1), filled(1, -1),
    )  # fmt: skip


@compiled
def _expand(problem: _Problem, layer: _Layer, limit: float) -> tuple[_Layer, float]:
    """Run every type worth running in every state; give the distinct results, and the least cost above the limit."""
    suffixes, ahead, cost, slack = problem
    most = layer.paid.size * cost.size
    ptr, left = zeros(most + 1, np.int64), blank(2 * layer.left.size + suffixes.type_id.size)
    paid, total = empty(most, np.float64), empty(most, np.float64)
    parent, type_ids = blank(most), blank(most)
    n_slots = 16
    while n_slots < 2 * most:
        n_slots *= 2
    table = filled(n_slots, -1)
    result = blank(suffixes.type_id.size + 1)
    may_run = empty(cost.size, np.bool_)
    size, beyond = 0, np.inf
    for s in range(layer.paid.size):
        state = layer.left[layer.ptr[s] : layer.ptr[s + 1]]
        _find_types(suffixes, ahead, state, may_run)
        for type_id in range(cost.size):
            if not may_run[type_id]:
                continue
            new = result[: run_type(suffixes, state, type_id, result)]
            slot = _find(table, ptr, left, new)
            c, now = table[slot], layer.paid[s] + cost[type_id]
            if c < 0:
                estimate = now + _rest(ahead, new, cost)
                if estimate > limit + slack:
                    beyond = min(beyond, estimate)
                    continue
                c = size
                size += 1
                table[slot] = c
                left = grow(left, ptr[c] + new.size)
                for i in range(new.size):
                    left[ptr[c] + i] = new[i]
                ptr[c + 1] = ptr[c] + new.size
                paid[c], total[c], parent[c], type_ids[c] = now, estimate, s, type_id
            elif now < paid[c]:
                total[c] += now - paid[c]
                paid[c], parent[c], type_ids[c] = now, s, type_id
    return _Layer(ptr[: size + 1], left, paid[:size], total[:size], parent[:size], type_ids[:size]), beyond


@compiled
def _find_types(suffixes: Suffixes, ahead: IntArray, state: IntArray, may_run: NDArray[np.bool_]) -> None:
    """Find the types worth running: all ready ones, or one alone if no ready node of another type leads to it.

    Running such a type now is optimal: in a cheapest sequence it can be moved to the front.
    """
    for type_id in range(may_run.size):
        may_run[type_id] = False
    for n in state:
        may_run[suffixes.type_id[n]] = True
    for type_id in range(may_run.size):
        alone = may_run[type_id]
        for n in state:
            alone = alone and (suffixes.type_id[n] == type_id or ahead[n, type_id] == 0)
        if alone:
            for other in range(may_run.size):
                may_run[other] = False
            may_run[type_id] = True
            break


@compiled
def _find(table: IntArray, ptr: LongArray, left: IntArray, new: IntArray) -> int:
    """Find the slot of the state with this antichain, or where it belongs."""
    key = np.uint64(new.size + 1)
    for n in new:
        key = (key ^ np.uint64(n)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    mask = table.size - 1
    slot = np.int64(key & np.uint64(mask))
    while table[slot] >= 0:
        start = ptr[table[slot]]
        same = ptr[table[slot] + 1] - start == new.size
        i = 0
        while same and i < new.size:
            same = left[start + i] == new[i]
            i += 1
        if same:
            break
        slot = (slot + 1) & mask
    return int(slot)


@compiled
def _select(problem: _Problem, layer: _Layer, width: int) -> tuple[LongArray, float]:
    """Choose the states to keep, best first; return them, and the least cost dropped for the width."""
    n_states = layer.paid.size
    rows = zeros((n_states, problem.suffixes.within.shape[1]), np.uint64)
    n_left = blank(n_states)
    for s in range(n_states):
        _close(problem.suffixes.within, layer.left[layer.ptr[s] : layer.ptr[s + 1]], rows[s])
        n_left[s] = _count_bits(rows[s])
    order = _rank(layer.total, n_left)
    room = layer.ptr[n_states] + 1
    paid = empty(room, np.float64)
    for node in range(room):
        paid[node] = np.inf
    trie = _Trie(
        blank(room), filled(room, -1), filled(room, -1), paid,
        filled(1, 1),
    )  # fmt: skip
    stack = blank(room)
    stay, n_stay = empty(min(n_states, width), np.int64), 0
    for s in order:
        if not _is_worse(trie, rows[s], layer.paid[s], stack):
            if n_stay == width:
                return stay, layer.total[s]
            _enter(trie, layer.left[layer.ptr[s] : layer.ptr[s + 1]], layer.paid[s])
            stay[n_stay] = s
            n_stay += 1
    return stay[:n_stay], np.inf


@compiled
def _rank(total: FloatArray, n_left: IntArray) -> LongArray:
    """Sort states by their total, then by `n_left`, then by their number: Shell's sort."""
    order = empty(total.size, np.int64)
    gap = 1
    while gap < total.size:
        gap = 3 * gap + 1
    for i in range(total.size):
        order[i] = i
    while gap > 0:
        for i in range(gap, total.size):
            moved, k = order[i], i
            while k >= gap and _is_before(total, n_left, moved, order[k - gap]):
                order[k] = order[k - gap]
                k -= gap
            order[k] = moved
        gap //= 3
    return order


@compiled
def _is_before(total: FloatArray, n_left: IntArray, a: int, b: int) -> bool:
    if total[a] != total[b]:
        return bool(total[a] < total[b])
    if n_left[a] != n_left[b]:
        return bool(n_left[a] < n_left[b])
    return a < b


@compiled
def _close(within: BitArray, state: IntArray, row: BitArray) -> None:
    """Mark all remaining suffixes and those within them."""
    for n in state:
        for word in range(row.size):
            row[word] |= within[n, word]
        row[n >> 6] |= np.uint64(1) << np.uint64(n & 63)


@compiled
def _count_bits(row: BitArray) -> int:
    total = 0
    for bits in row:
        total += count_ones(bits)
    return total


@compiled
def _is_worse(trie: _Trie, row: BitArray, paid: float, stack: IntArray) -> bool:
    """Say whether a state that costs no more has only suffixes marked in `row` left."""
    stack[0], top = 0, 1
    while top > 0:
        top -= 1
        node = stack[top]
        if trie.paid[node] <= paid:
            return True
        node = trie.child[node]
        while node >= 0:
            n = trie.suffix[node]
            if (row[n >> 6] >> np.uint64(n & 63)) & np.uint64(1) != 0:
                stack[top] = node
                top += 1
            node = trie.sibling[node]
    return False


@compiled
def _enter(trie: _Trie, state: IntArray, paid: float) -> None:
    node = 0
    for n in state[::-1]:
        below = trie.child[node]
        while below >= 0 and trie.suffix[below] != n:
            below = trie.sibling[below]
        if below < 0:
            below = trie.size[0]
            trie.size[0] += 1
            trie.suffix[below] = n
            trie.sibling[below] = trie.child[node]
            trie.child[node] = below
        node = below
    trie.paid[node] = min(trie.paid[node], paid)


@compiled
def _take(layer: _Layer, stay: LongArray) -> _Layer:
    """Keep some states of a layer, in the order given."""
    ptr = zeros(stay.size + 1, np.int64)
    for i in range(stay.size):
        ptr[i + 1] = ptr[i] + layer.ptr[stay[i] + 1] - layer.ptr[stay[i]]
    left, parent, type_id = blank(ptr[stay.size]), blank(stay.size), blank(stay.size)
    paid, total = empty(stay.size, np.float64), empty(stay.size, np.float64)
    for i in range(stay.size):
        for k in range(ptr[i + 1] - ptr[i]):
            left[ptr[i] + k] = layer.left[layer.ptr[stay[i]] + k]
        paid[i], total[i] = layer.paid[stay[i]], layer.total[stay[i]]
        parent[i], type_id[i] = layer.parent[stay[i]], layer.type_id[stay[i]]
    return _Layer(ptr, left, paid, total, parent, type_id)


@compiled
def _trace(parents: IntArray, type_ids: IntArray, state: int) -> IntArray:
    """List the types that ran on the way to a state."""
    length, at = 0, state
    while at > 0:
        length, at = length + 1, parents[at]
    sequence = blank(length)
    while state > 0:
        length -= 1
        sequence[length] = type_ids[state]
        state = parents[state]
    return sequence
