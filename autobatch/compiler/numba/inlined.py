"""Functions that generated kernels inline, compiled by Numba.

Numba takes longer to import than all of autobatch, so no module imports it at the top. A function marked `@in_kernels`,
`@contracted` or `@reordered` is plain Python over numbers and arrays; kernels find it compiled on disk. `@replaced_by`
marks a function that kernels get from Numba's extension API, because Python cannot express it.

The name under which a function is cached ends in a digest of all code and constants that it reaches, also in other
files.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable
from functools import cache, cached_property
from hashlib import sha256
from inspect import getsource
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from numpy import generic

from autobatch.jit.internals import keep, make_options
from autobatch.jit.progress import tell_of_compilation

P = ParamSpec("P")
R = TypeVar("R")

VALUES_ALONE = 2
"""The last format of marshal whose bytes depend on the values alone: later ones depend on reference counts too."""


class Inlined(Generic[P, R]):
    """A function that kernels inline; Python calls `python`.

    `fastmath` are the fast-math flags that apply to its own arithmetic, wherever it is inlined.
    """

    def __init__(self, python: Callable[P, R], fastmath: frozenset[str] = frozenset()) -> None:
        assert python.__defaults__ is None, "Numba gives Python other values for arguments that are left out"
        self.python, self.fastmath = python, fastmath
        self.__doc__, self.__name__ = python.__doc__, python.__name__

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives to this object when it is a global of a kernel: that of the compiled function."""
        import numba

        return numba.types.Dispatcher(self.compiled)

    @cached_property
    def compiled(self) -> Any:
        """Numba's function."""
        import numba

        tell_of_compilation()
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": True}
        compiler = numba.njit(**make_options(), **options, fastmath=set(self.fastmath))
        return keep(compiler(self._named()))

    def _named(self) -> FunctionType:
        """The plain function for Numba: with the name under which it is cached, and with functions that are built."""
        names, code = self.python.__globals__, self.python.__code__
        built = {name: names[name].compiled for name in code.co_names if isinstance(names.get(name), Built)}
        named = FunctionType(code, {**names, **built}, self.python.__name__)
        named.__module__ = self.python.__module__
        named.__qualname__ = f"{self.python.__qualname__}_{self.digest()}"
        return named

    def digest(self) -> str:
        """Identifies the version of this function, of those that it calls, and of the constants that they read."""
        code = self.python.__code__
        parts = [marshal.dumps(code, VALUES_ALONE), *sorted(flag.encode() for flag in self.fastmath)]
        for name in code.co_names:
            value = self.python.__globals__.get(name)
            if isinstance(value, Inlined) and value is not self:
                parts.append(value.digest().encode())
            elif isinstance(value, (int, float, generic, tuple, type)):
                parts.append(repr((name, value)).encode())
        return sha256(b"".join(parts)).hexdigest()[:12]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.python(*args, **kwargs)


def in_kernels(python: Callable[P, R]) -> Inlined[P, R]:
    """Mark a function that kernels inline."""
    return Inlined(python)


def contracted(python: Callable[P, R]) -> Inlined[P, R]:
    """Mark float arithmetic: as `in_kernels`, and a product and a sum may become one instruction, rounded once."""
    return Inlined(python, frozenset({"contract"}))


def reordered(python: Callable[P, R]) -> Inlined[P, R]:
    """Mark a term of a long sum: as `contracted`, and LLVM may reorder the sum, to add several elements at once."""
    return Inlined(python, frozenset({"contract", "reassoc", "nsz"}))


class Built(Inlined[P, R]):
    """A function that `build` makes for kernels; Python calls `python`."""

    def __init__(self, python: Callable[P, R], build: Callable[[], Any]) -> None:
        super().__init__(python)
        self.build = build

    @cached_property
    def compiled(self) -> Any:
        """What `build` makes."""
        return self.build()

    def digest(self) -> str:
        """Identifies the version of the module that builds it, because it is not known which parts of it are used."""
        return _digest_module(self.build.__module__)


def replaced_by(build: Callable[[], Any]) -> Callable[[Callable[P, R]], Built[P, R]]:
    """Mark a function that kernels replace by the one that `build` makes when it is first needed."""
    return lambda python: Built(python, build)


@cache
def _digest_module(name: str) -> str:
    return sha256(getsource(sys.modules[name]).encode()).hexdigest()[:12]
