"""Test tables of calls by definition: tiles cover the rows of batches once, with the numbers of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.run import CompiledPlan
from autobatch.backends.cuda.sums import find_sums
from autobatch.backends.options import Options
from autobatch.backends.tables import LEAST_ROWS, ROUND_ROWS, CallList, PlanTables
from autobatch.compiler.writer import WEIGHTS, letter_of, name_fields
from autobatch.ir.program import NODE
from autobatch.plan.plan import Batch, Plan
from autobatch.policies import get
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import place_batch

MANY = [pytest.param(range(8), id="some"), pytest.param(range(8, 40), id="many", marks=pytest.mark.slow)]


def draw(seed: int, training: bool, n_threads: int, n: int = 5) -> CompiledPlan:
    """Prepare a plan of a random program without compiling it."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    plan, types = place_batch(model.everything, draw_instances(rng, model, n), training)
    options = Options(get("agenda"), threads=n_threads, dtype=np.dtype(np.float32))
    return Cpu().prepare(plan, types, options)


def blocks_of(plan: Plan, type_id: int) -> range:
    return range(plan.tables.block_ptr[type_id], plan.tables.block_ptr[type_id + 1])


def rows_before(plan: Plan, block: int, row: int) -> int:
    """Count the rows of a domain before those of a row of nodes."""
    return int(plan.segment_ptr[block][row]) if block in plan.segment_ptr else row


def check_tile(plan: Plan, tile: Any, type_id: int, begin: int, end: int, bases: Any) -> None:
    """Compare a tile with the rows begin:end of a batch or type, whose rows begin at `bases`."""
    first, start = blocks_of(plan, type_id)[0], int(tile["start"])
    assert tile["shift"] == plan.gradient_offset
    for domain, block in enumerate(blocks_of(plan, type_id)):
        letter = letter_of(NODE + domain)
        own, stop = rows_before(plan, block, start), rows_before(plan, block, start + int(tile["rows_n"]))
        assert tile[f"rows_{letter}"] == stop - own
        width = int(plan.tables.block_width[block])
        expected = bases[domain] + (own - rows_before(plan, block, begin)) * width
        assert tile[f"inputs_{letter}"] == expected
        assert tile[f"gradients_{letter}"] == expected + plan.gradient_offset
    for number, output in enumerate(range(plan.tables.out_ptr[type_id], plan.tables.out_ptr[type_id + 1])):
        place = plan.dest_base[output] + rows_before(plan, first + int(plan.tables.out_block[output]), start)
        assert tile[f"output_{number}"] == place
    assert start + tile["rows_n"] <= end


def tiles_of_batches(compiled: CompiledPlan) -> Iterator[tuple[Batch, list[Any]]]:
    """Yield each batch with its tiles, which are the next ones of its type."""
    at = dict.fromkeys(compiled.tables.type_ids, 0)
    for batch in compiled.plan.batches:
        table, first, n_rows = compiled.tables.tiles[batch.type_id], at[batch.type_id], batch.end - batch.start
        while n_rows > 0:
            n_rows -= int(table[at[batch.type_id]]["rows_n"])
            at[batch.type_id] += 1
        yield batch, [*table[first : at[batch.type_id]]]


def tiles_of(calls: CallList, part: int) -> Iterator[tuple[list[int], int]]:
    """Yield the steps of each tile in a part, and the tile's number."""
    for k in range(calls.ptr[part], calls.ptr[part + 1]):
        own = calls.calls[calls.tile_ptr[k] : calls.tile_ptr[k + 1]]
        assert len({*own[:, 1].tolist()}) == 1
        yield own[:, 0].tolist(), int(own[0, 1])


def steps_of(tables: PlanTables, compiled: Any, stage: str, n_whole: dict[int, int]) -> dict[int, list[range]]:
    """Return, per type, the steps of a stage that run before all batches, in each batch, and after all batches."""
    steps, end = {}, 0
    for type_id in tables.type_ids:
        own = compiled.types.cells[type_id].stage(stage)
        numbers = [own.n_before, own.n_per_batch, own.n_after]
        if stage != WEIGHTS and not n_whole[type_id]:
            numbers = [0, sum(numbers), 0]
        ends = np.cumsum([end, *numbers]).tolist()
        steps[type_id], end = [range(a, b) for a, b in pairwise(ends)], ends[-1]
    return steps


@pytest.mark.parametrize("seeds", MANY)
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_tiles_and_calls_are_those_of_the_plan(
    seeds: range, n_threads: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autobatch.backends.tables.TILE_BYTES", 0)
    monkeypatch.setattr("autobatch.backends.tables.LEAST_ROWS", 2)
    n_tiles = 0
    for seed in seeds:
        compiled = draw(seed, training, n_threads)
        plan, tables = compiled.plan, compiled.tables
        n_cut, n_whole = dict.fromkeys(tables.type_ids, 0), dict[int, int]()
        for batch, own in tiles_of_batches(compiled):
            assert np.cumsum([batch.start, *[tile["rows_n"] for tile in own]]).tolist() == [
                *[tile["start"] for tile in own], batch.end,
            ]  # fmt: skip
            n_cut[batch.type_id] += len(own)
            for tile in own:
                check_tile(plan, tile, batch.type_id, batch.start, batch.end, batch.bases)
        for type_id, table in tables.tiles.items():
            outputs = plan.tables.out_ptr[type_id + 1] - plan.tables.out_ptr[type_id]
            assert table.dtype.names == name_fields(len(blocks_of(plan, type_id)), int(outputs))
            n_rows, n_strips = int(plan.block_rows[blocks_of(plan, type_id)[0]]), n_threads if training else 0
            first = next(batch for batch in plan.batches if batch.type_id == type_id)
            whole = table[n_cut[type_id] : len(table) - n_strips]
            n_whole[type_id] = len(whole)
            assert np.cumsum([0, *whole["rows_n"][:-1]]).tolist() == whole["start"].tolist() or not len(whole)
            assert not len(whole) or whole["rows_n"].sum() == n_rows
            strips = table[len(table) - n_strips :]
            assert strips["strip"].tolist() == [*range(n_strips)]
            assert strips["rows_n"].tolist() == [n_rows] * n_strips
            for tile in (*whole, *strips):
                check_tile(plan, tile, type_id, 0, n_rows, first.bases)
            n_tiles += len(table)
        for stage, calls in tables.calls.items():
            steps = steps_of(tables, compiled, stage, n_whole)
            if stage == WEIGHTS:
                check_weight_calls(calls, steps, n_cut, n_whole, n_threads)
            else:
                check_calls(plan, calls, steps, n_cut, n_whole, backward=stage != "forward")
    assert n_tiles


def check_calls(
    plan: Plan, calls: CallList, steps: dict[int, list[range]], n_cut: dict[int, int], n_whole: dict[int, int],
    backward: bool,
) -> None:  # fmt: skip
    last, done = len(plan.batches), dict.fromkeys(n_cut, 0)
    assert len(calls.ptr) == last + 3
    for part, moment in ((0, 0), (last + 1, 2)):
        expected = [([*steps[t][moment]], n_cut[t] + k) for t in n_cut if steps[t][moment] for k in range(n_whole[t])]
        assert [*tiles_of(calls, part)] == expected
    seen = []
    for part in range(1, last + 1):
        type_id = plan.batches[last - part if backward else part - 1].type_id
        for own, tile in tiles_of(calls, part):
            assert own == [*steps[type_id][1]]
            assert tile == (n_cut[type_id] - 1 - done[type_id] if backward else done[type_id])
            done[type_id] += 1
        seen.append(type_id)
    assert all(done[t] == (n_cut[t] if steps[t][1] else 0) for t in seen)


def check_weight_calls(
    calls: CallList, steps: dict[int, list[range]], n_cut: dict[int, int], n_whole: dict[int, int], n_threads: int
) -> None:
    n_types = (len(calls.ptr) - 1) // 2
    for part in range(2 * n_types):
        t, others = part % n_types, part // n_types
        own = steps[t][2 if others else 0] if t in steps else ()
        strips = range(1 if others else n_threads) if own else ()
        assert [*tiles_of(calls, part)] == [([*own], n_cut[t] + n_whole[t] + strip) for strip in strips]


@pytest.mark.parametrize("seeds", MANY)
def test_batches_that_add_are_serial(seeds: range) -> None:
    """With several threads, a batch is serial if an output of its nodes is added at a destination."""
    for seed in seeds:
        compiled = draw(seed, True, 2)
        plan, serial = compiled.plan, compiled.tables.calls["forward"].is_serial
        expected = []
        for batch in plan.batches:
            nodes = plan.node_at[plan.type_ptr[batch.type_id] :][batch.start : batch.end]
            outputs = range(plan.tables.out_ptr[batch.type_id + 1] - plan.tables.out_ptr[batch.type_id])
            expected.append(any(any(plan.added(int(node), o)) for node in nodes for o in outputs))
        assert serial.tolist() == (expected if any(expected) else [])


@pytest.mark.parametrize("seeds", MANY)
def test_sums_add_what_the_nodes_of_a_batch_would(seeds: range) -> None:
    """Per batch, the parts of a sum are the values added at one place, in the order of nodes; others are unchanged."""
    n_sums = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        plan, types = place_batch(model.everything, draw_instances(rng, model, 4))
        widths = [cell.program.vars[output].size for cell in types.cells for output in cell.program.outputs]
        sums = find_sums(plan, np.array(widths, np.int64))
        expected_to = plan.dest.astype(np.int64)
        for number, batch in enumerate(plan.batches):
            parts: dict[int, list[int]] = {}
            width_of, behind = dict[int, int](), 0
            for output in range(plan.tables.out_ptr[batch.type_id], plan.tables.out_ptr[batch.type_id + 1]):
                block = blocks_of(plan, batch.type_id)[0] + int(plan.tables.out_block[output])
                first, last = (int(plan.dest_base[output]) + rows_before(plan, block, r) for r in batch[1:3])
                for entry in range(plan.dest_ptr[first], plan.dest_ptr[last]):
                    if plan.adds[entry]:
                        place = int(plan.dest[entry])
                        expected_to[entry] = plan.size + behind
                        parts.setdefault(place, []).append(plan.size + behind)
                        width_of[place] = widths[output]
                        behind += widths[output]
            own = sums.table[sums.ptr[number] : sums.ptr[number + 1]] if sums.ptr.size else sums.table
            found = [(place, width, sums.parts[a:b].tolist()) for place, width, a, b in own.tolist()]
            assert found == [(place, width_of[place], parts[place]) for place in sorted(parts)]
            n_sums += len(found)
        assert sums.to.tolist() == expected_to.tolist()
    assert n_sums


def test_tiles_are_few_and_even() -> None:
    """No tile is much larger than a thread's share of a batch, and one thread has few tiles."""
    for n_threads in (1, 2, 5):
        compiled = draw(3, False, n_threads, n=300)
        for batch, own in tiles_of_batches(compiled):
            sizes, n_rows = [int(tile["rows_n"]) for tile in own], batch.end - batch.start
            share = -(-n_rows // n_threads)
            assert max(sizes) < share + ROUND_ROWS
            if n_threads == 1 and n_rows <= LEAST_ROWS:
                assert sizes == [n_rows]
