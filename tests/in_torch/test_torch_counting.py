"""Test that cells that change what they read are refused, because a body is traced once for all its calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt
from autobatch.errors import GraphError

TOTAL = 0
SEEN: dict[str, int] = {"calls": 0}


class Net(nn.Module):
    """Several kinds of state that bodies may change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.calls, self.log, self.by_name = 0, list[int](), {"calls": 0}
        self.counts, self.state, self.kinds = defaultdict[str, int](int), SimpleNamespace(n=0), set[int]()
        self.started, self.table, self.hidden = False, None, torch.zeros(3)
        self.nested, self.pair = [[0]], (0, 0)

    def count(self) -> int:
        self.calls += 1
        return self.calls


def count_global(net: Any) -> int:
    global TOTAL
    TOTAL += 1
    return TOTAL


def counter() -> Callable[[Any], int]:
    n = 0

    def count(net: Any) -> int:
        nonlocal n
        n += 1
        return n

    return count


def put(holder: Any, name: str, value: Any) -> int:
    setattr(holder, name, value)
    return 1


def start(net: Any) -> float:
    if net.started:
        return 1.0
    net.started = True
    return 0.5


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a number": lambda net: put(net, "calls", net.calls + 1),
    "in a method": lambda net: net.count(),
    "a number that nothing computes with": lambda net: net.count() and 1,
    "a list": lambda net: net.log.append(1) or len(net.log),
    "a nested list": lambda net: net.nested[0].append(1) or 1,
    "a dict": lambda net: net.by_name.update(calls=net.by_name["calls"] + 1) or 1,
    "a new entry of a dict": lambda net: net.by_name.setdefault(str(len(net.by_name)), 0) + 1,
    "a default of a dict": lambda net: net.counts.__setitem__("calls", net.counts["calls"] + 1) or 1,
    "a set": lambda net: net.kinds.add(len(net.kinds)) or 1,
    "a tuple": lambda net: put(net, "pair", (net.pair[0] + 1, 0)),
    "an object": lambda net: put(net.state, "n", net.state.n + 1),
    "a global": count_global,
    "a global dict": lambda net: SEEN.update(calls=SEEN["calls"] + 1) or 1,
    "a variable around it": counter(),
    "a first call": start,
    "a buffer that is assigned": lambda net: put(net, "hidden", net.hidden + 1),
}


def table_of(net: Any) -> Any:
    """Return a table, which is created on first use."""
    if net.table is None:
        net.table = torch.arange(3.0).cos()
    return net.table


def known(net: Any) -> int:
    """Store a constant and return it."""
    net.by_name["width"] = 3
    return int(net.by_name["width"])


ALLOWED: dict[str, Callable[[Any], Any]] = {
    "a table that is made once": table_of,
    "a constant that is noted": known,
    "an entry that is made once": lambda net: net.by_name.setdefault("made", 2),
    "a mode": lambda net: 2 if net.training else 1,
    "a list of its own": lambda net: sum([1, 2, *net.log]),
}
WAYS: dict[str, Callable[[Any, Any, str], Any]] = {
    "a function": lambda net, scale, runs: abt.cell(lambda x: net.lin(x) * scale(net), runs=runs),
    "a module": lambda net, scale, runs: abt.cell(Scaled(net, scale), runs=runs),
}


class Scaled(nn.Module):
    """A layer times a number."""

    def __init__(self, net: nn.Module, scale: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x: Tensor) -> Any:
        return self.net.lin(x) * self.scale(self.net)  # type: ignore[operator]


ROWS = [torch.ones(3), torch.zeros(3), torch.ones(3)]


@pytest.mark.cases(20)
@pytest.mark.parametrize("runs", ["auto", "autobatch", "torch"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_cell_that_changes_what_it_reads_is_refused(name: str, way: str, runs: str) -> None:
    net = Net()
    cell = WAYS[way](net, REFUSED[name], runs)
    run = abt.batched(lambda x: cell(x), module=net, backend="reference")
    for _ in range(1 if name == "a first call" else 2):
        with pytest.raises(GraphError, match=r"must not change state that it reads, because its body is traced once"):
            run(ROWS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALLOWED)
def test_a_cell_that_keeps_what_it_makes_once_is_that_of_torch(name: str, way: str) -> None:
    net = Net()
    cell = WAYS[way](net, ALLOWED[name], "auto")
    run = abt.batched(lambda x: cell(x), module=net, backend="reference")
    found = run(ROWS)
    torch.testing.assert_close(found, torch.stack([net.lin(x) * ALLOWED[name](Net()) for x in ROWS]))
    abt.check_batched(run, ROWS)


def test_outside_of_cells_every_call_counts() -> None:
    net, twin = Net(), Net()
    lin = abt.cell(net.lin)
    run = abt.batched(lambda x: lin(x) * net.count(), module=net, backend="reference")
    torch.testing.assert_close(run(ROWS), torch.stack([twin.lin(x) * twin.count() for x in ROWS]))
    assert net.calls == twin.calls == 3
