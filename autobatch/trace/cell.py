"""Cells: functions marked with `@cell`, and their eager execution.

A cell runs in three ways. Called plainly, it runs *eagerly*: ordinary Python over arrays. While a program is
*recorded*, its calls become nodes. Once per signature, its body is *traced*: it runs with symbolic values, and each op
appends an instruction to a `CellProgram`. A cell called inside another becomes part of it.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial, update_wrapper
from itertools import chain, repeat
from types import FunctionType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, overload

import numpy as np

from autobatch._native import Cell as CellBase
from autobatch._native import seal_cells
from autobatch.arguments import refusal, show
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, leaves, parts_of
from autobatch.ir.builder import Builder, Traced
from autobatch.keywords import checked
from autobatch.ops.eager import EagerArray, freeze, plain_array
from autobatch.ops.eager_data import as_data
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import EAGER, cell_call
from autobatch.ops.taped import Concrete, cast, value_on
from autobatch.params.module import Module, shared_dtype
from autobatch.params.parameter import Parameter
from autobatch.tracebacks import note_call

CARRIED = ".carrier"
ARRAYS = (np.ndarray, np.floating, Concrete)
DATA_INSIDE: tuple[type, ...] = (Parameter,)
"""Classes that are values in a call inside a call, besides arrays."""
DERIVED = ("carrier", "signature", "names", "float_defaults")
"""Attributes that are computed on first use, so pickles leave them out."""


class Cell(CellBase):
    """A function or method marked with `@cell`.

    The core dispatches its calls. A call whose first argument is an object whose class has the cell is a method call.
    A call that this thread records goes to the native function of the cell if that is known; all others to `call`.

    Attributes:
        reads: library objects that its body reads, by description; guarded like reads of users' objects.
        is_single_op: whether it wraps a library function that a program calls outside cells.
        may_change: whether its body may change Python state that it reads; it does so once, not at each call.
        is_direct: whether the core may record its calls, once their native function is known.
        as_floats: names of arguments in which ints become floats.
    """

    reads: ClassVar[Mapping[str, Any]] = {}
    is_single_op: ClassVar[bool] = False
    may_change: ClassVar[bool] = True
    is_direct: ClassVar[bool] = True
    as_floats: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        seal_cells(cls)

    def __init__(
        self, function: Callable[..., Any], static: tuple[str, ...] = (), ragged: tuple[str, ...] = ()
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        if inspect.iscoroutinefunction(function):
            raise GraphError(
                f"cell {self.name!r} must not be an async function, because a cell cannot await; write it with "
                f"def, and await in the function that calls it."
            )
        self.static, self.ragged = static, ragged
        for what, names in (("static", static), ("ragged", ragged)):
            unknown = set(names) - set(self.signature.parameters)
            if unknown:
                raise GraphError(f"{what} of cell {self.name!r} must name arguments, got {sorted(unknown)[0]!r}.")

    def call(self, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, or the method of an owner, in the current stage."""
        current = STAGE.current
        if current is None:
            try:
                return self.run_eagerly(owner, args, kwargs)
            except Exception as error:
                names = self.names[owner is not None :]
                given = [*zip(names, args, strict=False), *kwargs.items()]
                note_call(error, self.name, ", ".join(f"{name}: {_shape_text(x)}" for name, x in given))
                raise
        if isinstance(current, Builder):
            return self.run_inside(current, owner, args, kwargs)
        return current.call_cell(self, owner, args, kwargs)

    def of(self, owner: object) -> Callable[..., Any]:
        """Return the function, or the method of an owner."""
        method: Callable[..., Any] = self.function if owner is None else self.function.__get__(owner)
        return method

    def run_eagerly(self, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function on read-only arrays of the owner's float type.

        Parameters are values too, and so are floats, the data of a call. In a call inside a call, floats are constants.
        """
        module = owner if isinstance(owner, Module) else None
        dtype = None if module is None else shared_dtype(module)
        if EAGER.depth:
            data, number = DATA_INSIDE, None
        else:
            given = self.names[: len(args) + (owner is not None)]
            # Defaults that hold floats are passed like arguments, so that they become data too.
            kwargs = {**{name: x for name, x in self.float_defaults.items() if name not in given}, **kwargs}
            data, number = (*DATA_INSIDE, float, np.integer, np.bool_), dtype or _float_type(leaves((args, kwargs)))
        own = partial(_read_only, dtype=dtype, number=number)
        args, kwargs = self._given(owner, args, kwargs, own, ARRAYS, data)
        with cell_call(None if module is None else module.training):
            return _on_arrays(self.of(owner)(*args, **kwargs), _result, (*ARRAYS, Parameter))

    def run_inside(self, builder: Builder, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function inside a cell that is being traced, on distinct copies of its arguments as in eager mode."""

        def own(x: Any) -> Any:
            return x.again() if isinstance(x, Traced) else builder.wrap(x)

        args, kwargs = self._given(owner, args, kwargs, own, (Traced,), DATA_INSIDE)
        return _on_arrays(self.of(owner)(*args, **kwargs), own, (Traced, Parameter))

    def _given(
        self,
        owner: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Callable[[Any], Any],
        kinds: tuple[type, ...],
        data: tuple[type, ...],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, with `own` applied to parts of these `kinds`, and to `data` unless static."""
        names = self.names[owner is not None :] if self.static else []

        def given(x: Any, name: str) -> Any:
            return _on_arrays(x, own, kinds if name in self.static else kinds + data)

        # Arguments beyond the last name are taken for those of `*args`.
        args = tuple(map(given, args, chain(names, repeat(names[-1] if names else ""))))
        return args, {name: given(x, name) for name, x in kwargs.items()}

    @property
    def path(self) -> str:
        """Return the path at which an owner would have the cell: names of attributes, joined by dots."""
        return self.function.__name__

    def is_static(self, name: str, x: Any) -> bool:
        """Return whether an argument of this name, or a value in it, is part of the type."""
        return name in self.static

    def __copy__(self) -> Self:
        """Return the cell itself, just as a copy of a function is the function."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the arguments by position, that of `*args` last; for a method, `self` first."""
        by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return [name for name, p in self.signature.parameters.items() if p.kind not in by_name]

    @cached_property
    def float_defaults(self) -> dict[str, Any]:
        """Return the defaults that hold floats, which are data of a call too."""
        defaults = {name: p.default for name, p in self.signature.parameters.items() if p.kind is not p.POSITIONAL_ONLY}
        return {name: x for name, x in defaults.items() if any(isinstance(part, float) for part in leaves(x))}

    @cached_property
    def carrier(self) -> Callable[..., Any]:
        """Copy the function under the name of an attribute of the cell, so that picklers treat it like any function."""
        found = FunctionType(
            self.function.__code__, self.function.__globals__, self.name, self.function.__defaults__,
            self.function.__closure__,
        )  # fmt: skip
        found.__kwdefaults__ = self.function.__kwdefaults__
        update_wrapper(found, self.function)
        vars(found).pop("__wrapped__")
        vars(found).update(vars(self.function))
        # Picklers look a function up by its qualified name, and find this one as an attribute of the cell.
        found.__qualname__ = vars(self)["__qualname__"] + CARRIED
        return found

    def __reduce__(self) -> Any:
        """Pickle like a function: by name, or with cloudpickle by value if it is defined in a script."""
        if not isinstance(self.function, FunctionType):
            return self.function.__qualname__
        kept = {name: x for name, x in vars(self).items() if name not in ("function", "__wrapped__", *DERIVED)}
        return _carried, (self.carrier,), (self.carrier, kept)

    def __setstate__(self, state: tuple[Callable[..., Any], dict[str, Any]]) -> None:
        """Restore a cell that was pickled by value; a cell that was found by its name is complete already.

        A function that refers to its own cell is not restored yet, so nothing is read from it here.
        """
        carrier, kept = state
        if vars(self).get("carrier") is not carrier:
            carrier.__qualname__ = kept["__qualname__"]
            vars(self).update(kept, function=carrier, __wrapped__=carrier)

    def __repr__(self) -> str:
        return f"<cell {self.name}{self.signature}>"


def _carried(carrier: Callable[..., Any]) -> Cell:
    """Return the cell that has this carrier, or a new one, whose state is set later."""
    found: Any = sys.modules.get(carrier.__module__)
    for name in carrier.__qualname__.split("."):
        owner, found = found, getattr(found, name, None)
    # The path ends in `.carrier`, so the object before it is the cell.
    return owner if found is carrier else Cell.__new__(Cell)


seal_cells(Cell)


P = ParamSpec("P")
R = TypeVar("R")


@overload
def cell(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def cell(
    *, static: tuple[str, ...] = (), ragged: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@checked()
def cell(function: Any = None, *, static: tuple[str, ...] = (), ragged: tuple[str, ...] = ()) -> Any:
    """Mark a function or method as a cell: a unit that is traced once, and batched over many calls.

    Calls of a cell are of one type, and can run together, if their static arguments, their structure and the shapes of
    their values are equal. The length of a list is part of the structure, unless the body treats all elements alike:
    it maps over them (`[f(h) for h in children]`, `ab.each`) and reduces the results (Python's `sum`, `ab.sum_n`,
    `ab.softmax_n`, `ab.attend`). Such a list may have any length; if the body maps over it, an empty list has a
    separate type. Its elements are values, ints, floats, arrays of ints, or tuples, dicts and dataclasses of these,
    all of the same form.

    Args:
        function: takes values (arrays), ints and floats (data of the node), and static arguments: bool, str, None,
            enums and modules; tuples, lists, dicts and dataclasses of these. It returns values in any such structure.
            Shapes are those of one node, without a batch axis. Inputs are read-only. Everything else that the body
            reads from Python (attributes, closures, globals) is compared at each call of the batched function, and the
            cell is retraced if something has changed. The body must not read random numbers or a clock.
        static: names of arguments whose value is part of the type although it is an int or a Parameter.
        ragged: names of arguments whose arrays have any number of rows, which is not part of the type.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def square(x):
    ...     return x * x
    >>> float(square(np.float32(3.0)))
    9.0
    """
    if function is not None and not callable(getattr(function, "__func__", function)):
        raise refusal("function of cell", "a function", function, GraphError)
    if isinstance(function, type):
        raise refusal("function of cell", "a function", function, GraphError, "for a class, mark its methods")
    return Cell(function, static, ragged) if function is not None else lambda f: Cell(f, static, ragged)


def _shape_text(x: Any) -> str:
    return str(tuple(x.shape)) if hasattr(x, "shape") else show(x)


def _float_type(args: Iterable[Any]) -> Any:
    """Return the widest float type among the argument arrays, at least float32; float64 if there are no arrays."""
    found = {x.dtype for x in args if isinstance(x, ARRAYS) and x.dtype.kind == "f"}
    return np.result_type(*found, np.float32) if found else np.float64


def _read_only(x: Any, dtype: Any, number: Any) -> Any:
    """Convert an array, parameter or number to a read-only array. Floats are cast to the model's dtype, or to float32
    if narrower; ints and bools compute as floats.

    The result is a new object each time, because two arguments of a batched call are two values, and derivatives tell
    variables apart by identity.

    Args:
        number: the dtype of Python's floats.
    """
    if isinstance(x, float) and not isinstance(x, np.floating):
        return freeze(np.asarray(x, number))
    x = value_on(STAGE.current, x) if isinstance(x, Parameter) else x
    if isinstance(x, Concrete):
        value = x.read()
        return cast(value, dtype or value.dtype)
    if type(x) is EagerArray and not x.flags.writeable and x.dtype == dtype:
        return x.view()
    array = plain_array(x)
    if array.dtype.kind != "f":
        return as_data(array)
    return freeze(array.astype(dtype or np.result_type(array, np.float32), copy=False))


def _result(x: Any) -> Any:
    """Return a result of a cell as a new object; a cell may return an argument, a parameter, or a value twice."""
    if isinstance(x, (Parameter, Concrete)):
        x = value_on(STAGE.current, x)
        return cast(x, x.dtype)
    value = x.copy() if isinstance(x, np.floating) else freeze(x)
    return value.view() if value is x else value


def _on_arrays(x: Any, function: Callable[[Any], Any], kinds: tuple[type, ...] = ARRAYS) -> Any:
    """Apply a function to the arrays in `x`, or to parts of other `kinds`; mutable containers are copied."""
    kind = type(x)
    if isinstance(x, kinds):
        return function(x)
    if kind is tuple or kind is list:
        return kind([_on_arrays(part, function, kinds) for part in x])
    if kind is dict:
        return {key: _on_arrays(part, function, kinds) for key, part in x.items()}
    if not is_structure(x):
        return x
    own = parts_of(x)
    parts = [_on_arrays(part, function, kinds) for part in own]
    return x if all(map(operator.is_, parts, own)) else Key.of_structure(x, ()).build(parts)
