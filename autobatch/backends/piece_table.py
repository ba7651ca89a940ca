"""Fill in the tables of pieces: where the rows of every piece are, worked out once per plan.

Batches are cut into pieces (`autobatch.backends.pieces`). The table of a type has a row of ints per piece, which
compiled steps read (`autobatch.compiler.piece_table`): first the pieces of its batches in order, then the pieces of all
rows of the type; and in training all rows once more for each thread, which computes a strip of the gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.pieces import WHOLE, BatchList, count_pieces, rows_of_piece
from autobatch.compiler.piece_table import columns_of
from autobatch.jit.addresses import array_at
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

LongArray = NDArray[np.int64]


class Widths(NamedTuple):
    """The memory and the number of steps of T types; zero for types that were not met in a plan.

    Attributes:
        block_ptr, out_ptr: [T+1] blocks and outputs of each type, as in `autobatch.plan.plan.TypeTables`.
        out_block: [outputs] the block whose rows an output has, as there.
        inputs, saved: [blocks] elements per row.
        scratch: [stages, blocks] elements per row of the scratch memory of pieces.
        columns: [T] columns of the tables.
        turns, kept: [T] elements of scratch memory per piece, whatever its rows; and per row of nodes.
        most_rows: [T] the largest number of rows of a piece.
        steps: [stages, T, 3] how many steps run once before all batches, per batch, and once after them; of the weight
            stage how many are compiled, and how many Python runs.
    """

    block_ptr: IntArray
    out_ptr: IntArray
    out_block: IntArray
    inputs: IntArray
    saved: LongArray
    scratch: LongArray
    columns: LongArray
    turns: LongArray
    kept: LongArray
    most_rows: LongArray
    steps: LongArray


class Places(NamedTuple):
    """The places of a plan's values, as in `autobatch.plan.plan.Plan`; `edges`: per block, address of its segments."""

    batches: BatchList
    base_ptr: LongArray
    base: LongArray
    mirror: int
    dest_base: LongArray
    saved_base: LongArray
    edges: LongArray


class Tables(NamedTuple):
    """The tables of all types of a plan.

    Attributes:
        flat, ptr: flat[ptr[t] : ptr[t + 1]] is the table of type t.
        pieces: how many pieces each type has.
        mean_rows: [blocks, 2] mean rows of a piece, of batches and of all rows; 0 where no steps run for all rows.
        kept_size, scratch_size: elements of persistent scratch, and of the scratch memory that pieces share in turn.
    """

    flat: LongArray
    ptr: LongArray
    pieces: LongArray
    mean_rows: LongArray
    kept_size: int
    scratch_size: int


@compiled
def make_tables(places: Places, widths: Widths, n_threads: int) -> Tables:
    """Fill in the tables of all types, one after the other."""
    batch_type, batch_ptr = places.batches.type, places.batches.ptr
    block_ptr, most, kept_width, columns = widths.block_ptr, widths.most_rows, widths.kept, widths.columns
    n_types = columns.size
    n_batches, n_rows = np.zeros(n_types, np.int64), np.zeros(n_types, np.int64)
    pieces = np.zeros((n_types, 2), np.int64)
    for batch in range(batch_type.size):
        kind, rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        n_batches[kind] += 1
        n_rows[kind] += rows
        pieces[kind, 0] += count_pieces(rows, most[kind], n_threads)
    ptr = np.zeros(n_types + 1, np.int64)
    for kind in range(n_types):
        if 0 < n_rows[kind] < n_batches[kind] * most[kind]:
            pieces[kind, 1] = count_pieces(n_rows[kind], most[kind], n_threads)
        n_strips = n_threads if n_rows[kind] and widths.scratch.shape[0] > 1 else 0
        ptr[kind + 1] = ptr[kind] + (pieces[kind].sum() + n_strips) * columns[kind]
    flat, mean_rows = np.empty(ptr[n_types], np.int64), np.zeros((places.edges.size, 2), np.int64)
    kept = by_turns = 0
    for kind in range(n_types):
        if n_batches[kind]:
            table = flat[ptr[kind] : ptr[kind + 1]].reshape((-1, columns[kind]))
            by_turns = max(by_turns, fill_table(table, kind, places, widths, kept, pieces[kind, 1], n_threads))
            for block in range(block_ptr[kind], block_ptr[kind + 1]):
                is_node = block == block_ptr[kind]
                total = n_rows[kind] if is_node else array_at(places.edges[block], np.int64)[n_rows[kind]]
                mean_rows[block] = total // np.maximum(pieces[kind], 1)
                mean_rows[block, 1] *= pieces[kind, 1] > 0
            kept += n_rows[kind] * kept_width[kind] if pieces[kind, 1] else 0
    return Tables(flat, ptr, pieces, mean_rows, kept, by_turns)


@compiled
def fill_table(
    table: LongArray, kind: int, places: Places, widths: Widths, kept_base: int, n_whole: int, n_threads: int
) -> int:
    """Fill in the table of a type; return the elements of scratch memory that its pieces share in turn.

    Args:
        table: [pieces, columns].
        kept_base: the first element of the type's persistent scratch.
        n_whole: the number of pieces that all rows are cut into; 0 if hoisted steps run with the pieces of batches.
    """
    first_block, end_block = widths.block_ptr[kind], widths.block_ptr[kind + 1]
    first_output, end_output = widths.out_ptr[kind], widths.out_ptr[kind + 1]
    input_width, saved_width = widths.inputs[first_block:end_block], widths.saved[first_block:end_block]
    scratch_width, kept_width = widths.scratch[:, first_block:end_block], widths.kept[kind]
    edges, saved_base = places.edges[first_block:end_block], places.saved_base[first_block:end_block]
    dest_base = places.dest_base[first_output:end_output]
    batch_type, batch_ptr, mirror = places.batches.type, places.batches.ptr, places.mirror
    base_ptr, base = places.base_ptr, places.base
    n_domains = input_width.size
    at = columns_of(n_domains)
    k = start = needed = 0
    first = batch_type.size
    n_strips = n_threads if scratch_width.shape[0] > 1 else 0
    for number in range(batch_type.size + 1 + n_strips):
        is_batch, strip = number < batch_type.size, number - batch_type.size - 1
        if (is_batch and batch_type[number] != kind) or (number == batch_type.size and not n_whole):
            continue
        first = min(first, number)
        batch, begin = (number, start) if is_batch else (first, 0)
        end = begin + batch_ptr[number + 1] - batch_ptr[number] if is_batch else start
        at_once = rows_of_piece(end - begin, widths.most_rows[kind] if strip < 0 else WHOLE, n_threads)
        for start in range(begin, end, at_once):
            n_rows = min(at_once, end - start)
            row = table[k]
            row[at.start], row[at.shift], row[-1] = start, mirror, max(strip, 0)
            for domain in range(n_domains):
                own, before, n = start, start - begin, n_rows
                if domain > 0:
                    ptr = array_at(edges[domain], np.int64)
                    own = ptr[start]
                    before, n = own - ptr[begin], ptr[start + n_rows] - own
                row[at.rows + domain] = n
                row[at.inputs + domain] = base[base_ptr[batch] + domain] + before * input_width[domain]
                row[at.mirror + domain] = row[at.inputs + domain] + mirror
                row[at.saved + domain] = own * saved_width[domain]
                if mirror:
                    row[at.saved + domain] += saved_base[domain]
            for stage in range(scratch_width.shape[0] if strip < 0 else 0):
                free = widths.turns[kind]
                for domain in range(n_domains):
                    row[(at.backward if stage else at.forward) + domain] = free
                    free += row[at.rows + domain] * scratch_width[stage, domain]
                if stage == 0 and not n_whole:
                    row[at.kept] = free
                    free += n_rows * kept_width
                needed = max(needed, free)
            if n_whole:
                row[at.kept] = kept_base + start * kept_width
            for output in range(dest_base.size):
                own, block = start, widths.out_block[first_output + output]
                if block:
                    own = array_at(edges[block], np.int64)[start]
                row[at.outputs + output] = dest_base[output] + own
            k += 1
        start = end
    return needed
