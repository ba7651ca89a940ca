"""Cut batches into pieces (tiles), and list the calls of a stage in order.

A piece goes through all steps of its cell before the next one begins, so that values are still in the cache when the
next step reads them; and several threads may run the pieces of a batch in parallel. Hoisted steps, which run once for
all rows of a type, are cut into pieces as well. If batches are as large as pieces anyway, hoisted steps run with the
pieces of batches instead, for the sake of the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

LongArray = NDArray[np.int64]

PIECE_BYTES = 1 << 19
"""Bytes that the rows of a piece may take: half of the L2 cache of servers since about 2020."""
LEAST_ROWS = 96
"""The row limit of pieces is never below this: with fewer rows, calls cost more than the cache saves."""
ROUND_ROWS = 16
"""The rows of a piece are a multiple of this, so that products take whole tiles of them."""
WHOLE = 1 << 40
"""The row limit of types whose batches are not cut."""


class BatchList(NamedTuple):
    """The batches of a schedule: batch b is of `type[b]`, with rows ptr[b]:ptr[b + 1]."""

    type: IntArray
    ptr: IntArray


class OutputRows(NamedTuple):
    """The rows of the outputs of T types, as in `autobatch.plan.plan.Plan` and its tables."""

    out_ptr: IntArray
    out_block: IntArray
    dest_base: LongArray
    block_ptr: IntArray
    segments: LongArray
    segment_base: LongArray


class AllPieces(NamedTuple):
    """How the rows of each type are cut into pieces.

    Attributes:
        counts: [T, 2] the number of pieces of batches, and of all rows.
        most: [T] the largest number of rows of a piece.
        n_threads: how many threads run pieces.
    """

    counts: LongArray
    most: LongArray
    n_threads: int


class Calls(NamedTuple):
    """The calls of a stage, in order; see `list_weight_calls` for the parts of the weight stage.

    Attributes:
        calls: [n, 2] the number of a step, and the number of a piece among those of its type.
        piece_ptr: [pieces + 1] calls[piece_ptr[p]:piece_ptr[p + 1]] are those of the p-th piece that runs.
        ptr: [batches + 3] part p has pieces ptr[p]:ptr[p + 1]. Part 0 is the prologue, parts 1 to B are the batches in
            the order in which they run, and part B + 1 is the epilogue. Pieces of the prologue and the epilogue are of
            all rows of a type.
        alone: [batches] whether a batch adds values to others, which only one thread may do; empty if no batch does.
    """

    calls: LongArray
    piece_ptr: LongArray
    ptr: LongArray
    alone: NDArray[np.bool_]


def most_rows(row_bytes: int) -> int:
    """The largest number of rows of a piece."""
    return max(PIECE_BYTES // max(row_bytes, 1) // ROUND_ROWS * ROUND_ROWS, LEAST_ROWS)


@compiled
def rows_of_piece(n_rows: int, most: int, n_threads: int) -> int:
    """The rows of each piece that `n_rows` are cut into: at least one piece per thread, unless there are few rows."""
    if most == WHOLE:
        return max(n_rows, 1)
    share = (n_rows + n_threads - 1) // n_threads
    return min(most, (share + ROUND_ROWS - 1) // ROUND_ROWS * ROUND_ROWS)


@compiled
def count_pieces(n_rows: int, most: int, n_threads: int) -> int:
    """The number of pieces that `n_rows` are cut into."""
    at_once = rows_of_piece(n_rows, most, n_threads)
    return (n_rows + at_once - 1) // at_once


@compiled
def list_calls(
    batches: BatchList, pieces: AllPieces, steps: LongArray, alone: NDArray[np.bool_], backward: bool
) -> Calls:
    """List the calls of a stage, divided into parts and pieces.

    Args:
        steps: [T, 3] the number of steps before, in and after batches.
        alone: see `Calls`.
    """
    batch_type, batch_ptr = batches.type, batches.ptr
    n_pieces, most, n_threads = pieces.counts, pieces.most, pieces.n_threads
    n_types, n_batches = most.size, batch_type.size
    first, n_steps, n_calls, n_whole = np.zeros((n_types, 4), np.int64), 0, 0, 0
    for kind in range(n_types):
        if n_pieces[kind, 0]:
            before, inside, after = steps[kind]
            if not n_pieces[kind, 1]:
                before, inside, after = 0, before + inside + after, 0
            first[kind, 0] = n_steps
            first[kind, 1] = first[kind, 0] + before
            first[kind, 2] = first[kind, 1] + inside
            first[kind, 3] = n_steps = first[kind, 2] + after
            n_whole += n_pieces[kind, 1] * ((before > 0) + (after > 0))
            n_calls += n_pieces[kind, 0] * inside + n_pieces[kind, 1] * (before + after)
    calls = np.empty((n_calls, 2), np.int64)
    piece_ptr = np.zeros(n_pieces[:, 0].sum() + n_whole + 1, np.int64)
    ptr = np.empty(n_batches + 3, np.int64)
    done = np.zeros(n_types, np.int64)
    at = piece = 0
    for part in range(n_batches + 2):
        ptr[part] = piece
        is_batch = 0 < part <= n_batches
        batch = (n_batches - part if backward else part - 1) if is_batch else 0
        kinds = range(batch_type[batch], batch_type[batch] + 1) if is_batch else range(n_types)
        moment = 1 if is_batch else 0 if part == 0 else 2
        for kind in kinds:
            if first[kind, moment] == first[kind, moment + 1]:
                continue
            n = n_pieces[kind, 1]
            if is_batch:
                n = count_pieces(batch_ptr[batch + 1] - batch_ptr[batch], most[kind], n_threads)
            for number in range(n):
                k = n_pieces[kind, 0] + number
                if is_batch:
                    k = n_pieces[kind, 0] - 1 - done[kind] if backward else done[kind]
                    done[kind] += 1
                for step in range(first[kind, moment], first[kind, moment + 1]):
                    calls[at, 0], calls[at, 1] = step, k
                    at += 1
                piece += 1
                piece_ptr[piece] = at
    ptr[n_batches + 2] = piece
    return Calls(calls, piece_ptr[: piece + 1], ptr, alone)


@compiled
def list_weight_calls(n_pieces: LongArray, steps: LongArray, n_threads: int) -> Calls:
    """List the calls for the gradients of parameters: of T types, part t has compiled steps, and part T + t the others.

    Args:
        n_pieces: [T, 2] as in `AllPieces`; behind these pieces each thread has one of all rows.
        steps: [T, 3] the numbers of compiled steps and of other steps.
    """
    n_types, n_steps, n_calls = len(n_pieces), 0, 0
    first = np.zeros((n_types, 3), np.int64)
    for kind in range(n_types):
        n_compiled, n_others = (steps[kind, 0], steps[kind, 1]) if n_pieces[kind, 0] else (0, 0)
        first[kind, 0], first[kind, 1] = n_steps, n_steps + n_compiled
        first[kind, 2] = n_steps = n_steps + n_compiled + n_others
        n_calls += n_compiled * n_threads + n_others
    calls = np.empty((n_calls, 2), np.int64)
    piece_ptr = np.zeros(n_types * (n_threads + 1) + 1, np.int64)
    ptr = np.empty(2 * n_types + 1, np.int64)
    piece = at = 0
    for part in range(2 * n_types):
        kind, moment = part % n_types, part // n_types
        ptr[part] = piece
        if first[kind, moment] < first[kind, moment + 1]:
            for strip in range(1 if moment else n_threads):
                for step in range(first[kind, moment], first[kind, moment + 1]):
                    calls[at, 0], calls[at, 1] = step, n_pieces[kind].sum() + strip
                    at += 1
                piece += 1
                piece_ptr[piece] = at
    ptr[2 * n_types] = piece
    return Calls(calls, piece_ptr[: piece + 1], ptr, np.zeros(0, np.bool_))


@compiled
def rows_of_output(outputs: OutputRows, kind: int, output: int, start: int, end: int) -> tuple[int, int]:
    """The rows in `dest_ptr` of an output, numbered over all types, of the nodes start:end of a type."""
    if outputs.out_block[output]:
        of_nodes = outputs.segments[outputs.segment_base[outputs.block_ptr[kind] + outputs.out_block[output]] :]
        start, end = of_nodes[start], of_nodes[end]
    return outputs.dest_base[output] + start, outputs.dest_base[output] + end


@compiled
def find_alone(
    batches: BatchList, outputs: OutputRows, dest_ptr: LongArray, adds: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Find the batches that add values to others."""
    batch_type, batch_ptr = batches.type, batches.ptr
    alone = np.zeros(batch_type.size, np.bool_)
    done = np.zeros(outputs.out_ptr.size - 1, np.int64)
    for batch in range(batch_type.size):
        kind, n_rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        for output in range(outputs.out_ptr[kind], outputs.out_ptr[kind + 1]):
            first, last = rows_of_output(outputs, kind, output, done[kind], done[kind] + n_rows)
            for entry in range(dest_ptr[first], dest_ptr[last]):
                alone[batch] |= adds[entry]
        done[kind] += n_rows
    return alone
