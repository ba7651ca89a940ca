"""Types of the native core, `native/`: ints in, ints out. Each function checks the arrays that it is given.

Raises (all functions): TypeError, an argument of another type, or an array of another dtype; ValueError, an array that
is not contiguous, or numbers that do not fit each other.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]
H = TypeVar("H", bound=Handle)
R = TypeVar("R", bound=RowsHandle)

# native/graph/: see `autobatch.graph`.

def merge_words(parts: IntArray) -> IntArray:
    """Merge encoded graphs that follow one another; nodes, edges and outputs are numbered consecutively."""

# native/record/: see `autobatch.trace`.

class Stage:
    """The stage of each thread."""

    current: Any
    """What traces or records in this thread; None in eager mode."""

class Handle:
    """An output of a recorded node. A log makes its instances, of classes that are sealed."""

    @property
    def ref(self) -> int:
        """Identifies the node, the output and the row; a number that no node has if the recording is over."""
    @property
    def is_row(self) -> bool:
        """Whether it is a row of a value of any number of rows."""
    def rebind(self, other: Handle) -> None:
        """Stand for another value of the same recording from now on."""

class RowsHandle(Handle):
    """An output of any number of rows, or rows of such outputs."""

    whole: Any
    """All rows as one value, if recorded; else None."""

    @property
    def refs(self) -> Sequence[int]:
        """Of the rows, in order."""
    @property
    def n_rows(self) -> int:
        """Number of rows."""

def array_key(x: Any) -> bytes | None:
    """Bytes that tell the content, shape and type of a plain array of floats; None for anything else."""

def seal(kind: type[Handle]) -> None:
    """Prepare a class of handles, which has no attributes of its own: its instances are allocated here."""

class Log:
    """The calls of a recording, as ints and floats.

    Args:
        owner: the stage of a thread while it records here.

    Attributes:
        draw: gives the number of the next draw of random numbers; None to count the draws of each instance.
        source: the function that records an array as a node.
        functions: those that record functions made of ops, by these.
        sources: what stands for arrays and parameters in the present instance, by their content.
        n_floats: number of float attributes logged.
        n_bytes: memory that is kept for calls.
        n_instances: number of instances begun.
        begun: how many ints and floats were logged when the instance began.
    """

    draw: Callable[[], int] | None
    source: Function

    def __init__(self, owner: Any) -> None: ...
    def __len__(self) -> int: ...
    @property
    def functions(self) -> dict[Any, Function]: ...
    @property
    def sources(self) -> dict[Any, Any]: ...
    @property
    def n_floats(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def n_instances(self) -> int: ...
    @property
    def begun(self) -> tuple[int, int]: ...
    def begin(self, counts: bool) -> None:
        """Begin a recording: forget all calls; handles of earlier ones are stale. Count the uses of values if asked."""
    def clear(self) -> None:
        """Begin another phase: forget what was logged, but not the numbers of calls."""
    def run(
        self,
        function: Callable[[Any], Any],
        instances: list[Any],
        known: dict[Any, tuple[int, Any]],
        read: Callable[[Any], Any],
        refs: list[int],
        slots: list[int],
        structures: list[Any],
        log_ptr: list[int],
        output_ptr: list[int],
    ) -> None:
        """Call a function of each instance, from the one whose structure comes next; note what it logs and returns.

        Args:
            known: for classes of values that are returned: the slot, and the structure.
            read: reads any other result: appends to `refs` and `slots`, and gives the structure.
        """
    def ints(self, start: int, stop: int) -> list[int]:
        """What was logged from one position to another."""
    def floats(self, start: int, stop: int) -> FloatArray:
        """The float attributes from one position to another."""
    def add_form(self, code: Sequence[int]) -> int:
        """Add a form of calls, by its code; give its number."""
    def add(self, form: int, ints: Sequence[int], floats: Sequence[float]) -> int:
        """Log a call of a form; give the ref of its first output."""
    def form_of(self, ref: int) -> int:
        """The form of the call that made a value."""
    def value(self, kind: type[H], ref: int, is_row: bool) -> H:
        """Another handle of an output, or of a row of one."""
    def rows(self, kind: type[R], refs: Sequence[int]) -> R:
        """The value whose rows have these refs, in this order."""
    def decode(
        self, log_ptr: list[int], refs: list[int], slots: list[int], output_ptr: list[int], owner: IntArray | None
    ) -> tuple[IntArray, FloatArray, tuple[int, int, int, int] | None]:
        """Make the words and floats of a graph of what was logged.

        Args:
            log_ptr, output_ptr: where the log, and the refs and slots of results, of each instance begin.
            owner: the instance of each node of earlier phases; None for a recording without phases.

        Returns:
            The words, the floats, and the first fault, if there is one: its status, the instance, the call in it (-1
            for a result) and the position in the log.
        """
    def sweep(self) -> tuple[IntArray, IntArray]:
        """The nodes in use that were not at the last sweep, and those that no longer are."""
    def uses_form(self, form: int) -> bool:
        """Whether any value that a call of this form made is in use."""
    def renumber(self, of_node: IntArray) -> None:
        """Give the nodes of earlier phases other numbers; -1 for those that are forgotten."""

class Form:
    """A recognised way to call a cell; `autobatch.trace.forms` makes its parts."""

    def __init__(
        self,
        log: Log,
        number: int,
        n_arguments: int,
        n_registers: int,
        steps: tuple[Any, ...],
        groups: tuple[Any, ...],
        bounds: tuple[Any, ...],
        walked: tuple[int, ...],
        lengths: set[tuple[int, ...]],
        ints: tuple[Any, ...],
        floats: tuple[Any, ...],
        outputs: tuple[Any, ...],
        structure: Any,
    ) -> None: ...
    @property
    def number(self) -> int:
        """Of the form in its log."""

class Shortcut:
    """A public function of a list, recorded without Python where a program gives it a plain list of values.

    Args:
        function: takes all other calls.
        inner: what a program records of a list of values.
    """

    def __init__(self, function: Callable[..., Any], inner: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Function:
    """Records the calls of a cell.

    Args:
        log: of the recording.
        name: of the cell.
        names: of the arguments, empty for those that are given by position alone; defaults: of the last ones.
        takes: how arguments are given: 1 by position or name, 2 in any number, as one tuple; 0 as `bind` says.
        bind: gives the arguments of a call, in order.
        slow: takes the arguments of calls of no known form.
        lifts: of each argument a byte: 2 where arrays in it become sources, 1 where only an array itself does, or 0.
    """

    forms: tuple[Form | None, ...]

    def __init__(
        self,
        log: Log,
        name: str,
        names: tuple[str, ...],
        defaults: tuple[Any, ...],
        takes: int,
        bind: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Any]],
        slow: Callable[[tuple[Any, ...]], Any],
        lifts: bytes,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def record_tuple(self, arguments: tuple[Any, ...]) -> Any:
        """Record a call with all arguments in order."""
    @staticmethod
    def record(form: Form, arguments: tuple[Any, ...]) -> Any:
        """Record a call of one form; None where the arguments are of another one."""
