"""Test that the steps of a plan are listed as its calls say, and divided into launches at the steps of the host."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch._native import list_device_steps
from autobatch.backends.cuda.backend import Cuda, DevicePlan
from autobatch.backends.cuda.binding import STEP
from autobatch.backends.cuda.device_cell import ON_HOST, THREADS, TILE, WARP
from autobatch.compiler.cuda.source import ADD_UP, MULTIPLY
from helpers.programs.random_programs import draw_instances, draw_model
from host_device import HostDevice

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def prepare(seed: int, precision: str = "float32") -> DevicePlan:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=5)
    model.astype("float32")
    run = ab.batched(model.everything, backend=Cuda(device=HostDevice()), precision=precision, policy="agenda")
    found = run.prepare(instances, training=True, has_aux=True).parts[0].executable
    assert isinstance(found, DevicePlan)
    return found


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_steps_are_the_calls_of_a_plan_in_order(precision: str) -> None:
    """A part has the calls of its tiles; then, in forward, a step that adds up the values of its batch, if any."""
    n_sums = n_hosted = n_products = 0
    for seed in range(6):
        compiled = prepare(seed, precision)
        plan, tables, bound = compiled.plan, compiled.tables, compiled.bound
        sums_of = np.diff(compiled.sums.ptr).tolist() or [0] * len(plan.batches)
        for name, sweep in compiled.sweeps.items():
            known, calls = sweep.stage.steps, tables.calls[name]
            steps, ptr = sweep.steps.view(STEP)[:, 0], sweep.ptr.tolist()
            assert ptr[0] == 1
            assert len(steps) == len(sweep.blocks) == ptr[-1]
            for part in range(len(calls.ptr) - 1):
                expected: list[tuple[Any, ...]] = []
                tiles = range(*calls.tile_ptr[[calls.ptr[part], calls.ptr[part + 1]]].tolist())
                for number, k in calls.calls[tiles.start : tiles.stop].tolist():
                    position, step = known[number]
                    type_id = bound.type_ids[position]
                    stage, tile = compiled.types.cells[type_id].stage(name), tables.tiles[type_id][k]
                    n_blocks = step.blocks.times
                    if step.function == MULTIPLY and step.product is not None:
                        n_blocks = -(-int(tile[step.product[0].rows]) // TILE[0]) * step.blocks.times
                        n_products += 1
                    elif isinstance(step.function, str):
                        (kernel,) = (x for x in stage.source.kernels if x is not None and x.name == step.function)
                        n_blocks = -(-int(tile[kernel.n_rows]) * step.team // THREADS)
                    memory = 8 * bound.first[name, type_id]
                    expected.append(
                        (memory, step.address, k, step.team, None if step.function == ON_HOST else n_blocks)
                    )
                    n_hosted += step.function == ON_HOST
                if name == "forward" and 1 <= part <= len(plan.batches) and sums_of[part - 1]:
                    n_blocks = -(-sums_of[part - 1] * WARP // THREADS)
                    expected.append((8 * (bound.slots.size - 4), 0, part - 1, WARP, n_blocks))
                    assert steps[ptr[part + 1] - 1]["function"] == ADD_UP
                    n_sums += 1
                own = steps[ptr[part] : ptr[part + 1]]
                blocks = sweep.blocks[ptr[part] : ptr[part + 1]].tolist()
                found = [
                    (*one[:4], None if is_hosted else n)
                    for one, n, is_hosted in zip(
                        own[["memory", "descriptor", "tile", "team"]].tolist(), blocks, own["function"] == ON_HOST,
                        strict=True,
                    )
                ]  # fmt: skip
                assert found == expected
    assert n_sums
    assert (n_hosted > n_products) if precision == "tf32" else (n_products > n_hosted)


def test_launches_end_at_the_steps_of_the_host() -> None:
    """All steps of a range run once, in order; without steps of the host, in one launch."""
    n_hosted = 0
    for precision in ("float32", "tf32"):
        for sweep in prepare(1, precision).sweeps.values():
            on_host = sweep.steps.view(STEP)[:, 0]["function"] == ON_HOST
            n_parts = len(sweep.ptr) - 1
            for first, end in ((0, n_parts), (n_parts // 3, 2 * n_parts // 3), (1, 1)):
                found = sweep.launches(first, end)
                steps = [step for one in found for step in range(one.first, one.end)]
                assert steps == [*range(sweep.ptr[first], sweep.ptr[end])]
                for one in found:
                    assert on_host[one.first : one.end].any() == (one.host is not None)
                    if one.host is None:
                        assert one.blocks == sweep.blocks[one.first : one.end].max()
                    else:
                        assert one.end == one.first + 1
                n_hosted += sum(one.host is not None for one in found)
            assert sweep.launches(0, n_parts, from_start=True)[0].first == 0
    assert n_hosted


def test_wrong_arguments_are_refused() -> None:
    known, rules = np.zeros(3, STEP), np.array([(0, 1, 0, 32, 256, 1), (0, 0, -1, 0, 1, 1), (0, 0, -1, 32, 256, 1)])
    calls = np.array([(0, 0), (0, 1)]), np.arange(3), np.arange(3), np.zeros(0, bool)
    words, word_ptr, none = np.array([9, 20]), np.array([0, 2]), np.zeros(0, np.int64)
    steps, blocks, ptr, hosted = list_device_steps(known, rules, calls, words, word_ptr, none)
    assert (steps[:, 3].tolist(), blocks.tolist(), ptr.tolist()) == ([0, 0, 1], [1, 2, 3], [1, 2, 3])
    assert hosted.shape == (0, 3)
    wrong_step, wrong_tile = np.array([(1, 0), (0, 1)]), np.array([(0, 0), (0, 2)])
    for given in ((wrong_step, *calls[1:]), (wrong_tile, *calls[1:]), (calls[0], np.arange(2), *calls[2:])):
        with pytest.raises(ValueError, match="calls must name known steps and tiles"):
            list_device_steps(known, rules, given, words, word_ptr, none)
    for bad in (rules[:2], rules + np.array([9, 0, 0, 0, 0, 0]), rules * (1, 1, 1, 1, 0, 1)):
        with pytest.raises(ValueError, match="rules must be those of known steps"):
            list_device_steps(known, np.ascontiguousarray(bad), calls, words, word_ptr, none)
    with pytest.raises(ValueError, match="word_ptr must stay in words"):
        list_device_steps(known, rules, calls, words, np.array([0, 3]), none)
    with pytest.raises(TypeError, match="calls must be"):
        list_device_steps(known, rules, [*calls], words, word_ptr, none)  # type: ignore[arg-type]
