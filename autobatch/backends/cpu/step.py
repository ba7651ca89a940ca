"""Define the steps of a compiled stage: functions that a plan calls for tiles of a type.

A native or generated function takes the address of the memory of its stage, which lists the addresses of the arrays of
a run; the address of its descriptor; and the number of a tile (see `native/run/steps.h`). Other functions run in
Python. The choice of a function depends on the sizes of a plan; plans with batches of about the same size share steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import step_addresses
from autobatch.arrays import Array, LongArray
from autobatch.blas.choosing import Chooser

BOUND_STEP = np.dtype([("function", np.int64), ("memory", np.int64), ("descriptor", np.int64)])
"""`BoundStep` of `native/run/team.h`: the addresses of a function, the memory of its stage, and its descriptor."""
FUNCTIONS = step_addresses()
"""The addresses of native functions by name; see `native/run/steps.h`."""
OPERAND = (np.int64, 4)
"""`Operand` of `native/run/operands.h`: the slot of an array, the field of a tile that holds where its rows begin, the
bytes from there, and the elements from one row to the next."""


class Sizes(NamedTuple):
    """The properties of a plan that the choice of a function depends on.

    Attributes:
        index_type: the name of the integer type of destinations.
        mean_rows: [domains, 2] mean rows of a tile, as in `autobatch.backends.tables.PlanTables`.
        n_rows: [domains] the number of rows of the type.
        n_threads: the number of threads that share tiles.
        chooser: chooses the library for each product.
    """

    index_type: str
    mean_rows: LongArray
    n_rows: LongArray
    n_threads: int
    chooser: Chooser


@dataclass(eq=False, slots=True)
class Step:
    """A step for plans of some sizes.

    Attributes:
        function: the address of the native or generated function; 0 if Python runs the step.
        descriptor: the ints that this function reads; its address must not change.
        run: runs the step in Python, given the number of a tile.
        load: writes the current addresses of parameters to the descriptor; called when parameters have changed.
        calls_library: whether the step may call a matrix library, whose threads must be limited.
    """

    function: int = 0
    descriptor: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    run: Callable[[int], None] | None = None
    load: Callable[[], None] | None = None
    calls_library: bool = False


@dataclass(eq=False, slots=True)
class StepTemplate:
    """A step of a stage, before the sizes of a plan are known.

    Attributes:
        statement: the computation: a kernel, or a statement of `autobatch.compiler.statement`.
        make: builds the step for a choice.
        choose: derives a choice from the sizes of a plan; by default the same for all.
        steps: the steps built so far, by choice.
    """

    statement: Any
    make: Callable[..., Step]
    choose: Callable[[Sizes], tuple[Any, ...]] = lambda sizes: ()
    steps: dict[tuple[Any, ...], Step] = field(default_factory=dict)

    def bind(self, sizes: Sizes) -> Step:
        """Return the step for a plan of these sizes."""
        choice = self.choose(sizes)
        if choice not in self.steps:
            self.steps[choice] = self.make(*choice)
        return self.steps[choice]
