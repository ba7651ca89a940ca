"""Compile flat-array loops with Numba at their first call, and not before.

Numba takes longer to import than all of autobatch, so no module imports it at the top. A loop marked
`@compiled` is plain Python over arrays of ints; it is compiled, and cached on disk, when first called; one marked
`@by_address` when compiled code wants to call it by its address. What Python cannot express at all is `@built`.
Loops may call each other: inside compiled code the other loop is inlined. Arrays that travel in a NamedTuple are taken
out of it before a loop: to read a field counts references, which costs more than what a loop does with an element
(naming the type of highest score took 375 ns that way, and 7 ns with the arrays taken out).

Numba recognises a cached loop by its name and its own file, and would go on using one whose callee in another file
has changed. So the name under which a loop is cached ends in a digest of all code and constants that it reaches.
"""

from __future__ import annotations

import marshal
import sys
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from hashlib import sha256
from inspect import getsource
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from numpy import generic

from autobatch.jit.compilers import make_compilers
from autobatch.jit.compiling import compiling
from autobatch.jit.kept import compile_callback, keep

P = ParamSpec("P")
R = TypeVar("R")

WITHOUT_WRAPPERS = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True}
"""For Numba: compile no code that takes arguments from C or from Python."""
VALUES_ALONE = 2
"""The last format of marshal whose bytes are those of the values alone: later ones tell how often a value is held."""


class Compiled(Generic[P, R]):
    """A function over arrays of ints that compiles itself when first called; `python` is the plain one.

    `liberties` are those of LLVM's fast-math flags that its own arithmetic allows, wherever it is inlined. If it
    `is_kept`, what is inlined is on disk too.
    """

    def __init__(
        self, python: Callable[P, R], liberties: frozenset[str] = frozenset(), is_kept: bool = False
    ) -> None:  # fmt: skip
        self.python = python
        self.liberties = liberties
        self.is_kept = is_kept
        self.__doc__ = python.__doc__
        self.__name__ = python.__name__
        self._dispatcher: Any = None
        self._inlined: Any = None

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba asks of an object that it meets as a global: that of the compiled function."""
        import numba

        compilers = make_compilers()
        type_of = numba.types.Dispatcher if self.is_kept or compilers is None else compilers.loop
        return type_of(self._for_loops())

    def _for_python(self) -> Any:
        if self._dispatcher is None:
            compilers = make_compilers()
            own = {} if compilers is None else {**WITHOUT_WRAPPERS, "pipeline_class": compilers.called}
            self._dispatcher = keep(self._compile("", **own))
        return self._dispatcher

    def _for_loops(self) -> Any:
        """Compile for inlining, without the wrapper for calls from Python, which would take a quarter of the time."""
        if self._inlined is None:
            compilers = make_compilers()
            if self.is_kept or compilers is None:
                self._inlined = keep(self._compile("inlined_", **WITHOUT_WRAPPERS))
            else:
                self._inlined = self._compile("inlined_", **WITHOUT_WRAPPERS, pipeline_class=compilers.inlined)
        return self._inlined

    def _compile(self, prefix: str, **options: Any) -> Any:
        import numba

        options |= {"nogil": True, "error_model": "numpy", "forceinline": True}
        if self.liberties:
            options["fastmath"] = set(self.liberties)
        return numba.njit(**options)(self._named(prefix))

    def _named(self, prefix: str = "") -> FunctionType:
        """The plain function, under the name that it is cached by."""
        named = FunctionType(self.python.__code__, self.python.__globals__, self.python.__name__)
        named.__module__ = self.python.__module__
        named.__qualname__ = f"{self.python.__qualname__}_{prefix}{self.digest()}"
        return named

    def digest(self) -> str:
        """Tells this loop, the loops it calls and the constants they read from other versions of them."""
        code = self.python.__code__
        parts = [marshal.dumps(code, VALUES_ALONE), *sorted(liberty.encode() for liberty in self.liberties)]
        for name in code.co_names:
            value = self.python.__globals__.get(name)
            if isinstance(value, Compiled) and value is not self:
                parts.append(value.digest().encode())
            elif isinstance(value, (int, float, generic, tuple)) or hasattr(value, "_fields"):
                parts.append(repr((name, getattr(value, "_fields", value))).encode())
        return sha256(b"".join(parts)).hexdigest()[:12]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        loop = self._for_python()
        try:
            result: R = loop(*args, **kwargs)
        except OSError as error:  # of writing to the cache; by then the loop is compiled
            _warn(error)
            result = loop(*args, **kwargs)
        return result


def _warn(error: OSError) -> None:
    why = error.strerror or error
    warnings.warn(f"cannot keep compiled loops for other processes ({why}); going on without.", stacklevel=3)


def compiled(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a loop over flat arrays to be compiled at its first call."""
    return Compiled(python)


def in_kernels(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark what kernels of cells inline: as `compiled`, and kept for the cells that later processes compile."""
    return Compiled(python, is_kept=True)


def contracted(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark arithmetic on floats: as `in_kernels`, and a product and a sum may become one instruction, rounded once."""
    return Compiled(python, frozenset({"contract"}), is_kept=True)


def reordered(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a term of a long sum: as `contracted`, and the sum may be taken in any order, several elements at once."""
    return Compiled(python, frozenset({"contract", "reassoc", "nsz"}), is_kept=True)


class ByAddress(Compiled[P, R]):
    """A function of ints that compiled code calls by its address."""

    @cached_property
    def address(self) -> int:
        """Of the compiled function, in this process."""
        with compiling(f"loop {self.__name__!r}", is_kernel=False):  # its machine code lives as long as it does
            try:
                self._dispatcher = compile_callback(self._named(), is_kept=True, error_model="numpy")
            except OSError as error:
                _warn(error)
                self._dispatcher = compile_callback(self._named(), is_kept=False, error_model="numpy")
        address: int = self._dispatcher.address
        return address


def by_address(python: Callable[P, R]) -> ByAddress[P, R]:
    """Mark a function of ints to be compiled when its address is first asked for."""
    return ByAddress(python)


class Built(Compiled[P, R]):
    """A function for compiled code that Python cannot express: `python`, called without arguments, builds it."""

    def digest(self) -> str:
        """Tells versions of the module apart, because what a builder uses is not known more exactly."""
        return _digest_module(self.python.__module__)

    def _for_loops(self) -> Any:
        if self._inlined is None:
            build: Any = self.python
            self._inlined = build()
        return self._inlined


class Replaced(Compiled[P, R]):
    """A loop in plain Python, for which compiled code has another that `build` makes with Numba's own means."""

    def __init__(self, python: Callable[P, R], build: Callable[[], Any]) -> None:
        super().__init__(python)
        self.build = build

    def _for_loops(self) -> Any:
        if self._inlined is None:
            self._inlined = self.build()
        return self._inlined

    def digest(self) -> str:
        """Tells versions of the module that builds the other one apart."""
        return _digest_module(self.build.__module__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.python(*args, **kwargs)


def replaced_by(build: Callable[[], Any]) -> Callable[[Callable[P, R]], Replaced[P, R]]:
    """Mark a function that is another one in compiled code: what `build` makes when it is first met."""
    return lambda python: Replaced(python, build)


@cache
def _digest_module(name: str) -> str:
    return sha256(getsource(sys.modules[name]).encode()).hexdigest()[:12]


def built(build: Callable[[], Callable[P, R]]) -> Built[P, R]:
    """Mark a function that builds one for compiled code with Numba's own means, when first met."""
    built: Any = Built(build)
    return built  # type: ignore[no-any-return]
