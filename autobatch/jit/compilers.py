"""Compile loops that are inlined in other loops in less time than Numba's own compilers, with the same results.

Numba optimises every function separately, makes machine code of it, and links it into its callers, where it is
optimised again. Here a loop that is only inlined is optimised once, together with the function that Python calls. It is
also compiled once for all ints, not again for a literal 0 or 1. See docs/decisions/compiled-once.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from autobatch.jit.compiling import without_collection
from autobatch.jit.internals import has_internals


class Compilers(NamedTuple):
    """Classes that Numba uses for our loops.

    Attributes:
        called: the `pipeline_class` for functions that Python calls.
        inlined: the `pipeline_class` for functions that are inlined, and optimised only there.
        loop: makes the type by which compiled code knows a dispatcher.
    """

    called: type
    inlined: type
    loop: type


@cache
def make_compilers() -> Compilers | None:
    """Make the three classes; None if this version of Numba lacks the classes that they extend. Loads Numba."""
    if not has_internals():
        return None
    from numba import extending
    from numba.core import codegen, compiler, types

    Compiler: Any = compiler.Compiler
    Library: Any = codegen.JITCodeLibrary
    Dispatcher: Any = types.Dispatcher
    unliteral: Any = types.unliteral

    class Called(Compiler):  # type: ignore[misc]
        """Compiles a function that Python can call, although its options forbid the wrapper for that.

        Numba compiles its own functions, such as `np.empty`, for each set of options of their callers. With the same
        options here and in inlined functions, they are compiled once.
        """

        def compile_extra(self, function: Any) -> Any:
            with without_collection():
                return super().compile_extra(function)

        def define_pipelines(self) -> Any:
            self.state.flags.no_cpython_wrapper = False  # callees have their own copy of the flags
            return super().define_pipelines()

    class Inlined(Compiler):  # type: ignore[misc]
        """Compiles without optimising."""

        def define_pipelines(self) -> Any:
            self.state.library = Lowered(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            return super().define_pipelines()

    class Lowered(Library):  # type: ignore[misc]
        """Code that is only linked into other code: not optimised, and without an address."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

        @property
        def codegen(self) -> _NoEnvironments:
            return _NoEnvironments()

    class Loop(Dispatcher):  # type: ignore[misc]
        """Types a call with an int where an argument is a literal int."""

        def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
            named = {name: unliteral(kind) for name, kind in kws.items()}
            return super().get_call_type(context, tuple([unliteral(kind) for kind in args]), named)

    extending.register_model(Loop)(extending.models.OpaqueModel)
    return Compilers(Called, Inlined, Loop)


class _NoEnvironments:
    """Receives the Python objects that code without an address reads: there must be none."""

    def set_env(self, name: str, environment: Any) -> None:
        assert not environment.consts, f"{name} reads Python objects, which it cannot where it is inlined"
