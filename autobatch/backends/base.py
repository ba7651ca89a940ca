"""Define the interface of backends, which prepare plans on a device, run them forward and backward, and count the work.

    backend.prepare(plan, cells, options)     an `Executable`, which knows how many bytes a run takes
    executable.begin(randomness)              a `Run`, which owns its memory
    with run:                                 bind the memory, and limit the threads of libraries
        run.forward()                         compute the outputs, and the values that backward needs
        run.backward(seeds, into)             add to the gradients of parameters
    run.close()                               return the memory

Any number of executables and runs may be alive at a time, of one or several functions. Calls are serialised; see
`autobatch.system.locks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.backends.options import Options
from autobatch.devices.store import HOST, Store
from autobatch.ops.randomness import Randomness
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.plan import Batch, CellSizes, Plan, PlannedTypes

if TYPE_CHECKING:
    from autobatch.backends.interpret import Interpreter
    from autobatch.backends.values import Activity


class Counts(NamedTuple):
    """The work of running a plan, independent of the machine.

    Attributes:
        launches: the number of kernel calls, including scatters, gathers and copies.
        copied_bytes: bytes moved by launches that compute nothing.
        allocations: the number of times that the buffer or scratch memory was allocated.
        buffer_bytes: bytes of the buffer and the scratch memory, which are kept from run to run.
    """

    launches: int
    copied_bytes: int
    allocations: int
    buffer_bytes: int


class RowMoves(NamedTuple):
    """Rows to copy from the results of a finished run to tables.

    Attributes:
        pairs: pairs of device arrays with rows of one shape, a column of results and a table; and the start and end of
            their range in `found` and `rows`.
        found, rows: the rows of columns, and the rows of tables to which they are copied.
    """

    pairs: Sequence[tuple[Any, Any, int, int]]
    found: IntArray
    rows: IntArray

    def run(self, store: Store) -> None:
        """Copy the rows, by the array functions of their device."""
        for column, table, first, end in self.pairs:
            table[store.put(self.rows[first:end])] = column[store.put(self.found[first:end])]


class Timer(Protocol):
    """A timer of batches."""

    def mark(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        """Assign the time since the last mark to a batch of a stage.

        Args:
            stage: "forward" or "backward"; or "weights" for the gradients of parameters, whose batches are all rows of
                a type, with or without bases.
            batch: the batch; None for the work of a stage before its first batch.
            end: the time at which it ended, in seconds of `time.perf_counter`; None for now.
        """


class RowReader(Protocol):
    """A callback that reads, and may change, the rows that backward leaves.

    Sums of these rows are the gradients of parameters.
    """

    def __call__(self, interpreter: Interpreter, activity: Activity) -> bool:
        """Read or change the rows.

        Args:
            interpreter: holds the values of the run.
            activity: the nodes that the losses depend on; the rows of other nodes are undefined.

        Returns:
            Whether to run the weight stage.
        """


class Run(Protocol):
    """A differentiable run of a plan. It computes within its context, which may be entered several times.

    Attributes:
        outputs: the values that the user asked for, per slot `[rows, *shape]`: arrays that no later run changes, on the
            host unless `forward` was given the device's memory. An asynchronous backend waits for those on the host on
            first access, which may be after the run.
        store: the memory of the device, which holds the values.
    """

    store: Store

    @property
    def outputs(self) -> list[Any]: ...

    def __enter__(self) -> Self:
        """Bind the memory of the run, and limit the threads of libraries until the end of the context."""

    def __exit__(self, *error: Any) -> None: ...

    def forward(self, to: Store | None = HOST) -> None:
        """Compute all values from the current parameters, once.

        Args:
            to: the memory to copy the outputs to, that of the host or of the device; None for no copies, if only
                `on_device` reads them.
        """

    def carry(self, moves: RowMoves) -> None:
        """Copy these rows before anything is computed, no later than in `forward`; call this before the context."""

    def on_device(self, slot: int) -> Any:
        """Return the values of a slot as an array of the device, valid until the run is differentiated or closed."""

    def read(self, slots: Sequence[int], most: int) -> list[NDArray[Any]] | None:
        """Copy the values of some slots to the host, with those between them, in one piece.

        Return None if these are more than `most` elements.
        """

    def backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient], reader: RowReader | None = None) -> None:
        """Differentiate the run, once. Parameters and the mode of modules must be unchanged since it ran forward.

        Args:
            seeds: the gradient of the rows of each slot; that of other slots is zero.
            into: by `id` of each trainable parameter, the array to which its gradient is added; `Rows` for those in
                `cells.row_parameters`. Additions follow the order of the plan, so that equal runs are bit-identical.
            reader: receives the rows that backward leaves, before the gradients of parameters are added up.

        Raises:
            BackendError: the run is closed, or was differentiated before.
        """

    def gradients(self, type_id: int) -> Any:
        """Return the gradients of the first output of all nodes of a type, after `backward`: [N_type, size], by row.

        They are zero for nodes that the loss does not depend on. The cost is that of reading them.
        """

    def counts(self) -> Counts:
        """Return the work of the run so far."""

    def close(self) -> None:
        """Return the memory for later runs; this run can no longer be differentiated."""


class Executable(Protocol):
    """A plan that a backend has prepared to run with given options.

    Attributes:
        n_bytes: bytes that a run takes, for its values and scratch memory.
    """

    n_bytes: int

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> Run:
        """Make a run, which the caller closes.

        Args:
            randomness: the seed and step of all draws, the key of each instance `[B]`, and whether dropout is on for
                cells without a module. These keys replace those in the plan's graph, because a plan may run again for
                other instances with equal graphs.
            timer: called after each batch, forward and backward, at a cost of about a microsecond per batch. With a
                timer, the cpu backend runs the batches one by one instead of all in one call. The cuda backend still
                runs them in one launch, which reads a clock of the device, and reports all times at its end. Results
                are bit-identical to those without a timer.
        """


class Backend(Protocol):
    """The interface of a backend, which runs plans on one device."""

    name: str

    def table_sizes(self, cells: PlannedTypes, options: Options) -> tuple[CellSizes, int] | None:
        """Return the cell sizes and threads with which the core makes tables along with a plan; None for no tables.

        Args:
            cells: the types of the plan; the sizes of types that no earlier plan had are zero.
        """

    def prepare(
        self, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None = None
    ) -> Executable:
        """Prepare a plan of these types. Other executables are not affected; machine code is compiled later.

        Args:
            tables: the tables that the core made along with the plan; see
                `autobatch.memplan.placement.plan_graphs`.

        Raises:
            BackendError: the backend cannot read parameters on the device that holds them.
        """
