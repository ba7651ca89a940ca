"""Run plans of compiled cells.

A plan has a list of calls of steps. The core makes the calls by the addresses of functions, of their descriptors, and
of the memory of their stage, which is a row of addresses of arrays. Plans with the same types share these, and they are
kept from run to run. Before a run, only changed addresses are stored: those of the plan's arrays if another plan ran
last, those of the run's memory if it grew, and those of values that depend on parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import call_steps
from autobatch.arrays import IntArray, LongArray, address_of
from autobatch.backends.base import Timer
from autobatch.backends.compiled import slots_of
from autobatch.backends.cpu.compiled_cell import CompiledCell, CompiledStage
from autobatch.backends.cpu.memory import CpuMemory, Needed
from autobatch.backends.cpu.operands import CpuStageRun
from autobatch.backends.cpu.step import BOUND_STEP, Sizes, Step, Sweeps
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.options import Options
from autobatch.backends.reference import InterpretedPlan, Reference
from autobatch.backends.tables import N_DESTINATIONS, WORD, CallList, CompiledTypes, PlanTables, most_rows, place_of
from autobatch.backends.values import MemoryPool
from autobatch.blas.choosing import Chooser
from autobatch.compiler.writer import COMMON, WEIGHTS
from autobatch.devices.store import HOST
from autobatch.ops.randomness import Randomness
from autobatch.params.parameter import Parameter, versions_of
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import parts_of
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.system.background import patience

BUFFER, SCRATCH, KEPT, PTR = (COMMON.index(name) for name in ("buffer", "scratch", "kept", "ptr"))
MOST_BOUND = 32  # sets of types whose bound stages are cached; building one takes tens of microseconds
MOST_CHOICES = 64  # choices that a stage keeps, the newest ones


class Shared(NamedTuple):
    """The objects that all plans and runs of a backend share.

    Attributes:
        poison: whether to fill memory with NaN before each run.
        chooser: chooses the library for each product.
        pool: the memory that no run uses.
        reference: interprets plans while their machine code is being compiled.
    """

    poison: bool
    chooser: Chooser
    pool: MemoryPool[CpuMemory]
    reference: Reference


class CompiledPlan(PlanExecutable):
    """A plan with everything that a run needs except memory; see `Executable`.

    Args:
        types: the compiled types of the plan.
        tables: the tiles of the plan, and the calls for each of them.

    Attributes:
        index_type: the name of the integer type of the plan's destinations.
    """

    def __init__(
        self, plan: Plan, cells: PlannedTypes, options: Options, types: BoundTypes, tables: PlanTables, shared: Shared
    ) -> None:
        super().__init__(plan, cells, options)
        self.types, self.tables, self.shared, self._is_compiled = types, tables, shared, False
        self.index_type = "int64" if plan.dest.itemsize == WORD else "int32"
        n_threads, scratch, kept = options.threads, tables.scratch_size, tables.kept_size
        self.needed = Needed(plan.size, scratch, kept, options.dtype, n_threads, options.max_bytes)
        self.n_bytes = (plan.size + n_threads * scratch + kept) * options.dtype.itemsize

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> PlanRun[Any]:
        """Make a run, which is interpreted while machine code is being compiled; see `Executable`."""
        if not (self._is_compiled or self._has_code()):
            return self._interpreted.begin(randomness, timer)
        return CompiledRun(self, self.shared.pool, HOST, randomness, timer)

    def _has_code(self) -> bool:
        """Return whether all machine code is available, after a wait of at most `patience()`."""
        not_compiled, type_ids = self.types.not_compiled, self.tables.type_ids
        if not not_compiled.isdisjoint(type_ids):
            if not self.types.wait_for_code(type_ids, self.index_type, patience()):
                return False
            not_compiled.difference_update(type_ids)
        self._is_compiled = True
        return True

    @cached_property
    def _interpreted(self) -> InterpretedPlan:
        return self.shared.reference.prepare(self.plan, self.cells, self.options)


class CompiledRun(PlanRun[CpuMemory]):
    """A run of compiled cells."""

    executable: CompiledPlan
    n_library_threads = 1  # several threads run tiles, or only one thread is wanted
    _cells: BoundCells | None = None  # set within the context

    def _reserve(self) -> None:
        memory, needed = self.memory, self.executable.needed
        if memory.reserved_for != needed and not memory.has_room(needed):
            memory.reserve_all(needed)
        if self.executable.shared.poison:
            memory.poison()

    def _bind(self) -> bool:
        types, tables = self.executable.types, self.executable.tables
        self._cells = cells = types.bound(tables.type_ids, self.options.threads)
        cells.bind(self)
        self._stages = cells.stages
        return cells.is_native

    def _release(self) -> None:
        if self._cells is not None:
            for stages in self._cells.stages.values():
                if stages.choice.in_python:
                    stages.release()
            self._cells, self._stages = None, {}

    def _take_targets(self) -> None:
        assert self._cells is not None, "a run computes within its context"
        self._cells.stages[WEIGHTS].take_gradients(self.targets)


class BoundTypes(CompiledTypes[CompiledCell]):
    """The cells of all types, compiled with the same options, and their bound stages.

    Attributes:
        not_compiled: the types whose machine code is not known to be available.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        super().__init__(types, dtype, most_rows)
        self.not_compiled = set(range(len(types.cells)))
        self._bound: dict[tuple[Any, ...], BoundCells] = {}

    def wait_for_code(self, type_ids: Sequence[int], index_type: str, seconds: float) -> bool:
        """Wait for the machine code of some types; return whether it is available.

        Args:
            index_type: the name of the integer type of destinations.
            seconds: the longest wait, counted from the request for the code.
        """
        waiting = self.not_compiled.intersection(type_ids)
        stages = [self.cells[type_id].stage(name) for name in self.names for type_id in waiting]
        codes = [stage.code(index_type) for stage in stages if stage.has_kernels]  # request all before the first wait
        return all(code.wait(seconds) for code in codes)

    def bound(self, type_ids: Sequence[int], n_threads: int) -> BoundCells:
        """Return the bound stages of a set of types and a number of threads; the most recently used ones are cached."""
        # Removed and stored again below, so that the first key is the one that was used longest ago.
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


class BoundCells:
    """All stages of several types, bound to one run at a time.

    Args:
        type_ids: the numbers of the types.
        stages: by name, the stage of each type.
        n_threads: the number of threads that share the tiles; each has its own scratch memory.
        block_ptr: the blocks of all types, as in `autobatch.plan.plan.TypeTables`.

    Attributes:
        stages: the bound stages, by name.
        is_native: whether the bound plan runs without Python and without libraries.
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
        # `versions_of` also looks for changes that raise no version, which matter only where numbers are copied or
        # computed with.
        followed = {*map(id, self._followed)}
        self._in_place = [parameter for parameter in read if id(parameter) not in followed]
        self._seen: list[int] | None = None  # the versions of the parameters at the last refresh of the stages
        self._memory_at: tuple[int, ...] = ()
        self._bound_to: PlanTables | None = None  # the tables of the plan that ran last
        self.is_native = False

    def bind(self, run: CompiledRun) -> None:
        """Store the addresses and parameters that have changed since the last run."""
        seen = versions_of(self._followed, self._in_place)
        has_changed, before = seen != self._seen, self._bound_to
        tables, memory_at = run.executable.tables, run.memory.addresses
        if has_changed or before is not tables or memory_at != self._memory_at:
            self._seen = self._bound_to = None  # compiling may be interrupted
            for stages in self.stages.values():
                stages.bind(run, has_changed)
            if before is not tables:
                self.is_native = False not in [stages.choice.is_native for stages in self.stages.values()]
            self._seen, self._bound_to, self._memory_at = seen, tables, memory_at
        for stages in self.stages.values():
            if stages.choice.in_python:
                stages.enter(run)


@dataclass(slots=True)
class Choice:
    """The steps of a stage for all plans whose sizes are in the same classes.

    Attributes:
        functions, descriptors: the addresses of the functions and descriptors of the steps.
        has_kept: for each type, whether steps over all its rows leave values in persistent scratch.
        in_python: the positions of types with steps that run in Python.
        is_native: whether no step runs in Python or calls a library.
        versions: the versions of the stages when their steps last read the parameters; empty before.
    """

    steps: list[Step]
    functions: list[int]
    descriptors: list[int]
    has_kept: list[bool]
    in_python: list[int]
    is_native: bool
    versions: list[int] = field(default_factory=list)


class BoundStages:
    """A stage of several types, bound to one run at a time: the steps of all types, and their calls in order.

    Args:
        name: the name of the stage.
        type_ids: the numbers of the types.
        stages: the stage of each type.
        n_threads: the number of threads that share the tiles; each has its own scratch memory.
        block_ptr: the blocks of all types, as in `autobatch.plan.plan.TypeTables`.

    Attributes:
        choice: the steps for the last plan.
    """

    def __init__(
        self, name: str, type_ids: Sequence[int], stages: Sequence[CompiledStage], n_threads: int, block_ptr: IntArray
    ) -> None:
        self._name = name
        self._type_ids, self._stages = list(type_ids), list(stages)
        self._blocks = [slice(int(block_ptr[type_id]), int(block_ptr[type_id + 1])) for type_id in type_ids]
        n_slots, n_steps = [len(stage.slots) for stage in stages], [len(stage.steps) for stage in stages]
        self._first = np.cumsum([0, *n_slots], dtype=np.int64)[:-1]  # the first slot of each stage
        self._memory = np.zeros((n_threads, sum(n_slots)), np.int64)
        self._slots, self._sources = self._slots_of_plans(len(block_ptr) - 1, int(block_ptr[-1]))
        rows = address_of(self._memory) + WORD * sum(n_slots) * np.arange(n_threads)
        self._bound = np.empty((n_threads, sum(n_steps)), BOUND_STEP)
        # Row k has the steps for thread k, which differ only in their slots, and these only in the addresses of scratch
        # memory.
        self._bound["memory"] = rows[:, None] + WORD * np.repeat(self._first, n_steps)
        self._of_one_thread = self._bound[0]
        self._tables: PlanTables | None = None
        self._choices: dict[tuple[Any, ...], Choice] = {}
        self.choice = Choice([], [], [], [], [], False)
        self._n_moved: list[int] = []
        self._memory_at: tuple[int, ...] = ()
        self._gradients: list[Gradient] = []
        of_stages = [*zip(stages, self._first.tolist(), strict=True)]
        self._gradient_keys = [stage.keys[parameter] for stage in stages for parameter in stage.gradients]
        self._gradient_slots = [first + slot for stage, first in of_stages for slot in stage.gradients.values()]
        self._calls: CallList
        self._sweeps = Sweeps()

    def _slots_of_plans(self, n_types: int, n_blocks: int) -> tuple[LongArray, LongArray]:
        """Find the slots for arrays of plans, and the positions of their contents in `PlanTables.addresses`."""
        pairs = []
        for stage, type_id, blocks, first in zip(self._stages, self._type_ids, self._blocks, self._first, strict=True):
            pairs += [(first + PTR + number, number) for number in range(N_DESTINATIONS)]
            for name, slot in stage.plan_slots.items():
                pairs.append((first + slot, place_of(name, type_id, blocks.start, n_types, n_blocks)))
        slots, sources = np.array(pairs, np.int64).reshape(-1, 2).T
        return slots, sources

    def bind(self, run: CompiledRun, has_changed: bool) -> None:
        """Store the addresses and parameters that have changed since the last run.

        Args:
            has_changed: whether a parameter may have changed.
        """
        plan, memory_at, before = run.executable, run.memory.addresses, self._tables
        tables, sizes = plan.tables, plan.tables.row_classes if self._name == WEIGHTS else plan.tables.size_classes
        self._tables = None  # until everything is stored, because compiling may be interrupted
        has_changed = has_changed or before is None
        if has_changed:
            for stage in self._stages:
                stage.refresh()
        # All that `StepTemplate.choose` reads of a plan; sizes of one class have equally many bits.
        key = plan.index_type, plan.shared.chooser.name, sizes
        choice = self._choices.get(key) or self._choose(plan, key)
        is_chosen = before is not None and choice is self.choice
        if has_changed or not is_chosen:
            versions = [stage.version for stage in self._stages]
            if versions != choice.versions:
                self._take_parameters(choice, versions)
            if not is_chosen:
                self._bound["function"], self._bound["descriptor"] = choice.functions, choice.descriptors
                self.choice = choice
        if not is_chosen or memory_at != self._memory_at:
            self._take_memory(*memory_at)
        if before is not tables:
            self._memory[:, self._slots] = tables.addresses[self._sources]
        self._tables, self._calls = tables, tables.calls[self._name]

    def release(self) -> None:
        """Drop the arrays of the run, for steps that Python runs."""
        for number in self.choice.in_python:
            # `Memory.reserve` frees a buffer before it allocates a larger one, if nothing else refers to it.
            vars(self._stages[number]).pop("run", None)

    def run(self, first: int, last: int) -> int:
        """Make the calls of parts first:last and return their number; see `StageRunner`."""
        calls, tile_ptr, ptr, _ = self._calls
        tile, end_tile = ptr[first], ptr[last]
        start, end = int(tile_ptr[tile]), int(tile_ptr[end_tile])
        # Several threads help only if some part has more than one tile, and they cannot run steps of Python. If a range
        # has such a step, its parts run one by one, so that those without one are still shared.
        if len(self._bound) > 1 and end_tile - tile > last - first:
            if all(self.choice.functions[step] for step in set(calls[start:end, 0].tolist())):
                self._sweeps.run(self._bound, self._calls, first, last)
                return end - start
            if last - first > 1:
                return sum(self.run(part, part + 1) for part in range(first, last))
        at = start
        while at < end:
            at = call_steps(self._of_one_thread, calls, at, end)  # stops at a step that Python runs
            if at < end:
                step, k = calls[at].tolist()
                run = self.choice.steps[step].run
                assert run is not None, "a step without a function runs in Python"
                run(k)
                at += 1
        return end - start

    def _choose(self, plan: CompiledPlan, key: tuple[Any, ...]) -> Choice:
        steps, has_kept, in_python, tables = list[Step](), list[bool](), list[int](), plan.tables
        for number, (stage, blocks) in enumerate(zip(self._stages, self._blocks, strict=True)):
            mean_rows, n_rows = tables.mean_rows[blocks], plan.plan.block_rows[blocks]
            sizes = Sizes(plan.index_type, mean_rows, n_rows, len(self._bound), plan.shared.chooser)
            of_stage = [step.bind(sizes) for step in stage.steps]
            steps += of_stage
            has_kept.append(bool(mean_rows[0, 1]))
            if not all(step.function for step in of_stage):
                in_python.append(number)
        functions, descriptors = [step.function for step in steps], [address_of(step.descriptor) for step in steps]
        is_native = not in_python and not any(step.calls_library for step in steps)
        if len(self._choices) == MOST_CHOICES:
            del self._choices[next(iter(self._choices))]
        self._choices[key] = Choice(steps, functions, descriptors, has_kept, in_python, is_native)
        return self._choices[key]

    def _take_parameters(self, choice: Choice, versions: list[int]) -> None:
        """Let the steps of changed stages reload the parameters; store the addresses of parameters that moved."""
        # Descriptors belong to a choice, so each choice has versions; slots belong to the stages and are compared by
        # `n_moved`.
        before, choice.versions = choice.versions or [-1] * len(versions), []  # empty until all steps have reloaded
        steps = iter(choice.steps)
        for stage, version, known in zip(self._stages, versions, before, strict=True):
            for step in islice(steps, len(stage.steps)):
                if version != known and step.load is not None:
                    step.load()
        n_moved = [stage.n_moved for stage in self._stages]
        if n_moved != self._n_moved:
            for stage, first in zip(self._stages, self._first.tolist(), strict=True):
                for slot, found in stage.shared_arrays().items():
                    self._memory[:, first + slot] = found if isinstance(found, int) else address_of(found)
            self._n_moved = n_moved
        choice.versions = versions

    def _take_memory(self, buffer: int, scratch: int, scratch_step: int, kept: int) -> None:
        """Store the addresses of the memory of a run; each thread has its own row of scratch memory."""
        for thread, row in enumerate(self._memory):
            of_thread = scratch + thread * scratch_step
            row[self._first + BUFFER], row[self._first + SCRATCH] = buffer, of_thread
            # Without steps over all rows, kept values lie in the scratch memory of the tile; see
            # `native/plan/tiles.cpp`.
            row[self._first + KEPT] = [kept if has_kept else of_thread for has_kept in self.choice.has_kept]
        self._memory_at = buffer, scratch, scratch_step, kept

    def take_gradients(self, gradients: Mapping[int, Gradient]) -> None:
        """Store the addresses of the gradients that steps write, unless the gradients are those of the last run."""
        for number in self.choice.in_python:
            self._stages[number].run.gradients = gradients
        found = [*map(gradients.__getitem__, self._gradient_keys)]
        if len(found) == len(self._gradients) and all(map(is_, found, self._gradients)):
            return
        self._gradients = []  # until all are stored, because `slots_of` may refuse an array
        for gradient, slot in zip(found, self._gradient_slots, strict=True):
            self._memory[:, slot : slot + 3] = slots_of(gradient, address_of)
        self._gradients = found

    def enter(self, run: CompiledRun) -> None:
        """Set the arrays of a run, for steps that Python runs."""
        # Only the calling thread runs steps of Python; row 0 is its scratch memory.
        memory, scratch, tiles = run.memory, run.memory.scratch[0], run.executable.tables.tiles
        for number in self.choice.in_python:
            stage, type_id, block = self._stages[number], self._type_ids[number], self._blocks[number].start
            kept = memory.kept[0] if self.choice.has_kept[number] else scratch
            stage.run = CpuStageRun(
                stage, HOST, run.plan, type_id, block, tiles[type_id], run.randomness, run.interpret_gradients,
                memory.buffer, scratch, kept,
            )  # fmt: skip


def _parts_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    """List the parameters without duplicates, with each stack replaced by its parts."""
    return list({id(part): part for parameter in parameters for part in parts_of(parameter)}.values())
