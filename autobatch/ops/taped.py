"""The tape of eager mode: computes each op immediately, and keeps the inputs of its pullback.

While a function is differentiated in eager mode, its variables and all values that depend on them are `Taped`. An op on
them computes on the wrapped arrays and adds an entry to the tape. Reading the entries backwards gives the gradients. A
nested derivative has a tape of its own, which holds `Taped` values of the outer tape in place of arrays.

The pullbacks are those that `autobatch.ir.autodiff` traces. Here they are applied to numbers, which is twice as fast
(docs/decisions/a-gradient-is-a-type.md).

Symbols with concrete numbers let a program branch on values while it is differentiated.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from autobatch._native import stage
from autobatch.errors import GraphError
from autobatch.ops.define import Op
from autobatch.ops.eager import freeze
from autobatch.ops.operators import OPS, STAGE, Operators, Symbol
from autobatch.ops.randomness import EAGER, next_site
from autobatch.ops.reduction import unbroadcast


class Concrete(Symbol):
    """A float value whose numbers are available while a function is differentiated with respect to it.

    Comparisons, bool(), int() and formatting use the numbers, and pass no gradient.

    Attributes:
        data: the numbers, as an array or a NumPy scalar.
    """

    __slots__ = ("data",)
    __hash__ = object.__hash__
    _kind: str

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of each axis; () for a scalar."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    @property
    def size(self) -> int:
        return int(self.data.size)

    def read(self) -> Any:
        """Return the value that ops compute with."""
        return self

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other)

    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        return compare(self.data, getattr(other, "data", other) if isinstance(other, Operators) else other)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __format__(self, spec: str) -> str:
        return format(self.data[()], spec)

    def _refuse(self, what: str) -> Exception:
        return GraphError(
            f"{what} of {self._kind} would lose its gradient; use the ops of autobatch instead of NumPy's "
            f"(see ab.ops). Conditions such as x > 0.5, and int(...), are allowed."
        )


COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)


class Taped(Concrete):
    """A value on a tape: a variable of the differentiated function, or a value that depends on one.

    Attributes:
        value: the same value on the outer tape: an array, or a `Taped` of an outer tape.
        tape: its tape.
        entry: its number on the tape.
    """

    __slots__ = ("entry", "tape", "value")
    __hash__ = object.__hash__
    _stage, _kind = "differentiated", "a value that is differentiated"

    def __init__(self, value: Any, tape: EagerTape, entry: int) -> None:
        super().__init__(_data(value))
        self.value, self.tape, self.entry = value, tape, entry

    def astype(self, dtype: Any) -> Taped:
        before = self.dtype
        if before == dtype:
            return self
        return self.tape.add((self,), lambda g: (cast(g, before),), cast(self.value, dtype))

    def again(self) -> Any:
        """Add an equal value to the tape."""
        return self.tape.add((self,), lambda g: (g,), self.value)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Compute an op, and add it to the tapes of its arguments."""
        if STAGE.current is None:  # no tape is running
            return op(*map(_data, args), **static)
        return STAGE.current.apply(op, args, static)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in COMPARISONS and method == "__call__" and not kwargs:
            return ufunc(*map(_data, inputs))
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def __repr__(self) -> str:
        return f"<differentiated {self.data!r}>"


class EagerTape:
    """The stage of a function that is differentiated in eager mode.

    Args:
        outer: the tape of the enclosing derivative, if any.

    Attributes:
        parameters: the taped values that replace parameters, by the `id` of the parameter.
    """

    def __init__(self, outer: EagerTape | None) -> None:
        self.outer = outer
        self.parameters: dict[int, Taped] = {}
        self._entries: list[tuple[Sequence[Any], Callable[[Any], Sequence[Any]]]] = []

    def add(self, args: Sequence[Any], pull: Callable[[Any], Sequence[Any]], value: Any) -> Taped:
        """Add a value.

        Args:
            args: the values that it is computed from, on this tape or not.
            pull: computes their gradients from the gradient of the value.
            value: the value itself.
        """
        self._entries.append((args, pull))
        return Taped(value, self, len(self._entries) - 1)

    def leaf(self, x: Any) -> Taped:
        """Add a variable of the differentiated function."""
        return self.add((), lambda g: (), value_on(self.outer, x))

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Compute an op; add it to the tape if it has a gradient and an argument on the tape."""
        args = tuple(map(self._read, args))
        plain = tuple(map(self.strip, args))
        with stage(self.outer):  # a nested derivative records the op on the outer tape
            value = op(*plain, **static)
        if op.pullback is None or all(x is y for x, y in zip(args, plain, strict=True)):  # none on this tape
            return value
        pullback, training = op.pullback, EAGER.source.training

        def pull(g: Any) -> Sequence[Any]:
            # The pullback of dropout draws the mask again, and so needs the mode of the forward pass.
            before, EAGER.source.training = EAGER.source.training, training
            try:
                return pullback(g, value, *plain, **static)
            finally:
                EAGER.source.training = before

        return self.add(args, pull, value)

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def call_cell(self, cell: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return cell.run_eagerly(owner, args, kwargs)

    def next_draw(self) -> tuple[int, int]:
        """Return the draw and the next site of the current call."""
        return next_site()

    def as_list(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def strip(self, x: Any) -> Any:
        """Return the value of the outer tape for `x` if `x` is on this tape, else `x`."""
        return x.value if self._holds(x) else x

    def gradients(
        self, seeds: Iterable[tuple[Any, Any]], wanted: Sequence[Taped], within: EagerTape | None = None
    ) -> list[Any]:
        """Compute the gradients of values; None for a value that no seed depends on.

        Args:
            seeds: pairs of a result and its gradient.
            wanted: the values.
            within: the tape that records the computation; by default the current one, if any.
        """
        parts: dict[int, list[Any]] = defaultdict(list)
        for result, gradient in seeds:
            if self._holds(result):
                parts[result.entry].append(gradient)
        with (
            stage(within or STAGE.current),
            np.errstate(all="ignore"),
        ):  # unwanted gradients are computed too, and must not warn
            # Entries follow those that they are computed from, so all parts of an entry are known when it is reached.
            for number in range(max(parts, default=-1), -1, -1):
                args, pull = self._entries[number]
                if not args or number not in parts:
                    continue
                for x, part in zip(args, pull(_total(parts[number])), strict=True):
                    if part is not None and self._holds(x):
                        parts[x.entry].append(unbroadcast(part, x.shape))
            return [cast(_total(parts[x.entry]), x.dtype) if x.entry in parts else None for x in wanted]

    def _holds(self, x: Any) -> bool:
        return isinstance(x, Taped) and x.tape is self

    def _read(self, x: Any) -> Any:
        """Return the value of an op's argument; for a parameter, the taped value that replaces it, if any."""
        if isinstance(x, Concrete):
            return x.read()
        return self.parameters.get(id(x), x) if isinstance(x, Operators) else x


def value_on(tape: EagerTape | None, x: Any) -> Any:
    """Return the value of an array, parameter or symbol on a tape or its outer tapes; its numbers if `tape` is None."""
    if isinstance(x, Concrete):
        with stage(tape):
            return x.read()
    while tape is not None and id(x) not in tape.parameters:
        tape = tape.outer
    if tape is not None:
        return tape.parameters[id(x)]
    # Parameters are copied, because optimizers change them in place.
    return freeze(np.array(getattr(x, "data", x)) if isinstance(x, Operators) else np.asarray(x))


def cast(x: Any, dtype: Any) -> Any:
    """Return a value in a float type, always as a new object."""
    if isinstance(x, Taped):
        return Taped(x.value, x.tape, x.entry) if x.dtype == dtype else x.astype(dtype)
    return freeze(np.asarray(x, dtype).view())


def _data(x: Any) -> Any:
    """Return the numbers of a value on any tape; return other values unchanged."""
    return x.data if isinstance(x, Taped) else x


def _total(parts: list[Any]) -> Any:
    return reduce(OPS["add"], parts)
