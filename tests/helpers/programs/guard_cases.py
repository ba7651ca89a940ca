"""Models whose cells read Python state in various ways, and changes of that state."""

from __future__ import annotations

import functools
import types
from argparse import Namespace
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab

SETTINGS: Any = types.ModuleType("some_settings")
SETTINGS.BETA = 2.0
BETA = 2.0
activation = ab.tanh


@dataclass
class Config:
    """A mutable object that holds numbers."""

    beta: float = 2.0
    shift: float = 0.5


@dataclass(frozen=True)
class Frozen:
    """An immutable object, which is replaced instead of changed."""

    beta: float = 2.0


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("beta",)

    def __init__(self, beta: float) -> None:
        self.beta = beta


Pair = namedtuple("Pair", "beta shift")


def scaled(x: Any, by: float = 2.0) -> Any:
    """Scale x by a default argument."""
    return x * by


def with_global(x: Any) -> Any:
    """Scale x by a global."""
    return x * BETA


class Base(ab.Module):
    """A loss with one cell; `body` is its computation."""

    gain = 2.0

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.W = ab.Parameter(rng.standard_normal((3, 3)))
        self.W.gain = 2.0  # type: ignore[attr-defined]
        self.lin = ab.Linear(3, 3, rng=rng)
        self.other = ab.Linear(3, 3, rng=np.random.default_rng(1))
        self.layers = [ab.Linear(3, 3, rng=rng), ab.Linear(3, 3, rng=rng)]
        self.gates = {"a": ab.Linear(3, 3, rng=rng)}
        self.beta, self.n, self.flag, self.name = 2.0, 2, True, "tanh"
        self.config, self.frozen, self.slotted, self.pair = Config(), Frozen(), Slotted(2.0), Pair(2.0, 0.5)
        self.space, self.simple = Namespace(beta=2.0), types.SimpleNamespace(beta=2.0)
        self.options: dict[str, Any] = {"beta": 2.0, "inner": {"beta": 2.5}}
        self.numbers = [1.0, 2.0]
        self.mask = np.array([1.0, 0.0, 1.0])
        self.masks, self.ids = (np.array([1.0, 0.0, 1.0]),), np.array([0, 2])
        self.drop = ab.Dropout(0.5)
        self.function = ab.tanh
        self._hidden = 2.0
        self.calls = 0

    @property
    def beta_of_property(self) -> float:
        return self._hidden

    def helper(self, x: Any) -> Any:
        return x * self.beta

    def body(self, x: Any) -> Any:
        """Compute the input of the cell's layer."""
        raise NotImplementedError

    @ab.cell
    def cell(self, x: Any) -> Any:
        return ab.sum(ab.tanh(self.lin(self.body(x) + self.W @ x)))

    def loss(self, x: Any) -> Any:
        return self.cell(x)


class Case(NamedTuple):
    """A way to read state, and a change of that state.

    Attributes:
        body: a function of the model and x.
        change: a function of the model and the new number.
        live: whether further changes of the number need no new trace.
    """

    body: Callable[[Any, Any], Any]
    change: Callable[[Any, float], None]
    live: bool = False


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


def closure() -> Case:
    beta = 2.0

    def body(m: Any, x: Any) -> Any:
        return x * beta

    def change(m: Any, value: float) -> None:
        nonlocal beta
        beta = value

    return Case(body, change)


def set_default(value: float) -> None:
    scaled.__defaults__ = (value,)


def refill(array: Any, value: float) -> None:
    array[:] = [value, 0.0, 1.0]


def new_layer(m: Any) -> Any:
    return ab.Linear(3, 3, np.random.default_rng(7)).astype(m.dtype)


def replace_element(m: Any, value: float) -> None:
    m.layers = [m.layers[1], m.layers[0]]


NUMBERS: dict[str, Case] = {
    "attribute": Case(lambda m, x: x * m.beta, lambda m, v: setattr(m, "beta", v), live=True),
    "attribute in a method": Case(lambda m, x: m.helper(x), lambda m, v: setattr(m, "beta", v), live=True),
    "int attribute": Case(lambda m, x: x * m.n, lambda m, v: setattr(m, "n", int(v)), live=True),
    "NumPy's number": Case(lambda m, x: x * m.beta, lambda m, v: setattr(m, "beta", np.float64(v))),
    "arithmetic": Case(lambda m, x: (1.0 - m.beta / 4) * x**m.beta, lambda m, v: setattr(m, "beta", v), live=True),
    "property": Case(lambda m, x: x * m.beta_of_property, lambda m, v: setattr(m, "_hidden", v), live=True),
    "class attribute": Case(lambda m, x: x * m.gain, lambda m, v: setattr(type(m), "gain", v), live=True),
    "attribute of a parameter": Case(lambda m, x: x * m.W.gain, lambda m, v: setattr(m.W, "gain", v), live=True),
    "config": Case(lambda m, x: x * m.config.beta, lambda m, v: setattr(m.config, "beta", v), live=True),
    "slot": Case(lambda m, x: x * m.slotted.beta, lambda m, v: setattr(m.slotted, "beta", v), live=True),
    "replaced config": Case(lambda m, x: x * m.frozen.beta, lambda m, v: setattr(m, "frozen", Frozen(v))),
    "named tuple": Case(lambda m, x: x * m.pair.beta, lambda m, v: setattr(m, "pair", Pair(v, 0.5))),
    "argparse": Case(lambda m, x: x * m.space.beta, lambda m, v: setattr(m.space, "beta", v), live=True),
    "simple namespace": Case(lambda m, x: x * m.simple.beta, lambda m, v: setattr(m.simple, "beta", v)),
    "dict": Case(lambda m, x: x * m.options["beta"], lambda m, v: m.options.update(beta=v), live=True),
    "inner dict": Case(
        lambda m, x: x * m.options["inner"]["beta"], lambda m, v: m.options["inner"].update(beta=v), live=True
    ),
    "list": Case(lambda m, x: x * m.numbers[1], lambda m, v: m.numbers.__setitem__(1, v), live=True),
    "loop over a list": Case(lambda m, x: ab.sum_n([x * b for b in m.numbers]), lambda m, v: m.numbers.append(v)),
    "submodule": Case(lambda m, x: x * m.drop.rate, lambda m, v: setattr(m.drop, "rate", v), live=True),
    "global": Case(lambda m, x: x * BETA, lambda m, v: set_global("BETA", v)),
    "global of a function": Case(lambda m, x: with_global(x), lambda m, v: set_global("BETA", v)),
    "imported module": Case(lambda m, x: x * SETTINGS.BETA, lambda m, v: setattr(SETTINGS, "BETA", v)),
    "closure": closure(),
    "default argument": Case(lambda m, x: scaled(x), lambda m, v: set_default(v)),
    "condition": Case(lambda m, x: x if m.beta > 2.5 else x * x, lambda m, v: setattr(m, "beta", v)),
    "needed by Python": Case(lambda m, x: x * float(np.exp(m.beta)), lambda m, v: setattr(m, "beta", v)),
    "swallowed": Case(lambda m, x: x * _swallowing(m), lambda m, v: setattr(m, "beta", v)),
    "count of a loop": Case(lambda m, x: ab.sum_n([x] * m.n), lambda m, v: setattr(m, "n", int(v))),
    "constant id": Case(lambda m, x: ab.lookup(m.W, m.n - 1), lambda m, v: setattr(m, "n", int(v) - 2)),
    "layer_norm": Case(lambda m, x: ab.layer_norm(x, m.W[0], m.W[1], eps=m.beta), lambda m, v: setattr(m, "beta", v)),
    "array": Case(lambda m, x: x * m.mask, lambda m, v: setattr(m, "mask", np.array([v, 1.0, 0.0])), live=True),
    "array in place": Case(lambda m, x: x * m.mask, lambda m, v: refill(m.mask, v), live=True),
    "part of an array": Case(lambda m, x: x * m.mask[1:2], lambda m, v: m.mask.fill(v), live=True),
    "array in a tuple": Case(lambda m, x: x * m.masks[0], lambda m, v: refill(m.masks[0], v)),
    "array by NumPy": Case(lambda m, x: x * m.mask.sum(), lambda m, v: m.mask.fill(v)),
    "array of ids": Case(
        lambda m, x: ab.sum(ab.lookup(m.W, m.ids), axis=0), lambda m, v: setattr(m, "ids", np.array([1, int(v) % 3]))
    ),
}  # fmt: skip

OTHERS: dict[str, Case] = {
    "training": Case(lambda m, x: x if m.training else x * x, lambda m, v: m.eval()),
    "flag": Case(lambda m, x: x if m.flag else x * x, lambda m, v: setattr(m, "flag", False)),
    "hasattr": Case(lambda m, x: x if hasattr(m, "extra") else x * x, lambda m, v: setattr(m, "extra", 1)),
    "hasattr of a parameter": Case(
        lambda m, x: x if hasattr(m.W, "extra") else x * x, lambda m, v: setattr(m.W, "extra", 1)
    ),
    "name": Case(lambda m, x: getattr(ab, m.name)(x), lambda m, v: setattr(m, "name", "sigmoid")),
    "function": Case(lambda m, x: m.function(x), lambda m, v: setattr(m, "function", ab.sigmoid)),
    "global function": Case(lambda m, x: activation(x), lambda m, v: set_global("activation", ab.sigmoid)),
    "hidden builtin": Case(lambda m, x: x * divmod(7, 2)[0], lambda m, v: set_global("divmod", lambda a, b: (a, b))),
    "method": Case(lambda m, x: m.helper(x), lambda m, v: setattr(m, "helper", lambda x: x * x)),
    "partial": Case(lambda m, x: m.function(x), lambda m, v: setattr(m, "function", functools.partial(scaled, by=v))),
    "code": Case(lambda m, x: with_global(x), lambda m, v: setattr(with_global, "__code__", (lambda x: -x).__code__)),
    "another layer": Case(lambda m, x: m.other(x), lambda m, v: setattr(m, "other", new_layer(m))),
    "another parameter": Case(lambda m, x: m.W @ x, lambda m, v: setattr(m, "W", new_layer(m).weight)),
    "computed name": Case(lambda m, x: getattr(m, "lay" + "ers")[0](x), replace_element),
    "list of layers": Case(lambda m, x: m.layers[0](x), replace_element),
    "changed list of layers": Case(lambda m, x: m.layers[0](x), lambda m, v: m.layers.reverse()),
    "longer list of layers": Case(
        lambda m, x: functools.reduce(lambda y, layer: layer(y), m.layers, x), lambda m, v: m.layers.append(m.other)
    ),
    "dict of layers": Case(lambda m, x: m.gates["a"](x), lambda m, v: m.gates.update(a=m.other)),
    "parameter's numbers": Case(lambda m, x: x * m.W.data[0], lambda m, v: m.W.data.fill(v)),
}  # fmt: skip


def _swallowing(m: Any) -> float:
    try:
        return float(m.beta)
    except Exception:
        return 0.0


def model_of(case: Case) -> Any:
    """Return a model with the body of a case."""
    kind: Any = type("Model", (Base,), {"body": lambda self, x: case.body(self, x)})
    return kind().astype("float64")
