"""Test bodies that ask for numbers: allowed for constants and data arguments, refused for values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autobatch.torch as abt
from autobatch.errors import GraphError
from autobatch.ir.arguments import Fixed
from helpers.runs.recorded import count_types

RUNS = "auto", "autobatch", "torch"
Given = tuple[Tensor, Tensor, int]


class Net(nn.Module):
    """Layers, a mask and counts that no call changes, and a method that is the cell."""

    mask: Tensor
    counts: Tensor

    def __init__(self, body: Callable[[Any, Tensor, Tensor, Any], Tensor], runs: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers: Any = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("counts", torch.tensor([2, 0, 1]))
        self.cell: Any = abt.cell(lambda x, mask, k: body(self, x, mask, k), runs=runs)

    def loss(self, given: Given) -> list[Any]:
        return [self.cell(*given)]


def as_int(k: Any) -> Tensor:
    return torch.as_tensor(k).reshape(1)


def draw(*masks: list[bool], ints: tuple[int, ...] = (1, 2, 2, 0, 1)) -> list[Given]:
    floats = torch.Generator().manual_seed(1)
    return [
        (torch.randn(3, generator=floats, requires_grad=True), torch.tensor(mask), k)
        for mask, k in zip(masks, ints, strict=False)
    ]


MASKS = [True, False, True], [False, False, True], [True, True, True], [False, False, False], [True, False, True]
BODIES: dict[str, Callable[[Any, Tensor, Tensor, Any], Tensor]] = {
    "a mask": lambda m, x, mask, k: (x * 2)[mask],
    "a mask of one axis": lambda m, x, mask, k: torch.stack((x, 2 * x), 1)[mask, 0],
    "a mask of the second axis": lambda m, x, mask, k: torch.stack((x, 2 * x))[:, mask],
    "a mask computed of data": lambda m, x, mask, k: x[mask & (torch.as_tensor(k) > 0)],
    "a mask that is a constant": lambda m, x, mask, k: x[m.mask],
    "places and a mask": lambda m, x, mask, k: torch.stack((x, 2 * x))[1, mask],
    "a selection": lambda m, x, mask, k: torch.masked_select(torch.stack((x, 2 * x)), mask),
    "where": lambda m, x, mask, k: x[torch.where(mask)[0]],
    "nonzero": lambda m, x, mask, k: x[mask.nonzero().squeeze(-1)],
    "a layer of a number": lambda m, x, mask, k: m.layers[int(k)](x),
    "a loop": lambda m, x, mask, k: sum((x * i for i in range(k)), x),
    "a condition": lambda m, x, mask, k: x if k > 1 else -x,
    "a condition of a mask": lambda m, x, mask, k: x if mask.any() else -x,
    "a list of numbers": lambda m, x, mask, k: x * float(mask.tolist()[0]),
    "counts": lambda m, x, mask, k: x.repeat_interleave(mask.long() + 1),
    "one count": lambda m, x, mask, k: torch.repeat_interleave(x, as_int(k)),
    "counts along an axis": lambda m, x, mask, k: torch.repeat_interleave(torch.stack((x, x)), mask.long(), dim=1),
    "counts that are constants": lambda m, x, mask, k: torch.repeat_interleave(x, m.counts, output_size=3),
    "where to split": lambda m, x, mask, k: torch.tensor_split(x, as_int(k))[0],
    "classes": lambda m, x, mask, k: x.sum() * functional.one_hot(as_int(k)),
    "how often": lambda m, x, mask, k: x.sum() * torch.bincount(mask.long()),
    "weights": lambda m, x, mask, k: x.sum() * torch.bincount(mask.long(), x.detach(), minlength=1).float(),
    "how many differ": lambda m, x, mask, k: x.sum() * torch.unique(mask.long()),
    "an op that torch runs": lambda m, x, mask, k: torch.sort(x).values[mask],
}


@pytest.mark.cases(25)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", BODIES)
def test_numbers_of_data_are_part_of_the_type_where_a_body_asks_for_them(name: str, runs: str) -> None:
    model = Net(BODIES[name], runs)
    if runs == "autobatch" and "torch runs" in name:
        pytest.skip("which runs='autobatch' refuses")
    abt.check_batched(model.loss, draw(*MASKS), module=model, backend="reference")


def n_types(body: Callable[[Any, Tensor, Tensor, Any], Tensor], instances: list[Given], runs: str = "auto") -> int:
    """Count the types of the calls of a cell."""
    model = Net(body, runs)
    batched = abt.batched(model.loss, module=model, backend="reference")
    batched(instances)
    return count_types(batched, "<lambda>")


def test_equal_numbers_are_one_type_and_what_a_body_does_not_ask_for_is_none() -> None:
    instances = draw(*MASKS)
    assert n_types(BODIES["a mask"], instances) == len(set(map(tuple, MASKS)))
    assert n_types(BODIES["a loop"], instances) == 3
    assert n_types(lambda m, x, mask, k: x * k, instances) == 1
    assert n_types(BODIES["a mask that is a constant"], instances) == 1


def test_there_may_be_many_types() -> None:
    masks = [[bool(n >> bit & 1) for bit in range(4)] for n in range(16)]
    model = Net(lambda m, x, mask, k: torch.cat((x, x[:1]))[mask], "auto")
    abt.check_batched(model.loss, draw(*masks, *masks, ints=(1,) * 32), module=model, backend="reference")


def test_a_mask_that_changes_after_the_call_is_another_one() -> None:
    model, (instance, *_) = Net(BODIES["a mask"], "auto"), draw(*MASKS)
    batched = abt.batched(model.loss, module=model, backend="reference")
    assert batched([instance])[0][0].shape == (2,)
    instance[1][1] = True
    assert batched([instance])[0][0].shape == (3,)
    instance[1][1] = False
    assert batched([instance])[0][0].shape == (2,)


def test_functions_outside_of_cells_take_masks_of_data() -> None:
    model = nn.Module()
    model.layer = abt.cell(nn.Linear(3, 3))

    def program(given: Given) -> Any:
        x, mask, _ = given
        h = model.layer(x)  # type: ignore[operator]
        return [h[mask], torch.masked_select(h, mask), torch.repeat_interleave(h, mask.long())]

    abt.check_batched(program, draw(*MASKS), module=model, backend="reference")


def test_graphs_with_such_types_pickle_and_serve_other_calls() -> None:
    instances = [(x.detach(), mask, k) for x, mask, k in draw(*MASKS)]
    models = [Net(lambda m, x, mask, k: m.layers[int(k)](x)[mask], "auto") for _ in range(2)]
    here, there = (abt.batched(model.inside, module=model, backend="reference") for model in map(Inside, models))
    graphs = pickle.loads(pickle.dumps(here.record_all(instances)))
    for found, wanted in zip(there(graphs), here(instances), strict=True):
        torch.testing.assert_close(found, wanted)


OF_FLOATS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "a slope": functional.leaky_relu,
    "a condition": lambda x, k: x / k if k != 0.5 else x,
    "a fill value": lambda x, k: x * torch.full((3,), k),
    "a number of Python": lambda x, k: x * max(float(k), 1.0),
}


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", OF_FLOATS)
def test_floats_are_part_of_the_type_where_a_body_asks_for_them(name: str, runs: str) -> None:
    cell: Any = abt.cell(OF_FLOATS[name], runs=runs)
    instances = [(x, k) for (x, _, _), k in zip(draw(*MASKS), (0.5, 0.25, 0.5, -2.0, 0.0625), strict=True)]
    model = nn.Linear(1, 1)
    batched = abt.batched(lambda given: cell(*given), module=model, backend="reference")
    for got, (x, k) in zip(batched(instances), instances, strict=True):
        torch.testing.assert_close(got, OF_FLOATS[name](x, k))
    assert count_types(batched, cell.name) == 4


def test_floats_that_no_body_asks_for_are_one_type_and_those_of_tensors_are_refused() -> None:
    product: Any = abt.cell(lambda x, k: x * k)
    batched = abt.batched(lambda k: product(torch.ones(3), k), module=nn.Linear(1, 1), backend="reference")
    assert torch.equal(batched([0.5, 0.25])[:, 0], torch.tensor([0.5, 0.25]))
    assert count_types(batched, "<lambda>") == 1
    choice: Any = abt.cell(lambda x, k: x if k > 0.25 else -x)
    batched = abt.batched(lambda k: choice(torch.ones(3), k), module=nn.Linear(1, 1), backend="reference")
    with pytest.raises(GraphError, match="a module asks for a number"):
        batched([torch.tensor(0.5)])


class Inside(nn.Module):
    """A module whose method is the cell, which pickle finds by name."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.layers = net.layers

    @abt.cell
    def take(self, x: Tensor, mask: Tensor, k: Any) -> Tensor:
        y: Tensor = self.layers[int(k)](x)[mask]
        return y

    def inside(self, given: Given) -> list[Any]:
        return [self.take(*given)]


REFUSED: dict[str, Callable[[Any, Tensor, Tensor, Any], Tensor]] = {
    "a mask of values": lambda m, x, mask, k: x[x > 0],
    "a mask of values and data": lambda m, x, mask, k: x[(x > 0) & mask],
    "a condition of values": lambda m, x, mask, k: x if x.sum() > 0 else -x,
    "a condition of parameters": lambda m, x, mask, k: x if m.layers[0].weight.sum() > 0 else -x,
    "how many differ": lambda m, x, mask, k: torch.unique(x),
}


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", REFUSED)
def test_numbers_of_values_and_parameters_are_refused(name: str, runs: str) -> None:
    model = Net(REFUSED[name], runs)
    with pytest.raises(GraphError, match=r"in cell '<lambda>': a module asks for .* only computed when the mini-batch"):
        abt.batched(model.loss, module=model)(draw(*MASKS))


def test_data_are_equal_by_kind_shape_and_numbers() -> None:
    ones = [Fixed(1), Fixed(torch.ones((), dtype=torch.int64).numpy()), Fixed(torch.ones(1, dtype=torch.bool).numpy())]
    assert len({*ones, *map(Fixed, (1, 2))}) == 4
    array = torch.tensor([True, False]).numpy()
    fixed = Fixed(array)
    array[1] = True
    assert fixed != Fixed(array)
    assert repr(fixed) == "array([ True, False])"
    assert pickle.loads(pickle.dumps(fixed)) == fixed
