"""Detection of random numbers and clocks, which a cell's body must not read because it is traced only once."""

from __future__ import annotations

import pickle
import sys
import time
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.trace.scanning import is_library

CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
          "process_time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}  # fmt: skip

PLAIN_OWNERS = frozenset({list, dict, tuple, set, str})
"""Types whose frequently called methods read neither."""


class Draws:
    """The random numbers and clocks that a body has read since this object was made.

    NumPy's generators are compared by their states, so a generator that the body makes from a seed may draw. Other
    sources are detected when their functions are called.
    """

    def __init__(self) -> None:
        from numpy.random.mtrand import _rand as of_numpy

        self._drawn, self._harmless = "", set[Any]()
        self._states = [(of_numpy, _state_of(of_numpy), "np.random")]

    def add(self, generator: Any) -> None:
        """Watch a generator that the body may draw from."""
        self._states.append((generator, _state_of(generator), f"a {type(generator).__name__}"))

    def hear(self, frame: FrameType, function: Any) -> None:
        """Record a call, in this frame, of a function written in C."""
        owner = getattr(function, "__self__", None)
        if type(owner) in PLAIN_OWNERS or (type(owner) is ModuleType and function in self._harmless):
            return
        name = getattr(function, "__qualname__", "")
        if (known := sys.modules.get("random")) is not None and isinstance(owner, known.Random):
            self._drawn = f"random.{name}"
        elif name == "urandom":
            self._drawn = f"{name}()"
        elif is_library(frame.f_globals.get("__name__")):  # a logger's clock does no harm
            return
        elif name in CLOCKS and (owner is time or isinstance(owner, type)):
            self._drawn = name
        elif type(owner) is ModuleType:
            self._harmless.add(function)

    def check(self) -> None:
        """Raise a GraphError if random numbers or a clock were read."""
        drawn = next((text for generator, state, text in self._states if _state_of(generator) != state), self._drawn)
        if drawn:
            what = "asks for the time" if drawn in CLOCKS else "draws random numbers"
            raise GraphError(
                f"the body {what} ({drawn}), which happens once, when it is traced, and not for every node; pass what "
                f"it gives as an argument, or use ab.dropout for random masks."
            )


def is_generator(x: Any) -> bool:
    """Whether `x` is one of NumPy's generators of random numbers."""
    return type(x).__module__.startswith("numpy.random.")


def _state_of(generator: Any) -> bytes:
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(getattr(generator, "bit_generator", generator).state)
