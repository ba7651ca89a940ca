"""Test `torch.stack` of recorded values, and that results are tensors for any structure that instances return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch as ab
import autobatch.torch as abt


@dataclass
class Pair:
    one: Any
    other: Any


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.plain = abt.cell(nn.Linear(3, 3)), nn.Linear(3, 3)
        self.step = abt.cell(nn.LSTMCell(3, 3))
        self.double()


torch.manual_seed(0)
NET = Net()
ROWS = [torch.randn(n, 3).double() for n in (2, 2, 3, 1)]
ZEROS = torch.zeros(3).double()


def each(rows: Tensor) -> list[Any]:
    return [NET.lin(row) for row in rows]


def stacked(rows: Tensor) -> Any:
    return torch.stack(each(rows))


def without_gradient(rows: Tensor) -> Any:
    with torch.no_grad():
        found = stacked(rows)
    return found * stacked(rows)


STACKS: dict[str, Callable[[Tensor], Any]] = {
    "alone": stacked,
    "a tuple": lambda r: torch.stack(NET.lin(r[0]).unbind()),
    "operators": lambda r: (stacked(r) * 2 + 1 - r) / 2,
    "from the right": lambda r: r + stacked(r) - 1.0 / stacked(r),
    "of two": lambda r: stacked(r) + stacked(r),
    "methods": lambda r: stacked(r).tanh().sum(),
    "T": lambda r: stacked(r).T @ stacked(r),
    "along the second axis": lambda r: torch.stack(each(r), 1).sum(1),
    "along the last axis": lambda r: torch.stack(each(r), dim=-1),
    "sum": lambda r: stacked(r).sum(0),
    "sum of all": lambda r: stacked(r).sum(),
    "sum in another dtype": lambda r: stacked(r).sum(0, dtype=torch.float32),
    "sum of one kept": lambda r: stacked(r).sum(0, keepdim=True),
    "mean": lambda r: torch.mean(stacked(r)),
    "mean of rows": lambda r: stacked(r).mean(1),
    "amax": lambda r: stacked(r).amax(0),
    "max": lambda r: stacked(r).max(0)[0],
    "column": lambda r: stacked(r)[:, 1],
    "rows": lambda r: stacked(r)[:1],
    "no rows": lambda r: stacked(r)[3:],
    "element": lambda r: stacked(r)[-1, 1],
    "a list of rows": lambda r: stacked(r)[[0, -1]],
    "with data": lambda r: torch.stack([NET.lin(r[0]), r[0], ZEROS]),
    "with data, summed": lambda r: torch.stack([NET.lin(r[0]), r[0], ZEROS]).sum(0),
    "with a parameter": lambda r: torch.stack([NET.lin(r[0]), NET.plain.bias]),
    "of parameters": lambda r: torch.stack([NET.plain.bias, NET.plain.bias]),
    "of a stack": lambda r: torch.stack([stacked(r), r]),
    "of ints": lambda r: torch.stack([h.argmax() for h in each(r)]),
    "of bools": lambda r: torch.stack([h > 0 for h in each(r)]),
    "any of bools": lambda r: torch.stack([h > 0 for h in each(r)]).any(0),
    "unbind": lambda r: stacked(r).unbind(0)[-1],
    "iterated": lambda r: [row * 2 for row in stacked(r)],
    "len": lambda r: NET.lin(r[0]) * len(stacked(r)) * stacked(r).size(0) * stacked(r).shape[1],
    "softmax": lambda r: torch.stack([h.sum() for h in each(r)]).softmax(0) @ stacked(r),
    "matrix product": lambda r: torch.mm(stacked(r), NET.plain.weight),
    "a layer that is no cell": lambda r: NET.plain(stacked(r)),
    "a cell": lambda r: NET.lin(stacked(r)),
    "a row for a cell": lambda r: NET.step(r[0], (stacked(r)[0], NET.lin(r[0])))[0],
    "view": lambda r: stacked(r).view(-1),
    "no gradient": without_gradient,
    "cat": lambda r: torch.cat(each(r)),
    "cat of rows": lambda r: torch.cat([h.unsqueeze(0) for h in each(r)], 0),
    "cat of stacks": lambda r: torch.cat([stacked(r), r, stacked(r)]),
    "hstack": lambda r: torch.hstack(each(r)),
    "vstack": lambda r: torch.vstack(each(r)),
    "dstack": lambda r: torch.dstack(each(r)),
    "column_stack": lambda r: torch.column_stack(each(r)),
    "row_stack": lambda r: torch.row_stack(each(r)),
    "concat": lambda r: torch.concat(each(r)),
    "concatenate": lambda r: torch.concatenate(each(r)),
    "in a dict": lambda r: {"a": stacked(r), "b": NET.lin(r[0])},
    "in a tuple": lambda r: (stacked(r), torch.zeros(2), 3),
    "in a dataclass": lambda r: Pair(stacked(r), [torch.stack([h]) for h in each(r)]),
}
MIXED: dict[str, Callable[[Tensor], Any]] = {
    "a constant": lambda r: ZEROS,
    "constants of several shapes": lambda r: torch.zeros(len(r)),
    "ints": lambda r: torch.tensor([1, 2**40]),
    "a layer on plain data": lambda r: NET.plain(r),
    "the instance": lambda r: r,
    "a row of the instance": lambda r: r[0],
    "a parameter": lambda r: NET.plain.weight,
    "a value or a constant": lambda r: NET.lin(r[0]) if len(r) == 2 else ZEROS,
    "a stack or a constant": lambda r: stacked(r) if len(r) == 2 else torch.zeros(2, 3).double(),
    "an int or a constant": lambda r: NET.lin(r[0]).argmax() if len(r) == 2 else torch.tensor(1),
    "bools or a constant": lambda r: NET.lin(r[0]) > 0 if len(r) == 2 else torch.tensor([True, False, True]),
    "shapes that differ": lambda r: NET.lin(r[0])[: len(r)],
    "an empty sum": lambda r: torch.stack([ZEROS, *each(r[2:])]).sum(0),
    "an empty join": lambda r: torch.cat([torch.zeros(0).double(), *each(r[2:])]),
    "nothing to read": lambda r: sum(each(r[3:]), ZEROS),
    "some in a tuple": lambda r: (NET.lin(r[0]) if len(r) < 3 else ZEROS, NET.lin(r[0])),
    "some in a dict of lists": lambda r: {"all": [*each(r[1:]), ZEROS], "one": r[0]},
}


@pytest.mark.parametrize("name", [*STACKS, *MIXED])
def test_results_are_those_of_torch(name: str) -> None:
    function = (STACKS | MIXED)[name]
    for instances in (ROWS[:2], ROWS):
        abt.check_batched(function, instances, module=NET, backend="reference")
        with torch.no_grad():
            found = abt.batched(function, module=NET, backend="reference")(instances)
        assert_tensors(found)


def assert_tensors(found: Any) -> None:
    if isinstance(found, (list, tuple)):
        for part in found:
            assert_tensors(part)
    elif isinstance(found, dict):
        assert_tensors([*found.values()])
    elif isinstance(found, Pair):
        assert_tensors([found.one, found.other])
    else:
        assert type(found) is Tensor


@pytest.mark.parametrize("grad", [True, False])
def test_equal_shapes_are_stacked_and_others_are_a_list(grad: bool) -> None:
    batched = abt.batched(stacked, module=NET, backend="reference")
    with torch.set_grad_enabled(grad):
        assert batched(ROWS[:2]).shape == (2, 2, 3)
        assert [x.shape for x in batched(ROWS)] == [(2, 3), (2, 3), (3, 3), (1, 3)]
        assert batched(ROWS[2:3]).shape == (1, 3, 3)


def test_a_number_beside_values_has_their_dtype_and_none_is_left_alone() -> None:
    def total(r: Tensor) -> Any:
        return {"loss": sum(h.sum() for h in each(r[1:])), "n": len(r), "nothing": None}

    found = abt.batched(total, module=NET, backend="reference")([ROWS[3], ROWS[0]])
    assert found["loss"].dtype is torch.float64
    assert found["loss"][0] == 0.0
    assert found["n"].tolist() == [1, 2]
    assert found["nothing"] == [None, None]


def test_constants_keep_the_gradients_that_they_have() -> None:
    rows = [x[0].clone().requires_grad_() for x in ROWS[:2]]
    below = NET.plain.weight.detach().requires_grad_()
    found = abt.batched(lambda x: x if x is rows[0] else NET.lin(x), module=NET, backend="reference")(rows)
    first, second = torch.autograd.grad(found.sum(), rows)
    torch.testing.assert_close(first, torch.ones(3).double())
    torch.testing.assert_close(second, NET.lin.weight.sum(0))
    assert below.grad is None


def test_stacks_are_awaited() -> None:
    async def program(r: Tensor) -> Tensor:
        numbers = await ab.value(stacked(r))
        assert numbers.shape == (len(r), 3)
        return stacked(r).sum() * float(numbers.max() > -1000)  # type: ignore[no-any-return]

    abt.check_batched(program, ROWS, module=NET, backend="reference")


def test_a_stack_makes_no_node_of_its_own_until_it_is_needed_as_one() -> None:
    def nodes(function: Callable[[Tensor], Any]) -> int:
        (graph,) = abt.batched(function, module=NET, backend="reference").record_all([ROWS[2]])
        count: int = graph.n_nodes
        return count

    n = nodes(each)
    assert nodes(stacked) == n
    assert nodes(lambda r: stacked(r)[1:]) == n
    assert nodes(lambda r: stacked(r).sum(0)) == n + 1
    assert nodes(lambda r: (lambda s: (s.exp(), s.tanh()))(stacked(r))) == n + 3  # joined once
