"""Scalar expressions as trees: the computation of an element-wise op, or of a loop of the compiler, at one index.

An op is defined by a function such as `lambda x, y: (x - y) * (x - y)`. Applied to `Read(0)` and `Read(1)`, it returns
the tree that the compiler matches and that every target prints in its own language. Arithmetic on expressions and
numbers gives expressions. Functions without a Python operator are applied by `call`. `FUNCTIONS` lists all functions
that a target must implement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import TypeAlias

OPERATORS = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "negate": 1}
COMPARISONS = dict.fromkeys(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"), 2)
MATHEMATICS = {"power": 2, "max": 2} | dict.fromkeys(
    ("exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "ndtr", "gelu", "gelu_tanh"), 1
)
FUNCTIONS = OPERATORS | COMPARISONS | MATHEMATICS | {"select": 3}
"""The number of arguments of each function; a comparison may only be the first argument of `select`."""


@dataclass(frozen=True)
class Expression:
    """A number at every index."""

    def __add__(self, other: Term) -> Call:
        return call("add", self, other)

    def __radd__(self, other: float) -> Call:
        return call("add", other, self)

    def __sub__(self, other: Term) -> Call:
        return call("subtract", self, other)

    def __rsub__(self, other: float) -> Call:
        return call("subtract", other, self)

    def __mul__(self, other: Term) -> Call:
        return call("multiply", self, other)

    def __rmul__(self, other: float) -> Call:
        return call("multiply", other, self)

    def __truediv__(self, other: Term) -> Call:
        return call("divide", self, other)

    def __rtruediv__(self, other: float) -> Call:
        return call("divide", other, self)

    def __neg__(self) -> Call:
        return call("negate", self)


Term: TypeAlias = Expression | float


@dataclass(frozen=True)
class Number(Expression):
    """A number of the model's float type."""

    data: float


@dataclass(frozen=True)
class Read(Expression):
    """An element of an argument of an op."""

    number: int


@dataclass(frozen=True)
class Call(Expression):
    """A function of `FUNCTIONS`, applied."""

    name: str
    args: tuple[Expression, ...]

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise ValueError(f"the function of an expression must be one of {', '.join(FUNCTIONS)}, got {self.name!r}.")
        if len(self.args) != FUNCTIONS[self.name]:
            raise ValueError(f"an expression calls {self.name!r} with {len(self.args)} arguments.")
        if (self.name == "select") != is_condition(self.args[0]) or any(map(is_condition, self.args[1:])):
            raise ValueError("the first argument of 'select', and no other argument, must be a comparison.")


def call(name: str, *args: Term) -> Call:
    """Apply a function to expressions and numbers.

    >>> call("tanh", Read(0))
    Call(name='tanh', args=(Read(number=0),))
    """
    return Call(name, tuple(arg if isinstance(arg, Expression) else Number(float(arg)) for arg in args))


def is_condition(tree: Expression) -> bool:
    """Return whether an expression is a comparison, which is true or false instead of a number."""
    return isinstance(tree, Call) and tree.name in COMPARISONS


def trace_scalar(scalar: Callable[..., Expression]) -> Expression:
    """Trace a function of numbers into a tree.

    >>> trace_scalar(lambda x: x * 2.0)
    Call(name='multiply', args=(Read(number=0), Number(data=2.0)))
    """
    return scalar(*map(Read, range(len(signature(scalar).parameters))))


def leaves(tree: Expression) -> Iterator[Expression]:
    """Yield the leaves of an expression, from left to right: numbers and reads."""
    if isinstance(tree, Call):
        for arg in tree.args:
            yield from leaves(arg)
    else:
        yield tree


def replace_leaves(tree: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with each leaf replaced by `change(leaf)`."""
    if isinstance(tree, Call):
        return Call(tree.name, tuple(replace_leaves(arg, change) for arg in tree.args))
    return change(tree)
