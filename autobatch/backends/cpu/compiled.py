"""Stages with the addresses of everything that their steps read, which are kept from run to run.

A step has the addresses of its function, of its own numbers, and of the memory of its stage: a row of addresses of
arrays. Plans with the same types share them. Before a run only what has changed is stored: the arrays of the plan if
another plan ran last, the memory of the run if that grew, and the values that parameters determine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._native import call_steps
from autobatch.arrays import IntArray, address_of
from autobatch.backends.cpu.memory import CpuMemory
from autobatch.backends.cpu.stage_values import CpuStageRun
from autobatch.backends.cpu.stages import CompiledCell, CompiledStage
from autobatch.backends.cpu.steps import ADDRESSES, BoundStep, Sizes
from autobatch.backends.cpu.team import Sweeps
from autobatch.backends.stages import slots_of
from autobatch.backends.tables import N_DESTINATIONS, WORD, CompiledTypes, PlanTables, place_of
from autobatch.backends.tiles import CallList, most_rows
from autobatch.blas.choosing import Chooser
from autobatch.compiler.tiles import WEIGHTS
from autobatch.compiler.writer import COMMON
from autobatch.devices.store import HOST
from autobatch.ops.randomness import Randomness
from autobatch.params.parameter import Parameter, versions_of
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import parts_of
from autobatch.plan.plan import Plan, PlannedTypes

LongArray = NDArray[np.int64]
BUFFER, SCRATCH, KEPT, PTR = (COMMON.index(name) for name in ("buffer", "scratch", "kept", "ptr"))
MOST_BOUND = 32  # sets of types whose bound stages are cached; making one takes some ten microseconds
MOST_CHOICES = 64  # kept by a stage, the newest


class BoundTypes(CompiledTypes[CompiledCell]):
    """The cells of all types, compiled with the same options, and their stages as they were bound last.

    Attributes:
        not_compiled: the types of which it is not known that their machine code is at hand.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        super().__init__(types, dtype, most_rows)
        self.not_compiled = set(range(len(types.cells)))
        self._bound: dict[tuple[Any, ...], BoundCells] = {}

    def wait_for_code(self, type_ids: Sequence[int], place: str, seconds: float) -> bool:
        """Wait for the machine code of some types, until this long after it was asked for.

        Args:
            place: the type of destinations.

        Returns:
            Whether the code of all kernels is at hand.
        """
        waiting = self.not_compiled.intersection(type_ids)
        stages = [self.cells[type_id].stage(name) for name in self.names for type_id in waiting]
        codes = [stage.code(place) for stage in stages if stage.has_kernels]  # all are asked for, then waited for
        return all(code.wait(seconds) for code in codes)

    def bound(self, type_ids: Sequence[int], n_threads: int) -> BoundCells:
        """The bound stages of some types, for some threads; the most recently used sets of types are cached."""
        key = n_threads, *type_ids
        found = self._bound.pop(key, None)
        if found is None:
            cells = [self.cells[type_id] for type_id in type_ids]
            stages = {name: [cell.stage(name) for cell in cells] for name in self.names}
            found = BoundCells(type_ids, stages, n_threads, self.arrays.block_ptr)
            if len(self._bound) == MOST_BOUND:
                del self._bound[next(iter(self._bound))]
        self._bound[key] = found
        return found


@dataclass(slots=True)
class BoundRun:
    """What a run binds stages to.

    Attributes:
        tables: of the plan, and of no other one.
        place: the name of the type of destinations.
        chooser: chooses the library for each product.
        interpret: see `CpuStageRun`.
    """

    plan: Plan
    tables: PlanTables
    place: str
    chooser: Chooser
    memory: CpuMemory
    randomness: Randomness
    interpret: Callable[[int, tuple[int, ...]], None]


class BoundCells:
    """All stages of several types, bound to one run at a time.

    Args:
        type_ids: the numbers of the types.
        stages: of each of them, by name.
        n_threads: how many threads share the tiles; each has its own scratch memory.
        block_ptr: the blocks of all types, as in `autobatch.plan.plan.TypeTables`.

    Attributes:
        stages: bound, by name.
        bound_to: the tables of the plan that ran last; None before the first.
        calls_library: whether a run of that plan may call a library.
    """

    def __init__(
        self,
        type_ids: Sequence[int],
        stages: Mapping[str, Sequence[CompiledStage]],
        n_threads: int,
        block_ptr: IntArray,
    ) -> None:
        self.stages = {
            name: BoundStages(name, type_ids, of_types, n_threads, block_ptr) for name, of_types in stages.items()
        }
        shared = [stage.shared for of_types in stages.values() for stage in of_types]
        self._followed = _parts_of(parameter for values in shared for parameter in values.followed)
        read = _parts_of(parameter for values in shared for parameter in values.parameters)
        followed = {*map(id, self._followed)}
        self._in_place = [parameter for parameter in read if id(parameter) not in followed]
        self._seen: list[int] | None = None  # the versions of parameters with which stages were refreshed
        self._memory_at: tuple[int, ...] = ()
        self.bound_to: PlanTables | None = None
        self.calls_library = True

    def bind(self, run: BoundRun) -> None:
        """Store the addresses and parameters that have changed since the last run."""
        seen = versions_of(self._followed, self._in_place)
        has_changed, before = seen != self._seen, self.bound_to
        if has_changed or before is not run.tables or run.memory.addresses != self._memory_at:
            self._seen = self.bound_to = None  # compiling may be interrupted
            for stages in self.stages.values():
                stages.bind(run, has_changed)
            if before is not run.tables:
                self.calls_library = True in [stages.choice.calls_library for stages in self.stages.values()]
            self._seen, self.bound_to, self._memory_at = seen, run.tables, run.memory.addresses
        for stages in self.stages.values():
            if stages.choice.in_python:
                stages.enter(run)

    def release(self) -> None:
        """Drop the arrays of the run."""
        for stages in self.stages.values():
            if stages.choice.in_python:
                stages.release()


@dataclass(slots=True)
class Choice:
    """How the steps of a stage run for all plans whose sizes fall into the same classes.

    Attributes:
        steps: bound to these sizes.
        calls_library: whether a step may call a library.
        has_kept: for each type, whether it keeps values for later stages.
        versions: of the stages when their steps last read the parameters; empty before.
        functions, own: the addresses of the steps and of their own numbers, known from then on.
        in_python: the positions of stages with steps that run in Python.
    """

    steps: list[BoundStep]
    calls_library: bool
    has_kept: list[bool]
    versions: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    in_python: list[int] = field(default_factory=list)


class BoundStages:
    """A stage of several types, bound to one run at a time: the steps of all types, and their calls in order.

    Args:
        name: of the stage.
        type_ids: the numbers of the types.
        stages: of each of them.
        n_threads: how many threads share the tiles; each has its own scratch memory.
        block_ptr: the blocks of all types, as in `autobatch.plan.plan.TypeTables`.

    Attributes:
        choice: how the steps run for the last plan.
    """

    def __init__(
        self, name: str, type_ids: Sequence[int], stages: Sequence[CompiledStage], n_threads: int, block_ptr: IntArray
    ) -> None:
        self._name = name
        self._type_ids, self._stages = list(type_ids), list(stages)
        self._blocks = [slice(int(block_ptr[type_id]), int(block_ptr[type_id + 1])) for type_id in type_ids]
        n_slots, n_steps = [len(stage.slots) for stage in stages], [len(stage.steps) for stage in stages]
        self._first = np.cumsum([0, *n_slots], dtype=np.int64)[:-1]  # slot of each stage
        self._memory = np.zeros((n_threads, sum(n_slots)), np.int64)
        self._slots, self._places = self._slots_of_plans(len(block_ptr) - 1, int(block_ptr[-1]))
        rows = address_of(self._memory) + WORD * sum(n_slots) * np.arange(n_threads)
        self._addresses = np.empty((n_threads, sum(n_steps)), ADDRESSES)
        self._addresses["memory"] = rows[:, None] + WORD * np.repeat(self._first, n_steps)
        self._of_one_thread = self._addresses[0]
        self._tables: PlanTables | None = None
        self._choices: dict[tuple[Any, ...], Choice] = {}
        self.choice = Choice([], True, [])
        self._n_moved: list[int] = []
        self._memory_at: tuple[int, ...] = ()
        self._gradients: list[Gradient] = []
        of_stages = [*zip(stages, self._first.tolist(), strict=True)]
        self._gradient_keys = [stage.keys[parameter] for stage in stages for parameter in stage.gradients]
        self._gradient_slots = [first + slot for stage, first in of_stages for slot in stage.gradients.values()]
        self._calls: CallList
        self._sweeps = Sweeps()

    def _slots_of_plans(self, n_types: int, n_blocks: int) -> tuple[LongArray, LongArray]:
        """The slots for arrays of plans, and where in `PlanTables.addresses` the addresses for them are."""
        pairs = []
        for stage, type_id, blocks, first in zip(self._stages, self._type_ids, self._blocks, self._first, strict=True):
            pairs += [(first + PTR + number, number) for number in range(N_DESTINATIONS)]
            for name, slot in stage.plan_slots.items():
                pairs.append((first + slot, place_of(name, type_id, blocks.start, n_types, n_blocks)))
        slots, places = np.array(pairs, np.int64).reshape(-1, 2).T
        return slots, places

    def bind(self, run: BoundRun, has_changed: bool) -> None:
        """Store the addresses and parameters that have changed since the last run.

        Args:
            has_changed: whether a parameter may have changed.
        """
        tables, before = run.tables, self._tables
        self._tables = None  # until all of it is stored, as compiling may be interrupted
        has_changed = has_changed or before is None
        if has_changed:
            for stage in self._stages:
                stage.refresh()
        key = run.place, run.chooser.name, tables.row_classes if self._name == WEIGHTS else tables.size_classes
        choice = self._choices.get(key) or self._choose(run, key)
        is_chosen = before is not None and choice is self.choice
        if has_changed or not is_chosen:
            versions = [stage.version for stage in self._stages]
            if versions != choice.versions:
                self._take_parameters(choice, versions)
            if not is_chosen:
                self._addresses["function"], self._addresses["own"] = choice.functions, choice.own
                self.choice = choice
        if not is_chosen or run.memory.addresses != self._memory_at:
            self._take_memory(*run.memory.addresses)
        if before is not tables:
            self._memory[:, self._slots] = tables.addresses[self._places]
        self._tables, self._calls = tables, tables.calls[self._name]

    def release(self) -> None:
        """Drop the arrays of the run."""
        for number in self.choice.in_python:
            vars(self._stages[number]).pop("run", None)

    def run(self, first: int, last: int) -> int:
        """Make the calls of parts first:last and return their number; see `StageRunner`."""
        calls, tile_ptr, ptr, _ = self._calls
        tile, end_tile = ptr[first], ptr[last]
        start, end = int(tile_ptr[tile]), int(tile_ptr[end_tile])
        if len(self._addresses) > 1 and end_tile - tile > last - first:
            if all(self.choice.functions[step] for step in set(calls[start:end, 0].tolist())):
                self._sweeps.run(self._addresses, self._calls, first, last)
                return end - start
            if last - first > 1:
                return sum(self.run(part, part + 1) for part in range(first, last))
        at = start
        while at < end:
            at = call_steps(self._of_one_thread, calls, at, end)  # until a step that Python runs
            if at < end:
                step, k = calls[at].tolist()
                self.choice.steps[step](k)
                at += 1
        return end - start

    def _choose(self, run: BoundRun, key: tuple[Any, ...]) -> Choice:
        """Choose how steps run for the sizes of a plan, and keep the choice."""
        steps, has_kept, mean_rows = list[BoundStep](), list[bool](), run.tables.mean_rows
        for stage, blocks in zip(self._stages, self._blocks, strict=True):
            sizes = Sizes(run.place, mean_rows[blocks], run.plan.block_rows[blocks], len(self._addresses), run.chooser)
            steps += [step.bind(sizes) for step in stage.steps]
            has_kept.append(bool(mean_rows[blocks.start, 1]))
        calls = [step.calls_library for step in steps] + [stage.shared.multiplies for stage in self._stages]
        if len(self._choices) == MOST_CHOICES:
            del self._choices[next(iter(self._choices))]
        self._choices[key] = Choice(steps, True in calls, has_kept)
        return self._choices[key]

    def _take_parameters(self, choice: Choice, versions: list[int]) -> None:
        """Let the steps of changed stages read the parameters again; store the addresses of parameters that moved."""
        before, choice.versions = choice.versions or [-1] * len(versions), []  # until all have read them
        steps = iter(choice.steps)
        for stage, version, known in zip(self._stages, versions, before, strict=True):
            for step in islice(steps, len(stage.steps)):
                if version != known:
                    step.refresh()
        n_moved = [stage.n_moved for stage in self._stages]
        if n_moved != self._n_moved:
            for stage, first in zip(self._stages, self._first.tolist(), strict=True):
                for slot, found in stage.shared_arrays().items():
                    self._memory[:, first + slot] = found if isinstance(found, int) else address_of(found)
            self._n_moved = n_moved
        choice.functions = [step.function for step in choice.steps]
        choice.own = [step.own_address for step in choice.steps]
        functions = iter(choice.functions)
        choice.in_python = [
            number for number, stage in enumerate(self._stages) if not all([*islice(functions, len(stage.steps))])
        ]
        choice.versions = versions

    def _take_memory(self, buffer: int, scratch: int, scratch_step: int, kept: int) -> None:
        """Store the addresses of the memory of a run: each thread has its own row of scratch memory."""
        for thread, row in enumerate(self._memory):
            own = scratch + thread * scratch_step
            row[self._first + BUFFER], row[self._first + SCRATCH] = buffer, own
            row[self._first + KEPT] = [kept if has_kept else own for has_kept in self.choice.has_kept]
        self._memory_at = buffer, scratch, scratch_step, kept

    def take_gradients(self, gradients: Mapping[int, Gradient]) -> None:
        """Store the addresses of the gradients that steps write, unless they are those of the last run."""
        for number in self.choice.in_python:
            self._stages[number].run.gradients = gradients
        found = [*map(gradients.__getitem__, self._gradient_keys)]
        if len(found) == len(self._gradients) and all(map(is_, found, self._gradients)):
            return
        self._gradients = []  # until all are stored: an array may be refused
        for gradient, slot in zip(found, self._gradient_slots, strict=True):
            self._memory[:, slot : slot + 3] = slots_of(gradient, address_of)
        self._gradients = found

    def enter(self, run: BoundRun) -> None:
        """Give stages the arrays of a run, for steps that Python runs."""
        memory, scratch = run.memory, run.memory.scratch[0]
        for number in self.choice.in_python:
            stage, type_id, block = self._stages[number], self._type_ids[number], self._blocks[number].start
            kept = memory.kept[0] if self.choice.has_kept[number] else scratch
            stage.run = CpuStageRun(
                stage, HOST, run.plan, type_id, block, run.tables.tiles[type_id], run.randomness, run.interpret,
                memory.buffer, scratch, kept,
            )  # fmt: skip


def place_type(plan: Plan) -> str:
    """The name of the type of a plan's destinations."""
    return "int64" if plan.dest.itemsize == WORD else "int32"


def _parts_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    """List the parameters, each once, with the parts of a stack in its place."""
    return list({id(part): part for parameter in parameters for part in parts_of(parameter)}.values())
