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
from importlib import import_module
from inspect import getsource
from time import perf_counter
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from numpy import generic

from autobatch.jit.compiling import compiling
from autobatch.jit.in_python import MODE, run_in_python
from autobatch.jit.internals import keep, make_callback, make_options
from autobatch.jit.later import LATER, NEVER, Task, compile_mode, waits_for
from autobatch.jit.progress import tell_of_compilation

P = ParamSpec("P")
R = TypeVar("R")

VALUES_ALONE = 2
"""The last format of marshal whose bytes depend on the values alone: later ones depend on reference counts too."""


class Compiled(Generic[P, R]):
    """A function over arrays of ints that compiles itself when first called; `python` is the plain function.

    `fastmath` are the fast-math flags that apply to its own arithmetic, wherever it is inlined. If it `is_kept`, code
    that inlines it finds it compiled on disk. If it `waits`, Python runs it as long as a helper compiles it.
    """

    def __init__(
        self,
        python: Callable[P, R],
        fastmath: frozenset[str] = frozenset(),
        is_kept: bool = False,
        waits: bool = True,
    ) -> None:
        assert python.__defaults__ is None, "Numba gives Python other values for arguments that are left out"
        self.python = python
        self.fastmath = fastmath
        self.is_kept = is_kept
        self.waits = waits
        self._seconds = 0.0
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
        if config.DISABLE_JIT:
            return self._run_in_python
        return keep(self._decorate(**make_options().called), self._meanwhile)

    @cached_property
    def inlined(self) -> Any:
        """Numba's function that other compiled code inlines."""
        return self.called if self.is_kept else self._decorate(**make_options().inlined)

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
        if MODE.in_python and self.waits:
            return self.python(*args, **kwargs)
        result: R = self.called(*args, **kwargs)
        return result

    def _meanwhile(self, signature: tuple[Any, ...]) -> Callable[P, R] | None:
        """What runs in place of code that is on no disk; None if it is to be compiled now."""
        mode = compile_mode()
        if mode == NEVER and self.can_wait:
            return self._run_in_python
        name = self.python.__module__, self.python.__qualname__
        task = Task(__name__, "compile_loop", (*name, signature))
        return self._run_in_python if mode == LATER and self.can_wait and waits_for(task, self._seconds) else None

    @property
    def can_wait(self) -> bool:
        """Whether Python may run it: it can, and another process finds it by its name."""
        return self.waits and not self.is_kept and find_loop(self.python.__module__, self.python.__qualname__) is self

    def _run_in_python(self, *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter()
        result = run_in_python(self.python, *args, **kwargs)
        self._seconds += perf_counter() - began
        return result


def find_loop(module: str, name: str) -> Any:
    """What a name of a module stands for, if other processes can import the module."""
    return None if module == "__main__" else getattr(sys.modules.get(module), name, None)


def compile_loop(module: str, name: str, signature: tuple[Any, ...]) -> None:
    """Compile a loop for some types of arguments, into its cache."""
    getattr(import_module(module), name).called.compile(signature)


def compiled(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a loop over flat arrays to be compiled at its first call."""
    return Compiled(python)


def compiled_at_once(python: Callable[P, R]) -> Compiled[P, R]:
    """Mark a loop as `compiled` that Python cannot run, or takes much too long for: callers wait for the compiler."""
    return Compiled(python, waits=False)


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
        callback = make_callback(self._named(), is_kept=True, error_model="numpy")
        with compiling(f"loop {self.__name__!r}", is_kernel=False, module=self.python.__module__):
            callback.compile()
        return callback

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
