"""The interface of backends: they prepare plans on a device, run them forward and backward, and count the work.

    backend.prepare(plan, cells, options)     an `Executable`, which knows how many bytes a run takes
    executable.begin(randomness)              a `Run`, which has memory of its own
    with run:                                 bind the memory, and limit the threads of libraries
        run.forward()                         compute the outputs, and the values that backward needs
        run.backward(seeds, into)             add to the gradients of parameters
    run.close()                               give the memory back

Any number of executables and runs may be alive, of one function or of several. Calls are serialised, see
`autobatch.system.turns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from autobatch.backends.options import Options
from autobatch.devices.store import Store
from autobatch.ops.randomness import Randomness
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.plan import Batch, CellSizes, Plan, PlannedTypes

if TYPE_CHECKING:
    from autobatch.backends.interpret import Interpreter
    from autobatch.backends.values import Activity


class Counts(NamedTuple):
    """The work of running a plan; does not depend on the machine.

    Attributes:
        launches: calls of kernels, scatters, gathers and copies included.
        copied_bytes: bytes moved by launches that compute nothing.
        allocations: how often the buffer or scratch memory was allocated anew.
        buffer_bytes: bytes that both hold from run to run.
    """

    launches: int
    copied_bytes: int
    allocations: int
    buffer_bytes: int


class Timer(Protocol):
    """Measures the time of every batch."""

    def lap(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        """Assign the time since the last lap to a batch of a stage.

        Args:
            stage: "forward" or "backward"; or "weights", the gradients of parameters, where a batch is all rows of a
                type, with or without bases.
            batch: None for the work of a stage before its first batch.
            end: when it was done, in seconds of `time.perf_counter`; None: now.
        """


class RowReader(Protocol):
    """Reads the rows that backward has left, of which the gradients of parameters are sums; or changes them."""

    def __call__(self, interpreter: Interpreter, activity: Activity) -> bool:
        """Read them.

        Args:
            interpreter: knows the values of the run.
            activity: the nodes that the losses depend on; the rows of others hold nothing.

        Returns:
            Whether the weight stage is to run.
        """


class Run(Protocol):
    """A run of a plan, which may be differentiated. It computes within its context, which may be entered several times.

    Attributes:
        outputs: the values that the user asked for, per slot `[rows, *shape]`: NumPy arrays that no later run changes.
            A backend that does not wait for its device waits when they are first read, which may be after the run.
        store: the memory of the device, where the values are.
    """

    store: Store

    @property
    def outputs(self) -> list[Any]: ...

    def __enter__(self) -> Self:
        """Bind the memory of the run; until the end of the context, libraries have no more threads than they may."""

    def __exit__(self, *error: Any) -> None: ...

    def forward(self, copies: bool = True) -> None:
        """Compute all values from the current parameters, once.

        Args:
            copies: whether the outputs are copied to the host; if not, only `on_device` gives them.
        """

    def on_device(self, slot: int) -> Any:
        """The values of a slot as an array of the device, until the run is differentiated or closed."""

    def backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient], reader: RowReader | None = None) -> None:
        """Differentiate the run, once. Parameters and the mode of modules must be unchanged since it ran forward.

        Args:
            seeds: per slot, the gradient of its rows; other slots have none.
            into: the array to which each trainable parameter's gradient is added, by `id` of the parameter; `Rows` for
                those in `cells.row_parameters`. Additions follow the order of the plan, so that the same run gives the
                same bits.
            reader: is given the rows that backward has left, before the gradients of parameters are added up.

        Raises:
            BackendError: the run is closed, or was differentiated before.
        """

    def gradients(self, type_id: int) -> Any:
        """The gradients of the first output of all nodes of a type, once it was differentiated: [N_type, size], by row.

        Zero where the loss does not depend on the node. They cost only the reading.
        """

    def counts(self) -> Counts:
        """The work of the run so far."""

    def close(self) -> None:
        """Return the memory for the next run to use; this run can no longer be differentiated."""


class Executable(Protocol):
    """A plan that a backend has prepared to run with given options.

    Attributes:
        n_bytes: bytes of memory that a run takes: its values, and scratch memory.
    """

    n_bytes: int

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> Run:
        """Make a run, which the caller closes.

        Args:
            randomness: the seed and step of all draws, the key of each instance `[B]`, and whether dropout is on for
                cells without a module. These keys are used, not those in the plan's graph: a plan may run again for
                other instances with equal graphs.
            timer: called when each batch is done, forward and backward, at the cost of a microsecond per batch. The
                cpu backend, which otherwise runs all batches in one call, then runs them one by one; the cuda backend
                runs them in one launch as ever, reads a clock of the device in it, and tells all when it is done. The
                results are the same, to the bit.
        """


class Backend(Protocol):
    """Runs plans on one device."""

    name: str

    def table_sizes(self, cells: PlannedTypes, options: Options) -> tuple[CellSizes, int] | None:
        """The sizes and the number of threads from which the core makes tables along with a plan; None for no tables.

        Args:
            cells: the types of the plan; sizes of types that were in no plan before are zero.
        """

    def prepare(
        self, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None = None
    ) -> Executable:
        """Prepare a plan of these types. Other executables are not affected; machine code is made later.

        Args:
            tables: those that the core made along with the plan, see `autobatch.memplan.batch.placement.plan_graphs`.

        Raises:
            BackendError: the backend does not read parameters on the device on which they are.
        """
