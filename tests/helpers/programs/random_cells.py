"""Random cells: signatures, results, and straight-line bodies, drawn from a generator."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import autobatch as ab
from fuzzing.drawing import Rng, pick
from fuzzing.specs import Data, Each, Several, Shape, Spec, Value, shape_tree

SHAPES: tuple[Shape, ...] = ((), (2,), (3,), (3, 2))
STRUCTURES = ("tuple", "list", "dict", "State", "Pair")
N_WORDS, DIM = 5, 3  # of the table for lookups


KEY = Value((DIM,))


def memory(shape: Shape) -> Several:
    """Return the spec of a pair of lists of one length: keys, and values of this shape."""
    return Several("tuple", (Each(KEY), Each(Value(shape))))


@dataclass(frozen=True)
class Drawn:
    """A cell, its arguments by name (`keywords` by name only), and its result."""

    cell: Any
    takes: dict[str, Spec]
    keywords: frozenset[str]
    returns: Spec


class Weights:
    """The parameters of a model, drawn when bodies ask for them; some are shared."""

    def __init__(self, rng: Rng, table: ab.Parameter, parameters: list[ab.Parameter]) -> None:
        self.rng, self.table, self.parameters = rng, table, parameters

    def __call__(self, shape: Shape) -> ab.Parameter:
        known = [p for p in self.parameters if p.shape == shape]
        if known and self.rng.random() < 0.4:
            return pick(self.rng, known)
        self.parameters.append(ab.Parameter(0.6 * self.rng.standard_normal(shape)))
        return self.parameters[-1]


def regrouped(x: Any, y: Any) -> Any:
    """Return every other element of two joined vectors, via views with other shapes."""
    n = 2 * math.prod(np.shape(x))
    return ab.reshape(ab.transpose(ab.reshape(ab.concat((x, y)), (n // 2, 2))), (2, n // 2))[0]


def read_across(x: Any, weight: Any, other: Any) -> Any:
    """Compute a product within a join, whose parts are read by another product and by element-wise ops."""
    joined = ab.concat((weight @ x, x[1:], x[:1]))
    part = regrouped(x, joined[: x.shape[0]])
    return ab.tanh(other @ part + 0.3 * joined[x.shape[0] :] * part) * ab.stack([part, x])[1]


# Steps of bodies: with any value; with two of one shape; with vectors or matrices and weights.

ANY: tuple[Callable[[Any], Any], ...] = (
    ab.tanh, ab.sigmoid, ab.softplus, ab.gelu,
    lambda x: -x, lambda x: 2 - x, lambda x: 0.3 * x + x,
    lambda x: ab.log(1.5 + x * x), lambda x: ab.sqrt(0.5 + x * x), lambda x: ab.exp(ab.tanh(x)),
    lambda x: 1.0 / (2.0 + x**2), lambda x: (1.5 + ab.tanh(x)) ** 1.5,
)  # fmt: skip
BENT_ANY: tuple[Callable[[Any], Any], ...] = (ab.relu, ab.stop_gradient, ab.max, lambda x: ab.where(x > 0.1, x, 2 * x))
SAME: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, ab.squared_error,
    lambda x, y: x / (2.0 + y * y), lambda x, y: ab.sum_n([x, y, x]), lambda x, y: ab.mean_n([x, y]),
)  # fmt: skip
Asking: TypeAlias = tuple[Callable[..., tuple[Shape, ...]], Callable[..., Any]]
VECTOR: tuple[Asking, ...] = (
    (lambda n: ((2, n),), lambda x, w: w @ x),
    (lambda n: ((n, 3),), lambda x, w: x @ w),
    (lambda n: ((2, n), (2,)), lambda x, w, b: ab.affine(w, x, b)),
    (lambda n: ((n,), (n,)), lambda x, g, b: ab.layer_norm(x, g, b)),
    (lambda n: ((4 * n, n),), lambda x, w: math.prod(ab.split(w @ x, 4))),
    (lambda n: ((n,),), lambda x, w: ab.outer(x, w)),
    (lambda n: (), lambda x: ab.softmax(x) * ab.log_softmax(x)),
    (lambda n: (), lambda x: ab.concat((x[:1], x[::-1]))),
    (lambda n: ((n,),), lambda x, w: 0.5 * x + regrouped(x, w) * x),
    (lambda n: ((n, n), (n, n)), read_across),
    (lambda n: (), lambda x: ab.dot(x, x) + x[0]),
    (lambda n: (), lambda x: ab.cross_entropy(x, 1)),
)
MATRIX: tuple[Asking, ...] = (
    (lambda m, n: ((n,),), lambda x, w: x @ w),
    (lambda m, n: ((2, m),), lambda x, w: w @ x),
    (lambda m, n: ((n,), (n,)), lambda x, g, b: ab.layer_norm(x, g, b)),
    (lambda m, n: (), lambda x: ab.transpose(x) @ x),
    (lambda m, n: (), lambda x: ab.sum(x, axis=0) + ab.mean(x)),
    (lambda m, n: (), lambda x: ab.softmax(x, axis=0)[:1]),
)


def draw_cell(
    rng: Rng, name: str, weights: Weights, inner: Callable[[Any], Any], smooth: bool, is_method: bool
) -> Drawn:
    """Draw a cell; `inner` is a cell that bodies may call with a value like `KEY`."""
    takes = {f"arg_{k}": draw_spec(rng) for k in range(rng.integers(1, 4))}
    keywords = frozenset(argument for argument in takes if rng.random() < 0.2)
    value, parts = Value(pick(rng, SHAPES)), list[Spec]((KEY, draw_state(rng)))
    several = Several(pick(rng, STRUCTURES), (value, pick(rng, parts)))
    returns = pick(rng, list[Spec]((value, value, draw_state(rng), several)))
    body = draw_body(_Body(rng, weights, inner, smooth), list(takes.values()), returns)
    return Drawn(ab.cell(with_signature(name, takes, keywords, body, is_method)), takes, keywords, returns)


def with_signature(
    name: str, takes: dict[str, Spec], keywords: frozenset[str], body: Callable[..., Any], is_method: bool
) -> Callable[..., Any]:
    """Return a function with this signature that calls `body` with its arguments in order."""
    kind = inspect.Parameter
    parameters = [kind("self", kind.POSITIONAL_OR_KEYWORD)] if is_method else []
    parameters += [kind(a, kind.POSITIONAL_OR_KEYWORD) for a in takes if a not in keywords]
    parameters += [kind(a, kind.KEYWORD_ONLY) for a in takes if a in keywords]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return body(*(arguments[argument] for argument in takes))

    function.__name__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def draw_spec(rng: Rng) -> Spec:
    """Draw the spec of an argument."""
    value = Value(pick(rng, SHAPES))
    parts = list[Spec]((KEY, Data("float"), Each(KEY), draw_state(rng)))
    several = Several(pick(rng, STRUCTURES), (value, pick(rng, parts)))
    each = Each(value if rng.random() < 0.5 else draw_state(rng))
    data = Data(pick(rng, ("id", "ids", "float", "flag")))
    return pick(rng, list[Spec]((value, value, draw_state(rng), data, several, each, each, memory(value.shape))))


def draw_state(rng: Rng) -> Several:
    """Draw a plain tuple of values, so that some cells accept the results of others."""
    return Several("tuple", (KEY, Value(pick(rng, SHAPES[:2]))))


def draw_body(body: _Body, takes: list[Spec], returns: Spec) -> Callable[..., Any]:
    """Draw the body of a cell: a function from its arguments to its result."""
    readers = [body.reader(spec) for spec in takes]
    for spec, read in zip(takes, readers, strict=True):
        body.samples += read(sample(spec))
    for _ in range(body.rng.integers(0, 6)):
        body.draw_step()
    leaves = [body.leaf(shape) for shape in shapes_in(returns)]
    steps = body.steps

    def compute(*arguments: Any) -> Any:
        values = [value for read, argument in zip(readers, arguments, strict=True) for value in read(argument)]
        for function, indices in steps:
            values.append(function(*(values[i] for i in indices)))
        return assemble(returns, iter([values[i] for i in leaves]))

    return compute


def sample(spec: Spec) -> Any:
    """Return an example of an argument."""
    match spec:
        case Value(shape):
            return np.full(shape, 0.4)
        case Data(kind):
            return {"id": 1, "ids": np.array([0, 2]), "float": 0.5, "flag": True}[kind]
        case Several(_, parts):
            return spec.build([sample(part) for part in parts])
        case Each(element):
            return [sample(element)]


def shapes_in(spec: Spec) -> list[Shape]:
    """Return the shapes of the values in a structure."""
    if isinstance(spec, Several):
        return [shape for part in spec.parts for shape in shapes_in(part)]
    assert isinstance(spec, Value)
    return [spec.shape]


def assemble(spec: Spec, values: Iterator[Any]) -> Any:
    """Return a structure with these values."""
    return spec.build([assemble(part, values) for part in spec.parts]) if isinstance(spec, Several) else next(values)


class _Body:
    """The steps drawn so far, and their results for sample arguments."""

    def __init__(self, rng: Rng, weights: Weights, inner: Callable[[Any], Any], smooth: bool) -> None:
        self.rng, self.weights, self.inner, self.smooth = rng, weights, inner, smooth
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self.samples: list[Any] = []

    def reader(self, spec: Spec) -> Callable[[Any], list[Any]]:
        """Draw a function that extracts values from an argument."""
        table = self.weights.table
        match spec:
            case Data("id"):
                return lambda x: [ab.lookup(table, x), 0.1 * x]
            case Data("ids"):
                return lambda x: [ab.lookup(table, x), ab.lookup(table, x[1])]
            case Data("flag"):
                return lambda x: [1.0 if x else -0.5]
            case Several("tuple", (Each(), Each(value))):
                query, shape = self.weights(KEY.shape), shape_tree(value)
                return lambda x: [ab.attend(query, x[0], x[1], shape=shape)]
            case Several(_, parts):
                readers, kind, labels = [self.reader(part) for part in parts], spec.kind, spec.labels
                part_of = getattr if kind == "State" else lambda x, label: x[label]
                return lambda x: [
                    v for read, label in zip(readers, labels, strict=True) for v in read(part_of(x, label))
                ]
            case Each(element):
                form = pick(self.rng, (ab.sum_n, ab.mean_n) if self.smooth else (ab.sum_n, ab.mean_n, ab.max_n))
                shape = shape_tree(element)
                return lambda x: flat(form(x, shape=shape))
        return lambda x: [x]

    def step(self, function: Callable[..., Any], *indices: int) -> int:
        """Add a step; return the number of its value."""
        self.steps.append((function, indices))
        self.samples.append(function(*(self.samples[i] for i in indices)))
        return len(self.samples) - 1

    def draw_step(self) -> None:
        """Add a random step on random values."""
        i = int(self.rng.integers(len(self.samples)))
        shape = np.shape(self.samples[i])
        same = [k for k, x in enumerate(self.samples) if np.shape(x) == shape]
        asking = {1: VECTOR, 2: MATRIX}.get(len(shape), ())
        choice = self.rng.random()
        if choice < 0.15 and shape == KEY.shape:
            self.step(self.inner, i)
        elif choice < 0.4 and asking:
            shapes, compute = pick(self.rng, asking)
            weights = [self.weights(s) for s in shapes(*shape)]
            self.step(lambda x: compute(x, *weights), i)
        elif choice < 0.7:
            self.step(pick(self.rng, SAME), i, pick(self.rng, same))
        else:
            self.step(pick(self.rng, ANY if self.smooth else ANY + BENT_ANY), i)

    def leaf(self, shape: Shape) -> int:
        """Return the number of a value of this shape to return: mostly computed, sometimes an unchanged argument."""
        same = [k for k, x in enumerate(self.samples) if np.shape(x) == shape]
        choice = self.rng.random()
        if choice < 0.2 and same:
            return pick(self.rng, same)
        if choice < 0.25:
            weight = self.weights(shape)
            return self.step(lambda: 0.5 * weight)
        i, k = self.rng.integers(len(self.samples), size=2).tolist()
        return self.step(lambda x, y: ab.tanh(x + y), self.project(i, shape), self.project(k, shape))

    def project(self, i: int, shape: Shape) -> int:
        """Map a value to another shape by a matrix on its elements."""
        size = math.prod(np.shape(self.samples[i]))
        weight = self.weights((math.prod(shape), size))
        return self.step(lambda x: ab.reshape(weight @ ab.reshape(x, (size,)), shape), i)


def flat(tree: Any) -> list[Any]:
    """Return the values in nested tuples."""
    return [value for part in tree for value in flat(part)] if type(tree) is tuple else [tree]
