"""Handles: the objects that represent the outputs of nodes while the user's program is recorded.

Each output is a `Value` with a number, its *ref*: the number of the call that made it, the output, and the row (the
layout is in `native/record/handles.h`). A node with several outputs returns them in the structure that the cell
returned. An output of any number of rows is a `Rows`, which has a ref for each row. The native core makes and frees
handles, and raises an error for those of earlier recordings.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch._native import Handle, Log, RowsHandle, seal
from autobatch.errors import GraphError, ShapeError
from autobatch.graph.words import MOST_OUTPUTS
from autobatch.ir.arguments import Key, put_together
from autobatch.ir.program import Var, dtype_of, int_limit
from autobatch.ir.typetable import NodeType
from autobatch.ops import elementwise
from autobatch.ops.conditions import Logic
from autobatch.ops.define import OPERANDS, REVERSED, Op, Shape, shortcut
from autobatch.ops.operators import OPS, STAGE

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "autobatch needs a regular build of Python, got a free-threaded one; its native core relies on the interpreter "
        "lock."
    )

MOST_DEPTH = 1000  # of tuples of outputs; that of the native core


class Recording(Protocol):
    """Records the ops that are applied to values outside cells.

    Attributes:
        log: the log of its calls.
    """

    log: Log

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record one op as a separate cell."""

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function built from ops as a separate cell."""


class Value(Logic, Handle):
    """One output of a recorded node. Each recording has a subclass for each key.

    Attributes:
        key: the key: the shape, the dtype, and the exclusive upper bound of ints.
        refer: weak reference to the recording.
    """

    __slots__ = ()
    shape: Shape
    key: Key
    refer: weakref.ref[Recording]

    @property
    def recording(self) -> Recording:
        """Return the recording that made the value; None once that is freed."""
        return self.refer()  # type: ignore[return-value]

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op outside cells, as a separate cell."""
        return self.require_recording().apply(op, args, static)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function built from ops as a separate cell."""
        return self.require_recording().apply_function(function, args, kwargs)

    def again(self) -> Any:
        """Make another handle of the same output."""
        return self.recording.log.value(type(self), self.ref, self.is_row)

    def require_recording(self) -> Recording:
        """Return the recording that made the value; raise a GraphError unless it is the current stage."""
        recording: Recording = self.refer()  # type: ignore[assignment]
        active = STAGE.current is not None and STAGE.current is recording
        if not active:
            raise GraphError(
                f"a recorded value must be used while its instance is recorded, got {self!r} outside its recording; "
                f"return it from the function to get its number."
            )
        return recording

    def __repr__(self) -> str:
        return f"<recorded value of shape {self.shape}>"


OPERATORS = {
    "add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul, "truediv": elementwise.div,
    "pow": elementwise.pow, "neg": elementwise.neg, "abs": elementwise.abs, "lt": elementwise.less,
    "le": elementwise.less_equal, "gt": elementwise.greater, "ge": elementwise.greater_equal,
    "eq": elementwise.equal, "ne": elementwise.not_equal,
}  # fmt: skip
for _name, _op in OPERATORS.items():
    for _method, _takes in ((f"__{_name}__", OPERANDS), (f"__r{_name}__", REVERSED)):
        if hasattr(Value, _method):
            setattr(Value, _method, shortcut(_op, _takes)(getattr(Value, _method)))


class Rows(Value, RowsHandle):
    """An output of any number of rows, or a selection of rows of such outputs, which needs no node.

    Attributes:
        row: the class of a row.
    """

    __slots__ = ()
    row: type[Value]

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Return the number of rows in this instance, followed by the shape of a row."""
        return (self.n_rows, *self.row.shape)

    def __len__(self) -> int:
        return self.n_rows

    def __iter__(self) -> Iterator[Value]:
        return iter(self.recording.log.unstack(self.row, self))

    def __getitem__(self, index: Any) -> Any:
        first, *others = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice):
            found: Any = self.of(self.refs[first])
            return found if not others else super(Rows, found).__getitem__((slice(None), *others))
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            if not -len(self) <= first < len(self):
                raise ShapeError(f"an index into {len(self)} rows must be in range, got {first}.")
            row = self.recording.log.value(self.row, self.refs[int(first)], True)
            return row[tuple(others)] if others else row
        return super().__getitem__(index)

    def of(self, refs: Sequence[int]) -> Rows:
        """Make the value whose rows have these refs."""
        return self.recording.log.rows(type(self), refs)

    def again(self) -> Rows:
        """Make another handle of the same rows."""
        return self.of(self.refs)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Join rows; record any other op as a separate cell."""
        self.require_recording()
        if op is OPS["concat"] and static["axis"] % self.ndim == 0 and all(type(arg) is type(self) for arg in args):
            return self.of([ref for part in args for ref in part.refs])
        return super().apply(op, args, static)


class Outputs(NamedTuple):
    """The results of the calls of a form.

    Attributes:
        kinds: for each output, its class and the variadic group of its rows, -1 for a single value.
        structure: nested tuples of output numbers; or a function that makes the structure from a tuple of all values.
    """

    kinds: tuple[tuple[type[Value], int], ...]
    structure: Any


class Handles:
    """The classes of the handles of one recording.

    Args:
        recording: records the ops that are applied to values outside cells.
        methods: classes whose methods values have in addition, with precedence over their own.
    """

    def __init__(self, recording: Recording, methods: tuple[type, ...] = ()) -> None:
        self._recording, self._methods = recording, methods
        self._classes: dict[Key, Any] = {}

    def outputs_of(self, node_type: NodeType) -> Outputs:
        """Describe the results of calls of a type.

        Raises:
            GraphError: they have more values than a node may have outputs.
        """
        program, structure = node_type.program, node_type.structure
        if len(program.results) > MOST_OUTPUTS:
            raise GraphError(
                f"cell {node_type.name!r} must return at most {MOST_OUTPUTS} values, got {len(program.results)}; "
                f"return fewer, such as one array to slice."
            )
        kinds = tuple(
            # An output computed from parameters alone (SHARED, -2) is a value of its node like any other.
            (self.class_of(_key_of(program.vars, output)), max(program.vars[output].domain, -1))
            for output in program.results
        )
        return Outputs(kinds, structure if _is_plain(structure) else lambda values: put_together(structure, values))

    def value(self, ref: int, shape: Shape) -> Any:
        """Make the value of this ref."""
        return self._recording.log.value(self.class_of(Key("value", shape)), ref, False)

    def rows_of(self, values: Sequence[Value], shape: Shape) -> Any:
        """Make the `Rows` of these values of one shape."""
        kind = self.class_of(Key("rows", None, (Key("value", shape),)))
        return self._recording.log.rows(kind, [value.ref for value in values])

    def like(self, x: Value, refs: Sequence[int]) -> Any:
        """Make a value like `x`, with the same shape or number of rows, from refs, one per row if `x` has rows."""
        if not isinstance(x, Rows):
            return self.value(refs[0], x.shape)
        return self.rows_of([self.value(ref, x.row.shape) for ref in refs], x.row.shape)

    def class_of(self, key: Key) -> Any:
        """Return this recording's class of values, or of rows, of a key."""
        if key not in self._classes:
            # The garbage collector does not visit values, so their class must not refer to anything that may hold them.
            own: dict[str, Any] = {"key": key, "refer": weakref.ref(self._recording), "__slots__": ()}
            if key.kind == "rows":
                base: type[Value] = Rows
                own["row"] = self.class_of(key.children[0])
            else:  # the last axis of a complex value holds its two parts, which users do not see
                base, own["shape"] = Value, key.detail[:-1] if key.is_complex else key.detail
            self._classes[key] = type(base.__name__, (*self._methods, base), own)
            seal(self._classes[key])
        return self._classes[key]

    def own_all(self, handles: Sequence[Any]) -> bool:
        """Return whether all of these are values of this recording."""
        # Each recording has its own classes of values, so it is enough to look at the distinct classes.
        return all(issubclass(x, Value) and x.refer() is self._recording for x in {*map(type, handles)})

    def check(self, handle: Value) -> None:
        """Raise a GraphError for a value of another recording, in which its ref means another node."""
        if handle.recording is not self._recording:
            raise GraphError("a recorded value must be used in its own recording, got one from another recording.")


def _key_of(vars: Sequence[Var], output: int) -> Key:
    value = Key("value", vars[output].shape, below=int_limit(vars, output), dtype=dtype_of(vars, output))
    return value if vars[output].domain < 0 else Key("rows", None, (value,))


def _is_plain(structure: Any, depth: int = 0) -> bool:
    """Return whether the core makes a structure of outputs: one output, or tuples of outputs that are not too deep."""
    if type(structure) is tuple:
        return depth < MOST_DEPTH and all(_is_plain(part, depth + 1) for part in structure)
    return type(structure) is int
