"""Python's operators on autobatch's values: `x + y`, `W @ x`, `x[2:5]` and `x < y` apply the corresponding op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autobatch._native import Stage
from autobatch.errors import GraphError

OPS: dict[str, Any] = {}  # each an `autobatch.ops.define.Op`
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # functions built from ops that operators and methods apply, by name


STAGE = Stage()
"""The stage of this thread: `current` traces a cell's body, records a program, or is None in eager mode.

Cells, lists of values, and ops whose only values are parameters use it; symbols hold their own stage. It is set
by `with stage(x):`, where `stage` is a class of the core.
"""

UFUNCS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.power: "pow",
    np.negative: "neg", np.matmul: "matmul", np.exp: "exp", np.log: "log", np.sqrt: "sqrt", np.tanh: "tanh",
    np.less: "less", np.less_equal: "less_equal", np.greater: "greater", np.greater_equal: "greater_equal",
    np.equal: "equal", np.not_equal: "not_equal", np.abs: "abs", np.maximum: "maximum", np.minimum: "minimum",
    np.sin: "sin", np.cos: "cos",
}  # fmt: skip
REDUCTIONS = {np.add: "sum", np.maximum: "max", np.minimum: "min"}
NAMES = {
    "absolute": "abs", "amax": "max", "amin": "min", "concatenate": "concat", "hstack": "concat", "inner": "dot",
    "flatten": "reshape", "ravel": "reshape", "vstack": "stack", "fabs": "abs",
}  # fmt: skip
COMPOSED = (
    "attend",
    "categorical",
    "clip",
    "einsum",
    "logsumexp",
    "mean",
    "mean_n",
    "min",
    "split",
    "stack",
)  # public functions built from several ops
INTERNAL = (
    "argmax_n", "assemble", "choose_rows", "count_n", "expand", "gelu_tanh", "instead", "ndtr", "one_hot",
    "perturb", "pick", "put_chosen", "put_rows", "scatter", "slice", "softmax_n", "spread", "take_part",
    "take_rows", "top_k_n",
)  # fmt: skip
"""Internal ops, from which public ones are built."""
WITHOUT = "compute with plain numbers, and pass the result to the cell"
CONDITIONS = "it takes two conditions, such as x > 0.0"
NO_OPS = {
    "invert": ("~", "it takes a condition, such as x > 0.0"),
    "and": ("&", CONDITIONS),
    "or": ("|", CONDITIONS),
    "xor": ("^", CONDITIONS),
    "floordiv": ("//", WITHOUT),
    "mod": ("%", WITHOUT),
    "divmod": ("divmod()", WITHOUT),
    "round": ("round()", WITHOUT),
}
"""Python's operators that are not ops: their symbols, and the advice in error messages."""


def is_zero(x: object) -> bool:
    """Return whether `x` is Python's number 0, the start value of `sum`."""
    kind = type(x)  # isinstance would also read `__class__` of a recorded value
    return issubclass(kind, (int, float)) and kind is not bool and x == 0


class Operators:
    """Mixin whose operators call the corresponding ops; `Op.__call__` dispatches on the subclass."""

    __slots__ = ()
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]:
            """Per-node shape."""

    def __add__(self, other: Any) -> Any:
        return self.again() if is_zero(other) else OPS["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return self.again() if is_zero(other) else OPS["add"](other, self)

    def again(self) -> Any:
        """Return an equal value that is distinct for derivatives, just as `0 + array` is a new array."""
        return self

    def __sub__(self, other: Any) -> Any:
        return OPS["sub"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return OPS["sub"](other, self)

    def __mul__(self, other: Any) -> Any:
        return OPS["mul"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return OPS["mul"](other, self)

    def __truediv__(self, other: Any) -> Any:
        return OPS["div"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return OPS["div"](other, self)

    def __pow__(self, other: Any) -> Any:
        return OPS["pow"](self, other)

    def __rpow__(self, other: Any) -> Any:
        return OPS["pow"](other, self)

    def __neg__(self) -> Any:
        return OPS["neg"](self)

    def __matmul__(self, other: Any) -> Any:
        return FUNCTIONS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return FUNCTIONS["matmul"](other, self)

    def __abs__(self) -> Any:
        return OPS["abs"](self)

    def __lt__(self, other: Any) -> Any:
        return OPS["less"](self, other)

    def __le__(self, other: Any) -> Any:
        return OPS["less_equal"](self, other)

    def __gt__(self, other: Any) -> Any:
        return OPS["greater"](self, other)

    def __ge__(self, other: Any) -> Any:
        return OPS["greater_equal"](self, other)

    def __eq__(self, other: object) -> Any:
        return OPS["equal"](self, other)

    def __ne__(self, other: object) -> Any:
        return OPS["not_equal"](self, other)

    def __getitem__(self, index: Any) -> Any:
        is_data = isinstance(index, Symbol) or (isinstance(index, np.ndarray) and index.dtype.kind in "iu")
        return OPS["lookup"](self, index) if is_data else OPS["slice"](self, index=index)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no len()")
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    @property
    def ndim(self) -> int:
        """Return the number of axes of one node's value."""
        return len(self.shape)

    @property
    def T(self) -> Any:
        """Reverse the axes."""
        return FUNCTIONS["transpose"](self)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Apply `ab.sum`."""
        return FUNCTIONS["sum"](self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Apply `ab.mean`."""
        return FUNCTIONS["mean"](self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Apply `ab.max`."""
        return FUNCTIONS["max"](self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Apply `ab.min`."""
        return FUNCTIONS["min"](self, axis, keepdims)

    def reshape(self, *shape: Any) -> Any:
        """Apply `ab.reshape`; give the sizes as one argument, or as an argument each."""
        return FUNCTIONS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """Apply `ab.transpose`; give the axes as one argument, or as an argument each."""
        return FUNCTIONS["transpose"](self, axes[0] if len(axes) == 1 else axes or None)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in (np.shape, np.ndim):
            # NumPy's implementation without dispatch, which would call this method again.
            return function.__wrapped__(*args, **kwargs)
        raise _refusal(self, f"np.{function.__name__}", _advice(function.__name__))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        known: dict[str, dict[Any, str]] = {"__call__": UFUNCS, "reduce": REDUCTIONS}
        name = known.get(method, {}).get(ufunc)
        if name is None or method != "__call__" or kwargs:
            called = f"np.{ufunc.__name__}" if method == "__call__" else f"np.{ufunc.__name__}.{method}"
            raise _refusal(self, called, _advice(ufunc.__name__ if name is None else name))
        return (FUNCTIONS if name == "matmul" else OPS)[name](*inputs)


def _refusal(x: object, what: str, advice: str) -> GraphError:
    return GraphError(f"{what} was applied to a {type(x).__name__}, which it does not support; {advice}.")


def _advice(name: str) -> str:
    """Return the advice for error messages on replacing NumPy's or Python's function of this name."""
    op = op_like(name)
    return f"use ab.{op} instead" if op else "build it from the ops of autobatch (see ab.ops) instead"


def op_like(name: str) -> str | None:
    """Return the name of the public op that is equivalent to NumPy's function or method `name`; None without one."""
    name = NAMES.get(name, name)
    return name if name in COMPOSED or (name in OPS and name not in INTERNAL) else None


def _refuse_operator(what: str, advice: str) -> Callable[..., Any]:
    def refuse(self: Operators, *others: Any) -> Any:
        raise _refusal(self, what, advice)

    return refuse


for _name, _told in NO_OPS.items():
    setattr(Operators, f"__{_name}__", _refuse_operator(*_told))
    setattr(Operators, f"__r{_name}__", _refuse_operator(*_told))


LISTS = "A list of values becomes one value by ab.stack; ab.sum_n, mean_n, max_n and softmax_n take lists."


class Symbol(Operators):
    """A placeholder for the result of a later computation, in a cell being traced or a program being recorded.

    Subclasses implement `apply`, which an op calls when one of its arguments is a symbol.
    """

    __slots__ = ()

    def apply(self, op: Any, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Add `op` of `args` to the trace or recording that this symbol belongs to."""
        raise GraphError(f"{type(self).__name__} belongs to no trace that can record {op.name!r}.")

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply a function built from ops; a trace runs it, a recording records it as one node."""
        return function(*args, **kwargs)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _refuse(self, what: str) -> Exception:
        return GraphError(
            f"{what} needs the number of a {self._stage} value, which is only computed when the mini-batch runs. "
            f"Outside cells, an async function can wait for it by `await ab.value(x)`. To choose between values, use "
            f"ab.where. To see the number, call the function directly on one instance (eager mode)."
        )

    _stage = "recorded"

    def lacks(self, name: str) -> str:
        """Return the error message for reading a missing attribute."""
        return (
            f"a {self._stage} value has no attribute {name!r}. It has a shape, Python's operators and a few methods; "
            f"for the rest use ops, such as ab.{op_like(name) or 'sum'}(x) (see ab.ops)."
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        raise GraphError(
            f"a {self._stage} value cannot be changed in place; make a new one, for example with ab.concat or ab.where."
        )

    def __bool__(self) -> bool:
        raise self._refuse("a condition (if, while, and, or, not, in, ==)")

    def __float__(self) -> float:
        raise self._refuse("float(...)")

    def __int__(self) -> int:
        raise self._refuse("int(...)")

    def __index__(self) -> int:
        raise self._refuse("an index")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        error = self._refuse("a NumPy array")
        raise GraphError(f"{error} {LISTS}") if type(error) is GraphError else error

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._refuse(f"a string in the format {spec!r}")
        return str(self)
