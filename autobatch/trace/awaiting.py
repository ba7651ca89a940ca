"""Awaiting: what an async program writes to look at its own values, and how it runs on its own, op by op.

    word = int(await ab.value(ab.argmax(logits)))       the number of a computed value
    left, right = await ab.gather(grow(a), grow(b))     branches that wait side by side

In a mini-batch both hand a request to the driver of the program (`autobatch.trace.driving`), which sends the answer
back. In eager mode values are numbers already, so nothing waits: branches run one after the other. Draws of random
numbers are counted per branch, so that they do not depend on which branch goes on first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from types import CoroutineType
from typing import Any

import numpy as np

from autobatch.arguments import refusal as wrong_argument
from autobatch.errors import GraphError
from autobatch.ir.arguments import is_structure, map_leaves, parts_of
from autobatch.ops.concrete import Concrete
from autobatch.ops.eager import freeze
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import EAGER
from autobatch.ops.taped import EagerTape
from autobatch.params.parameter import Parameter
from autobatch.trace.handles import Value

GONE: Any = object()  # the values of a request that was answered


class Request:
    """What a program awaits; used in any other way it is an error, because an `await` was forgotten."""

    __slots__ = ()

    def _forgotten(self, *_: Any) -> Any:
        close([self])
        raise GraphError(
            "a program uses ab.value(...) or ab.gather(...) as if it were what it waits for; write await before it."
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _forgotten
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _forgotten
    __hash__ = object.__hash__


class Asked(Request):
    """A request for the numbers of values; awaiting it gives them.

    Attributes:
        values: a value, or a structure of values and anything else.
    """

    __slots__ = ("values",)

    def __init__(self, values: Any) -> None:
        self.values = values

    def __await__(self) -> Generator[Any, Any, Any]:
        values = self.values
        if isinstance(values, Value):
            values.require_recording()
        elif values is GONE:
            raise GraphError("one call of ab.value was awaited twice; call it again to await the number again.")
        elif holds_value(values):
            self.values = map_leaves(_number, values)
        else:
            return map_leaves(_number, self.take())
        return (yield self)

    def take(self) -> Any:
        """Give the values away, so that nothing keeps them in use; a request is answered once."""
        values, self.values = self.values, GONE
        return values


class Gathered(Request):
    """A request to run branches side by side; awaiting it gives the list of their results.

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
            for branch, source.draws in zip(self.branches, before.fork(len(self.branches)), strict=True):
                results.append((yield from branch.__await__()))
        finally:
            source.draws = before
            close(self.branches[len(results) :])
        return results


def value(values: Any) -> Awaitable[Any]:
    """Wait for the numbers of a computed value: `await ab.value(x)`.

    In a mini-batch this instance waits and the others go on; when all wait, one round computes what they ask for. The
    gradient takes the numbers as constants. Data, parameters, and what is computed in eager mode, come back at once.

    Args:
        values: a value; or a tuple, list, dict or dataclass of values, whose numbers come back in the same structure.

    Shapes: x any, the result alike: an array, or a number of NumPy for shape (). Ints that a cell computed are ints.

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
    """Run branches of a program side by side: `left, right = await ab.gather(grow(a), grow(b))`.

    What all branches wait for is computed in the same round, so that together they cost as many rounds as the longest.
    If a branch raises, the others are ended, and the error is raised where the branches were gathered.

    Args:
        branches: calls of async functions, or anything else that is awaited.

    Returns:
        The results, in the order of the branches.

    Raises:
        GraphError: a branch cannot be awaited, or was awaited before.
    """
    for k, branch in enumerate(branches):
        is_begun = isinstance(branch, CoroutineType) and getcoroutinestate(branch) != CORO_CREATED
        if is_begun or any(branch is other for other in branches[:k]):  # values have an == of their own
            close(branches)
            raise GraphError(f"ab.gather was given {branch!r}, which is awaited elsewhere; call the function again.")
        if not isinstance(branch, Awaitable):
            close(branches)
            raise GraphError(
                f"ab.gather was given {branch!r}, which cannot be awaited; give calls of async functions, each as an "
                f"argument of its own."
            )
    return Gathered(branches)


def eager(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an async program of one instance eagerly, op by op, and give its result.

    It needs no event loop, and runs inside one as well. `await function(...)` does the same there.

    Args:
        function: an async one; of another one the result is given.
        args: what it is called with.
        kwargs: what it is called with by keyword.

    Raises:
        GraphError: the program awaits something that is not of autobatch; or a function is recorded, where values have
            no numbers yet.

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
    steps.close()
    if isinstance(request, (Asked, Gathered)):
        raise GraphError("ab.eager was called inside a function that is recorded; await the program there instead.")
    raise refusal(request)


def holds_value(x: Any) -> bool:
    """Whether `x` is a value of the present recording, or a structure that holds one; GraphError for one of another."""
    if isinstance(x, Value):
        x.require_recording()
        return True
    return is_structure(x) and sum(map(holds_value, parts_of(x))) > 0


def _number(x: Any) -> Any:
    """Return the numbers of awaited data, constants also where gradients are asked for."""
    if isinstance(x, Parameter):
        return freeze(np.array(x.store.get(x.array)))
    return x.data[()] if isinstance(x, Concrete) else x


def close(programs: Iterable[Any]) -> None:
    """End coroutines that are not awaited any more; their `finally` blocks run."""
    for program in programs:
        if iscoroutine(program):
            program.close()
        elif isinstance(program, Gathered):
            close(program.branches)


def refusal(request: Any) -> GraphError:
    """The error for a request that is not of autobatch."""
    return GraphError(
        f"an async program awaited {request!r}, which only an event loop can answer; programs await ab.value, "
        f"ab.gather and async functions made of them."
    )
