"""Test objects of all kinds that cells read: batched equals eager after a change, or the cell is refused."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import itertools
import os
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.recorded import traced
from helpers.runs.ways import each

VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)
SPACE = types.ModuleType("some_space")
NAME = "AUTOBATCH_TEST_OF_READS"


class Holder:
    """An object with a number and several ways to read it."""

    rate = 2.0

    def __init__(self) -> None:
        self.own = 2.0

    def get(self) -> float:
        return self.own

    def add(self) -> float:
        return self.own

    @classmethod
    def of_class(cls) -> float:
        return cls.rate


class Inheriting(Holder):
    """A class that inherits the attribute of a class."""

    @classmethod
    def of_subclass(cls) -> float:
        return cls.rate


class Meta(type):
    """A metaclass with an attribute."""

    rate = 2.0


class OfMeta(metaclass=Meta):
    """A class whose attribute belongs to its metaclass."""


class Descriptor:
    """A descriptor that stores its own number."""

    def __init__(self) -> None:
        self.number = 2.0

    def __get__(self, owner: Any, kind: Any = None) -> float:
        return self.number


class Described:
    """A class that reads a number through a descriptor."""

    number = Descriptor()


class Celsius:
    """A data descriptor that stores its number under its own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, owner: Any, number: float) -> None:
        owner.__dict__[self.name] = number

    def __get__(self, owner: Any, kind: Any = None) -> float:
        return float(owner.__dict__[self.name]) - 273.0


class Thermometer:
    """An object whose descriptor hides an entry of `__dict__`."""

    degrees = Celsius()

    def __init__(self) -> None:
        self.degrees = 275.0


class Loud:
    """An object that computes with an entry of `__dict__`."""

    def __init__(self) -> None:
        self.number = 2.0

    def __getattribute__(self, name: str) -> Any:
        x = object.__getattribute__(self, name)
        return x * 10.0 if name == "number" else x


class Called:
    """A callable object."""

    def __call__(self) -> float:
        return 2.0


class First:
    """A class to be swapped."""

    def get(self) -> float:
        return 2.0


class Second(First):
    """Another class for objects of `First`."""

    def get(self) -> float:
        return 3.0


class Mode(enum.Enum):
    """An enum, whose members may have attributes."""

    ONE = 1


class Floats(float):
    """A float that can have attributes."""


class Texts(str):
    """A str that can have attributes."""


class Lists(list):  # type: ignore[type-arg]
    """A list that can have attributes."""


class Dicts(dict):  # type: ignore[type-arg]
    """A dict that can have attributes."""


class Tuples(tuple):  # type: ignore[type-arg]
    """A tuple that can have attributes."""


class Arrays(np.ndarray):
    """An array that can have attributes."""


def function() -> float:
    return function.number  # type: ignore[attr-defined, no-any-return]


def late_or_two(x: Any) -> Any:
    try:
        return x.late
    except AttributeError:
        return 2.0


def with_number(x: Any, number: float = 2.0) -> Any:
    x.number = number
    return x


class Case(NamedTuple):
    """How to make the attribute `held`, how a cell reads a number from it, and how to change that number."""

    make: Callable[[], Any]
    read: Callable[[Any], Any]
    change: Callable[[Any], Any]


def attribute_of(make: Callable[[], Any]) -> Case:
    return Case(lambda: with_number(make()), lambda h: h.number, lambda h: setattr(h, "number", 3.0))


HOLDER = Holder()
CASES: dict[str, Case] = {
    "deque": Case(lambda: collections.deque([2.0]), lambda h: h[0], lambda h: h.appendleft(3.0)),
    "array.array": Case(lambda: array.array("d", [2.0]), lambda h: h[0], lambda h: h.__setitem__(0, 3.0)),
    "bytearray": Case(lambda: bytearray([2]), lambda h: h[0], lambda h: h.__setitem__(0, 3)),
    "memoryview": Case(lambda: memoryview(bytearray([2])), lambda h: h[0], lambda h: h.__setitem__(0, 3)),
    "proxy of a dict": Case(
        lambda: (d := {"a": 2.0}, types.MappingProxyType(d)), lambda h: h[1]["a"], lambda h: h[0].update(a=3.0)
    ),
    "view of a dict": Case(lambda: (d := {"a": 2.0}, d.values()), lambda h: max(h[1]), lambda h: h[0].update(a=3.0)),
    "array of objects": Case(
        lambda: np.array([[2.0, None]], object), lambda h: h[0, 0], lambda h: h.__setitem__((0, 0), 3.0)
    ),
    "dict in an array": Case(
        lambda: np.array([{"a": 2.0}, 1], object), lambda h: h[0]["a"], lambda h: h[0].update(a=3.0)
    ),
    "weak reference": Case(lambda: weakref.ref(HOLDER), lambda h: h().own, lambda h: setattr(h(), "own", h().own + 1)),
    "bound method": Case(lambda: Holder().get, lambda h: h(), lambda h: setattr(h.__self__, "own", 3.0)),
    "bound method named like one of a set": Case(
        lambda: Holder().add, lambda h: h(), lambda h: setattr(h.__self__, "own", 3.0)
    ),
    "method of a list": Case(lambda: [2.0].__getitem__, lambda h: h(0), lambda h: h.__self__.__setitem__(0, 3.0)),
    "partial of a list": Case(
        lambda: functools.partial(max, [1.0, 2.0]), lambda h: h(), lambda h: h.args[0].append(3.0)
    ),
    "partial of an object": Case(
        lambda: functools.partial(Holder.get, Holder()), lambda h: h(), lambda h: setattr(h.args[0], "own", 3.0)
    ),
    "keywords of a partial": Case(
        lambda: functools.partial(dict, a=2.0), lambda h: h()["a"], lambda h: h.keywords.update(a=3.0)
    ),
    "attribute of a function": Case(
        lambda: with_number(function), lambda h: h.number, lambda h: setattr(h, "number", 3.0)
    ),
    "attribute in a function": Case(lambda: with_number(function), lambda h: h(), lambda h: setattr(h, "number", 3.0)),
    "attribute of a member": attribute_of(lambda: Mode.ONE),
    "attribute of a number": attribute_of(lambda: Floats(1.0)),
    "attribute of a text": attribute_of(lambda: Texts("a")),
    "attribute of a list": attribute_of(Lists),
    "attribute of a dict": attribute_of(Dicts),
    "attribute of a tuple": attribute_of(Tuples),
    "attribute of an array": attribute_of(lambda: np.ones(2).view(Arrays)),
    "class of an object": Case(Holder, lambda h: type(h).rate, lambda h: setattr(Holder, "rate", Holder.rate + 1)),
    "__class__": Case(Holder, lambda h: h.__class__.rate, lambda h: setattr(Holder, "rate", Holder.rate + 1)),
    "class method": Case(Holder, lambda h: h.of_class(), lambda h: setattr(Holder, "rate", Holder.rate + 1)),
    "attribute that a class inherits": Case(
        lambda: type("Late", (Holder,), {}), lambda h: h.rate, lambda h: setattr(h, "rate", h.rate + 1.0)
    ),
    "class method that reads what its class inherits": Case(
        lambda: type("Late", (Inheriting,), {}), lambda h: h.of_subclass(), lambda h: setattr(h, "rate", h.rate + 1.0)
    ),
    "missing attribute of a class": Case(
        lambda: type("Late", (type("Base", (), {}),), {}),
        lambda h: getattr(h, "late", 2.0),
        lambda h: setattr(h.__bases__[0], "late", 3.0),
    ),
    "hasattr of a class": Case(
        lambda: type("Late", (Holder,), {}),
        lambda h: 3.0 if hasattr(h, "later") else 2.0,
        lambda h: setattr(h, "later", 1.0),
    ),
    "missing attribute of a module": Case(
        lambda: types.ModuleType("a_space"), lambda h: getattr(h, "late", 2.0), lambda h: setattr(h, "late", 3.0)
    ),
    "missing attribute of a function": Case(
        lambda: lambda: 2.0, lambda h: late_or_two(h), lambda h: setattr(h, "late", 3.0)
    ),
    "metaclass": Case(lambda: OfMeta, lambda h: h.rate, lambda h: setattr(Meta, "rate", Meta.rate + 1)),
    "descriptor": Case(
        Described, lambda h: h.number, lambda h: setattr(vars(Described)["number"], "number", h.number + 1)
    ),
    "descriptor over an entry": Case(Thermometer, lambda h: h.degrees, lambda h: setattr(h, "degrees", 276.0)),
    "own __getattribute__": Case(Loud, lambda h: h.number, lambda h: setattr(h, "number", 3.0)),
    "another class": Case(First, lambda h: h.get(), lambda h: setattr(h, "__class__", Second)),
    "patched call": Case(Called, lambda h: h(), lambda h: setattr(Called, "__call__", lambda self: 5.0)),
    "getattr of a module": Case(
        lambda: with_number(SPACE), lambda h: getattr(h, "number"), lambda h: setattr(h, "number", 3.0)  # noqa: B009
    ),
    "globals": Case(lambda: None, lambda h: globals().get("LATE", 2.0), lambda h: globals().update(LATE=3.0)),
    "environment": Case(
        lambda: None, lambda h: float(os.environ.get(NAME, "2")), lambda h: os.environ.update({NAME: "3"})
    ),
    "context variable": Case(lambda: VARIABLE, lambda h: h.get(), lambda h: h.set(h.get() + 1.0)),
    "names": Case(
        lambda: types.SimpleNamespace(a=1),
        lambda h: 3.0 if hasattr(h, "b") else 2.0,
        lambda h: setattr(h, "b", 1),
    ),
    "names in __dict__": Case(Holder, lambda h: 3.0 if "b" in vars(h) else 2.0, lambda h: setattr(h, "b", 1)),
}  # fmt: skip


class Model(ab.Module):
    """A cell that multiplies by the number it reads."""

    def __init__(self, case: Case) -> None:
        self.w, self.held, self.read = ab.Parameter(np.arange(1.0, 3.0)), case.make(), case.read

    @ab.cell
    def scale(self, x: Any) -> Any:
        return x * self.w * self.read(self.held)


@each("case", CASES)
def test_what_changes_takes_effect(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "2")
    model, x = Model(CASES[case]), np.ones(2)
    run = ab.batched(model.scale, module=model, backend="reference")
    before = run([x])[0]
    np.testing.assert_allclose(before, model.scale(x))
    np.testing.assert_array_equal(run([x])[0], before)
    CASES[case].change(model.held)
    now = run([x])[0]
    np.testing.assert_allclose(now, model.scale(x))
    assert not np.array_equal(before, now)


OFTEN: dict[str, Case] = {
    "descriptor": Case(Thermometer, lambda h: h.degrees, lambda h: setattr(h, "degrees", h.degrees + 274.0)),
    "own __getattribute__": Case(Loud, lambda h: h.number, lambda h: setattr(h, "number", h.number)),
    "later in __dict__": Case(
        lambda: with_number(Holder()),
        lambda h: h.own + (vars(h)["own"] if h.number > 2.0 else 0.0),
        lambda h: vars(h).update(own=h.own + 1.0, number=3.0 if h.own > 3.0 else 2.0),
    ),
}


@each("case", OFTEN)
def test_an_entry_that_changes_often(case: str) -> None:
    """From its first change on, a number is an input of the program, unless the body needs the number itself."""
    model, x = Model(OFTEN[case]), np.ones(2)
    run = ab.batched(model.scale, module=model, backend="reference")
    for _ in range(6):
        np.testing.assert_allclose(run([x])[0], model.scale(x))
        OFTEN[case].change(model.held)


@dataclasses.dataclass(frozen=True)
class Named:
    """An immutable object with a number that == ignores."""

    name: str
    number: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(unsafe_hash=True)
class Mutable:
    """An object with a hash that may change."""

    number: Any


class Always:
    """An object that is equal to all of its class."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Always)

    def __hash__(self) -> int:
        return 0


def floats(number: float) -> Floats:
    return with_number(Floats(1.0), number)  # type: ignore[no-any-return]


@each("make", [functools.partial(Named, "a"), Mutable, Always, floats])
def test_equal_objects_may_differ(make: Callable[[float], Any]) -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.held = make(2.0)

        @ab.cell
        def reads(self, x: Any) -> Any:
            return x * self.held.number

        @ab.cell(static=("given",))
        def takes(self, x: Any, given: Any) -> Any:
            return x * given.number

    model, x, given = Model(), np.ones(2), [make(2.0), make(2.0), make(3.0)]
    run = ab.batched(model.reads, backend="reference")
    for held in given:
        model.held = held
        np.testing.assert_allclose(run([x])[0], model.reads(x))
    run = ab.batched(lambda k: model.takes(x, given[k]), module=model, backend="reference")
    for number in (3.0, 4.0):
        np.testing.assert_allclose(run([0, 1, 2, 1]), [model.takes(x, given[k]) for k in (0, 1, 2, 1)])
        object.__setattr__(given[1], "number", number)


def test_equal_immutable_objects_share_a_trace() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        number: float

    @ab.cell(static=("given",))
    def scale(x: Any, given: Config) -> Any:
        return x * given.number

    run, x = ab.batched(lambda number: scale(x, Config(number)), backend="reference"), np.ones(2)
    np.testing.assert_allclose(run([2.0, 3.0, 2.0]), [[2.0, 2.0], [3.0, 3.0], [2.0, 2.0]])
    before = traced(run)
    run([2.0, 3.0])
    assert traced(run) == before


class Listing(ab.Module):
    """A cell that reads the attributes of its own module."""

    def __init__(self) -> None:
        self.w, self.k = ab.Parameter(np.arange(1.0, 3.0)), 2.0

    @ab.cell
    def scale(self, x: Any) -> Any:
        return x * self.w * vars(self)["k"] * len(vars(self))

    def twice(self, x: Any) -> Any:
        return self.scale(self.scale(x))


def test_a_cell_reads_the_attributes_of_its_own_module() -> None:
    """The stand-ins that a recording sets for the module's cells do not count."""
    model, x = Listing(), np.ones(2)
    run = ab.batched(model.twice, backend="reference")
    for name, value in {"k": 2.0, "other": 1.0, "another": 2.0}.items():
        setattr(model, name, value)
        for _ in range(2):
            np.testing.assert_allclose(run([x, x])[0], model.twice(x))


ITERATORS: dict[str, Callable[[], Any]] = {
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1.0, 2.0]),
    "list iterator": lambda: iter([1.0, 2.0, 3.0]),
    "generator": lambda: (x for x in (1.0, 2.0, 3.0)),
    "zip": lambda: zip([1.0], [2.0], strict=True),
}


@each("make", ITERATORS)
def test_elements_of_an_iterator_are_refused(make: str) -> None:
    model = Model(Case(ITERATORS[make], lambda h: np.sum(next(h)), lambda h: None))
    run = ab.batched(model.scale, module=model, backend="reference")
    with pytest.raises(ab.GraphError, match="takes elements of an iterator"):
        run([np.ones(2)])
