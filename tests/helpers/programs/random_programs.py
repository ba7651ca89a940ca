"""Random models, and instances that call their cells over random DAGs; deterministic for a seed.

An instance is data: a sequence of `Call`s of cells and operators, whose arguments refer to the results of earlier
calls. `RandomModel` replays it, so that one draw can be computed eagerly, and recorded and batched in every way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autobatch as ab
from fuzzing.drawing import Rng, pick
from fuzzing.specs import Data, Each, Pair, Several, Spec, State, Value
from helpers.programs.random_cells import DIM, N_WORDS, SHAPES, Drawn, Weights, draw_cell

LENGTHS = (0, 1, 1, 2, 2, 3, 5, 20)  # of list arguments
SIZES = (0, 1, 2, 5, 12, 40)  # calls in an instance


@dataclass(frozen=True)
class Ref:
    """The result of an earlier call, or a part of it."""

    call: int
    path: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Call:
    """A call of the named cell or operator; the arguments are structures of `Ref`s and data."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Instance:
    """Calls, the terms of the loss and the form of their sum, and further results."""

    calls: tuple[Call, ...]
    terms: tuple[Any, ...]
    form: str
    aux: Any


OPERATORS: dict[str, tuple[int, Callable[..., Any]]] = {  # number of arguments, all of one shape, and function
    "add": (2, lambda model, x, y: x + y),
    "chain": (3, lambda model, x, y, z: x + y + z),
    "tree": (4, lambda model, x, y, z, u: (x + y) + (z + u)),
    "subtract": (2, lambda model, x, y: x - 0.5 * y),
    "sum_n": (5, lambda model, *xs: ab.sum_n(list(xs))),
    "mean_n": (3, lambda model, *xs: ab.mean_n(xs)),
    "tanh": (1, lambda model, x: ab.tanh(x)),
    "gain": (1, lambda model, x: x * model.gain + 1),
}


class RandomModel(ab.Module):
    """The parameters of drawn cells, two handwritten cells, and the interpreter of instances."""

    def __init__(self, rng: Rng) -> None:
        self.table = ab.Parameter(rng.standard_normal((N_WORDS, DIM)))
        self.gain = ab.Parameter(0.7)
        self.fixed = ab.Parameter(rng.standard_normal(DIM), trainable=False)
        self.weights: list[ab.Parameter] = []
        self.drawn: dict[str, Drawn] = {}

    @ab.cell
    def refine(self, x: Any) -> Any:
        """Refine a value; other cells call this cell."""
        return ab.tanh(x * self.fixed + self.gain)

    @ab.cell
    def answer(self, word: int) -> Any:
        """Compute the loss of an instance that is a single node."""
        return ab.cross_entropy(ab.lookup(self.table, word), 1)

    def loss(self, instance: Instance) -> Any:
        return self.total(instance, self.run(instance))

    def everything(self, instance: Instance) -> Any:
        """Return the loss, and values of other shapes in structures."""
        results = self.run(instance)
        return self.total(instance, results), resolve(instance.aux, results)

    def run(self, instance: Instance) -> list[Any]:
        """Return the results of all calls."""
        results: list[Any] = []
        for call in instance.calls:
            args = [resolve(a, results) for a in call.args]
            kwargs = {name: resolve(a, results) for name, a in call.kwargs.items()}
            if call.name in OPERATORS:
                results.append(OPERATORS[call.name][1](self, *args))
            elif hasattr(self, call.name):
                results.append(getattr(self, call.name)(*args, **kwargs))
            else:
                results.append(self.drawn[call.name].cell(*args, **kwargs))
        return results

    def total(self, instance: Instance, results: list[Any]) -> Any:
        """Combine the terms into the loss."""
        values = [resolve(ref, results) for ref in instance.terms]
        if instance.form == "bare":
            return values[0]
        terms = [ab.sum(ab.tanh(x)) for x in values]
        if instance.form == "sum_n":
            return ab.sum_n(terms, shape=())
        if instance.form == "sum":
            return sum(terms)
        loss: Any = np.zeros(())
        for term in terms:
            loss = loss + term
        return loss


def resolve(tree: Any, results: list[Any]) -> Any:
    """Replace references in a structure by results."""
    match tree:
        case Ref(call, path):
            found = results[call]
            for step in path:
                found = getattr(found, step) if isinstance(found, State) else found[step]
            return found
        case State(h, c):
            return State(resolve(h, results), resolve(c, results))
        case Pair(left, right):
            return Pair(resolve(left, results), resolve(right, results))
        case tuple() | list():
            return type(tree)(resolve(part, results) for part in tree)
        case dict():
            return {key: resolve(part, results) for key, part in tree.items()}
    return tree


def draw_model(rng: Rng, smooth: bool, n_cells: int = 6) -> RandomModel:
    """Draw a float64 model; if `smooth`, its loss is differentiable everywhere."""
    kind = type("Drawn", (RandomModel,), {})
    model: RandomModel = kind(rng)
    weights = Weights(rng, model.table, model.weights)
    for number in range(n_cells):
        name, is_method = f"cell_{number}", bool(rng.random() < 0.8)
        model.drawn[name] = drawn = draw_cell(rng, name, weights, model.refine, smooth, is_method)
        if is_method:
            setattr(kind, name, drawn.cell)
    return model.astype("float64")


def draw_instances(rng: Rng, model: RandomModel, n: int) -> list[Instance]:
    """Draw instances of very different sizes; the first one is a single node."""
    return [draw_instance(rng, model, n_calls) for n_calls in (1, *rng.choice(SIZES, size=n - 1))]


def draw_instance(rng: Rng, model: RandomModel, n_calls: int) -> Instance:
    """Draw calls whose arguments are mostly results of earlier ones, some used often, some never."""
    drawing = _Drawing(rng, model)
    if n_calls == 1:
        drawing.calls = [Call("answer", (int(rng.integers(N_WORDS)),))]
        terms, form = [Ref(0)], "bare"
    else:
        for _ in range(n_calls):
            drawing.draw_call()
        values = [ref for spec, refs in drawing.made.items() if isinstance(spec, Value) for ref in refs]
        terms = [pick(rng, values) for _ in range(rng.integers(0, 8))] if values else []
        form = pick(rng, ("loop", "sum_n", "sum") if terms else ("loop", "sum_n"))
    some = [drawing.value(pick(rng, SHAPES)) for _ in range(rng.integers(0, 4))]
    aux = {"some": some, "state": State(drawing.value(()), (drawing.value((2,)), n_calls))}
    return Instance(tuple(drawing.calls), tuple(terms), form, aux)


class _Drawing:
    """The calls of an instance so far, and references to their values by spec."""

    def __init__(self, rng: Rng, model: RandomModel) -> None:
        self.rng, self.model = rng, model
        self.calls: list[Call] = []
        self.made: defaultdict[Spec, list[Ref]] = defaultdict(list)

    def draw_call(self) -> None:
        """Draw one more call of an operator or a cell."""
        if self.rng.random() < 0.25:
            name, returns = pick(self.rng, tuple(OPERATORS)), Value(pick(self.rng, SHAPES))
            self.calls.append(Call(name, tuple(self.argument(returns) for _ in range(OPERATORS[name][0]))))
            self.note(returns, Ref(len(self.calls) - 1))
            return
        name = pick(self.rng, tuple(self.model.drawn))
        drawn = self.model.drawn[name]
        given = {argument: self.argument(spec) for argument, spec in drawn.takes.items()}
        args = tuple(x for argument, x in given.items() if argument not in drawn.keywords)
        self.calls.append(Call(name, args, {argument: given[argument] for argument in sorted(drawn.keywords)}))
        self.note(drawn.returns, Ref(len(self.calls) - 1))

    def note(self, spec: Spec, ref: Ref) -> None:
        """Register the value at `ref` and all its parts."""
        self.made[spec].append(ref)
        if isinstance(spec, Several):
            for part, label in zip(spec.parts, spec.labels, strict=True):
                self.note(part, Ref(ref.call, (*ref.path, label)))

    def value(self, shape: tuple[int, ...]) -> Any:
        """Draw a value: an earlier result, mostly a recent one, or an array."""
        made = self.made[Value(shape)]
        if made and self.rng.random() < 0.9:
            return made[-min(len(made), int(self.rng.geometric(0.3)))]
        return np.asarray(self.rng.standard_normal(shape))

    def argument(self, spec: Spec) -> Any:
        rng = self.rng
        match spec:
            case Value(shape):
                known = [p for p in self.model.weights if p.shape == shape]
                return pick(rng, known) if known and rng.random() < 0.08 else self.value(shape)
            case Data("id"):
                return pick(rng, (int, np.int64))(rng.integers(N_WORDS))
            case Data("ids"):
                return rng.integers(N_WORDS, size=2)
            case Data("float"):
                return pick(rng, (float, np.float64))(rng.standard_normal())
            case Data("flag"):
                return bool(rng.random() < 0.5)
            case Several("tuple", (Each(Value(key)), Each(Value(shape)))):
                n = pick(rng, LENGTHS)
                return [self.value(key) for _ in range(n)], [self.value(shape) for _ in range(n)]
            case Several(_, parts):
                if self.made[spec] and rng.random() < 0.7:
                    return pick(rng, self.made[spec][-6:])
                return spec.build([self.argument(part) for part in parts])
            case Each(element):
                return [self.argument(element) for _ in range(pick(rng, LENGTHS))]
        raise AssertionError(spec)
