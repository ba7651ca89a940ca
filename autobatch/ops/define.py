"""The definition of ops: shape rule, kernel, pullback and, for element-wise ops, a scalar expression in one statement.

Shapes are those of ONE node. A kernel's arrays have an extra leading axis: the rows of a batch, or a single row for
values that all nodes share (parameters, constants), which NumPy broadcasts. The kernel writes into `out`. The same
kernel code runs on NumPy and CuPy, which it receives as `xp`.

A pullback receives the gradient of the result, the result and the arguments, all symbolic. It returns one gradient per
argument (None for an argument without a gradient), written in ops. Tracing it therefore gives the backward cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, update_wrapper, wraps
from inspect import Parameter, Signature, cleandoc, signature, unwrap
from pickle import PicklingError
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from autobatch._native import Shortcut
from autobatch.arguments import RAW, refusal, show, to_plain
from autobatch.devices.store import HOST
from autobatch.errors import AutobatchError, DataError, GraphError, ShapeError
from autobatch.keywords import refuse, refuse_arguments, suggesting
from autobatch.ops.eager import EagerArray, freeze, plain_array
from autobatch.ops.eager import unwrap as as_array
from autobatch.ops.expression import Expression, trace_scalar
from autobatch.ops.operators import OPS, STAGE, Operators, Symbol
from autobatch.ops.randomness import EAGER
from autobatch.tracebacks import hide_frames

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = Any  # a NumPy or CuPy array
Value: TypeAlias = Any  # an array or a number; in cells and recorded programs, also the result of an op or a cell
Values: TypeAlias = Any  # a list of values, of any length
Shapes: TypeAlias = Any  # the shape of a value, or a structure of shapes like that of the values; None if not given


A_LIST, OPERANDS, REVERSED, AN_OP, ARGUMENTS = range(5)  # as in `native/record/shortcut.cpp`
GIVEN = ("xp", "out", "random", "segments")  # kernel arguments that callers of an op do not pass
WIDER = dict.fromkeys("?bBhHiI", np.int64) | {"e": np.float32}  # arguments of these dtypes are widened first
OPTIONS = ("Axis", "int", "int | None", "bool")  # annotations of arguments that are options, not operands
MOST_INTS = 2**24  # float32 represents ints below this exactly; ints that cells compute are stored as floats


F = TypeVar("F", bound=Callable[..., Any])


def shortcut(inner: Callable[..., Any] | None, takes: int) -> Callable[[F], F]:
    """Let the core record common forms of calls of a function directly, as calls of `inner`, an op or a `composite`.

    All other calls go to the function itself.

    Args:
        inner: the op or composite to record; None if it is the first argument.
        takes: A_LIST of values; OPERANDS (values, numbers, arrays and parameters); these REVERSED; AN_OP and operands;
            or any ARGUMENTS.
    """

    def wrap(function: F) -> F:
        return cast(F, update_wrapper(Shortcut(function, unwrap(inner) if inner else None, takes), function))

    return wrap


def static_key(static: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal static arguments alone: that of `repr`, with all bytes of arrays.

    >>> static_key({"axis": 0})
    "[('axis', 0)]"
    >>> static_key({"by": np.array([1.0])}) == static_key({"by": np.array([1.0 + 1e-9])})
    False
    """
    items = sorted(static.items())
    inside: list[Any] = [x for _, x in items]
    arrays = []
    for x in inside:
        if isinstance(x, np.ndarray):
            arrays.append((x.dtype.str, x.shape, x.tobytes()))
        elif isinstance(x, (tuple, list)):
            inside.extend(x)
        elif isinstance(x, dict):
            inside.extend(x.values())
    return f"{items}{arrays}" if arrays else repr(items)


@suggesting()
@dataclass(frozen=True, eq=False)
class Op:
    """A primitive tensor operation.

    To help(), doctest and editors it looks like a function: it has a name, a module, a docstring and a signature, whose
    static arguments are keyword-only.

    Attributes:
        name: the name in printed programs.
        shape: maps the per-node shapes of the arguments (and the static arguments) to the shape of the result.
        kernel: `kernel(xp, *arrays, out=out, **static)`; arrays and out are `(rows, *shape)`, and `out` has at least
            one element. A view op returns its result instead and takes no `out`.
        pullback: `pullback(g, y, *args, **static)`, one gradient per argument; None for ops without a derivative.
        scalar: for element-wise ops, the expression of one element, which reads the arguments by number.
        view: the result is a view of the first argument: no memory, no launch.
        copies: the kernel only moves bytes.
        row_sum: `row_sum(xp, *arrays, out=out, **static)` adds the sums of the result over the rows of S segments to
            out `(S, *shape)`; arrays are `(S, rows, *shape)`, or `(1, 1, *shape)` if all rows share one.
        singular: the result, or a factor of a gradient, may be infinite although all arguments are finite.
        random: the kernel draws random numbers; it receives `random=`, a `Randomness`.
        like: from this argument on, the op uses only the number of rows of each node, not the values.
        index_axis: the second argument is an int below the size of this axis of the first. It is range-checked once,
            when graphs are merged (immediately in eager mode), so the kernel need not check it. Ints that a cell
            computed are stored as floats; the `below` of the op that made them keeps them in range. If the op has a
            static argument `ignore`, that number is valid too.
        below: for ops whose result is ints, `below(*shapes, **static)` is their exclusive upper bound, from the
            per-node shapes.
        sums_rows: the result has one row per segment, such as the whole mini-batch, and the kernel is a `row_sum`.
        segments: the kind of an op on edges or rows. "reduce" maps one value per edge to one per node, "spread" maps
            the other way, "edge" needs both; such kernels receive `segments=`, the edges of each row. "move" maps rows
            of some groups to rows of others (`autobatch.ops.rows`) and receives the segments of each argument. "choose"
            (`autobatch.ops.choosing`) receives them too, with None for per-node arguments. "pairs" maps to or from
            pairs of rows (`autobatch.ops.pairs`) and receives the segments of both groups of rows.
        domain: for ops between groups, `domain(domains, **static)` maps the arguments' domains to the result's.
        least: `least(**static)` is the least number of rows per node in the first argument; by default 0.
        whole: kernel calls are expensive, so batches of cells that apply the op are not split.
        doc: the docstring: the result, the shapes, the gradient, an example.
        note: maps the static arguments to the remark that `explain` makes on cells that apply the op.
        once: for an op whose gradient is available for the mini-batch but not inside programs, the reason; else "".
    """

    name: str
    shape: Callable[..., Shape]
    kernel: Callable[..., Any]
    pullback: Callable[..., tuple[Any, ...]] | None = None
    scalar: Expression | None = None
    view: bool = False
    copies: bool = False
    row_sum: Callable[..., None] | None = None
    sums_rows: bool = False
    singular: bool = False
    random: bool = False
    like: int | None = None
    index_axis: int | None = None
    below: Callable[..., int] | None = None
    segments: Literal["reduce", "spread", "edge", "move", "choose", "pairs"] | None = None
    domain: Callable[..., int] | None = None
    least: Callable[..., int] | None = None
    whole: bool = False
    doc: str | None = None
    note: Callable[..., str] | None = None
    once: str = ""

    def __post_init__(self) -> None:
        taken = list(signature(self.kernel).parameters.values())
        # A kernel takes xp and the arrays, then `out`, then the static arguments. The kernel of a view has no `out`,
        # and takes a single array.
        n_arrays = 2 if self.view else [p.name for p in taken].index("out")
        static = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in taken[n_arrays:]]
        arrays = [p.replace(annotation="Value") for p in taken[:n_arrays]]
        shown = [p for p in (*arrays, *static) if p.name not in GIVEN]
        vars(self).update(__name__=self.name, __qualname__=self.name, __module__=self.kernel.__module__)
        vars(self).update(
            __signature__=Signature(shown, return_annotation="Value"), __doc__=self.doc and cleandoc(self.doc)
        )

    def __get__(self, instance: object, owner: type | None = None) -> Op:
        """Return the op itself, without binding `self`; help() and doctest recognize a routine by this method."""
        return self

    def __copy__(self) -> Op:
        return self

    def __deepcopy__(self, memo: object) -> Op:
        return self

    def __reduce__(self) -> Any:
        if OPS.get(self.name) is not self:
            raise PicklingError(
                f"op {self.name!r} cannot be pickled, because another op has been defined by this name."
            )
        return find_op, (self.name,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments that are not static; () if the op takes any number of arguments."""
        return tuple(p.name for p in signature(self).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)

    @shortcut(None, AN_OP)
    def __call__(self, *args: Any, **static: Any) -> Any:
        if static:
            # Kernels get arrays by position, so arguments given by name are moved there.
            for name in self.names[len(args) :]:
                if name not in static:
                    break
                args = (*args, static.pop(name))
            static = {name: to_plain(x) for name, x in static.items()}
        try:
            for arg in args:
                if isinstance(arg, Symbol):
                    return arg.apply(self, args, static)
            if STAGE.current is not None and any(isinstance(arg, Operators) for arg in args):
                return STAGE.current.apply(self, args, static)
            return self.eager(args, static)
        except RAW as error:
            raise refused_call(self, args, static, error) from error
        except AutobatchError as error:
            if STAGE.current is None:
                hide_frames(error)
            raise

    def limit(self, shapes: Iterable[Shape], static: dict[str, Any]) -> int:
        """Return the exclusive upper bound of the op's int results; 0 if its results are floats.

        Raises:
            ShapeError: the bound exceeds the ints that float32 represents exactly.
        """
        if self.below is None:
            return 0
        size = self.below(*shapes, **static)
        if size > MOST_INTS:
            raise ShapeError(
                f"{self.name} must choose among at most {MOST_INTS} elements, got {size}; ints that cells compute are "
                f"stored as floats, which are exact only up to there."
            )
        return size

    def eager(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Compute immediately, on plain arrays without a row axis."""
        if any(type(arg) in (list, tuple) and not arg for arg in args):
            raise ShapeError(f"{self.name} must be given arrays, got an empty list, which has no shape.")
        arrays = [plain_array(_read(a) if isinstance(a, Operators) else a) for a in args]
        shape = self.shape(*(a.shape for a in arrays), **static)
        if self.index_axis is not None:
            arrays[1] = check_index(self.name, arrays[1], arrays[0].shape[self.index_axis], static.get("ignore"))
        if self.view:
            own = arrays[0].copy() if isinstance(args[0], Operators) else arrays[0]  # optimizers change parameters
            seen = freeze(self.kernel(np, own[None], **static)[0])
            # Slices of `EagerData` stay data, whose arithmetic gives floats.
            return seen.view(type(args[0])) if isinstance(args[0], EagerArray) else seen
        arrays = [a.astype(WIDER[a.dtype.char]) if a.dtype.char in WIDER else a for a in arrays]
        is_int = self.limit((a.shape for a in arrays), static) > 0
        out = np.empty((1, *shape), np.int64 if is_int else float_dtype(args, arrays))
        static = {**static, "random": EAGER.source} if self.random else static
        run_kernel(self, np, [a[None] for a in arrays], out, static)
        return freeze(out[0])

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def find_op(name: str) -> Op:
    """Return the op of this name.

    Raises:
        GraphError: no op has it; a pickle refers to an op that this process has not defined.
    """
    if name not in OPS:
        raise GraphError(f"op {name!r} must be defined before it is unpickled; import the module that defines it.")
    found: Op = OPS[name]
    return found


@suggesting(Op)
def define_op(name: str, **parts: Any) -> Op:
    """Define a primitive op and register it under `name`; `parts` are the attributes of `Op`."""
    if not isinstance(name, str):
        raise refusal("name of define_op", "a str", name, GraphError)
    missing = [part for part in ("shape", "kernel") if part not in parts]
    if missing and parts.keys() <= {part.name for part in fields(Op)}:
        raise GraphError(f"{missing[0]} of op {name!r} must be given; see ab.ops.Op.")
    OPS[name] = op = Op(name, **parts)
    return op


def define_elementwise(
    name: str,
    scalar: Callable[..., Expression],
    kernel: Callable[..., Any],
    pullback: Any = None,
    singular: bool = False,
    doc: str | None = None,
) -> Op:
    """Define an op that broadcasts its arguments and computes `scalar` for each element."""
    return define_op(
        name,
        shape=lambda *shapes: broadcast(name, *shapes),
        kernel=kernel,
        pullback=pullback,
        scalar=trace_scalar(scalar),
        singular=singular,
        doc=doc,
    )


def check_index(what: str, ids: Array, size: int, ignore: int | None = None) -> Array:
    """Return ids or labels as ints (bools as 0 and 1).

    Raises:
        DataError: an id is not an int, or is outside 0..size-1 and not `ignore`.
    """
    if ids.dtype.kind not in "iub":
        raise DataError(f"the indices of {what} must be integers, got dtype {ids.dtype}.")
    checked = ids if ignore is None else ids[ids != ignore]
    if checked.size and not 0 <= checked.min() <= checked.max() < size:
        wrong = checked.min() if checked.min() < 0 else checked.max()
        raise DataError(f"the indices of {what} must be in 0..{size - 1}, got {wrong}.")
    return ids.astype(np.int8) if ids.dtype.kind == "b" else ids  # as bools they would be a mask


def broadcast(what: str, *shapes: Shape) -> Shape:
    """Return the shape that `shapes` broadcast to by NumPy's rule; ShapeError, naming the op `what`, if they do not."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(
            f"the values of {what} must have shapes that broadcast, got {' and '.join(map(str, shapes))}; "
            f"shapes are per node, without a batch axis."
        ) from None


def run_kernel(op: Op, xp: Any, arrays: list[Array], out: Array, static: dict[str, Any]) -> None:
    """Run `op` on arrays with a row axis.

    Arguments of element-wise ops that have fewer axes than `out` get axes of length one after the row axis. The kernel
    is not called without elements to compute: a list may be empty in the whole batch, and an axis may have length zero.
    A sum over no rows leaves `out` unchanged.
    """
    if not out.size or (op.sums_rows and any(array.shape[1] == 0 for array in arrays)):
        return
    if op.scalar is not None:
        arrays = [align(a, out.ndim) for a in arrays]
    op.kernel(xp, *arrays, out=out, **static)


def _read(value: Any) -> Any:
    """Return the array of a parameter; GraphError if it is on a device, because eager mode runs on the CPU only."""
    if getattr(value, "store", HOST) is not HOST:
        raise GraphError(
            f"parameters of ops called directly must be on the CPU, got one of shape {value.shape} on "
            f'{value.store.kind}: call to("cpu") on the module, or run the function by ab.batched(..., backend="cuda").'
        )
    return getattr(value, "data", value)


def shape_of(x: Any) -> Shape:
    """Return the shape of a symbol, parameter, array or number."""
    try:
        shape: Shape = x.shape
    except AttributeError:
        return as_array(x).shape
    return shape


def known_shape(x: Any, what: str) -> Shape:
    """Return the shape of a value; ShapeError, naming the op `what`, if a size is known only at run time."""
    shape = shape_of(x)
    if not all(isinstance(size, (int, np.integer)) for size in shape):
        raise ShapeError(
            f"{what} needs values of known sizes, got one with n rows, where n differs between nodes; apply it to each "
            f"row, by ab.each(lambda row: ..., x), or use @ and ab.sum."
        )
    return shape


def align(array: Array, ndim: int) -> Array:
    """Insert axes of length one after the row axis of `array`, up to `ndim` axes; return Python numbers unchanged."""
    missing = ndim - getattr(array, "ndim", ndim)
    if missing == 0:
        return array
    return array.reshape(array.shape[:1] + (1,) * missing + array.shape[1:])


def float_dtype(args: tuple[Any, ...], arrays: list[Array]) -> np.dtype[Any]:
    """Return the float dtype of eager results: the dtype of the float arrays; other arguments do not count."""
    pairs = zip(args, arrays, strict=True)
    floats: set[np.dtype[Any]] = {a.dtype for x, a in pairs if a.dtype.kind == "f" and not isinstance(x, (int, float))}
    if len(floats) == 1 and (dtype := floats.pop()).isnative:  # the usual case; np.result_type is slower
        return dtype
    return np.result_type(*floats) if floats else np.dtype(np.float64)


def composite(function: F) -> F:
    """Make a function built from ops record one node, instead of one per op, when it is applied to recorded values."""
    given = enumerate(signature(function).parameters.items())
    options = {name: k for k, (name, x) in given if name == "shape" or x.annotation in OPTIONS}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        symbol = first_symbol(args)
        if symbol is not None and options:  # an array would be recorded as data
            args = tuple(to_plain(x) if k in options.values() else x for k, x in enumerate(args))
            kwargs = {name: to_plain(x) if name in options else x for name, x in kwargs.items()}
        try:
            return function(*args, **kwargs) if symbol is None else symbol.call(function, args, kwargs)
        except RAW as error:
            raise refused_call(function, args, kwargs, error) from error
        except AutobatchError as error:
            if STAGE.current is None:
                hide_frames(error)
            raise

    return shortcut(function, ARGUMENTS)(cast(F, call))


def of_values(function: F) -> F:
    """Make an op function raise a one-sentence error for unsuitable arguments."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RAW as error:
            raise refused_call(function, args, kwargs, error) from error
        except AutobatchError as error:
            if STAGE.current is None:
                hide_frames(error)
            raise

    return cast(F, call)


def refused_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Exception:
    """Convert a Python or NumPy error raised by an op call.

    Ops call no user code, so the arguments are to blame.

    Raises:
        TypeError: an argument is missing or unexpected.
        DataError: an argument is not of the kind of its annotation.
    """
    refuse(function, kwargs)
    refuse_arguments(function, args, kwargs)
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as unbound:
        name = getattr(function, "__name__", "")
        return TypeError(str(error) if str(error).startswith(f"{name}()") else f"{name}(): {unbound}")
    given = ", ".join([*map(show, args), *(f"{name}={show(x)}" for name, x in kwargs.items())])
    return DataError(
        f"the arguments of {function.__name__} must be values of suitable kinds, got {given} "
        f"({type(error).__name__}: {str(error).rstrip('.')})."
    )


def first_symbol(arg: Any) -> Symbol | None:
    """Return the first symbol in `arg`, also inside tuples and lists; None without any."""
    if isinstance(arg, Symbol):
        return arg
    if issubclass(type(arg), (tuple, list)):  # excludes traced lists, whose `__class__` is list
        for part in arg:
            if (symbol := part if isinstance(part, Symbol) else first_symbol(part)) is not None:
                return symbol
    return None
