"""Test that changes of a module take effect at the next call, in cells and outside, without a new batched function.

Recorded graphs follow when a tensor is replaced by another of its shape, and are refused when more has changed.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel

import autobatch.torch as abt
from autobatch.errors import AutobatchError
from autobatch.torch.batched import TorchBatched
from helpers.counters.counting import count_calls
from helpers.runs.recorded import traced

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


class Low(nn.Module):
    """A layer with a low-rank adapter, as in LoRA."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Parameter(0.5 * torch.ones(2, 3)), nn.Parameter(0.1 * torch.ones(3, 2))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) + self.up @ (self.down @ x)


class Net(nn.Module):
    """Layers, parameters and buffers that are read in a cell, and others of the same kinds outside cells."""

    scale: Tensor
    inner_scale: Tensor

    def __init__(self, runs: str) -> None:
        super().__init__()
        self.runs = runs
        self.lin = abt.cell(nn.Linear(3, 3), runs=runs)
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.out = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.named = nn.ModuleDict({"last": nn.Linear(3, 3)})
        self.shift = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.register_buffer("inner_scale", torch.full((3,), 0.5))
        self.hidden = abt.cell(self._hidden, runs=runs)

    def _hidden(self, x: Tensor) -> Any:
        return self.inner(x) * self.inner_scale

    def one(self, x: Tensor) -> Any:
        h = self.out(self.hidden(self.lin(x))) * self.scale + self.shift
        for layer in self.layers:
            h = layer(h)
        return self.named["last"](h) @ self.shift

    batch: Any = abt.batched(one, backend="reference")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    """Use float64 by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def put(net: Any, **values: Any) -> None:
    """Assign attributes; two underscores in a name stand for a dot."""
    for name, value in values.items():
        *path, last = name.split("__")
        setattr(net.get_submodule(".".join(path)), last, value)


def doubled(net: nn.Module) -> dict[str, Tensor]:
    return {name: 2 * tensor for name, tensor in net.state_dict().items()}


def swap(net: Any) -> None:
    first, second = net.out.weight, net.layers[0].weight
    net.out.weight, net.layers[0].weight = second, first


def regroup(net: Any) -> None:
    """Tie two pairs of weights, then regroup them so that each pair keeps one of its weights."""
    net.layers[0].weight, net.named["last"].weight = net.out.weight, net.inner[0].weight
    net.batch([torch.ones(3)])
    net.layers[0].weight, net.named["last"].weight = net.inner[0].weight, net.out.weight


def toggle(layer: nn.Module) -> None:
    """Add or remove weight normalisation."""
    if parametrize.is_parametrized(layer):
        parametrize.remove_parametrizations(layer, "weight")
    else:
        parametrizations.weight_norm(layer)


def train_some(net: Any) -> None:
    net.requires_grad_(False)
    net.named.requires_grad_(True)


FOLLOWED: dict[str, Callable[[Any], Any]] = {
    "load_state_dict": lambda m: m.load_state_dict(doubled(m)),
    "load_state_dict(assign=True)": lambda m: m.load_state_dict(doubled(m), assign=True),
    "assigned parameters": lambda m: put(
        m,
        shift=nn.Parameter(torch.zeros(3) + 3),
        out__weight=nn.Parameter(torch.eye(3)),
        inner__0__bias=nn.Parameter(torch.ones(3)),
    ),
    "assigned buffers": lambda m: put(m, scale=torch.ones(3), inner_scale=torch.ones(3)),
    "numbers in place": lambda m: [p.data.mul_(2) for p in m.parameters()],
    "assigned data": lambda m: [p.__setattr__("data", p.data * 2) for p in m.parameters()],
    "some frozen": train_some,
    "all frozen": lambda m: m.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "float": lambda m: m.float(),
    "to(float32)": lambda m: m.to(torch.float32),
    "weight_norm of a cell": lambda m: toggle(m.lin),
    "pruning in a cell": lambda m: prune.random_unstructured(m.inner[0], "weight", 0.4),  # type: ignore[no-untyped-call]
    "a parameter becomes a buffer": lambda m: (m.__delattr__("shift"), m.register_buffer("shift", torch.ones(3))),
    "pruning for good": lambda m: (
        prune.l1_unstructured(m.out, "weight", amount=0.4),  # type: ignore[no-untyped-call]
        prune.remove(m.out, "weight"),  # type: ignore[no-untyped-call]
    ),
}
"""Changes that recorded graphs follow."""
REFUSED: dict[str, Callable[[Any], Any]] = {
    "weight_norm": lambda m: toggle(m.out),
    "weight_norm in a cell": lambda m: toggle(m.inner[0]),
    "spectral_norm": lambda m: parametrizations.spectral_norm(m.out.eval()),
    "orthogonal in a cell": lambda m: parametrizations.orthogonal(m.inner[0]),
    "former weight_norm": lambda m: nn.utils.weight_norm(m.out),
    "former spectral_norm": lambda m: nn.utils.spectral_norm(m.out.eval()),
    "pruning": lambda m: prune.l1_unstructured(m.out, "weight", amount=0.4),  # type: ignore[no-untyped-call]
    "tying": lambda m: put(m, out__weight=m.lin.weight),
    "tying to a cell's": lambda m: setattr(m.lin, "weight", m.out.weight),
    "an exchange": swap,
    "another tying": regroup,
    "another head": lambda m: setattr(m, "out", nn.Linear(3, 3)),
    "another head of another kind": lambda m: setattr(m, "out", nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))),
    "another width": lambda m: put(m, layers__0=nn.Linear(3, 5), named__last=nn.Linear(5, 3)),
    "no bias": lambda m: setattr(m.out, "bias", None),
    "another cell": lambda m: setattr(m, "lin", abt.cell(nn.Linear(3, 3), runs=m.runs)),
    "another layer in a cell": lambda m: m.inner.__setitem__(0, nn.Linear(3, 3)),
    "another function in a cell": lambda m: m.inner.__setitem__(1, nn.Sigmoid()),
    "another layer of a list": lambda m: m.layers.__setitem__(0, nn.Linear(3, 3)),
    "another function of a list": lambda m: m.layers.__setitem__(1, nn.Sigmoid()),
    "a longer list": lambda m: m.layers.append(nn.Linear(3, 3)),
    "another layer of a dict": lambda m: m.named.__setitem__("last", nn.Linear(3, 3)),
    "an adapter": lambda m: setattr(m, "out", Low(m.out)),
    "an adapter of a cell": lambda m: setattr(m, "lin", Low(m.lin)),
    "an adapter in a cell": lambda m: m.inner.__setitem__(0, Low(m.inner[0])),
}
"""Changes after which recorded graphs are refused."""
WAYS: dict[str, Callable[[Net], Callable[[Any], Any]]] = {
    "a method": lambda net: net.batch,
    "a function": lambda net: abt.batched(lambda x: net.one(x), module=net, backend="reference"),
}
ROWS = [torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.tensor([0.3, 0.1, -1.0], dtype=torch.float64)]


def rows_of(net: Any) -> list[Tensor]:
    dtype = next(net.parameters()).dtype
    return [x.to(dtype) for x in ROWS]


def made(runs: str = "auto") -> Any:
    torch.manual_seed(0)
    return Net(runs)


def assert_as_torch(net: Any, batch: Any, instances: Any = None) -> None:
    """Check that values and gradients, None included, equal those of one instance at a time."""
    rows = rows_of(net)
    found, expected = batch(rows if instances is None else instances), torch.stack([net.one(x) for x in rows])
    close: Any = {} if found.dtype is torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found, expected, **close)
    of_each = []
    for y in (found, expected):
        net.zero_grad()
        if y.requires_grad:
            y.pow(2).sum().backward()
        of_each.append({name: p.grad for name, p in net.named_parameters()})
    torch.testing.assert_close(*of_each, **close)


@pytest.mark.cases(30)
@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FOLLOWED | REFUSED)
def test_a_change_takes_effect_at_the_next_call(name: str, way: str, runs: str) -> None:
    net = made(runs)
    batch = WAYS[way](net)
    assert_as_torch(net, batch)
    (FOLLOWED | REFUSED)[name](net)
    for _ in range(2):
        assert_as_torch(net, batch)


@pytest.mark.cases(30)
@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("name", FOLLOWED | REFUSED)
def test_recorded_graphs_follow_or_are_refused(name: str, runs: str) -> None:
    net = made(runs)
    graphs = net.batch.record_all(rows_of(net))
    assert_as_torch(net, net.batch, graphs)
    (FOLLOWED | REFUSED)[name](net)
    refusing = pytest.raises(AutobatchError, match=r"recorded graphs: .*; record the instances again\.$")
    expected: AbstractContextManager[Any] = refusing if name in REFUSED else nullcontext()
    with expected:
        assert_as_torch(net, net.batch, graphs)
    assert_as_torch(net, net.batch)


def test_a_module_that_is_itself_batched() -> None:
    for change in ("float", "assigned buffers", "weight_norm", "another head", "an adapter of a cell"):
        net = made()
        net.forward = net.one
        batch = abt.batched(net, backend="reference")
        assert_as_torch(net, batch)
        (FOLLOWED | REFUSED)[change](net)
        assert_as_torch(net, batch)


def test_changes_one_after_the_other() -> None:
    """The same cell or layer may go through several changes."""
    net = made()
    for name in ("weight_norm", "load_state_dict(assign=True)", "another head", "tying", "pruning in a cell",
                 "another layer in a cell", "an adapter of a cell", "some frozen", "float"):  # fmt: skip
        (FOLLOWED | REFUSED)[name](net)
        assert_as_torch(net, net.batch)


def test_what_was_taken_away_may_come_back() -> None:
    net = made()
    assert_as_torch(net, net.batch)
    head, cell = net.out, net.lin
    for _ in range(3):
        net.out, net.lin = nn.Linear(3, 3), abt.cell(nn.Linear(3, 3))
        assert_as_torch(net, net.batch)
        net.out, net.lin = head, cell
        assert_as_torch(net, net.batch)


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["leaves", "computed", "some", "without gradients"])
def test_functional_call(kind: str, runs: str) -> None:
    """The given tensors get the gradients, whatever the module holds by then, and no types accumulate."""
    net = made(runs)
    net.batch(ROWS)
    n_types = list[int]()
    for k in range(3):
        leaves = {name: ((k + 2.0) * x.detach()).requires_grad_(kind != "without gradients")
                  for name, x in net.named_parameters() if kind != "some" or "out" in name}  # fmt: skip
        given = {name: x * 0.5 for name, x in leaves.items()} if kind == "computed" else leaves
        twin = copy.deepcopy(net)
        with torch.no_grad():
            for name, x in given.items():
                twin.get_parameter(name).copy_(x)
        caller = _Caller(net)
        found = functional_call(caller, {f"net.{name}": x for name, x in given.items()}, (ROWS,))
        expected = torch.stack([twin.one(x) for x in ROWS])
        torch.testing.assert_close(found, expected)
        n_types.append(len(net.batch.recorder.types))
        if kind != "without gradients":
            for y in (found, expected):
                y.pow(2).sum().backward()
            factor = 0.5 if kind == "computed" else 1.0
            for name, x in leaves.items():
                torch.testing.assert_close(x.grad, factor * twin.get_parameter(name).grad)
        assert_as_torch(net, net.batch)
    assert len(set(n_types)) == 1


class _Caller(nn.Module):
    """A module that calls the batched method of another."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, rows: list[Tensor]) -> Any:
        return self.net.batch(rows)


class Alone(_Caller):
    """A module that runs one instance at a time."""

    def forward(self, rows: list[Tensor]) -> Any:
        return torch.stack([self.net.one(x) for x in rows])


def test_steps_of_gradients_that_are_differentiated() -> None:
    """The outer loss is differentiated through two inner steps (MAML)."""

    def outer(caller: nn.Module) -> dict[str, Tensor | None]:
        own: Any = dict(caller.named_parameters())
        fast = own
        for _ in range(2):
            inner = functional_call(caller, fast, (ROWS,)).pow(2).sum()
            steps = torch.autograd.grad(inner, [*fast.values()], create_graph=True)
            fast = {name: p - 0.01 * step for (name, p), step in zip(fast.items(), steps, strict=True)}
        loss = functional_call(caller, fast, (ROWS,)).pow(2).sum()
        return dict(zip(own, torch.autograd.grad(loss, [*own.values()]), strict=True))

    net = made()
    torch.testing.assert_close(outer(_Caller(net)), outer(Alone(net)))


def test_copies_and_averages_are_modules_of_their_own() -> None:
    net = made()
    net.batch(ROWS)
    twin, average = copy.deepcopy(net), AveragedModel(net)
    of_average: Any = average.module
    for change in ("numbers in place", "another head", "tying"):
        (FOLLOWED | REFUSED)[change](net)
        for module in (net, twin, of_average):
            assert_as_torch(module, module.batch)
    twin.load_state_dict(made().state_dict())
    of_average.load_state_dict(made().state_dict())
    average.update_parameters(twin)
    assert_as_torch(of_average, of_average.batch)


def test_a_part_that_is_batched_on_its_own_too() -> None:
    """Both functions read one parameter, whichever is called first after a change."""
    net = made()
    head = abt.batched(net.out, backend="reference")
    for change in ("load_state_dict(assign=True)", "float", "assigned parameters", "tying", "weight_norm"):
        net, twin = made(), made()
        head = abt.batched(net.out, backend="reference")
        head(ROWS)
        assert_as_torch(net, net.batch)
        for module in (net, twin):
            (FOLLOWED | REFUSED)[change](module)
        for _ in range(2):
            torch.testing.assert_close(head(rows_of(net)), torch.stack([net.out(x) for x in rows_of(net)]))
            assert_as_torch(net, net.batch)


def test_a_part_that_leaves_and_is_batched_on_its_own() -> None:
    net = made()
    head = net.out
    alone = abt.batched(head, backend="reference")
    for _ in range(2):
        assert_as_torch(net, net.batch)
        alone(ROWS).sum().backward()
        net.out = nn.Linear(3, 3)
    assert_as_torch(net, net.batch)
    torch.testing.assert_close(alone(ROWS), torch.stack([head(x) for x in ROWS]))


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_what_was_replaced_is_released(runs: str) -> None:
    net = made(runs)
    assert_as_torch(net, net.batch)
    parts = net.lin, net.out, net.inner[0], net.layers[0]
    old: list[Any] = [weakref.ref(x) for part in parts for x in (part, part.weight, part.weight.untyped_storage())]
    old += [weakref.ref(x) for x in (net.scale, net.inner_scale, net.shift)]
    net.lin, net.out = abt.cell(nn.Linear(3, 3), runs=runs), nn.Linear(3, 3)
    net.inner[0], net.layers[0] = nn.Linear(3, 3), nn.Linear(3, 3)
    net.scale, net.inner_scale, net.shift = torch.ones(3), torch.ones(3), nn.Parameter(torch.ones(3))
    del parts
    assert_as_torch(net, net.batch)
    gc.collect()
    assert [x() for x in old if x() is not None] == []


def test_an_unchanged_module_costs_what_it_did() -> None:
    """Also after many changes."""
    net = made()
    with torch.no_grad():
        net.batch(ROWS)
        net.batch(ROWS)
        before = count_calls(lambda: net.batch(ROWS))
        for _ in range(5):
            net.load_state_dict(doubled(net), assign=True)
            net.batch(ROWS)
        net.batch(ROWS)
        n_traced = traced(net.batch)
        assert count_calls(lambda: net.batch(ROWS)) <= before
        assert traced(net.batch) == n_traced
    assert isinstance(net.batch, TorchBatched)


STEPS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "a function": (torch.tanh, 20),
    "a method": (lambda h: h.sigmoid(), 20),
    "two values": (lambda h: torch.maximum(h, h), 28),
    "an operator": (lambda h: h * h, 32),
    "a number": (lambda h: h + 1.5, 45),
    "two nodes": (lambda h: h + h.sum(), 2 * 42),
}


@pytest.mark.parametrize("name", STEPS)
def test_functions_of_torch_are_recorded_in_few_calls(name: str) -> None:
    (step, most), lin = STEPS[name], nn.Linear(3, 3)
    first = abt.cell(lin)

    def chain(x: Tensor, n: int) -> Tensor:
        h: Tensor = first(x)
        for _ in range(n):
            h = step(h)
        return h

    def calls(n: int) -> int:
        batched = abt.batched(lambda x: chain(x, n), module=lin, backend="reference")
        rows = [torch.ones(3)] * 8
        for _ in range(2):
            batched.record_all(rows)
        return count_calls(batched.record_all, rows)

    assert (calls(200) - calls(100)) / 800 <= most


class Shared(nn.Module):
    """A layer that is called both outside cells and inside one."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = abt.cell(nn.Linear(3, 3)), nn.Linear(3, 3)

    @abt.cell
    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(self.out(x))

    def outside(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(self.lin(x)))

    def inside(self, x: Tensor) -> Tensor:
        return self.inner(self.lin(x))

    def both(self, x: Tensor) -> Tensor:
        return self.outside(x) + self.inside(x)


@pytest.mark.parametrize("change", ["none", "weight_norm", "orthogonal", "spectral_norm"])
@pytest.mark.parametrize("way", ["outside", "inside", "both"])
def test_gradients_of_a_layer_inside_and_outside_of_cells_add_up(change: str, way: str) -> None:
    torch.manual_seed(0)
    net = Shared().double().eval()
    if change != "none":
        getattr(parametrizations, change)(net.out)
    rows, function = [torch.randn(3, dtype=torch.float64) for _ in range(3)], getattr(net, way)
    one_by_one: Any = sum(function(x).sum() for x in rows)
    one_by_one.backward()
    expected = {name: p.grad for name, p in net.named_parameters()}
    net.zero_grad()
    abt.batched(function, module=net)(rows).sum().backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], msg=name)


@pytest.mark.parametrize("runs", ["autobatch", "torch"])
@pytest.mark.parametrize("in_cell", [False, True], ids=["outside of cells", "in a cell"])
def test_data_of_another_shape_take_effect(in_cell: bool, runs: str) -> None:
    """The tensor object stays. Its rows are cut off (in new or old memory) or extended, or its data is transposed."""
    model: Any = nn.Module()
    model.body, model.head = nn.Linear(3, 4), nn.Linear(4, 4)
    cell = abt.cell(lambda x: model.head(torch.tanh(model.body(x))).sum(), runs=runs)
    loss: Any = cell if in_cell else lambda x: model.head(torch.tanh(model.body(x))).sum()
    run, xs = abt.batched(loss, module=model), [torch.randn(3) for _ in range(3)]

    def put(weight: Tensor, bias: Tensor) -> None:
        model.head.weight.data, model.head.bias.data = weight, bias

    changes: list[Callable[[Tensor, Tensor], None]] = [
        put,
        lambda w, b: put(w[:3].clone(), b[:3].clone()),
        lambda w, b: put(w[:2], b[:2]),
        lambda w, b: put(torch.cat([w, 2.0 * w, w]), torch.cat([b, b, b])),
        lambda w, b: put(w.reshape(4, -1)[:, :4].t(), b[:1]),
    ]

    def compare(training: bool) -> None:
        losses, expected = run(xs), torch.stack([loss(x) for x in xs])
        torch.testing.assert_close(losses, expected)
        if training:
            grads = torch.autograd.grad(losses.sum(), [*model.parameters()])
            for grad, own in zip(grads, torch.autograd.grad(expected.sum(), [*model.parameters()]), strict=True):
                torch.testing.assert_close(grad, own)

    for change in changes:
        change(model.head.weight.data, model.head.bias.data)
        for training in (False, True, True):
            compare(training)  # while a graph is alive, torch keeps the old shape
