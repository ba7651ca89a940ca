"""Types of the native core, `native/`: ints in, ints out. Each function checks its arrays.

Raises (all functions): TypeError for an argument of the wrong type or an array of the wrong dtype; ValueError for an
array that is not contiguous, or for numbers that do not fit each other. No other thread may change an array during a
call.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from types import CodeType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
TypeArrays: TypeAlias = tuple[NDArray[Any], ...]
"""See `autobatch.ir.type_arrays`."""
FlowArrays: TypeAlias = tuple[NDArray[Any], ...]
"""See `autobatch.ir.flows`."""
Nodes: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray, FloatArray]
Results: TypeAlias = tuple[IntArray, IntArray, IntArray]
"""For both see `autobatch.graph.growing`."""
Choice: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]
"""The nodes and sources of a round, the other pending nodes, and the kept values in the form of `Results`."""
Moves: TypeAlias = tuple[IntArray, IntArray, IntArray]
"""See `Moved` in `autobatch.graph.growing`."""
Graphs: TypeAlias = list[Any]
"""A list of `autobatch.graph.graph.Graph`."""
Dag: TypeAlias = tuple[IntArray, IntArray, IntArray, int, FloatArray | None]
Suffixes: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray, NDArray[np.uint64], int]
Weights: TypeAlias = tuple[float, float, float, float]
CoreRule: TypeAlias = tuple[int, int, bool, Weights]
Network: TypeAlias = tuple[FloatArray, ...]
Table: TypeAlias = tuple[NDArray[Any], ...]
MachineRules: TypeAlias = tuple[int, int]
LearningRules: TypeAlias = tuple[float, float, int, int, int, int]
TypeTables: TypeAlias = tuple[NDArray[Any], ...]
LayoutArrays: TypeAlias = tuple[TypeTables, LongArray, LongArray, bool]
PlanArrays: TypeAlias = tuple[Any, ...]
CellSizes: TypeAlias = tuple[NDArray[Any], ...]
"""These are named like their classes in `autobatch.graph.dag`, `autobatch.policies`, `autobatch.plan.plan` and
`autobatch.backends.tables`."""
Batches: TypeAlias = tuple[IntArray, IntArray, IntArray]
"""A schedule: batch_type, batch_ptr and order."""
Planned: TypeAlias = tuple[
    IntArray,
    FloatArray,
    tuple[int, ...],
    Batches,
    tuple[Any, ...],
    tuple[Any, ...] | None,
    tuple[float, float, float],
]
"""The words and floats of a rewritten graph, and the numbers of changes; its schedule; the parts of its `Plan`; the
parts of its `PlanTables`, or None if a type has no sizes; the seconds for rewriting, scheduling and placing."""
H = TypeVar("H", bound=Handle)
R = TypeVar("R", bound=RowsHandle)

# native/graph/: see `autobatch.graph`.

def merge_graphs(graphs: Graphs) -> tuple[IntArray, FloatArray, tuple[Any, ...], LongArray, bool, bool]:
    """Merge graphs; their nodes, edges and outputs are numbered consecutively.

    Returns:
        The words, floats, structures and keys of the merged graph; whether all graphs have the same table of types; and
        whether `in_range` is True for all.

    Raises:
        OverflowError: there are more words or floats than an int32 can count.
    """

def join_instances(graphs: Graphs) -> tuple[tuple[Any, ...], LongArray]:
    """Join the structures and the keys of the instances of several graphs."""

def crossing_node(words: IntArray) -> int:
    """Find the first node that another instance reads or returns; -1 if the instances are independent."""

def split_words(words: IntArray, types: TypeArrays) -> tuple[IntArray, LongArray, LongArray]:
    """Encode each instance of a graph as a separate graph, all in one buffer.

    Returns:
        The buffer; ptr[B+1], so that instance i is `buffer[ptr[i]:ptr[i + 1]]`; and the same for the float attributes.

    Raises:
        ValueError: also if an instance reads or returns a node of another.
    """

def data_starts(type_id: IntArray, attr: IntArray, types: TypeArrays) -> tuple[IntArray, IntArray]:
    """Find where the int attributes of each node begin in `attr`, and its float attributes: int32[N+1] each."""

def first_out_of_range(words: IntArray, types: TypeArrays) -> LongArray:
    """Find the first int attribute of each instance that is out of its range; edges may come from earlier phases.

    Returns:
        [instances with such an attribute, 4]: the node, the number of the range, the value, and the size of the range.
    """

def reverse_dag(type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Reverse every edge, see `autobatch.graph.dag.reverse`."""

def find_depths(edge_ptr: IntArray, edge_src: IntArray) -> IntArray:
    """Count, per node, the edges on the longest path from a node without inputs: int32[N]."""

def count_chains(type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray, n_types: int) -> IntArray:
    """Count, per node and type, the most nodes of the type on a path that starts at the node: int32[N, T]."""

def mark_outputs(words: IntArray, flows: FlowArrays, wanted: NDArray[np.bool_], marks: NDArray[np.bool_]) -> bool:
    """Mark the outputs that the values in wanted slots depend on; return whether every node has such an output.

    Args:
        wanted: [slots] whether the values of a slot are wanted.
        marks: [N, 1 + outputs] receives, for each node, whether it has such an output, and then a flag for each of its
            outputs. There must be enough columns for the type with the most outputs.
    """

def rewrite_words(
    words: IntArray, floats: FloatArray, types: TypeArrays, passes: int
) -> tuple[IntArray, FloatArray, tuple[int, ...]]:
    """Run the passes whose bits are set (bit k stands for `PASSES[k]`); return the given arrays if no pass applies.

    Returns:
        The words and floats of the new graph, and the fields of `Rewrites`.

    Raises:
        ValueError: also if an edge points backwards.
        OverflowError: the new graph has more words than an int32 can count.
    """

def count_shared(
    words: IntArray, floats: FloatArray, types: TypeArrays, by_rule: bool
) -> tuple[LongArray, LongArray, NDArray[np.bool_]]:
    """Count, by type, the nodes looked up and the equal ones; return whether the equal ones are shared.

    Args:
        by_rule: whether to apply the rule of the pass "share_products", instead of the pass "share".
    """

# native/graph/growing/: the tables `nodes` and `values` of an `autobatch.graph.growing.GrowingGraph`. Raises ValueError
# if a number in them, or in an argument, is out of range; earlier changes are not undone.

def count_values(words: IntArray, types: TypeArrays, rows: IntArray) -> int:
    """Count the values of the outputs of a phase; `rows` is `OutputSlots.rows`."""

def append_phase(
    nodes: Nodes,
    values: IntArray,
    words: IntArray,
    floats: FloatArray,
    types: TypeArrays,
    rows: IntArray,
    n_nodes: int,
    n_edges: int,
    pending: IntArray,
) -> tuple[int, int, IntArray, IntArray]:
    """Append the nodes of a phase to the `n_nodes` nodes of earlier phases, which have `n_edges` edges.

    Returns:
        The new numbers of outputs and values, for which the tables must have room; the pending nodes, with the new ones
        at the end; and the values that the phase returned.
    """

def set_in_use(nodes: Nodes, values: IntArray, kept: IntArray, gone: IntArray) -> None:
    """Set the flag IN_USE of all values of the nodes `kept`, after clearing that of the nodes `gone`."""

def count_readers(nodes: Nodes, values: IntArray, of: IntArray, n: int) -> None:
    """Count n more readers of each of these values."""

def drop_pending(nodes: Nodes, values: IntArray, pending: IntArray, place: int) -> IntArray:
    """Drop the pending nodes of the instance at a place, which nothing may read; return the other pending nodes."""

def nodes_of(owner: IntArray, is_of: NDArray[np.bool_]) -> IntArray:
    """Return the nodes whose owner is flagged; the owner is -1 for nodes without one."""

def add_work(
    type_id: IntArray,
    owner: IntArray,
    nodes: IntArray,
    product_work: LongArray,
    each: float,
    by_owner: FloatArray | None,
) -> float:
    """Add the work of some nodes to the work of their owners, if `by_owner` is given; return the sum.

    Args:
        type_id, owner: the type and the owner of every node.
        product_work: the work of the products of each type.
        each: the work of a node besides its products.
        by_owner: the work of each instance; None if only the sum is wanted.
    """

def sketch_pending(nodes: Nodes, values: IntArray, wanted: IntArray, pending: IntArray) -> tuple[IntArray, IntArray]:
    """Find the pending nodes that wanted values depend on, and write the graph of their types and edges alone.

    Returns:
        The nodes, in order; and the words of a graph of one instance, in which they are numbered from 0.
    """

def choose_nodes(
    nodes: Nodes,
    values: IntArray,
    out_ptr: IntArray,
    slot_of: IntArray,
    wanted: IntArray,
    pending: IntArray,
    round: int,
    run: int,
    n_instances: int,
) -> Choice:
    """Choose nodes, see `GrowingGraph.choose`.

    Returns:
        The nodes, the values that they read, the other pending nodes, and the kept values in the form of `Results`.
    """

def emit_graph(
    nodes: Nodes, values: IntArray, source_type: IntArray, picked: IntArray, sources: IntArray, results: Results
) -> tuple[IntArray, FloatArray]:
    """Write the graph of the chosen nodes and sources, and mark the nodes as done; see `GrowingGraph.emit`."""

def move_rows(
    values: IntArray, of: IntArray, round: int, held: IntArray, free: IntArray, n_free: IntArray, size: IntArray
) -> Moves:
    """Free rows and assign rows, see `autobatch.graph.growing.KeptRows`.

    Args:
        held, free: [slots, rows] the value in each row, and the free rows, of which there are `n_free`.
        size: [slots] the number of rows of each table.

    Returns:
        The fields of `Moved`.
    """

def find_kept(values: IntArray, of: IntArray, run: int) -> list[tuple[int, bool, IntArray | None, IntArray]]:
    """Group kept values by their slot, and by whether the run with this number computed them; -1 for no run.

    Returns:
        For each group: its slot; whether its values are those of the run; their positions in `of`, or None if all are
        in one group; and their rows, in the results of the run or in the table of the slot.

    Raises:
        ValueError: a value does not exist, or has no row.
    """

# native/record/: see `autobatch.trace`.

class Stage:
    """The stage of each thread."""

    current: Any
    """The tracer or recording that is active in this thread; None in eager mode."""

class stage:
    """Make `current` this thread's stage within the context."""

    def __init__(self, current: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class CallListener:
    """A profile function that reports each Python function once, and each harmless function of a module once.

    Methods of Python's containers and strings are not reported.

    Args:
        report_function: takes the code and the globals of a function that is called.
        report_builtin: takes a function written in C and the globals of its caller; returns True if the function is
            harmless for every caller.
    """

    def __new__(
        cls,
        report_function: Callable[[CodeType, dict[str, Any]], object],
        report_builtin: Callable[[Any, dict[str, Any]], bool],
    ) -> CallListener: ...
    def enable(self) -> None:
        """Listen to the calls of this thread; `sys.setprofile` replaces it."""

class Snapshot:
    """The objects in containers, and in the attributes of other objects, at one moment.

    Args:
        containers: lists, dicts and others; for a mapping, both keys and values are compared.
        owners: objects with a `__dict__`.
    """

    def __new__(cls, containers: Sequence[Any], owners: Sequence[Any] = ()) -> Snapshot: ...
    def holds(self) -> bool:
        """Return whether all of them hold the same objects, in the same order.

        Cost: some nanoseconds per object in exact lists, tuples and dicts.
        """

class Handle:
    """An output of a recorded node. A log makes the instances, whose classes are sealed."""

    @property
    def ref(self) -> int:
        """Return a number for the node, the output and the row; it names no node once the recording is over."""
    @property
    def is_row(self) -> bool:
        """Return whether it is a row of a value of any number of rows."""
    def rebind(self, other: Handle) -> None:
        """Represent another value of the same recording from now on."""

class RowsHandle(Handle):
    """An output of any number of rows, or rows of such outputs."""

    whole: Any
    """All rows as one value, if recorded; else None."""

    @property
    def refs(self) -> Sequence[int]:
        """Return the refs of the rows, in order."""
    @property
    def n_rows(self) -> int:
        """Return the number of rows."""

def array_key(x: Any) -> bytes | None:
    """Return bytes that identify the content, shape and type of a plain array of floats; None for anything else."""

def seal(kind: type[Handle]) -> None:
    """Prepare a class of handles without attributes of its own: the core allocates its instances."""

class Cell:
    """The base class of cells. Calls go to the log of this thread, or to `call`."""

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """Return the cell bound to an object; the cell itself for a class."""
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class BoundCell:
    """A cell bound to the object that it is a method of."""

    cell: Any
    owner: Any
    __self__: Any

    def __init__(self, cell: Cell, owner: object) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def seal_cells(kind: type[Cell]) -> None:
    """Prepare a class of cells, unless it has its own `__get__` or `__call__`: methods are called without binding."""

class Request:
    """A request for the numbers of values; an `await` yields it once, and returns the answer that is sent in reply.

    A subclass defines `_await_slowly`, which awaits anything but values of the current recording.
    """

    values: Any
    """The requested values; None after they were read."""
    is_awaited: bool
    def __init__(self, values: Any) -> None: ...
    def __await__(self) -> Generator[Any, Any, Any]: ...

class AsyncProgram:
    """A program; the core resumes it while only its root branch runs.

    A subclass defines `resumed(status, found)`, which is called when the branch does anything but request values.
    """

    steps: Any
    """A callable that resumes the root branch; None if Python advances the program."""
    draw: Any
    """A callable that returns the number of the next draw of random numbers."""
    reply: Any
    """The answer with which the root branch resumes."""
    asked: Any
    """The request that the root branch waits for, or None."""
    is_over: bool

class Log:
    """The calls of a recording, as ints and floats.

    Args:
        owner: the stage of a thread while it records here.

    Attributes:
        draw: returns the number of the next draw of random numbers; None to count the draws of each instance.
        source: the function that records an array as a node.
        functions: the recording function of each op, function made of ops, and (by `id`) parameter.
        treatment_of: returns how wrapping treats the class of an object: 0 to leave objects unchanged, 1 and 2 to make
            sources of parameters and of inputs, another number to ask Python for each object.
        sources: the values of arrays, by content, and of parameters and inputs, by `id`, in the current instance.
        n_calls: number of calls since the recording began, in all phases; at most 2**31 - 1.
        n_floats: number of float attributes logged.
        n_bytes: size of the memory kept for calls.
        is_watched: whether Python counts the recorded calls; if so, shortcuts call Python.
        is_wrapped: whether Python changes the results of functions; if so, shortcuts call Python.
        n_instances: number of instances begun.
        begun: numbers of ints and floats logged when the instance began.
    """

    draw: Callable[[], int] | None
    source: Function
    is_watched: bool
    is_wrapped: bool
    treatment_of: Callable[[Any], int]

    def __init__(self, owner: Any) -> None: ...
    def __len__(self) -> int: ...
    @property
    def functions(self) -> dict[Any, Function]: ...
    @property
    def sources(self) -> dict[Any, Any]: ...
    @property
    def n_calls(self) -> int: ...
    @property
    def n_floats(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def n_instances(self) -> int: ...
    @property
    def begun(self) -> tuple[int, int]: ...
    def begin(self, counts: bool) -> None:
        """Begin a recording, which invalidates earlier handles; `counts` says whether to count the live handles."""
    def clear(self) -> None:
        """Begin another phase: forget the logged ints and floats, but not the numbers of calls."""
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
        """Call a function on each instance, starting at the first one without a structure; append its logs and results.

        Args:
            known: for classes of returned values, the slot and the structure.
            read: reads any other result: appends to `refs` and `slots`, and returns the structure.
        """
    def advance(
        self,
        programs: list[Any],
        places: list[int],
        known: dict[type, int],
        caught: type[BaseException],
        go_on: Callable[[int], None],
        refs: list[int],
        slots: list[int],
        log_ptr: list[int],
        output_ptr: list[int],
        asked: dict[int, Any],
    ) -> None:
        """Resume the programs at some places, in ascending order; store the structures of their requests in `asked`.

        The structure is None for one value and n for a tuple of n; `go_on(place)` handles everything else. Appends the
        refs and slots of requested values, and the start of each place in the log and among them.
        """
    def answer(
        self, programs: list[Any], asked: dict[int, Any], numbers: Iterable[Any], go_on: Callable[..., None]
    ) -> None:
        """Give programs the numbers that they wait for, in the order of `asked`.

        Calls go_on(place, structure, numbers left) for structures other than None and ints.
        """
    def read_request(self, request: Request, known: dict[type, int], refs: list[int], slots: list[int]) -> Any:
        """Read and drop the values of a request; return its structure, or NotImplemented if a class is not known."""
    def ints(self, start: int, stop: int) -> list[int]:
        """Return the ints logged from one position to another."""
    def floats(self, start: int, stop: int) -> FloatArray:
        """Return the float attributes logged from one position to another."""
    def add_form(self, code: Sequence[int]) -> int:
        """Add a form of calls with this code; return its number."""
    def add(self, form: int, ints: Sequence[int], floats: Sequence[float]) -> int:
        """Log a call of a form; return the ref of its first output."""
    def add_cell(self, cell: Cell, owner: object, function: Function) -> None:
        """Let a function record the calls of a cell from now on; `owner` is None unless the cell is a method."""
    def forget_cells(self) -> None:
        """Forget the functions of all cells."""
    def form_of(self, ref: int) -> int:
        """Return the form of the call that made a value."""
    def value(self, kind: type[H], ref: int, is_row: bool) -> H:
        """Make another handle of an output, or of one of its rows."""
    def rows(self, kind: type[R], refs: Sequence[int]) -> R:
        """Make the value whose rows have these refs, in this order."""
    def stack(self, kind: type[R], values: list[Any]) -> R | None:
        """Make the value with these rows; return None unless they are values of one class, of this recording."""
    def unstack(self, kind: type[H], rows: RowsHandle) -> list[H]:
        """Return the rows of a value."""
    def decode(
        self, log_ptr: list[int], refs: list[int], slots: list[int], output_ptr: list[int], owner: IntArray | None
    ) -> tuple[IntArray, FloatArray, tuple[int, int, int, int] | None]:
        """Make the words and floats of a graph from the logged calls.

        Args:
            log_ptr, output_ptr: where the log, and the refs and slots of results, of each instance begin.
            owner: the instance of each node of earlier phases; None for a recording without phases.

        Returns:
            The words, the floats, and the first fault, if there is one: its status, the instance, the call in it (-1
            for a result) and the position in the log.
        """
    def sweep(self) -> tuple[IntArray, IntArray]:
        """Return the nodes that have come into use since the last sweep, and those that are no longer in use."""
    def uses_form(self, form: int) -> bool:
        """Return whether any value made by a call of this form is in use."""
    def renumber(self, of_node: IntArray) -> None:
        """Renumber the nodes of earlier phases; -1 for those that are forgotten.

        Also forget the first calls, up to the first one that still has a node or a handle.
        """

class Form:
    """A recognized way to call a cell; `autobatch.trace.forms` makes its parts."""

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
        """Return the number of the form in its log."""

class Shortcut:
    """An op, an operator or a public function made of ops, recorded without Python if the form is known.

    Args:
        function: handles all other calls.
        inner: the function or op that is recorded; None if it is the first argument.
        takes: 0 for a list of values, 1 for operands, 2 for operands in reverse, 3 for an op and its operands, 4 for
            any arguments.
    """

    def __init__(self, function: Callable[..., Any], inner: Callable[..., Any] | None, takes: int) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

Callee: TypeAlias = tuple[Callable[..., Any], tuple[int, ...], tuple[bool, ...]]

class Forest:
    """The nodes of trees or a DAG as arrays, children first, with some of their fields."""

    @staticmethod
    def from_nested(
        root: Any, children: str | tuple[str, ...] | Callable[[Any], Any], names: tuple[str, ...]
    ) -> Forest:
        """Read nested objects, whose fields are keys of dicts or attributes. An object may occur in several places.

        Args:
            children: the field that lists children, fields with one child each, or a function.
            names: the names of the fields to read.

        Raises:
            DataError: a node is its own descendant, or children are neither a list nor a tuple.
        """
    @staticmethod
    def from_arrays(n: int, edges: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> Forest:
        """Read arrays.

        Args:
            n: number of nodes.
            edges: the child and the parent of each edge, of shape (edges, 2).
            names: the names of the fields; values: an array or list of n items for each, or None if no node has the
                field.

        Raises:
            DataError: an argument is malformed, or the edges form a cycle.
        """
    @staticmethod
    def from_sequence(n: int, is_reverse: bool, names: tuple[str, ...], values: tuple[Any, ...]) -> Forest:
        """Read a sequence of n items as a chain, whose first node is the first item, or the last if `is_reverse`."""
    @staticmethod
    def edges_of(parents: Any) -> NDArray[np.int64]:
        """Return the edges from nodes to their parents (-1 for roots); raise a DataError if a parent is not a node."""
    @staticmethod
    def count_nodes(edges: Any) -> int:
        """Return one more than the greatest node that an edge joins; raise a DataError if the edges are malformed."""
    def __len__(self) -> int: ...
    @property
    def roots(self) -> list[int]:
        """Return the nodes without parents."""
    def value(self, node: int, column: int) -> Any:
        """Return a field of a node; raise a KeyError if the node lacks it."""
    def fold(
        self,
        node: Callee,
        leaf: Callee | None,
        each: Callee | bool | None,
        where: int,
        is_spread: bool,
    ) -> Any:
        """Call a function for each node, children first, with the list of its results for the children.

        Args:
            node: the function, the columns of the fields that it takes, and whether each is required.
            leaf: a separate function for nodes without children, or None.
            each: a second function, in the same form, which is called right after the first with its result; True for a
                list of the results of the first function instead.
            where: the column that says for which nodes `each` is called; -1 for all.
            is_spread: whether the results for the children are separate arguments instead of a list.

        Returns:
            The result for the root, or the list of the results of `each`, in the order of the nodes.

        Raises:
            DataError: a node lacks a required field, or without `each` there is not exactly one root.
        """
    def scan(self, node: Callee, each: Callee | bool | None, where: int, initial: Any) -> Any:
        """Fold a chain; the function takes the result for the previous node, or the initial result, instead of a list.

        Returns:
            As `fold`; for an empty chain, the initial result takes the place of the last node's.
        """

class Function:
    """Records the calls of a cell.

    Args:
        log: the log of the recording. name: the name of the cell. names: the names of the arguments, empty for
            positional-only ones; defaults: the defaults of the last ones.
        takes: how arguments are passed: 1 by position or name; 2 any number, as a tuple and a dict; 0 as `bind`
            decides.
        bind: returns the arguments of a call, in order.
        slow: handles the arguments of calls without a known form.
        wraps: a byte for each argument: 0 if nothing in it becomes a source, 1 if an array does, 2 if arrays in tuples
            and lists do too; plus 4 if parameters do.
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
        wraps: bytes,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def record_tuple(self, arguments: tuple[Any, ...]) -> Any:
        """Record a call with all arguments in order."""
    @staticmethod
    def record(form: Form, arguments: tuple[Any, ...]) -> Any:
        """Record a call of one form; return None if the arguments do not match it."""

class Layout:
    """The positions of the parts of a form's calls in the log; `autobatch.trace.tape` makes it.

    Args:
        form: the number of the form.
        n_lists: number of lists, and arrays of any number of rows, among the arguments.
        code: the items that calls log as ints, each as its kind, group and size, with its parts: their number, and for
            each part its leaves, with their number; the items of floats, in the same form without parts; the outputs
            that are floats, each as its name, number, group and the number of its shape; and the leaves that are
            floats, in the same form.
        shapes: the shapes of outputs and leaves.
        parameters: the parameters that the cell reads.
        count_rows: returns the number of rows of a group, from the lengths of lists.
    """

    def __init__(
        self,
        form: int,
        n_lists: int,
        code: list[int],
        shapes: tuple[tuple[int, ...], ...],
        parameters: tuple[Any, ...],
        count_rows: Callable[[int, list[int]], int],
    ) -> None: ...
    @property
    def form(self) -> int:
        """The number of the form."""

class Rule:
    """A rule to record a derivative of the calls of a form; `autobatch.trace.tape` makes it.

    Args:
        base: the layout of these calls; form: the number of the form of the recorded call.
        n_given: number of given derivatives.
        code: the parts to log: items of ints, each with the columns of its rows (-1 for all); items of floats, in the
            same form; outputs kept by the original call; given derivatives, by number. Then the results: the object
            whose derivative each is, the number of the given derivative that it equals, or -1, and its variadic group.
        asks_each_time: whether `serves` depends on the lengths of lists.
        serves: returns whether the rule is valid for a call with lists of these lengths.
        count_rows: see `Layout`.
    """

    def __init__(
        self,
        base: Layout,
        form: int,
        n_given: int,
        code: list[int],
        asks_each_time: bool,
        serves: Callable[[list[int]], bool],
        count_rows: Callable[[int, list[int]], int],
    ) -> None: ...

class Derivatives:
    """The derivatives that have been recorded, as refs."""

    def total(self, ref: int, shape: tuple[int, ...]) -> int | None:
        """Return the derivative of a value; None if it has no derivative."""
    def total_or_zeros(self, ref: int, shape: tuple[int, ...]) -> int:
        """Return the derivative of a value, or zeros."""
    def of_parameter(self, parameter: Any, shape: tuple[int, ...]) -> int | None:
        """Return the derivative of a parameter; None if it has no derivative."""

class Tape:
    """The calls that a recording logs from now on, until the tape is closed.

    Args:
        log: the log of the recording.
        begun: the numbers of ints and floats after which the tape begins; by default, all that are logged.

    Raises (all methods): RuntimeError if the tape is closed, or must be closed first, or the recording is over.
    """

    calls: list[tuple[int, int]]
    """The form and the number of each call."""
    is_stale: bool
    """Whether the recording is over."""

    def __init__(self, log: Log, begun: tuple[int, int] | None = None) -> None: ...
    def save(self) -> None:
        """Copy the calls logged so far, before the recording forgets them."""
    def close(self) -> None:
        """Close the tape and find its calls; ask the owner of the log for `layout(form)`."""
    def refs_of(self, call: int) -> dict[int, list[int]]:
        """Return the refs of each leaf of a call's arguments that is a value or a list of values."""
    def gradients(
        self, values: list[int], terms: list[int], wanted: list[int], parameters: tuple[Any, ...]
    ) -> Derivatives:
        """Record gradients; ask the owner of the log for `make_rule`, `sum_form` and `zeros`.

        Args:
            values: refs; terms: the gradient of each, a ref.
            wanted: values whose gradients are wanted.
            parameters: the parameters whose gradients are wanted.
        """
    def tangents(
        self, values: list[int], terms: list[int], parameters: tuple[Any, ...], along: tuple[Any, ...]
    ) -> Derivatives:
        """Record tangents in the same way.

        Args:
            values, terms: see `gradients`.
            parameters: the parameters that have tangents; along: their tangents, values or parameters.
        """

# native/policies/: see `autobatch.policies`; the edges of a DAG must point forward; otherwise a ValueError is raised.

def plan_by_rule(dag: Dag, rule: CoreRule) -> Batches:
    """Schedule a DAG by a rule: batch_type, batch_ptr and order.

    Raises:
        ValueError: an edge points backward.
    """

def plan_by_machine(dag: Dag, table: Table, machine: MachineRules, weights: Weights) -> tuple[Batches, int]:
    """Schedule a DAG by a state machine; also count the batches that the scoring rule decided."""

def plan_by_network(dag: Dag, weights: Network) -> Batches:
    """Schedule a DAG by a network."""

def score_types(weights: Network, rows: NDArray[np.float32], overall: NDArray[np.float32]) -> FloatArray:
    """Score types by their features; 0 for types without unrun nodes."""

def embed(dag: Dag, sequence: IntArray, is_late: bool) -> IntArray:
    """Find the first position at which each node can run, K if none; if `is_late`, the last one, -1 if none."""

def compact_sequence(dag: Dag, sequence: IntArray) -> IntArray | None:
    """Drop positions until none can be dropped; None if the sequence does not run all nodes."""

def batches_at(dag: Dag, sequence: IntArray, position: IntArray) -> Batches | int:
    """Make the schedule that runs each node at its position; or return a node whose position has another type."""

def local_search(dag: Dag, sequence: IntArray, seed: int, n_steps: int, enough: float) -> IntArray:
    """Search for a cheaper sequence around one that finishes a DAG."""

def find_suffixes(dag: Dag, kept: NDArray[np.bool_], compares: bool) -> tuple[Suffixes, IntArray]:
    """Find the parts of `Suffixes`, and the suffix of each node."""

def suffixes_to_dag(suffixes: Suffixes) -> tuple[tuple[IntArray, IntArray, IntArray, int], IntArray]:
    """Make the DAG of the reachable suffixes, without costs; also find the node of each suffix, or -1."""

def search_layers(
    suffixes: Suffixes, cost: FloatArray, limit: float, width: int, max_states: int
) -> tuple[IntArray, float, float, int, bool]:
    """Search for the cheapest sequence; see `autobatch.policies.search.exact`."""

def visit_states(dag: Dag, sequence: IntArray, n_known: int, machine: MachineRules, width: int) -> NDArray[np.int16]:
    """Run a sequence of types; return the state before each: int16[K, width]."""

def add_states(table: Table, states: NDArray[np.int16]) -> IntArray:
    """Find the numbers of states; add new states, for which the table must have room."""

def longest_chains(dag: Dag) -> IntArray:
    """Count, per type, the most nodes of that type on a path: int32[T]; ValueError if an edge points backward."""

class Course:
    """A mini-batch to learn on."""

    def __init__(self, dag: Dag) -> None: ...
    def run(
        self,
        table: Table,
        machine: MachineRules,
        rules: LearningRules,
        epsilon: float,
        generator: np.random.BitGenerator,
        plan: IntArray,
    ) -> None:
        """Play an episode, by `plan` unless that is empty, and learn from it."""
    def episode(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return, of the last episode, the state before each batch, the type that ran, and the reward."""

class Simulation:
    """The state of a DAG, or of stacked DAGs, in which some nodes have run."""

    def __init__(self, dag: Dag, node_ptr: IntArray | None = None, is_measured: bool = True) -> None:
        """Copy a DAG; without `is_measured`, reward, bound, features and tables are not available."""
    def ready(self) -> IntArray:
        """Count the ready nodes of each type."""
    def unrun(self) -> IntArray:
        """Count the nodes of each type that have not run."""
    def step(self, type: int) -> None:
        """Run all ready nodes of a type as one batch."""
    def reward(self, kind: int, type: int) -> float:
        """Return the reward of running a type now."""
    def bound(self) -> int:
        """Return a lower bound on the number of remaining batches, by the chains ahead."""
    def batches(self) -> Batches:
        """Return the schedule so far: batch_type, batch_ptr and order."""
    def features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the features of the types, and of the whole graph; see `autobatch.policies.rules.network`."""
    def tables(self) -> tuple[IntArray, ...]:
        """Return reader_ptr, reader, ahead, height, segment, blocked and frontier, flat."""

# native/plan/: see `autobatch.plan.plan`.

def plan_graphs(
    graphs: Graphs,
    types: TypeArrays,
    passes: int,
    rule: CoreRule,
    layout: LayoutArrays,
    sizes: CellSizes | None,
    n_threads: int,
    flows: FlowArrays | None,
    slot: int,
) -> tuple[tuple[IntArray, FloatArray, tuple[Any, ...], LongArray, bool, bool] | None, Planned, bool, float]:
    """Plan graphs: `merge_graphs`, `rewrite_words`, `plan_by_rule`, `place_values` and `make_tables` in turn.

    Returns:
        The merged graph, or None for a single graph; its plan; whether the loss in `slot`, if that is not -1, depends
        on all nodes; and the seconds that merging took.

    Raises:
        ValueError: also if an edge points backwards.
        OverflowError: the merged or the rewritten graph has more words than an int32 can count.
    """

class PlanJob:
    """A call of `plan_graphs`, with the same arguments, that another thread may make ahead of time."""

    def __init__(
        self,
        graphs: Graphs,
        types: TypeArrays,
        passes: int,
        rule: CoreRule,
        layout: LayoutArrays,
        sizes: CellSizes | None,
        n_threads: int,
        flows: FlowArrays | None,
        slot: int,
        /,
    ) -> None: ...
    def run(self) -> None:
        """Plan, unless another thread does so or has done so."""
    def result(self) -> tuple[Any, Planned, bool, float]:
        """Return the result of `plan_graphs`, after planning or waiting for the thread that plans.

        Raises:
            ValueError: also if the result was read before.
            OverflowError: as `plan_graphs`.
        """

def plan_round(
    round: tuple[Any, ...],
    types: TypeArrays,
    passes: int,
    rule: CoreRule,
    layout: LayoutArrays,
    sizes: CellSizes | None,
    n_threads: int,
) -> tuple[Choice, Moves | None, tuple[IntArray, FloatArray] | None, Planned | None]:
    """Plan a round: `choose_nodes`, `move_rows` and `emit_graph`, then the steps of `plan_graphs` after merging.

    Args:
        round: the arguments of `choose_nodes`; the values of the last run, held, free, n_free and size for `move_rows`;
            and the types of sources and the results, if any, for `emit_graph`.

    Returns:
        The choice; the rows, or None if there is nothing to run; and the graph and its plan, or None if there is
        nothing to run or a source has no type yet.

    Raises:
        ValueError, OverflowError: as for these functions.
    """

def place_values(
    words: IntArray,
    floats: FloatArray,
    batches: Batches,
    types: TypeArrays,
    layout: LayoutArrays,
) -> tuple[Any, ...]:
    """Place the values of a scheduled graph: the parts of a `Plan` from `row` to `floats`.

    Raises:
        ValueError: the graph does not fit its types, or the schedule does not run each node once.
    """

def make_tables(plan: PlanArrays, sizes: CellSizes, n_threads: int) -> tuple[Any, ...]:
    """Make the tiles and the calls of a plan, list its addresses, and classify blocks by size.

    Returns:
        The parts of `autobatch.backends.tables.PlanTables`, from `type_ids` on.

    Raises:
        ValueError: the arrays do not fit each other, or a type of the plan has no sizes.
    """

def find_sums(plan: PlanArrays, dest: LongArray, width: LongArray, first: int) -> tuple[Any, ...]:
    """Find the parts of `autobatch.backends.cuda.sums.Sums`; the values' own places begin at `first`."""

def list_device_steps(
    known: NDArray[Any],
    rules: LongArray,
    calls: tuple[Any, ...],
    words: LongArray,
    word_ptr: LongArray,
    sum_ptr: LongArray,
) -> tuple[LongArray, LongArray, LongArray, LongArray]:
    """List the steps of a stage of a plan for a device.

    Args:
        known: the steps of all types as records, whose tile is not set; then the step that begins a stage, and the one
            that adds up values.
        rules: the `BlockRule` of each of these, see `native/plan/device_steps.h`.
        calls: a `CallList`.
        words, word_ptr: the tiles of all types, see `PlanTables`.
        sum_ptr: sums sum_ptr[b]:sum_ptr[b + 1] follow batch b; empty without sums.

    Returns:
        The steps; the blocks of threads that each can use; the first step of each part, and the end; and for each step
        that the host runs, its position, its number among the known ones, and its tile.

    Raises:
        ValueError: a call or a rule names a step, a type or a tile that does not exist.
    """

def give_out(first: IntArray, size: LongArray, start: int) -> tuple[LongArray, int]:
    """Allocate areas; area k is live from step first[k] to step k. Return their places, and the end of memory."""

# native/module.cpp.

def is_set(name: str) -> bool:
    """Return whether an environment variable is neither empty nor "0"; faster than `os.environ`."""

def pause_collection() -> None:
    """Turn automatic garbage collection off, until `resume_collection` or, in a forked child, until the fork."""

def resume_collection() -> None:
    """Turn automatic garbage collection on again."""

# native/blas/: see `autobatch.blas.packed`. Strided arrays have rows at any distance; their last axis is contiguous.

def find_features() -> tuple[bool, bool, bool]:
    """Return whether the processor has AVX-512 (F, CD, BW, DQ and VL), AVX512_BF16, and AMX with bf16."""

def pack(matrix: NDArray[np.float32], panels: NDArray[np.uint32], is_bf16: bool) -> None:
    """Pack a matrix (inner, n) with a contiguous axis into `panel_words(inner, n, is_bf16)` words.

    Raises:
        ValueError: the processor lacks the instructions for our own products, or the shapes do not fit.
    """

def multiply_packed(
    rows: NDArray[np.float32],
    panels: NDArray[np.uint32],
    out: NDArray[np.float32],
    is_bf16: bool,
    adds: bool,
    times: int,
) -> None:
    """Multiply rows (copies, m, inner) by a packed matrix into `out` (m, n); each repetition uses the next copy.

    Raises:
        ValueError: see `pack`.
    """

def add_outer_bf16(x: NDArray[np.float32], y: NDArray[np.float32], out: NDArray[np.float32], times: int) -> None:
    """Add x' @ y to `out`, with x (rows, m) and y (rows, n) rounded to bf16.

    Raises:
        ValueError: see `pack`.
    """

def repeat_product(
    times: int, itemsize: int, routine: int, product: tuple[int, ...], beta: float, copies: tuple[int, int, int]
) -> None:
    """Call a BLAS routine by its address; nothing checks the addresses.

    Args:
        product: a `Gemm` of `autobatch.blas.provider`.
        beta: 0 overwrites `out`, 1 adds to it.
        copies: the number of pairs of operands that are used in turn, and the bytes from one a, and one b, to the next.
    """

def sgemm_address() -> int:
    """Return the address of our own product of float32 matrices, which has the interface of the BLAS routine."""

def transpose(matrix: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the transpose of a contiguous matrix of float32 or float64."""

# native/run/: see `autobatch.backends.cpu`, `autobatch.optim` and `autobatch.params.sparse_rows`.

def step_addresses() -> dict[str, int]:
    """Return the addresses of the steps that need no generated kernel; see `native/run/steps.h`."""

def call_steps(addresses: NDArray[Any], calls: NDArray[Any], at: int, end: int) -> int:
    """Make the calls at:end; return the first of a step that Python runs, or `end`. Nothing checks the addresses."""

class Sweep:
    """The state shared by the threads that make the calls of a stage; see `native/run/team.h`."""

    def open(self, first: int, last: int) -> int:
        """Open a sweep over some parts; return its number."""
    def close(self) -> None:
        """Close the sweep if one is open, and wait until no thread makes a call of it."""
    def lead(self, addresses: NDArray[Any], calls: tuple[NDArray[Any], ...]) -> None:
        """Make all calls of the open sweep that no other thread makes."""
    def join(self, number: int, addresses: NDArray[Any], calls: tuple[NDArray[Any], ...]) -> None:
        """Make calls of the sweep with this number until no calls are left or it is closed."""

def sum_rows(
    n: int,
    work: LongArray,
    values: NDArray[Any],
    first: int,
    step: int,
    width: int,
    ids: LongArray,
    sums: NDArray[Any],
) -> int:
    """Add up rows by their ids, which are work[0, :n]; return the number of distinct ids.

    Args:
        work: [4, at least n] scratch memory; overwritten.
        values: flat, of float32 or float64; rows begin at `first`, `step` numbers apart, and have `width` numbers.
        ids, sums: receive the ids, in increasing order, and their sums, flat.
    """

def merge_rows(
    n: int,
    ids: LongArray,
    values: NDArray[Any],
    n_more: int,
    more: LongArray,
    more_values: NDArray[Any],
    width: int,
) -> int:
    """Add rows to others in place, both in the order of increasing ids; return the number of distinct ids."""

def update_dense(
    rows: tuple[int, int, int],
    data: NDArray[Any],
    first: NDArray[Any] | None,
    second: NDArray[Any] | None,
    grad: NDArray[Any],
    grad_step: int,
    constants: NDArray[Any],
) -> None:
    """Change all rows of a parameter; see `native/run/optimizer.h`.

    Args:
        rows: of `data`: the number of rows, the numbers in a row, and the distance between the starts of two rows.
        data, grad: flat arrays that begin at the first number; the rows of `grad` begin `grad_step` numbers apart.
        first, second: the state arrays, flat, with contiguous rows.
    """

def update_rows(
    rows: tuple[int, int, int],
    data: NDArray[Any],
    first: NDArray[Any] | None,
    second: NDArray[Any] | None,
    ids: LongArray,
    values: NDArray[Any],
    touched: NDArray[np.bool_],
    constants: NDArray[Any],
    is_lazy: bool,
) -> None:
    """Change rows of a parameter whose gradient is `Rows`; see `update_dense`.

    Args:
        ids, values: the ids of the gradient's rows, which increase, and the rows, flat.
        touched: whether each row ever had a gradient; updated by the call.
        is_lazy: whether rows without a gradient are left unchanged.
    """

def fingerprint(array: NDArray[Any]) -> int:
    """Return a hash that almost certainly differs between arrays with different bits.

    Args:
        array: [any] float32 or float64. Takes about a nanosecond per 25 bytes.
    """

def changes_all(constants: NDArray[Any]) -> bool:
    """Return whether plain SGD changes a number whose gradient is zero."""
