"""Compile flat-array loops with Numba at their first call, and not before.

Numba takes longer to import than all of autobatch, so no module imports it at the top. A loop marked
`@compiled` is plain Python over arrays of ints; it is compiled, and cached on disk, when first called.
Loops may call each other: inside compiled code the other loop is inlined or called at machine speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A function over arrays of ints that compiles itself when first called; `python` is the plain one."""

    def __init__(self, python: Callable[P, R]) -> None:
        self.python = python
        self.__doc__ = python.__doc__
        self.__name__ = python.__name__
        self._dispatcher: Any = None

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks of an object it meets as a global: here, the compiled function it stands for."""
        import numba

        return numba.types.Dispatcher(self._compile())

    def _compile(self) -> Any:
        if self._dispatcher is None:
            import numba

            self._dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(self.python)
        return self._dispatcher

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._compile()(*args, **kwargs)
        return result


def compiled(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a loop over flat arrays to be compiled at its first call."""
    return Compiled(python)
