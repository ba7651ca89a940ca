"""Test snapshots of containers: they hold exactly while each container has the same objects in the same order."""

from __future__ import annotations

import gc
import random
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from autobatch._native import Snapshot

N_PROGRAMS = 300


class Thing:
    """An object that is compared by identity."""


class Named(dict[Any, Any]):
    """A subclass of dict."""


def contents(containers: list[Any], owners: list[Any]) -> list[Any]:
    """Return the objects in containers, by definition."""
    found = []
    for container in [*containers, *map(vars, owners)]:
        values = [*container.values()] if isinstance(container, Mapping) else []
        found.append([[id(x) for x in container], [id(x) for x in values]])
    return found


MAKERS: list[Callable[[list[Any]], Any]] = [
    list, tuple, deque, dict.fromkeys, lambda things: dict(enumerate(things)), lambda things: Named(enumerate(things)),
    lambda things: OrderedDict(enumerate(things)), lambda things: MappingProxyType(dict(enumerate(things))), set,
]  # fmt: skip


def change(draw: random.Random, container: Any, things: list[Any]) -> None:
    """Change a container, or put the same objects back."""
    thing = draw.choice(things)
    if isinstance(container, (list, deque)):
        edits: list[Callable[[], Any]] = [
            lambda: container.append(thing), container.reverse, lambda: container and container.pop(),
            lambda: container.append(container.pop()) if container else None,
        ]  # fmt: skip
    elif isinstance(container, dict):
        key = draw.choice([0, 1, thing])
        edits = [
            lambda: container.update({key: thing}), lambda: container.pop(key, None),
            lambda: container.update({key: container.pop(key)}) if key in container else None,
        ]  # fmt: skip
        if isinstance(container, OrderedDict) and container:
            edits.append(lambda: container.move_to_end(next(iter(container))))
    elif isinstance(container, set):
        edits = [lambda: container.add(thing), lambda: container.discard(thing)]
    else:
        return
    draw.choice(edits)()


@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_random_changes(seed: int) -> None:
    draw = random.Random(seed)
    things = [Thing() for _ in range(4)]
    containers = [draw.choice(MAKERS)(draw.choices(things, k=draw.randrange(4))) for _ in range(draw.randrange(4))]
    owners = [SimpleNamespace(**{f"a{k}": x for k, x in enumerate(things[:n])}) for n in range(draw.randrange(3))]
    snapshot, before = Snapshot(containers, owners), contents(containers, owners)
    for _ in range(6):
        if owners and draw.random() < 0.3:
            owner = draw.choice(owners)
            setattr(owner, draw.choice(["a0", "b"]), draw.choice(things))
            if draw.random() < 0.2:
                owner.__dict__.update(dict(reversed(vars(owner).items())))
        elif containers:
            change(draw, draw.choice(containers), things)
        assert snapshot.holds() == (contents(containers, owners) == before)


def test_equal_objects_are_not_the_same() -> None:
    held = [1000, "a" * 3, ()]
    snapshot = Snapshot([held])
    held[0] = int("1000")
    assert not snapshot.holds()


def test_an_error_of_a_container_is_raised() -> None:
    class Broken(list[Any]):
        fails = False

        def __iter__(self) -> Any:
            if self.fails:
                raise KeyError("no elements")
            return super().__iter__()

    broken = Broken([Thing()])
    snapshot = Snapshot([broken])
    assert snapshot.holds()
    broken.fails = True
    with pytest.raises(KeyError, match="no elements"):
        snapshot.holds()
    with pytest.raises(KeyError, match="no elements"):
        Snapshot([broken])


@pytest.mark.parametrize(("containers", "owners"), [([1], []), ([], [1]), (1, []), ([], 1)])
def test_what_holds_nothing_is_refused(containers: Any, owners: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        Snapshot(containers, owners)


def test_a_snapshot_in_a_cycle_is_freed() -> None:
    thing, held = Thing(), list[Any]()
    held += [thing, Snapshot([held])]
    gone = weakref.ref(thing)
    del thing, held
    gc.collect()
    assert gone() is None
