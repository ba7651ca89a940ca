"""Drive the runs of all backends: forward, backward, and the gradients of parameters, once each.

    forward     prologue, batch 1 ... batch B, epilogue
    backward    prologue, batch B ... batch 1, epilogue
    weights     type 1 ... type T, each over all its rows

A backend defines how memory is reserved (`_reserve`), how steps are bound to it (`_bind`), and how the parts of each
stage run (`_stages`). All else is here: the rows that a loss depends on, seeds, gradients that are computed on another
device than the parameters', times, and the order of all these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from autobatch.arrays import SILENT
from autobatch.backends.base import Counts, RowMoves, RowReader, Timer
from autobatch.backends.interpret import Interpreter
from autobatch.backends.options import Options
from autobatch.backends.values import Activity, Memory, MemoryPool, RowRange, Values
from autobatch.blas.threads import Limit
from autobatch.compiler.writer import WEIGHTS
from autobatch.devices.store import HOST, Store
from autobatch.errors import BackendError
from autobatch.ops.randomness import Randomness
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import refresh
from autobatch.plan.plan import Batch, Plan, PlannedTypes

M = TypeVar("M", bound=Memory)


class StageRunner(Protocol):
    """A runner of the parts of a stage."""

    def run(self, first: int, last: int) -> int:
        """Run parts first:last, and return the number of launches; 0 if they are counted elsewhere.

        In "forward" and "backward", part 0 is the prologue, parts 1 to B are the batches in the order in which they
        run, and part B + 1 is the epilogue. In "weights", which adds to `PlanRun.targets`, the parts are the compiled
        steps of each type, and then the other steps of each type.
        """


class PlanExecutable:
    """A plan with everything that a run needs except memory; see `autobatch.backends.base.Executable`.

    Attributes:
        n_bytes: bytes of memory that a run takes.
    """

    n_bytes: int

    def __init__(self, plan: Plan, cells: PlannedTypes, options: Options) -> None:
        self.plan, self.cells, self.options = plan, cells, options
        self.activities: dict[frozenset[int], Activity] = {}

    def activity(self, slots: frozenset[int]) -> Activity:
        """Return the nodes that a loss in these slots depends on; cached."""
        if slots not in self.activities:
            self.activities[slots] = Activity(self.plan, self.cells, slots)
        return self.activities[slots]


class PlanRun(ABC, Generic[M]):
    """A run of a plan in memory from a pool; see `autobatch.backends.base.Run`.

    Args:
        pool: the pool from which memory is taken.
        store: the memory of the device.
        timer: called after every batch.

    Attributes:
        memory: the memory of the run, until it is closed.
        values: the values in the memory.
        targets: the gradients that the weight stage adds to, by `id` of the parameter or stack, on the device.
        launches, copied_bytes: the work so far without that of the interpreter; see `Counts`.
        held: the attributes that closing the run deletes.
        n_library_threads: the threads of the host's libraries; None for those of the options, 0 if none is called.
    """

    n_library_threads: ClassVar[int | None] = None
    held: ClassVar[frozenset[str]] = frozenset(("memory", "values", "interpreter"))

    def __init__(
        self, executable: PlanExecutable, pool: MemoryPool[M], store: Store, randomness: Randomness, timer: Timer | None
    ) -> None:
        self.executable, self.plan, self.cells = executable, executable.plan, executable.cells
        self.options = executable.options
        self.store, self.randomness, self.timer = store, randomness, timer
        self._pool, self._ended, self.launches, self.copied_bytes = pool, "", 0, 0
        self._has_begun = False
        self.targets: Mapping[int, Gradient] = {}
        self._stages: Mapping[str, StageRunner] = {}  # set within the context
        self._outputs: list[Any] | None = None
        self._read: Callable[[], list[Any]] | None = None
        self._limit: Limit | None = None
        self._silence: Any = None
        self.memory = pool.take()
        self._n_allocated = self.memory.allocations

    def __enter__(self) -> Self:
        """Reserve memory on the first entry, and bind the steps to it."""
        try:
            if not self._has_begun:
                self._begin()
                self._has_begun = True
            if not self._bind():
                self._prepare_python()
        except BaseException as error:
            # Python does not call `__exit__` if `__enter__` raises; interrupts must undo a partial entry, too.
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._release()
        if self._limit is not None:
            self._limit.__exit__(*error)
            self._limit = None  # afterwards, so that `close` exits it if Ctrl-C comes where `__exit__` starts
        silence, self._silence = self._silence, None
        if silence is not None:
            silence.__exit__(*error)

    def _prepare_python(self) -> None:
        """Limit the threads of libraries and silence NumPy's warnings, until the context ends.

        Warnings are not needed, because `value_and_grad` refuses a loss that is not finite. Native code needs neither,
        and both take microseconds, so native runs prepare only for the parts that Python computes.
        """
        if self._silence is not None:
            return
        # `__exit__` exits every recorded context. An errstate must be entered before it is exited, so it is recorded
        # afterwards. A limit may be exited early, so it is recorded first, and no interrupt leaves it in force.
        silence = np.errstate(**SILENT)
        silence.__enter__()
        self._silence = silence
        n_threads = self.options.threads if self.n_library_threads is None else self.n_library_threads
        if n_threads:
            self._limit = limit = Limit(n_threads)
            limit.__enter__()

    def _begin(self) -> None:
        """Make room in `memory` for the plan, and update the stacks of parameters."""
        self._reserve()
        self.values = Values(self.plan, self.cells, self.memory.buffer, self.store)
        self.copied_bytes = refresh(self.cells.stacks)

    # What backends define.

    @abstractmethod
    def _reserve(self) -> None:
        """Make room in `memory` for the plan."""

    def _bind(self) -> bool:
        """Bind the steps to the memory of this run; return whether all are native. `_release` always follows."""
        return False

    def _release(self) -> None:
        """Undo `_bind`."""

    def _take_targets(self) -> None:
        """Bind the steps of the weight stage to the `targets` of this run."""

    def _call(self, stage: str, first: int, last: int) -> None:
        """Run parts first:last of a stage; see `StageRunner`."""
        self.launches += self._stages[stage].run(first, last)

    def _call_timed(self, stage: str, batches: list[Batch]) -> None:
        """Run all parts of a stage, and call the timer after each; in "weights", a batch is all rows of a type."""
        if stage == WEIGHTS:
            for batch in batches:
                self._run_weights_of(batch)
            return
        self._call(stage, 0, 1)
        self._mark(stage, None)
        for part, batch in enumerate(batches, start=1):
            self._call(stage, part, part + 1)
            self._mark(stage, batch)
        self._call(stage, len(batches) + 1, len(batches) + 2)

    @cached_property
    def interpreter(self) -> Interpreter:
        """Return the interpreter, which runs instructions that have no step."""
        return Interpreter(self.values, self.options, self.randomness)

    def interpret_gradients(self, type_id: int, parameters: tuple[int, ...]) -> None:
        """Add to the gradients of parameters of a type by the interpreter, given the numbers of their values."""
        self._prepare_python()
        self.interpreter.weight_gradients(type_id, self.targets, only=parameters)

    # Running.

    def _sweep(self, stage: str, activity: Activity | None) -> None:
        """Run "forward" or "backward" batch by batch, for all nodes or, with an activity, for the active ones."""
        batches = self.plan.batches if stage == "forward" else self.plan.batches[::-1]
        if activity is not None:
            self._call_active(stage, batches, activity)
        else:
            self._call_timed(stage, batches)

    def _call_active(self, stage: str, batches: list[Batch], activity: Activity) -> None:
        """Run the batches that have active nodes, and clear the gradients of the other nodes."""
        self._call(stage, 0, 1)
        self._mark(stage, None)
        for part, batch in enumerate(batches, start=1):
            rows = activity.rows(batch.type_id, batch.start, batch.end)
            if rows.any():
                self._call(stage, part, part + 1)
            if not rows.all():
                self.values.clear_inactive(RowRange(self.plan, batch, self.store), rows)
            self._mark(stage, batch)
        self._call(stage, len(batches) + 1, len(batches) + 2)

    def carry(self, moves: RowMoves) -> None:
        """Copy rows before anything is computed; see `Run`."""
        moves.run(self.store)

    def forward(self, to: Store | None = HOST) -> None:
        """Compute all values; see `Run`."""
        if self.timer is None:
            self.launches += self._stages["forward"].run(0, len(self.plan.schedule.batch_type) + 2)
        else:
            self._sweep("forward", None)
        if to is self.store:
            self._outputs = self.values.outputs()
        elif to is not None:
            self._read = self.values.begin_read(range(len(self.cells.slot_shapes)))

    def backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient], reader: RowReader | None = None) -> None:
        """Differentiate the run; see `Run`."""
        if self._ended:
            raise BackendError(f"differentiating a run: it is already {self._ended}, and its values are gone.")
        # Noted before anything is computed: backward overwrites values, so it cannot be repeated after an error.
        self._ended, self._seeded = "differentiated", frozenset(seeds)
        activity = self.executable.activities.get(self._seeded) or self.executable.activity(self._seeded)
        targets = self.memory.targets(into, self.cells.stacks)
        if self.options.store is self.store:
            self._differentiate(seeds, targets.arrays, activity, reader)
        else:
            with self.memory.on_device(targets.arrays, self.options) as gradients:
                self._differentiate(seeds, gradients, activity, reader)
        if targets.scattered:
            self.copied_bytes += targets.finish()

    def _differentiate(
        self, seeds: Mapping[int, Any], targets: Mapping[int, Gradient], activity: Activity, reader: RowReader | None
    ) -> None:
        for slot in range(len(self.cells.slot_shapes)):
            place, seed = self.values.slot(slot, self.plan.gradient_offset), seeds.get(slot, 0)
            place[...] = seed if self.store is HOST or slot not in seeds else self._seed(seed)
        in_one = activity.is_whole and self.timer is None
        if in_one:
            self.launches += self._stages["backward"].run(0, len(self.plan.schedule.batch_type) + 2)
        else:
            self._sweep("backward", None if activity.is_whole else activity)
            self._mark("backward", None)  # work after the last batch counts as backward, not as weights
        self.targets = targets
        if reader is not None:
            self._prepare_python()
            if not reader(self.interpreter, activity):
                return
        self._take_targets()
        if in_one:
            self.launches += self._stages[WEIGHTS].run(0, 2 * (len(self.plan.type_ptr) - 1))
        else:
            self._run_weights_by_type(activity)

    def _seed(self, seed: Any) -> Any:
        """Return a seed on the device; if it is a host array of equal numbers, one of them, which needs no upload."""
        # Zero is excluded: 0.0 equals -0.0, so equal zeros may have different bits.
        if type(seed) is np.ndarray and seed.size and seed.flat[0] and (seed == seed.flat[0]).all():
            return seed.flat[0].item()
        return self.store.put(seed)

    def _run_weights_by_type(self, activity: Activity) -> None:
        """Add to the gradients of parameters, one type after the other.

        The interpreter computes those of types that have both active and inactive rows; types without active rows are
        skipped.
        """
        ends, bases = self.plan.type_ptr.tolist(), self.plan.type_bases
        types = [Batch(type_id, 0, ends[type_id + 1] - ends[type_id], bases[type_id]) for type_id in sorted(bases)]
        types = [of_type for of_type in types if activity.rows(*of_type[:3]).any()]
        if activity.is_whole:
            self._call_timed(WEIGHTS, types)
            return
        for of_type in types:
            active = activity.rows(*of_type[:3])
            if active.all():
                self._run_weights_of(of_type)
            else:
                self._prepare_python()
                self.interpreter.weight_gradients(of_type.type_id, self.targets, active)
                self._mark(WEIGHTS, of_type)

    def _run_weights_of(self, of_type: Batch) -> None:
        """Add to the gradients of the parameters of a type: its compiled steps, then its other steps."""
        for part in (of_type.type_id, len(self.plan.type_ptr) - 1 + of_type.type_id):
            self._call(WEIGHTS, part, part + 1)
        self._mark(WEIGHTS, of_type)

    def _mark(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        """Call the timer, if there is one, after a batch; see `Timer`."""
        if self.timer is not None:
            self.timer.mark(stage, batch, end)

    # Results.

    @property
    def outputs(self) -> list[Any]:
        """Return the values that the user asked for; see `Run`."""
        if self._outputs is None:
            if self._read is None:
                raise BackendError("cannot read outputs: forward copied none (to=None); read them with on_device.")
            self._outputs = self._read()
        return self._outputs

    def on_device(self, slot: int) -> Any:
        """Return the values of a slot on the device; see `Run`."""
        return self.values.slot(slot)

    def read(self, slots: Sequence[int], most: int) -> list[Any] | None:
        """Copy the values of some slots to the host; see `Run`."""
        wait = self.values.begin_read(slots, most)
        return None if wait is None else wait()

    def gradients(self, type_id: int) -> Any:
        """Return the gradients of the first output of all nodes of a type; see `Run`."""
        if self._ended != "differentiated":
            raise BackendError(
                f"reading gradients: the run must be differentiated and open, got one that is "
                f"{self._ended or 'not differentiated'}."
            )
        with np.errstate(**SILENT):
            return self.values.output_gradients(type_id, self.executable.activity(self._seeded))

    def counts(self) -> Counts:
        # Not `self.interpreter`, which would make one.
        inner = vars(self).get("interpreter")
        launches, copied = (0, 0) if inner is None else (inner.launches, inner.copied_bytes)
        allocations = self.memory.allocations - self._n_allocated
        return Counts(self.launches + launches, self.copied_bytes + copied, allocations, self.memory.n_bytes)

    def close(self) -> None:
        """Return the memory to the pool; see `Run`."""
        if self._ended != "closed":
            if self._silence is not None or self._limit is not None:  # an interrupted `__exit__`
                self.__exit__(None, None, None)
            self._ended = "closed"
            self.targets, self._stages = {}, {}
            self._pool.give_back(self.memory, self.executable.n_bytes)
            # Another run uses the memory from now on, or the pool frees it, even if the caller keeps this run.
            for name in self.held:
                vars(self).pop(name, None)
