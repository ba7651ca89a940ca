"""Merge graph nodes with the same continuations, and drop nodes that others imply.

A *suffix* is a node that represents all nodes after which the same types must run. Suffix m is *within* suffix n if
each path from m is a subsequence of a path from n, so that every sequence that finishes n finishes m. This holds if m
is within some suffix that follows n; or if m is of n's type and every suffix that follows m is within one that follows
n. Of the suffixes that follow a node, those within another are left out, so that the rest are an antichain; nodes of
one type with the same antichain are one suffix. Types that are not kept are skipped, which projects the graph on the
others.

The remaining work is also an antichain of suffixes: running type a replaces those of type a by their followers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.dag import Dag, reverse_edges
from autobatch.jit.arrays import IntArray, blank, copied, filled, zeros
from autobatch.jit.loops import compiled, compiled_at_once

BoolArray = NDArray[np.bool_]
BitArray = NDArray[np.uint64]


class Suffixes(NamedTuple):
    """S suffixes, each numbered after its followers; S = type_id.size."""

    type_id: IntArray  # int32[S]
    after_ptr: IntArray  # int32[S+1] suffix n is followed by after[after_ptr[n]:after_ptr[n+1]], ascending
    after: IntArray
    first: IntArray  # the antichain of all work, ascending
    within: BitArray  # uint64[S, W] bit m of row n: m is within n and is not n; no rows if not requested
    n_types: int


class _Links(NamedTuple):
    """The nodes of a dag in reverse order, and one more node that all nodes without inputs read."""

    order: IntArray  # [N+1] readers first; of one level, kept ones first
    level: IntArray  # [N+1] the most kept nodes on a path from here
    type_id: IntArray  # [N+1] type of a kept node, or -1
    reader_ptr: IntArray  # [N+2]
    reader: IntArray


class _Found(NamedTuple):
    """Suffixes while they are being found."""

    type_id: IntArray  # [K] K kept nodes: at most that many suffixes
    after_ptr: IntArray  # [K+1]
    before: IntArray  # [K] the suffix of the same type found just before, or -1
    last: IntArray  # [T] the last of each type
    within: BitArray  # [K, W]
    table: IntArray  # open addressing, by type and followers
    suffix: IntArray  # [N+1] a kept node's suffix, or -1
    pass_ptr: NDArray[np.int64]  # [N+1, 2] range in a pool: the first suffixes after a node that is not kept
    seen: IntArray  # [K] the last visit that met a suffix
    here: IntArray  # [K] suffixes met in this visit
    union: BitArray  # [W]


@compiled
def to_suffixes(dag: Dag, kept: BoolArray, compare: bool) -> tuple[Suffixes, IntArray]:
    """Find the suffixes of a dag, projected on the kept types.

    Args:
        dag: N nodes, E edges, T types.
        kept: bool[T], the types that count.
        compare: also find which suffixes are within which; if not, only nodes of equal type and followers are merged.

    Returns:
        The suffixes, and int32[N], each node's suffix, or -1 if its type is not kept.

    Cost: O(N + E log E); with comparison, O(S² / T) more look-ups and S² bits.
    """
    links = _link(dag, kept)
    found = _start(links, dag.n_types, compare)
    after, passed = blank(16 + links.reader.size), blank(16 + links.reader.size)
    size, compared, n_passed, level = 0, 0, 0, 0
    for visit in range(links.order.size):
        node = links.order[visit]
        type_id = links.type_id[node]
        if compare and (type_id < 0 or links.level[node] > level):
            _compare(found, after, compared, size)
            compared, level = size, links.level[node]
        n_here = _meet(links, found, passed, node, visit)
        if compare and n_here > 1:
            n_here = _keep_largest(found, n_here, size)
        here = found.here[:n_here]
        sort(here)
        if type_id < 0:
            passed = grow(passed, n_passed + n_here)
            for i in range(n_here):
                passed[n_passed + i] = here[i]
            found.pass_ptr[node, 0], found.pass_ptr[node, 1] = n_passed, n_passed + n_here
            n_passed += n_here
        else:
            slot = _find(found, after, type_id, here)
            if found.table[slot] < 0:
                after = grow(after, found.after_ptr[size] + n_here)
                _append(found, after, type_id, here, size)
                found.table[slot] = size
                size += 1
            found.suffix[node] = found.table[slot]
    suffixes = Suffixes(
        copied(found.type_id, size), copied(found.after_ptr, size + 1), copied(after, found.after_ptr[size]),
        copied(found.here, n_here), found.within[:size], dag.n_types,
    )  # fmt: skip
    return suffixes, found.suffix[:-1]


@compiled
def chains_after(suffixes: Suffixes) -> IntArray:
    """Count, per suffix and type, the most suffixes of that type on a path from the suffix on: int32[S, T]."""
    ahead = zeros((suffixes.type_id.size, suffixes.n_types), np.int32)
    for n in range(suffixes.type_id.size):
        for a in range(suffixes.after_ptr[n], suffixes.after_ptr[n + 1]):
            for type_id in range(suffixes.n_types):
                ahead[n, type_id] = max(ahead[n, type_id], ahead[suffixes.after[a], type_id])
        ahead[n, suffixes.type_id[n]] += 1
    return ahead


@compiled
def run_type(suffixes: Suffixes, left: IntArray, type_id: int, out: IntArray) -> int:
    """Run one type: write the suffixes then left to `out`, ascending, and return their number.

    A follower is left out if it is within another remaining suffix. (No remaining suffix is within a follower: it would
    be within a suffix that ran.) Cost: O((suffixes that follow) * (suffixes that are left)) look-ups.
    """
    n_out = 0
    for n in left:
        if suffixes.type_id[n] != type_id:
            out[n_out] = n
            n_out += 1
    n_stay = n_out
    for n in left:
        if suffixes.type_id[n] == type_id:
            for a in range(suffixes.after_ptr[n], suffixes.after_ptr[n + 1]):
                n_out = _insert(suffixes, suffixes.after[a], out, n_stay, n_out)
    sort(out[:n_out])
    return n_out


@compiled
def _insert(suffixes: Suffixes, new: int, out: IntArray, n_stay: int, n_out: int) -> int:
    """Add a suffix to an antichain whose first `n_stay` members are not within it; return the new length."""
    for i in range(n_out):
        if out[i] == new or _is_within(suffixes.within, new, out[i]):
            return n_out
    i = n_stay
    while i < n_out:
        if _is_within(suffixes.within, out[i], new):
            n_out -= 1
            out[i] = out[n_out]
        else:
            i += 1
    out[n_out] = new
    return n_out + 1


@compiled
def _is_within(within: BitArray, m: int, n: int) -> bool:
    return bool((within[n, m >> 6] >> np.uint64(m & 63)) & np.uint64(1))


@compiled
def _link(dag: Dag, kept: BoolArray) -> _Links:
    """Find the order in which to visit nodes, and their readers."""
    n_nodes = dag.type_id.size
    reader_ptr, reader_of = reverse_edges(dag.edge_ptr, dag.edge_src)
    ptr, reader = blank(n_nodes + 2), blank(reader_of.size + n_nodes)
    for node in range(n_nodes + 1):
        ptr[node] = reader_ptr[node]
    for r in range(reader_of.size):
        reader[r] = reader_of[r]
    ptr[n_nodes + 1] = reader_of.size
    for node in range(n_nodes):
        if dag.edge_ptr[node] == dag.edge_ptr[node + 1]:
            reader[ptr[n_nodes + 1]] = node
            ptr[n_nodes + 1] += 1
    type_id = filled(n_nodes + 1, -1)
    level = filled(n_nodes + 1, 0)
    for node in range(n_nodes - 1, -1, -1):
        for r in range(ptr[node], ptr[node + 1]):
            level[node] = max(level[node], level[reader[r]])
        if kept[dag.type_id[node]]:
            type_id[node] = dag.type_id[node]
            level[node] += 1
        level[n_nodes] = max(level[n_nodes], level[node])
    place = filled(2 * level[n_nodes] + 3, 0)
    for node in range(n_nodes):
        place[2 * level[node] + (type_id[node] < 0) + 1] += 1
    for bucket in range(1, place.size):
        place[bucket] += place[bucket - 1]
    order = blank(n_nodes + 1)
    for node in range(n_nodes - 1, -1, -1):
        bucket = 2 * level[node] + (type_id[node] < 0)
        order[place[bucket]] = node
        place[bucket] += 1
    order[n_nodes] = n_nodes
    return _Links(order, level, type_id, ptr, reader)


@compiled
def _start(links: _Links, n_types: int, compare: bool) -> _Found:
    n_kept = 0
    for type_id in links.type_id:
        n_kept += type_id >= 0
    n_rows = n_kept if compare else 0
    n_words = (n_rows + 63) // 64
    n_slots = 16
    while n_slots < 2 * n_kept:
        n_slots *= 2
    n_links = links.order.size
    return _Found(
        blank(n_kept), filled(n_kept + 1, 0), blank(n_kept),
        filled(n_types, -1), zeros((n_rows, n_words), np.uint64), filled(n_slots, -1),
        filled(n_links, -1), zeros((n_links, 2), np.int64), filled(n_kept, -1),
        blank(n_kept), zeros(n_words, np.uint64),
    )  # fmt: skip


@compiled
def _meet(links: _Links, found: _Found, passed: IntArray, node: int, visit: int) -> int:
    """List in `found.here` the first suffixes of a node's readers; return their number."""
    n_here = 0
    for r in range(links.reader_ptr[node], links.reader_ptr[node + 1]):
        other = links.reader[r]
        one = found.suffix[other]
        if one >= 0:
            if found.seen[one] != visit:
                found.seen[one] = visit
                found.here[n_here] = one
                n_here += 1
            continue
        for p in range(found.pass_ptr[other, 0], found.pass_ptr[other, 1]):
            if found.seen[passed[p]] != visit:
                found.seen[passed[p]] = visit
                found.here[n_here] = passed[p]
                n_here += 1
    return n_here


@compiled
def _keep_largest(found: _Found, n_here: int, size: int) -> int:
    """Drop from `found.here` suffixes within another, which are compared already; return the number kept."""
    here, n_words = found.here, (size + 63) // 64
    by_union = n_here > n_words
    if by_union:
        for word in range(n_words):
            found.union[word] = 0
        for i in range(n_here):
            for word in range(n_words):
                found.union[word] |= found.within[here[i], word]
    i = 0
    while i < n_here:
        if by_union:
            drop = (found.union[here[i] >> 6] >> np.uint64(here[i] & 63)) & np.uint64(1) != 0
        else:
            drop = False
            for j in range(n_here):
                drop |= _is_within(found.within, here[i], here[j])
        if drop:
            n_here -= 1
            here[i] = here[n_here]
        else:
            i += 1
    return n_here


@compiled
def _find(found: _Found, after: IntArray, type_id: int, here: IntArray) -> int:
    """Find the slot of the suffix of this type and these followers, or the free slot where it belongs."""
    key = np.uint64(type_id + 1)
    for n in here:
        key = (key ^ np.uint64(n)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    mask = found.table.size - 1
    slot = np.int64(key & np.uint64(mask))
    while found.table[slot] >= 0:
        one = found.table[slot]
        start = found.after_ptr[one]
        same = found.type_id[one] == type_id and found.after_ptr[one + 1] - start == here.size
        if same:
            for i in range(here.size):
                same &= after[start + i] == here[i]
        if same:
            break
        slot = (slot + 1) & mask
    return int(slot)


@compiled
def _append(found: _Found, after: IntArray, type_id: int, here: IntArray, size: int) -> None:
    start = found.after_ptr[size]
    for i in range(here.size):
        after[start + i] = here[i]
    found.type_id[size] = type_id
    found.after_ptr[size + 1] = start + here.size
    found.before[size] = found.last[type_id]
    found.last[type_id] = size


@compiled_at_once
def _compare(found: _Found, after: IntArray, start: int, end: int) -> None:
    """Find the suffixes within each of `start` to `end`, which are all of one level, the highest so far."""
    n_words = (end + 63) // 64
    for n in range(start, end):
        row = found.within[n]
        for a in range(found.after_ptr[n], found.after_ptr[n + 1]):
            for word in range(n_words):
                row[word] |= found.within[after[a], word]
            row[after[a] >> 6] |= np.uint64(1) << np.uint64(after[a] & 63)
        # Bits set below are of n's type and n's level or lower; what follows such a suffix is lower, so rows stay true.
        for word in range(n_words):
            found.union[word] = row[word]
        m = found.last[found.type_id[n]]
        while m >= 0:
            inside = m != n
            a = found.after_ptr[m]
            while inside and a < found.after_ptr[m + 1]:
                inside = (found.union[after[a] >> 6] >> np.uint64(after[a] & 63)) & np.uint64(1) != 0
                a += 1
            if inside:
                row[m >> 6] |= np.uint64(1) << np.uint64(m & 63)
            m = found.before[m]


@compiled
def grow(array: IntArray, size: int) -> IntArray:
    """Enlarge an array to `size` entries if it is smaller."""
    if size <= array.size:
        return array
    larger = blank(2 * size)
    for i in range(array.size):
        larger[i] = array[i]
    return larger


@compiled
def sort(numbers: IntArray) -> None:
    """Sort in place: Shell's sort, which takes a tenth of the time of NumPy's to compile."""
    gap = 1
    while gap < numbers.size:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, numbers.size):
            moved, k = numbers[i], i
            while k >= gap and numbers[k - gap] > moved:
                numbers[k] = numbers[k - gap]
                k -= gap
            numbers[k] = moved
        gap //= 3
