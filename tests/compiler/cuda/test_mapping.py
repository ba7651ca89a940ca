"""Test how loops are divided among threads: every index runs, and one thread computes each element."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from autobatch.compiler.assignment import Spot, is_number
from autobatch.compiler.cuda.mapping import Access, Mapping, Pass
from autobatch.compiler.cuda.nest import CudaNest
from autobatch.compiler.cuda.source import print_stage
from autobatch.compiler.fusion import Block
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Loop
from helpers.checkers.touches import TEAMS, runs, touches_of
from helpers.models.every_model import MODELS, models, stages_of, stages_of_cells
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each


class Divided(NamedTuple):
    """A block as printed."""

    stage: StageProgram
    spot: Spot
    block: Block
    nests: list[CudaNest]

    @property
    def passes(self) -> list[Pass]:
        return [nest.part for nest in self.nests]


def divided(stages: Sequence[StageProgram]) -> list[Divided]:
    found: list[Divided] = []
    with pytest.MonkeyPatch.context() as patch:
        make = CudaNest.__init__

        def note(nest: CudaNest, *args: Any) -> None:
            make(nest, *args)
            if not found or (found[-1].stage, found[-1].spot) != (stage, nest.spot):
                found.append(Divided(stage, nest.spot, nest.block, []))
            found[-1].nests.append(nest)

        patch.setattr(CudaNest, "__init__", note)
        for stage in stages:
            print_stage(stage)
    return found


def test_every_index_is_run_once() -> None:
    """Each index runs on one thread, and loops without axes run on all. Threads alternate along divided axes."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        axes = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(0, 4))))
        mapping = Mapping(axes, tuple(axis for axis in range(len(axes)) if rng.random() < 0.5))
        indices = Counter(product(*map(range, axes)))
        for team in TEAMS:
            run = list(runs(mapping, team))
            if mapping.who == "all":
                assert run == [(lane, ()) for lane in range(team)]
                continue
            assert Counter(index for _, index in run) == indices
            lanes = {lane for lane, _ in run}
            assert lanes == set(range(min(team, mapping.width))), "more threads could work, or fewer"
            assert (mapping.who == "one") == (not mapping.along)
            for index in run:
                for other in run:
                    if [index[1][axis] for axis in mapping.along] == [other[1][axis] for axis in mapping.along]:
                        assert index[0] == other[0]


def test_sums_along_different_axes_are_made_in_passes() -> None:
    """Each pass recomputes the variables that it reads."""
    blocks = [found for found in divided(stages_of("hyper rnn")) if len(found.passes) > 1]
    assert blocks
    for found in blocks:
        check(found)
        ways = [part.mapping.along for part in found.passes]
        assert len(set(ways)) == len(ways)
    assert any(part.again for found in blocks for part in found.passes)


def test_a_wrong_division_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms of sums are divided among threads."""

    def divide_all(lowered: Lowered, block: Block) -> list[Pass]:
        return [Pass(Mapping(block.axes, tuple(range(len(block.axes)))), tuple(block.loops))]

    monkeypatch.setattr("autobatch.compiler.cuda.source.divide", divide_all)
    with pytest.raises(AssertionError):
        check_all(stages_of("hyper rnn"))


@pytest.mark.slow
@each("seed", range(12))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    check_all(stages_of_cells(model.everything, draw_instances(rng, model, n=2)))


@pytest.mark.cases(4, 24)
@models(MODELS, quick=("tree-lstm", "lattice-lstm", "mv-rnn", "neural turing machine"))
def test_models(name: str) -> None:
    check_all(stages_of(name))


def check_all(stages: Sequence[StageProgram]) -> None:
    for found in divided(stages):
        check(found)


def check(found: Divided) -> None:
    """Check a divided block by what threads must do."""
    lowered, loops, passes = found.stage.lowered, found.block.loops, found.passes
    runs_of = Counter(id(loop) for part in passes for loop in part.loops if id(loop) not in part.again)
    assert runs_of == Counter(map(id, loops)), "a loop runs with its stores in one pass"
    for part in passes:
        order = [loops.index(loop) for loop in part.loops]
        assert order == sorted(order)
        for loop in part.loops:
            if id(loop) in part.again:
                assert (loop.stored, loop.combine) == (None, "")
            makers = makers_of(found, loop)
            assert makers <= set(map(id, part.loops[: part.loops.index(loop)])), "a variable is made where it is read"
            if not (loop.combine and is_number(lowered, loop)) and part.mapping.axes:
                for team in TEAMS:
                    assert_one_thread_makes_each(part.mapping, loop, team)
    check_order(found)


def makers_of(found: Divided, loop: Loop) -> set[int]:
    """Return the loops of the block that compute the variables a loop reads."""
    variables = {operand.view.value for operand in loop.operands if operand.moved is None}
    in_registers = {value for value in variables if found.stage.storage.registers.get(value) == found.spot}
    makers = [other for other in found.block.loops if other.stored is None and other.target.value in in_registers]
    return {id(other) for other in makers}


def assert_one_thread_makes_each(mapping: Mapping, loop: Loop, team: int) -> None:
    """Check that one thread computes each element of a loop's target; without a reduction, at one index."""
    made: dict[int, list[int]] = {}
    for lane, index in runs(mapping, team):
        made.setdefault(sum(i * stride for i, stride in zip(index, loop.nest[1][0], strict=True)), []).append(lane)
    makers = [set(lanes) if loop.combine else lanes for lanes in made.values()]
    assert makers
    assert [len(lanes) for lanes in makers] == [1] * len(makers)


def check_order(found: Divided) -> None:
    """Check that no pass reads what an earlier one overwrites or a later one computes."""
    loops = found.block.loops
    seen = [(nest, loops.index(loop), set(elements(nest, loop))) for nest in found.nests for loop in nest.part.loops]
    for number, (nest, place, touched) in enumerate(seen):
        for other_nest, other_place, others in seen[number + 1 :]:
            if nest is other_nest or place == other_place:
                continue
            (read, written), (other_read, other_written) = (
                ({at for at, is_write in found if not is_write}, {at for at, is_write in found if is_write})
                for found in (touched, others)
            )
            if other_place < place:  # their order has changed
                assert not written & (other_read | other_written)
                assert not read & other_written


def elements(nest: CudaNest, loop: Loop) -> Iterator[tuple[Any, bool]]:
    """Yield the memory elements that a loop accesses, and whether it writes them."""
    alone = CudaNest(nest.writer, nest.spot, nest.block, Pass(nest.mapping, (loop,), nest.part.again))
    accesses: list[Access] = [*alone.accesses(is_store=False), *alone.accesses(is_store=True)]
    for found in accesses:
        yield from (((found.region, element), found.is_write) for _, element in touches_of(found, 1))
