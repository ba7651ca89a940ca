"""Awaiting: the functions by which an async program reads its own values, and its eager execution, op by op.

    word = int(await ab.value(ab.argmax(logits)))       the number of a computed value
    left, right = await ab.gather(grow(a), grow(b))     concurrent branches

In a mini-batch, both send a request to the driver of the program (`autobatch.trace.driving`), which sends back the
answer. In eager mode, values are numbers already, so nothing waits and branches run one after the other. Draws of
random numbers are counted per branch, so that they do not depend on the order in which branches resume.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from types import CoroutineType
from typing import Any, NoReturn

import numpy as np

from autobatch._native import Request
from autobatch.arguments import refusal as wrong_argument
from autobatch.errors import GraphError
from autobatch.ir.arguments import is_structure, map_leaves, parts_of
from autobatch.ops.eager import freeze
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import EAGER
from autobatch.ops.taped import Concrete, EagerTape
from autobatch.params.parameter import Parameter
from autobatch.trace.handles import Value


class MustAwait:
    """A request of a program, to be awaited; any other use raises a GraphError, because an `await` was forgotten."""

    __slots__ = ()

    def _forgotten(self, *_: Any) -> Any:
        close([self])
        raise GraphError(
            "results of ab.value(...) and ab.gather(...) must be awaited, got one that was not; write await before it."
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _forgotten
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _forgotten
    __hash__ = object.__hash__


class Asked(MustAwait, Request):
    """A request for the numbers of values, which are the result of awaiting it.

    Attributes:
        values: a value, or a structure that may hold values.
    """

    __slots__ = ()

    def __iter__(self) -> Any:
        """Return the iterator that awaits the request, for `yield from request.__await__()`."""
        return self if self.is_awaited else self._forgotten()

    def throw(self, error: BaseException, *_: Any) -> NoReturn:
        """Raise an error in place of the answer."""
        raise error

    def close(self) -> None:
        """End the wait."""

    def _await_slowly(self) -> Generator[Any, Any, Any]:
        """Await anything but a value of the current recording or a tuple of such values, which the core awaits."""
        values = self.values
        if self.is_awaited:
            raise GraphError("a call of ab.value must be awaited only once, got a second await; call ab.value again.")
        self.is_awaited = True
        if isinstance(values, Value):
            values.require_recording()
        elif holds_value(values):
            self.values = map_leaves(_number, values)
        else:
            return map_leaves(_number, values)
        return (yield self)


class Gathered(MustAwait):
    """A request to run branches concurrently; the result of awaiting it is the list of their results.

    Attributes:
        branches: coroutines and other awaitables.
    """

    __slots__ = ("branches",)

    def __init__(self, branches: tuple[Awaitable[Any], ...]) -> None:
        self.branches = branches

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.branches:
            return []
        if STAGE.current is not None and not isinstance(STAGE.current, EagerTape):
            return (yield self)
        source, results = EAGER.source, list[Any]()
        before = source.draws
        try:
            # The target `source.draws` is the counter itself: each branch draws from a fork of its own, so its numbers
            # are those of a mini-batch, where branches resume in another order.
            for branch, source.draws in zip(self.branches, before.fork(len(self.branches)), strict=True):
                results.append((yield from branch.__await__()))
        finally:
            source.draws = before
            close(self.branches[len(results) :])
        return results


def value(values: Any) -> Awaitable[Any]:
    """Wait for the numbers of a computed value: `await ab.value(x)`.

    In a mini-batch, this instance waits and the others continue; when all wait, one round computes the requested
    values. The numbers are constants for gradients. Data, parameters and eager results are returned immediately.

    Args:
        values: a value; or a tuple, list, dict or dataclass of values, whose numbers come back in the same structure.

    Shapes: any x; the result has the same shape: an array, or a NumPy number for shape (). Ints that a cell computed
        are ints.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> @ab.cell
    ... def halve(x):
    ...     return 0.5 * x
    >>> async def count_halvings(x):
    ...     n = 0
    ...     while await ab.value(ab.max(x)) > 1.0:
    ...         x, n = halve(x), n + 1
    ...     return n
    >>> ab.eager(count_halvings, np.array([5.0, 3.0]))
    3
    """
    return Asked(values)


def gather(*branches: Awaitable[Any]) -> Awaitable[list[Any]]:
    """Run branches of a program concurrently: `left, right = await ab.gather(grow(a), grow(b))`.

    The values that all branches wait for are computed in the same round, so together they cost as many rounds as the
    longest branch. If a branch raises, the others are ended, and the error is raised where the branches were gathered.

    Args:
        branches: calls of async functions, or other awaitables.

    Returns:
        The results, in the order of the branches.

    Raises:
        GraphError: a branch cannot be awaited, or was awaited before.
    """
    for k, branch in enumerate(branches):
        is_begun = isinstance(branch, CoroutineType) and getcoroutinestate(branch) != CORO_CREATED
        if is_begun or any(branch is other for other in branches[:k]):  # values have an == of their own
            close(branches)
            raise GraphError(
                f"branches of ab.gather must not be awaited elsewhere, got {branch!r}; call the function again."
            )
        if not isinstance(branch, Awaitable):
            close(branches)
            raise GraphError(
                f"branches of ab.gather must be awaitable, got {branch!r}; pass calls of async functions, each as a "
                f"separate argument."
            )
    return Gathered(branches)


def eager(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an async program of one instance eagerly, op by op, and return its result.

    This needs no event loop, and also works inside one, where `await function(...)` does the same.

    Args:
        function: an async function; the result of any other function is returned unchanged.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        GraphError: the program awaits something other than `ab.value` and `ab.gather`; or this is called inside a
            recorded function, where values have no numbers yet.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> async def larger(x):
    ...     return x if await ab.value(ab.sum(x)) > 1.0 else 2.0 * x
    >>> ab.eager(larger, np.array([0.5, 0.25]))
    array([1. , 0.5])
    """
    if not callable(function):
        raise wrong_argument("function of eager", "a function", function, GraphError)
    program = function(*args, **kwargs)
    if not isinstance(program, Awaitable):
        return program
    steps = program.__await__()
    try:
        request = next(steps)
    except StopIteration as end:
        return end.value
    # Eager requests answer themselves, so this one is for the driver of a recording, or for an event loop.
    steps.close()
    if isinstance(request, (Asked, Gathered)):
        raise GraphError("ab.eager must not be called inside a recorded function; await the program there instead.")
    raise refusal(request)


def holds_value(x: Any) -> bool:
    """Return whether `x` is or holds a value of the current recording; GraphError for one of another recording."""
    if isinstance(x, Value):
        x.require_recording()
        return True
    # `any` would stop at the first value, and miss values of other recordings after it.
    return is_structure(x) and sum(map(holds_value, parts_of(x))) > 0


def _number(x: Any) -> Any:
    """Return the numbers of awaited data, which are constants for gradients."""
    if isinstance(x, Parameter):
        return freeze(np.array(x.store.get(x.array)))
    return x.data[()] if isinstance(x, Concrete) else x


def close(programs: Iterable[Any]) -> None:
    """Close coroutines that will not be awaited any more; their `finally` blocks run."""
    for program in programs:
        if iscoroutine(program):
            program.close()
        elif isinstance(program, Gathered):
            close(program.branches)


def refusal(request: Any) -> GraphError:
    """Make the error for a request that belongs to an event loop, or for what a text describes."""
    return GraphError(
        f"an async program must await only ab.value, ab.gather and async functions made of them, got "
        f"{request if isinstance(request, str) else repr(request)}, which needs an event loop."
    )
