"""Derivatives inside programs: gradients, vector-Jacobian, Jacobian-vector and Hessian-vector products of functions.

    energy, (gradient,) = ab.value_and_grad(self.energy, wrt=lambda m: m.positions)(molecule)

A function is differentiated when it is called (see `autobatch.trace.differentiation`). The variables, with respect to
which it is differentiated, are among its arguments. All other values that it reads are constants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from autobatch.errors import GraphError, ShapeError
from autobatch.ir.arguments import is_structure, leaves, map_leaves, parts_of
from autobatch.ir.builder import Traced
from autobatch.ir.program import Attribute, dtype_of
from autobatch.keywords import checked
from autobatch.ops.define import shape_of
from autobatch.ops.operators import Operators
from autobatch.ops.taped import Concrete
from autobatch.params.parameter import Parameter
from autobatch.trace.differentiation import Differentiation, differentiation
from autobatch.trace.elements import Element, NeedsLength, TracedList
from autobatch.trace.handles import Value
from autobatch.trace.inputs import Held, is_float_array
from autobatch.trace.ragged import Ragged

Wrt: TypeAlias = Callable[..., Any] | None


class Variables:
    """The variables of a derivative: the values with respect to which a function is differentiated.

    Args:
        by: the differentiation, which makes the stand-ins.
        wrt: selects the variables among the arguments of the function; None selects the first argument.
        args, kwargs: the arguments.

    Attributes:
        args, kwargs: the arguments, with a stand-in for each variable.
        values: the variables, in order.

    Raises:
        GraphError: there are no variables, or the arguments do not hold one of them.
    """

    def __init__(self, by: Differentiation, wrt: Wrt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if wrt is None and not args:
            raise GraphError(
                "a function to differentiate must have arguments or wrt, got neither; pass wrt, such as lambda: weight."
            )
        # Variables are told apart by identity, but an equal constant may be the same float object.
        if wrt is None and type(args[0]) is float:
            args = (np.asarray(args[0]), *args[1:])
        chosen = args[0] if wrt is None else wrt(*args, **kwargs)
        is_whole = wrt is None or type(chosen) is tuple
        self._chosen = Held(chosen if is_whole else (chosen,), _is_variable)
        self.values = self._chosen.arrays
        if not self.values and not _is_empty(chosen):
            raise GraphError(
                f"{_what(wrt)} must contain a float array, computed value or parameter to differentiate with respect "
                f"to, got {chosen!r}; ints and plain numbers have no gradient, but np.asarray(number, float) has one."
            )
        wanted = {id(x) for x in self.values}
        held = Held((args, kwargs), lambda x: id(x) in wanted)
        # The function may read a parameter from anywhere, but gets stand-ins of other variables only as arguments.
        missing = [x for x in self.values if not isinstance(x, Parameter) and all(x is not y for y in held.arrays)]
        if missing and isinstance(missing[0], Element):
            raise NeedsLength(missing[0].var.domain, "differentiates with respect to an element of it")
        if missing:
            raise GraphError(
                f"variables of {_what(wrt)} must be among the arguments of the function, got {missing[0]!r}; pass it "
                f"as an argument, and name the array itself, not a part of it or a value computed from it."
            )
        made = {id(x): by.stand_in(x) for x in self.values}
        self.args, self.kwargs = held.rebuild([made[id(x)] for x in held.arrays], lambda part: part)

    def like(self, derivatives: list[Any]) -> Any:
        """Arrange derivatives, one per variable, in the structure of the variables; other parts become None."""
        return self._chosen.rebuild(derivatives, lambda part: part if _is_empty(part) else None)

    def read(self, given: Any, what: str) -> list[Any]:
        """List derivatives given in the structure of the variables; ShapeError if shapes or numbers differ."""
        found = _leaves(given)
        for x in (*self.values, *found):
            if isinstance(x, TracedList):
                raise NeedsLength(x.group, "differentiates along it")
        own = [*map(_shape, self.values)]
        if [*map(_shape, found)] != own:
            raise ShapeError(
                f"{what} must have the shapes of the values, {own}{_of_any_number(own)}, got "
                f"{[*map(_shape, found)]}; give one for each value. An array that occurs several times in the "
                f"arguments is one value."
            )
        return found


def _of_any_number(shapes: Iterable[Any]) -> str:
    """Return the explanation to add to shapes if one of them has any number of rows."""
    return ", where n differs between nodes" if any("n" in shape for shape in shapes) else ""


def _is_variable(x: Any) -> bool:
    if isinstance(x, Value):
        return not x.key.below and x.key.dtype != "bool"
    if isinstance(x, Traced):
        source = x.var.source
        return source.is_float if isinstance(source, Attribute) else dtype_of(x.builder.vars, x.index) != "bool"
    return isinstance(x, (TracedList, Concrete, Parameter, np.floating)) or is_float_array(x)


def _is_empty(x: Any) -> bool:
    """Return whether `x` is a structure without values, such as an empty list."""
    return is_structure(x) and all(map(_is_empty, parts_of(x)))


def _what(wrt: Wrt) -> str:
    return "the first argument" if wrt is None else "wrt"


def _leaves(x: Any) -> list[Any]:
    """List the values in a result of a function, or in derivatives of one."""
    return [*filter(_is_value, leaves(x))]


def _is_value(x: Any) -> bool:
    kinds = (Operators, TracedList, np.ndarray, np.number, int, float)
    return isinstance(x, kinds) and not isinstance(x, bool)


def _as_array(x: Any) -> Any:
    """Convert a Python number to a new array, since equal numbers may be one object."""
    return np.asarray(float(x)) if type(x) in (int, float) else x


def _shape(x: Any) -> Any:
    """Return the shape of a value, with "n" for any number of rows."""
    return ("n", *x.var.shape) if isinstance(x, Ragged) else shape_of(x)


def _replace(x: Any, values: Iterator[Any]) -> Any:
    """Return the structure `x` with other values."""
    return map_leaves(lambda part: next(values) if _is_value(part) else part, x)


class Differentiated:
    """One call of a function that is differentiated.

    Args:
        wrt: selects the variables, see `Variables`.
        args, kwargs: the arguments of the function.
        has_aux: whether the function returns a pair whose second part is not differentiated.

    Attributes:
        value: the result, or its first part with `has_aux`.
        aux: the second part.
    """

    def __init__(self, wrt: Wrt, args: tuple[Any, ...], kwargs: dict[str, Any], has_aux: bool) -> None:
        self._by, self._has_aux = differentiation(), has_aux
        self.variables = Variables(self._by, wrt, args, kwargs)
        self.value: Any = None
        self.aux: Any = None
        self._results: list[Any] = []
        self._shapes: list[Any] = []

    def run(self, function: Callable[..., Any], finish: Callable[[Differentiated], Any]) -> Any:
        """Call the function, then return `finish(self)`; for an async function, return an awaitable of it."""
        with self._by.running():
            result = function(*self.variables.args, **self.variables.kwargs)
            if not isinstance(result, Awaitable):
                self._take(result)
        return self._wait(result, finish) if isinstance(result, Awaitable) else finish(self)

    async def _wait(self, result: Awaitable[Any], finish: Callable[[Differentiated], Any]) -> Any:
        with self._by.running():
            self._take(await result)
        return finish(self)

    def _take(self, result: Any) -> None:
        """Store the result of the function."""
        aux = None
        if self._has_aux:
            if type(result) is not tuple or len(result) != 2:
                raise GraphError(f"with has_aux=True, the function must return (value, aux), got {result!r}.")
            result, aux = result
        returned, others = ([*map(_as_array, _leaves(part))] for part in (result, aux))
        # One `result` per object, also if the function returns it twice: each call may record a new value.
        made = {id(x): self._by.result(x) for x in (*returned, *others)}
        self._results = [made[id(x)] for x in returned]
        self._shapes = [*map(_shape, self._results)]
        self.value = _replace(result, map(self._by.given, self._results))
        self.aux = _replace(aux, (self._by.given(made[id(x)]) for x in others))

    def gradients(self, given: Any) -> Any:
        """Return the gradients of the variables, from those of the result."""
        found = _leaves(given)
        if [*map(_shape, found)] != self._shapes:
            raise ShapeError(
                f"gradients must have the shapes of the results, {self._shapes}{_of_any_number(self._shapes)}, got "
                f"{[*map(_shape, found)]}."
            )
        return self.variables.like(self._by.pull(self._results, found))

    def gradient(self) -> Any:
        """Return the gradients of the variables; GraphError unless the result is a scalar."""
        if self._shapes != [()] or is_structure(self.value):
            what = {0: f"{self.value!r}", 1: f"a value of shape {self._shapes[0] if self._shapes else ()}"}.get(
                len(self._shapes), f"{len(self._shapes)} values, of shapes {self._shapes}"
            )
            advice = "return their sum; where it returns (scalar, aux), pass has_aux=True"
            raise GraphError(f"a function with a gradient must return a scalar, got {what}; {advice}.")
        return self.gradients(np.ones((), getattr(self.value, "dtype", None)))

    def tangents(self, given: Any) -> Any:
        """Return the tangents of the result, from those of the variables."""
        found = self._by.push(self._results, self.variables.read(given, "tangents"))
        return _replace(self.value, iter(found))


@checked()
def value_and_grad(function: Callable[..., Any], wrt: Wrt = None, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that returns the value of `function` and its gradient.

    Call it inside a program, for one instance: in a batched function, inside a cell, or in eager mode. The recorded
    graph then holds the calls that `function` makes and the calls of their gradients, which run in batches like all
    others. The new function may be differentiated again, inside the program or by `Batched.value_and_grad`.

    Args:
        function: calls cells and ops, and returns a scalar; values that it reads besides its arguments are constants.
        wrt: a function of the same arguments that returns the variables: float arrays that the arguments hold, values,
            parameters, or a tuple or other structure of these. None selects all float arrays and values in the first
            argument.
        has_aux: whether `function` returns (scalar, aux); the value is then that pair.

    Returns:
        A function that returns (value, gradients). With `wrt`, the gradients are a tuple with one gradient for each
        variable or structure of variables; without, they have the structure of the first argument. Parts without a
        gradient are None. The gradient of an array that is read row by row has as many rows, which are values.

    If `function` is async, so is the new function; awaited numbers are constants to its derivative.

    Raises:
        GraphError: on a call of the new function, if `function` did not return a scalar, or `wrt` returns no variable,
            or one that the arguments do not hold.

    Shapes: each gradient has the shape of its variable.

    >>> import autobatch as ab
    >>> def energy(x):
    ...     return ab.sum(x * x)
    >>> value, gradient = ab.value_and_grad(energy)(np.array([1.0, 2.0]))
    >>> float(value), gradient
    (5.0, array([2., 4.]))
    """

    return _derived(function, wrt, has_aux, with_value=True)


@checked()
def grad(function: Callable[..., Any], wrt: Wrt = None, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that returns the gradient of `function`: `value_and_grad` without the value.

    Args:
        function, wrt: as for `value_and_grad`.
        has_aux: whether `function` returns (scalar, aux); the new function then returns (gradients, aux).

    Raises:
        GraphError: as `value_and_grad`.

    Shapes: each gradient has the shape of its variable.

    >>> import autobatch as ab
    >>> third = ab.grad(ab.grad(ab.grad(lambda x: x**4)))
    >>> float(third(1.0))
    24.0
    """

    return _derived(function, wrt, has_aux, with_value=False)


@checked()
def vjp(function: Callable[..., Any], *primals: Any, wrt: Wrt = None) -> tuple[Any, Callable[[Any], Any]]:
    """Call a function; return its value, and a function that computes vector-Jacobian products.

    Args:
        function: returns values in any structure.
        primals: its arguments.
        wrt: as for `value_and_grad`; None selects all arguments.

    Returns:
        The value, and a function that takes gradients in the structure of the value and returns a tuple: the gradients
        of the arguments, or of the variables that `wrt` returns. Call it in the same program.

    Raises:
        GraphError: as `value_and_grad`.
        ShapeError: the gradients do not fit the value.

    Shapes: each gradient has the shape of its variable.

    >>> import autobatch as ab
    >>> value, pull = ab.vjp(lambda x, y: x * y, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    >>> pull(np.array([1.0, 10.0]))
    (array([ 3., 40.]), array([ 1., 20.]))
    """
    ran = Differentiated(_all if wrt is None else wrt, primals, {}, False)
    found: tuple[Any, Callable[[Any], Any]] = ran.run(function, lambda ran: (ran.value, ran.gradients))
    return found


@checked()
def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], wrt: Wrt = None) -> Any:
    """Call a function; return its value and its Jacobian-vector product, the derivative along a direction.

    Args:
        function: returns values in any structure.
        primals: its arguments.
        tangents: the direction: a tangent for each argument, or for each variable that `wrt` returns.
        wrt: as for `value_and_grad`; None selects all arguments.

    Returns:
        (value, tangents), both in the structure of the value.

    Raises:
        GraphError: as `value_and_grad`.
        ShapeError: the tangents do not fit.

    Shapes: each tangent has the shape of its part of the value.

    >>> import autobatch as ab
    >>> ab.jvp(lambda x: x * x, (np.array([1.0, 2.0]),), (np.array([1.0, 0.0]),))
    (array([1., 4.]), array([2., 0.]))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise GraphError(
            f"primals and tangents must be tuples, got {type(primals).__name__} and {type(tangents).__name__}; give "
            f"the arguments of the function, and a tangent for each."
        )
    ran = Differentiated(_all if wrt is None else wrt, tuple(primals), {}, False)
    return ran.run(function, lambda ran: (ran.value, ran.tangents(tuple(tangents))))


@checked()
def hvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], wrt: Wrt = None) -> Any:
    """Return the gradient of a scalar function, and the product of its Hessian and a vector: `jvp` of `grad`.

    Args:
        function: returns a scalar.
        primals: its arguments.
        tangents: the vector: a tangent for each argument, or for each variable that `wrt` returns.
        wrt: as for `value_and_grad`; None selects all arguments.

    Returns:
        (gradients, products), two tuples.

    Raises:
        GraphError: as `value_and_grad`.
        ShapeError: the tangents do not fit.

    Shapes: each product has the shape of its variable.

    >>> import autobatch as ab
    >>> ab.hvp(lambda x: ab.sum(x**3), (np.array([1.0, 2.0]),), (np.array([1.0, 1.0]),))
    ((array([ 3., 12.]),), (array([ 6., 12.]),))
    """
    by = _all if wrt is None else wrt
    return jvp(grad(function, by), primals, tangents, by)


def _derived(function: Callable[..., Any], wrt: Wrt, has_aux: bool, with_value: bool) -> Callable[..., Any]:
    """Make the function that returns the gradient of `function`, and its value if asked for."""

    @wraps(function)
    def derived(*args: Any, **kwargs: Any) -> Any:
        def finish(ran: Differentiated) -> Any:
            gradients = ran.gradient()
            if with_value:
                return ((ran.value, ran.aux) if has_aux else ran.value), gradients
            return (gradients, ran.aux) if has_aux else gradients

        return Differentiated(wrt, args, kwargs, has_aux).run(function, finish)

    return derived


def _all(*args: Any) -> tuple[Any, ...]:
    return args
