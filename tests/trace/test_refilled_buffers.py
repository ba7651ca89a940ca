"""Test iterators that refill the same buffers: each instance is what it was when it arrived."""

from __future__ import annotations

import copy
import ctypes
import mmap
from array import array
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
import autobatch.torch as abt
from autobatch.distributed.shares import Share
from autobatch.errors import DataError
from autobatch.trace.owning import list_owned
from helpers.runs.ways import each

VALUES = (0.25, -0.5, 1.5)
Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    """An object with an array, and an array in a list."""

    array: Any
    parts: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    array: Any


class Slotted:
    """A class with slots and no dict."""

    __slots__ = ("array", "nothing")

    def __init__(self, array: Any) -> None:
        self.array = array


class Tree:
    """A tree with references in both directions."""

    def __init__(self, array: Any, children: Iterable[Tree] = ()) -> None:
        self.array, self.children = array, list(children)
        self.parent: Tree | None = None
        for child in self.children:
            child.parent = self


class Words(list[Any]):
    """A list that can have attributes."""


class Features(dict[Any, Any]):
    """A dict that can have attributes."""


class Span(tuple[Any, ...]):
    """A tuple that can have attributes."""


class Signal(np.ndarray[Any, Any]):
    """An array that can have attributes."""


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "array": (lambda b: b, lambda x: x),
    "view": (lambda b: b[::-1], lambda x: x[::-1]),
    "tuple": (lambda b: (1, (b, "text")), lambda x: x[1][0]),
    "list": (lambda b: [None, [b]], lambda x: x[1][0]),
    "dict": (lambda b: {"a": {"b": b}}, lambda x: x["a"]["b"]),
    "named tuple": (lambda b: Pair(b, 2), lambda x: x.first),
    "deque": (lambda b: deque([b]), lambda x: x[0]),
    "dataclass": (lambda b: Record(b), lambda x: x.array),
    "list of a dataclass": (lambda b: Record(None, [(b,)]), lambda x: x.parts[0][0]),
    "frozen dataclass": (Frozen, lambda x: x.array),
    "slots": (Slotted, lambda x: x.array),
    "set of objects": (lambda b: {Slotted(b)}, lambda x: next(iter(x)).array),
    "array of objects": (lambda b: np.array([Slotted(b), None], object), lambda x: x[0].array),
    "tree": (lambda b: Tree(None, [Tree(b)]), lambda x: x.children[0].parent.children[0].array),
}


class Net(ab.Module):
    """A cell that reads an array of an instance."""

    def __init__(self) -> None:
        self.layer = ab.Linear(3, 2, rng=np.random.default_rng(0))

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(ab.tanh(self.layer(x)))


def refilled(make: Callable[[Any], Any] = lambda b: b) -> Iterator[Any]:
    """Yield one buffer, refilled for each instance, and overwrite it with NaN at the end."""
    buffer = np.empty(3, np.float32)
    for value in VALUES:
        buffer[:] = value
        yield make(buffer)
    buffer[:] = np.nan


class Reader:
    """A data set that returns the same buffer for all items."""

    def __init__(self) -> None:
        self.buffer = np.empty(3, np.float32)

    def __len__(self) -> int:
        return len(VALUES)

    def __getitem__(self, number: int) -> Any:
        self.buffer[:] = VALUES[number]
        return self.buffer

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))


MODEL = Net()
EXPECTED = [float(MODEL.total(np.full(3, value, np.float32))) for value in VALUES]
SOURCES: dict[str, Callable[[], Any]] = {
    "generator": refilled,
    "slice": lambda: islice(refilled(), 3),
    "reader": Reader,
    "share": lambda: list(Share(refilled(), range(3), 3)),
}
ENTRIES: dict[str, Callable[[ab.Batched, Any], Any]] = {
    "call": lambda f, x: f(x),
    "record_all": lambda f, x: f(f.record_all(x)),
    "record_all with progress": lambda f, x: f(f.record_all(x, progress=True)),
    "record_all in processes": lambda f, x: f(f.record_all(x, workers=2)),
    "value_and_grad": lambda f, x: f.value_and_grad(x, has_aux=True)[0][1],
    "inputs": lambda f, x: f.value_and_grad(x, has_aux=True, inputs=True)[0][1],
    "profile": lambda f, x: (f.profile(x), f([np.full(3, v, np.float32) for v in VALUES]))[1],
    "merged": lambda f, x: [float(v) for v in np.asarray(_sums(f.merged(x)))],
}


def _sums(graph: Any) -> Any:
    """Return the results for the floats of a merged graph."""
    rows = np.asarray(graph.floats, np.float32).reshape(3, 3)
    return [float(MODEL.total(row)) for row in rows]


@each("source", SOURCES)
@each("entry", ENTRIES)
def test_instances_are_what_they_were_when_they_arrived(source: str, entry: str) -> None:
    def function(x: Any) -> Any:
        loss = MODEL.total(x)
        return (loss, loss) if entry in ("value_and_grad", "inputs") else loss

    batched = ab.batched(function, module=MODEL, backend="reference")
    np.testing.assert_allclose(ENTRIES[entry](batched, SOURCES[source]()), EXPECTED, rtol=1e-5)


@each("kind", KINDS)
def test_arrays_are_copied_wherever_an_instance_holds_them(kind: str) -> None:
    make, get = KINDS[kind]
    batched = ab.batched(lambda x: MODEL.total(get(x)), module=MODEL, backend="reference")
    np.testing.assert_allclose(batched(refilled(make)), EXPECTED, rtol=1e-5)
    np.testing.assert_allclose(batched(batched.record_all(refilled(make))), EXPECTED, rtol=1e-5)


def test_lists_that_are_filled_again_are_copied() -> None:
    def words() -> Iterator[Any]:
        buffer: list[int] = []
        for n in (1, 3, 2):
            buffer[:] = range(n)
            yield {"words": buffer}

    batched = ab.batched(lambda x: MODEL.total(np.full(3, len(x["words"]), np.float32)), module=MODEL)
    expected = [float(MODEL.total(np.full(3, n, np.float32))) for n in (1, 3, 2)]
    np.testing.assert_allclose(batched(words()), expected, rtol=1e-5)


def test_lists_and_tuples_of_instances_are_taken_as_they_are() -> None:
    seen, arrays = list[Any](), [np.full(3, value, np.float32) for value in VALUES]

    def function(x: Any) -> Any:
        seen.append(x)
        return MODEL.total(x)

    batched = ab.batched(function, module=MODEL, backend="reference")
    for instances in (arrays, tuple(arrays), dict(enumerate(arrays)).values()):
        seen.clear()
        batched(instances)
        assert all(x is array for x, array in zip(seen, arrays, strict=True))


class Data:
    """A data set that its instances refer to."""

    def __init__(self) -> None:
        self.table, self.items = np.zeros((10, 10)), list[Any]()


class Sentence:
    """An instance that refers to its data set."""

    def __init__(self, data: Data, number: int) -> None:
        self.data, self.ids = data, np.array([number])
        data.items.append(self)


def test_instances_stay_the_same_objects_if_nothing_in_them_changes() -> None:
    data = Data()
    sentences = [Sentence(data, number) for number in range(5)]
    labels = {sentence: float(number) for number, sentence in enumerate(sentences)}
    batched = ab.batched(lambda x: MODEL.total(np.full(3, labels[x], np.float32)), module=MODEL, backend="reference")
    np.testing.assert_allclose(batched(iter(sentences)), batched(sentences))


def test_only_what_holds_a_changed_part_is_copied() -> None:
    data, buffer, model = Data(), np.zeros(2), MODEL
    record = Record("kept", [data])

    def instances() -> Iterator[Any]:
        for value in VALUES:
            buffer[:] = value
            yield record, [buffer, buffer], model

    found = list_owned(instances())
    for (kept, (first, second), same), value in zip(found, VALUES, strict=True):
        assert kept is record
        assert same is model
        assert first is second is not buffer
        np.testing.assert_array_equal(first, value)


def test_a_stored_share_has_copies_of_arrays() -> None:
    buffer = np.zeros(2)
    share = Share(iter([(buffer, MODEL), (buffer, MODEL)]), range(2), 2)
    buffer[:] = 1.0
    assert share[0][0] is share[1][0]
    np.testing.assert_array_equal(share[0][0], 0.0)


FILLED: dict[str, tuple[Any, Callable[[Any, int], Any], Callable[[Any], int]]] = {
    "list": ([], lambda x, n: x.__setitem__(slice(None), range(n)), len),
    "dict": ({}, lambda x, n: (x.clear(), x.update(dict.fromkeys(range(n)))), len),
    "Counter": (Counter(), lambda x, n: (x.clear(), x.update(dict.fromkeys(range(n), 2))), lambda x: sum(x.values())),
    "set": (set(), lambda x, n: (x.clear(), x.update(range(n))), len),
    "deque": (deque(), lambda x, n: (x.clear(), x.extend(range(n))), len),
    "bytearray": (bytearray(1), lambda x, n: x.__setitem__(0, n), lambda x: x[0]),
    "memoryview": (memoryview(bytearray(1)), lambda x, n: x.__setitem__(0, n), lambda x: x[0]),
    "array.array": (array("i", [0]), lambda x, n: x.__setitem__(0, n), lambda x: x[0]),
    "objects": (np.array([[0], [0]], object).T, lambda x, n: x.__setitem__((0, 1), n), lambda x: x[0, 1]),
    "attribute": (Record(0), lambda x, n: setattr(x, "array", n), lambda x: x.array),
    "attribute of a list": (Words([1]), lambda x, n: setattr(x, "n", n), lambda x: x.n * x[0]),
    "attribute of a dict": (Features(a=1), lambda x, n: setattr(x, "n", n), lambda x: x.n * x["a"]),
    "attribute of a tuple": (Span([1]), lambda x, n: setattr(x, "n", n), lambda x: x.n * x[0]),
    "attribute of an array": (np.ones(1).view(Signal), lambda x, n: setattr(x, "n", n), lambda x: x.n * int(x[0])),
    "row of a structured array": (np.zeros(1, "i4,f8")[0], lambda x, n: x.__setitem__("f0", n), lambda x: x["f0"]),
    "new attribute": (Record(0), lambda x, n: vars(x).__setitem__(str(n), n), lambda x: len(vars(x))),
}
HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda x: x, lambda x: x),
    "tuple": (lambda x: (0, x), lambda x: x[1]),
    "object": (Slotted, lambda x: x.array),
    "object with an array": (lambda x: Record(np.ones(2), [x]), lambda x: x.parts[0]),
}


@each("holder", HOLDERS)
@each("kind", FILLED)
@pytest.mark.parametrize("is_new", [False, True], ids=["same holder", "new holders"])
def test_what_is_filled_again_is_restored(kind: str, holder: str, is_new: bool) -> None:
    prototype, fill, read = FILLED[kind]
    part = memoryview(bytearray(1)) if kind == "memoryview" else copy.deepcopy(prototype)
    make, get = HOLDERS[holder]
    counts, expected = (1, 1, 3, 1, 2), list[int]()
    held = make(part)

    def instances() -> Iterator[Any]:
        for count in counts:
            fill(part, count)
            expected.append(read(part))
            yield make(part) if is_new else held
        fill(part, 7)

    assert [read(get(x)) for x in list_owned(instances())] == expected


class Once:
    """An object that cannot be copied."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __copy__(self) -> Any:
        raise TypeError("there is one")


def test_what_cannot_be_copied_is_refused_in_a_sentence() -> None:
    batched = ab.batched(lambda x: MODEL.total(x.array), module=MODEL)
    with pytest.raises(DataError, match=r"Once cannot be copied \(there is one\); give a list of instances"):
        batched(refilled(Once))


def parts_that_cannot_be_copied() -> dict[str, tuple[Any, Callable[[int], Any]]]:
    """Return, by name, a part that cannot be copied and a function that changes it."""
    own, numbers, memory = dict[str, int](), (ctypes.c_int * 2)(), mmap.mmap(-1, 8)
    row = np.zeros(1, [("o", object), ("n", int)])[0]
    return {
        "mappingproxy": (MappingProxyType(own), lambda n: own.update(a=n)),
        **{f"dict_{x}": (getattr(own, x)(), lambda n: own.update(a=n)) for x in ("keys", "values", "items")},
        "c_int_Array_2": (numbers, lambda n: numbers.__setitem__(0, n)),
        "mmap": (memory, lambda n: memory.__setitem__(0, n)),
        "void": (row, lambda n: row.__setitem__("n", n)),
    }


@each("kind", parts_that_cannot_be_copied())
@each("holder", HOLDERS)
def test_what_cannot_be_copied_is_noted(kind: str, holder: str) -> None:
    """Refused if it changes; kept as the same object otherwise."""
    part, change = parts_that_cannot_be_copied()[kind]
    make, get = HOLDERS[holder]
    assert all(get(x) is part for x in list_owned(make(part) for _ in range(3)))

    def instances() -> Iterator[Any]:
        for n in (1, 2):
            change(n)
            yield make(part)

    with pytest.raises(DataError, match=rf"cannot be copied \(.*{kind}.*\); give a list of instances"):
        list_owned(instances())


def test_an_async_function_meets_its_own_arrays() -> None:
    async def choose(x: Any) -> Any:
        h = MODEL.total(x)
        await ab.value(h)
        return MODEL.total(x)

    batched = ab.batched(choose, module=MODEL, backend="reference")
    np.testing.assert_allclose(batched(refilled()), EXPECTED, rtol=1e-5)
    np.testing.assert_allclose(batched(batched.record_all(refilled())), EXPECTED, rtol=1e-5)


@each("kind", [kind for kind in KINDS if kind != "view"])
def test_tensors_are_copied_as_arrays_are(kind: str) -> None:
    make, get = KINDS[kind]
    net = abt.cell(torch.nn.Linear(3, 2))
    batched = abt.batched(lambda x: net(get(x)).sum(), module=net)
    expected = [net(torch.full((3,), value)).sum().item() for value in VALUES]
    found = batched(refilled(lambda b: make(torch.from_numpy(b))))
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-5, atol=1e-6)


def test_gradients_pass_to_the_tensors_of_an_iterator() -> None:
    net = abt.cell(torch.nn.Linear(3, 1))
    tensors = [torch.full((3,), value, requires_grad=True) for value in VALUES]
    abt.batched(lambda x: net(x).sum(), module=net)(iter(tensors)).sum().backward()
    for x in tensors:
        assert x.grad is not None
        torch.testing.assert_close(x.grad, net.weight[0].detach())
