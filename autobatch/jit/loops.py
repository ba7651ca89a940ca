"""Compile flat-array loops with Numba when they are first called.

Numba takes longer to import than all of autobatch, so no module imports it at the top. A loop marked `@compiled` is
plain Python over arrays of ints; it is compiled, and cached on disk, when it is first called. One marked `@by_address`
is compiled when compiled code first needs its address. `@built` marks functions that Python cannot express.

Loops may call each other: inside compiled code the callee is inlined. Code takes arrays out of a NamedTuple before a
loop, because reading a field counts references, which costs more than the work per element (naming the type of highest
score took 375 ns with fields, and 7 ns with the arrays taken out).

Numba identifies a cached loop by its name and its own file, and would still use it after a callee in another file has
changed. So the name under which a loop is cached ends in a digest of all code and constants that it reaches.
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
from autobatch.jit.kept import compile_callback, keep, make_tally
from autobatch.jit.patience import ALWAYS, MODE, Tally, is_spent, run_in_python

P = ParamSpec("P")
R = TypeVar("R")

WITHOUT_WRAPPERS = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True}
"""Options of Numba: make no wrappers for calls from C or from Python."""
VALUES_ALONE = 2
"""The last format of marshal whose bytes depend on the values alone: later ones depend on reference counts too."""


class Compiled(Generic[P, R]):
    """A function over arrays of ints that compiles itself when first called; `python` is the plain function.

    `liberties` are the fast-math flags of LLVM that apply to its own arithmetic, wherever it is inlined. If it
    `is_kept`, its form for inlining is cached on disk too. `effort` is its work per element of its arguments, relative
    to one pass over them, see `autobatch.jit.patience`.
    """

    def __init__(
        self,
        python: Callable[P, R],
        liberties: frozenset[str] = frozenset(),
        is_kept: bool = False,
        effort: float = 1.0,
    ) -> None:
        self.python = python
        self.effort = effort
        self.liberties = liberties
        self.is_kept = is_kept
        self.__doc__ = python.__doc__
        self.__name__ = python.__name__
        self._dispatcher: Any = None
        self._inlined: Any = None
        self._tally: Tally | None = None

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives to this object when it is a global of a loop: that of the compiled function."""
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
        """Compile for inlining, without the wrapper for calls from Python, which takes a quarter of the time."""
        if self._inlined is None:
            compilers = make_compilers()
            if self.is_kept or compilers is None:
                self._inlined = keep(self._compile("inlined_", **WITHOUT_WRAPPERS))
            else:
                self._inlined = self._compile("inlined_", **WITHOUT_WRAPPERS, pipeline_class=compilers.inlined)
        return self._inlined

    def _compile(self, prefix: str, **options: Any) -> Any:
        import numba

        from autobatch.jit.progress import tell_of_compilation

        tell_of_compilation()
        options |= {"nogil": True, "error_model": "numpy", "forceinline": True}
        if self.liberties:
            options["fastmath"] = set(self.liberties)
        return numba.njit(**options)(self._named(prefix))

    def _named(self, prefix: str = "") -> FunctionType:
        """The plain function, renamed to the name under which it is cached."""
        named = FunctionType(self.python.__code__, self.python.__globals__, self.python.__name__)
        named.__module__ = self.python.__module__
        named.__qualname__ = f"{self.python.__qualname__}_{prefix}{self.digest()}"
        return named

    def digest(self) -> str:
        """Identifies the version of this loop, of the loops that it calls, and of the constants that they read."""
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
        if MODE.in_python and self.effort < ALWAYS:
            return self.python(*args, **kwargs)
        loop = self._for_python()
        if MODE.may_wait and self._waits(loop, args):
            return run_in_python(self.python, *args, **kwargs)
        try:
            result: R = loop(*args, **kwargs)
        except OSError as error:  # from writing to the cache, after the loop was compiled
            _warn(error)
            result = loop(*args, **kwargs)
        return result

    def _waits(self, loop: Any, args: tuple[Any, ...]) -> bool:
        """Say whether a call of this loop runs in Python: it was not compiled, and has done little work so far."""
        if self.effort == ALWAYS or getattr(loop, "signatures", True):  # with NUMBA_DISABLE_JIT it is a plain function
            return False
        if self._tally is None:
            self._tally = make_tally(loop)
        return not is_spent(self._tally, self.effort, args)


def _warn(error: OSError) -> None:
    why = error.strerror or error
    warnings.warn(f"cannot keep compiled loops for other processes ({why}); going on without.", stacklevel=3)


def compiled(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a loop over flat arrays to be compiled at its first call."""
    return Compiled(python)


def laborious(effort: float) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Mark a loop as `compiled`, with the work that it does per element of its arguments."""
    return lambda python: Compiled(python, effort=effort)


def in_kernels(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a function that kernels inline: as `compiled`, and cached on disk for cells that later processes compile."""
    return Compiled(python, is_kept=True)


def contracted(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark float arithmetic: as `in_kernels`, and a product and a sum may become one instruction, rounded once."""
    return Compiled(python, frozenset({"contract"}), is_kept=True)


def reordered(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a term of a long sum: as `contracted`, and LLVM may reorder the sum, to add several elements at once."""
    return Compiled(python, frozenset({"contract", "reassoc", "nsz"}), is_kept=True)


class ByAddress(Compiled[P, R]):
    """A function of ints that compiled code calls by its address."""

    @cached_property
    def address(self) -> int:
        """The address of the compiled function, in this process, whose machine code lives as long as this object."""
        with compiling(f"loop {self.__name__!r}", is_kernel=False, module=self.python.__module__):
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
    """A function that Python cannot express, for compiled code: calling `python` without arguments builds it."""

    def digest(self) -> str:
        """Identifies the version of the module, because it is not known which parts of it a builder uses."""
        return _digest_module(self.python.__module__)

    def _for_loops(self) -> Any:
        if self._inlined is None:
            build: Any = self.python
            self._inlined = build()
        return self._inlined


class Replaced(Compiled[P, R]):
    """A plain Python function that compiled code replaces by one that `build` makes with Numba's extension API."""

    def __init__(self, python: Callable[P, R], build: Callable[[], Any]) -> None:
        super().__init__(python)
        self.build = build

    def _for_loops(self) -> Any:
        if self._inlined is None:
            self._inlined = self.build()
        return self._inlined

    def digest(self) -> str:
        """Identifies the version of the module that builds the replacement."""
        return _digest_module(self.build.__module__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.python(*args, **kwargs)


def replaced_by(build: Callable[[], Any]) -> Callable[[Callable[P, R]], Replaced[P, R]]:
    """Mark a function that compiled code replaces by the one that `build` makes when it is first needed."""
    return lambda python: Replaced(python, build)


class Emitted(Replaced[P, R]):
    """A function that compiled code replaces by an intrinsic that `build` makes: its instructions, without a call."""

    @property
    def _numba_type_(self) -> Any:
        return _typing_context().resolve_value_type(self._for_loops())

    def _for_loops(self) -> Any:
        if self._inlined is None:
            self._inlined = self.build()
            _typing_context().refresh()  # takes in the new intrinsic
        return self._inlined


def _typing_context() -> Any:
    from numba.core import registry

    return registry.cpu_target.typing_context


def emitted_by(build: Callable[[], Any]) -> Callable[[Callable[P, R]], Emitted[P, R]]:
    """Mark a function that compiled code replaces by the intrinsic that `build` makes when it is first needed."""
    return lambda python: Emitted(python, build)


@cache
def _digest_module(name: str) -> str:
    return sha256(getsource(sys.modules[name]).encode()).hexdigest()[:12]


def built(build: Callable[[], Callable[P, R]]) -> Built[P, R]:
    """Mark a function that builds one for compiled code with Numba's extension API, when it is first needed."""
    built: Any = Built(build)
    return built  # type: ignore[no-any-return]
