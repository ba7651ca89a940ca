"""Compile flat-array loops with Numba when they are first called.

Numba takes longer to import than all of autobatch, so no module imports it at the top. A loop marked `@compiled` is
plain Python over arrays of ints; it is compiled, and cached on disk, when it is first called. One marked `@by_address`
is compiled when compiled code first needs its address. `@built` and `@replaced_by` mark functions that compiled code
gets from Numba's extension API, because Python cannot express them.

Loops may call each other: inside compiled code the callee is inlined. Code takes arrays out of a NamedTuple before a
loop, because reading a field counts references, which costs more than the work per element (naming the type of highest
score took 375 ns with fields, and 7 ns with the arrays taken out).

The name under which a loop is cached ends in a digest of all code and constants that it reaches, also in other files.
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

from autobatch.jit.compiling import compiling
from autobatch.jit.internals import compile_callback, keep, make_options, make_tally
from autobatch.jit.patience import ALWAYS, MODE, Tally, is_spent, run_in_python
from autobatch.jit.progress import tell_of_compilation

P = ParamSpec("P")
R = TypeVar("R")

VALUES_ALONE = 2
"""The last format of marshal whose bytes depend on the values alone: later ones depend on reference counts too."""


class Compiled(Generic[P, R]):
    """A function over arrays of ints that compiles itself when first called; `python` is the plain function.

    `fastmath` are the fast-math flags that apply to its own arithmetic, wherever it is inlined. If it `is_kept`, code
    that inlines it finds it compiled on disk. `effort` is its work per element of its arguments, relative to one pass
    over them, see `autobatch.jit.patience`.
    """

    def __init__(
        self,
        python: Callable[P, R],
        fastmath: frozenset[str] = frozenset(),
        is_kept: bool = False,
        effort: float = 1.0,
    ) -> None:
        self.python = python
        self.effort = effort
        self.fastmath = fastmath
        self.is_kept = is_kept
        self.__doc__ = python.__doc__
        self.__name__ = python.__name__

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives to this object when it is a global of a loop: that of the compiled function."""
        import numba

        return numba.types.Dispatcher(self.inlined)

    @cached_property
    def called(self) -> Any:
        """Numba's function that Python calls; its method `compile` compiles it for types, into the cache."""
        import numba

        config: Any = numba.config
        return self.python if config.DISABLE_JIT else keep(self._decorate(**make_options().called))

    @cached_property
    def inlined(self) -> Any:
        """Numba's function that other compiled code inlines."""
        return self.called if self.is_kept else self._decorate(**make_options().inlined)

    @cached_property
    def _tally(self) -> Tally:
        return make_tally(self.called)

    def _decorate(self, **options: Any) -> Any:
        import numba

        tell_of_compilation()
        options |= {"nogil": True, "error_model": "numpy", "forceinline": True, "fastmath": set(self.fastmath)}
        return numba.njit(**options)(self._named())

    def _named(self) -> FunctionType:
        """The plain function for Numba: with the name under which it is cached, and with functions that are built."""
        names, code = self.python.__globals__, self.python.__code__
        built = {name: names[name].inlined for name in code.co_names if isinstance(names.get(name), Built)}
        named = FunctionType(code, {**names, **built}, self.python.__name__)
        named.__module__ = self.python.__module__
        named.__qualname__ = f"{self.python.__qualname__}_{self.digest()}"
        return named

    def digest(self) -> str:
        """Identifies the version of this loop, of the loops that it calls, and of the constants that they read."""
        code = self.python.__code__
        parts = [marshal.dumps(code, VALUES_ALONE), *sorted(flag.encode() for flag in self.fastmath)]
        for name in code.co_names:
            value = self.python.__globals__.get(name)
            if isinstance(value, Compiled) and value is not self:
                parts.append(value.digest().encode())
            elif isinstance(value, (int, float, generic, tuple)):
                parts.append(repr((name, value)).encode())
            elif isinstance(value, type):
                parts.append(repr((name, getattr(value, "_fields", value))).encode())
        return sha256(b"".join(parts)).hexdigest()[:12]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if MODE.in_python and self.effort < ALWAYS:
            return self.python(*args, **kwargs)
        if MODE.may_wait and self._waits(args):
            return run_in_python(self.python, *args, **kwargs)
        result: R = self.called(*args, **kwargs)
        return result

    def _waits(self, args: tuple[Any, ...]) -> bool:
        """Say whether a call of this loop runs in Python: it was not compiled, and has done little work so far."""
        if self.effort == ALWAYS or getattr(self.called, "signatures", True):  # with NUMBA_DISABLE_JIT it is plain
            return False
        return not is_spent(self._tally, self.effort, args)


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
    def callback(self) -> Any:
        """The compiled function, whose machine code lives as long as this object."""
        with compiling(f"loop {self.__name__!r}", is_kernel=False, module=self.python.__module__):
            return compile_callback(self._named(), is_kept=True, error_model="numpy")

    @property
    def address(self) -> int:
        """The address of the compiled function, in this process."""
        address: int = self.callback.address
        return address


def by_address(python: Callable[P, R]) -> ByAddress[P, R]:
    """Mark a function of ints to be compiled when its address is first asked for."""
    return ByAddress(python)


class Built(Compiled[P, R]):
    """A function that `build` makes for compiled code; Python calls `python`."""

    def __init__(self, python: Callable[P, R], build: Callable[[], Any]) -> None:
        super().__init__(python)
        self.build = build

    @cached_property
    def inlined(self) -> Any:
        """What `build` makes."""
        return self.build()

    def digest(self) -> str:
        """Identifies the version of the module that builds it, because it is not known which parts of it are used."""
        return _digest_module(self.build.__module__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.python(*args, **kwargs)


def replaced_by(build: Callable[[], Any]) -> Callable[[Callable[P, R]], Built[P, R]]:
    """Mark a function that compiled code replaces by the one that `build` makes when it is first needed."""
    return lambda python: Built(python, build)


def built(build: Callable[[], Callable[P, R]]) -> Built[P, R]:
    """Mark a function that builds one for compiled code alone, when it is first needed."""
    builder: Any = build
    return Built(builder, build)


@cache
def _digest_module(name: str) -> str:
    return sha256(getsource(sys.modules[name]).encode()).hexdigest()[:12]
