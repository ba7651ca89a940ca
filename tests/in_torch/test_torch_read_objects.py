"""Test what modules read besides parameters: a change takes effect at the next call, as in torch."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import autobatch as ab
import autobatch.torch as abt
from helpers.runs.ways import each


class Case(NamedTuple):
    """How a module reads a number, and how to change that number."""

    read: Callable[[Any], float]
    change: Callable[[Any], Any]
    begin: Callable[[Any], Any] = lambda m: None


def keep(name: str, make: Callable[[], Any]) -> Callable[[Any], None]:
    return lambda m: setattr(m, name, make())


def set_scale(x: Any) -> None:
    x.scale = 3.0


CASES: dict[str, Case] = {
    "missing": Case(lambda m: getattr(m, "scale", 1.0), set_scale),
    "missing below": Case(lambda m: 3.0 if hasattr(m.lin, "scale") else 1.0, lambda m: set_scale(m.lin)),
    "missing of a class": Case(lambda m: getattr(m, "scale", 1.0), lambda m: set_scale(type(m))),
    "in __dict__": Case(lambda m: 3.0 if "scale" in m.__dict__ else 1.0, set_scale),
    "in vars": Case(lambda m: 3.0 if "scale" in vars(m) else 1.0, set_scale),
    "requires_grad": Case(lambda m: 3.0 if m.lin.weight.requires_grad else 1.0, lambda m: m.lin.requires_grad_(False)),
    "missing of a parameter": Case(lambda m: getattr(m.lin.weight, "scale", 1.0), lambda m: set_scale(m.lin.weight)),
    "partial": Case(
        lambda m: m.act(1.0),
        lambda m: setattr(m.config, "k", 7.0),
        lambda m: (
            keep("config", lambda: types.SimpleNamespace(k=1.0))(m),
            keep("act", lambda: functools.partial(lambda c, y: y * c.k, m.config))(m),
        ),
    ),
    "bound method": Case(
        lambda m: m.get(0), lambda m: m.get.__self__.insert(0, 5.0), keep("get", lambda: [2.0].__getitem__)
    ),
    "class": Case(lambda m: type(m).rate, lambda m: setattr(type(m), "rate", 5.0)),
}


def model_of(case: Case) -> Any:
    class Model(nn.Module):
        rate = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)
            case.begin(self)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) * case.read(self)  # type: ignore[no-any-return]

    return abt.cell(Model())


@each("case", CASES)
def test_what_changes_takes_effect(case: str) -> None:
    model, x = model_of(CASES[case]), torch.ones(2)
    run = abt.batched(model, backend="reference")
    before = run([x])[0].detach()
    torch.testing.assert_close(before, model(x).detach())
    CASES[case].change(model)
    now = run([x])[0].detach()
    torch.testing.assert_close(now, model(x).detach())
    assert not torch.equal(before, now)


@each("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@each("ask", [torch.is_grad_enabled, torch.is_inference_mode_enabled])
def test_the_grad_mode_is_refused(ask: Callable[[], bool], mode: Callable[[], Any]) -> None:
    """A body is traced once for all modes. Torch's own functions may ask, because they compute the same in each."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(2, 1, batch_first=True)

        def forward(self, x: Tensor, asks: bool) -> Any:
            with torch.no_grad():
                y = self.attend(x, x, x)[0]
            return y * 2.0 if asks and ask() else y

    model, x = abt.cell(Model().eval()), torch.ones(1, 3, 2)
    run = abt.batched(lambda instance: model(*instance), module=model, backend="reference")
    with mode():
        torch.testing.assert_close(run([(x, False)])[0], model(x, False))
        with pytest.raises(ab.GraphError, match=rf"reads the grad mode \(torch.{ask.__name__}\)"):
            run([(x, True)])


class Layers(nn.Module):
    """Lists of layers, of which `forward` uses slices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.steps = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        self.named = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Tanh()})

    def forward(self, x: Tensor, way: str) -> Any:
        if way == "slice":
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
        elif way == "pairs":
            for one, other in zip(self.layers, self.layers[1:], strict=False):
                x = torch.tanh(one(x) - other(x))
        elif way == "slice of a slice":
            x = self.layers[1:][:2][-1](x)
        elif way == "sequential":
            x = self.steps[:2](x) + self.steps[::2](x)
        elif way == "sum of lists":
            for layer in [*self.layers[:1], *self.layers[3:]]:
                x = layer(x)
        elif way == "new list":
            for layer in nn.ModuleList([self.steps[1], *self.layers]).append(self.named["b"]):
                x = layer(x)
        else:
            x = nn.Sequential(*self.named.values())(x)
        return x


@each("way", ["slice", "pairs", "slice of a slice", "sequential", "sum of lists", "new list", "of a dict"])
@each("outside", [False, True])
def test_lists_of_layers_are_sliced_in_cells(way: str, outside: bool) -> None:
    """A slice is a new list that the body creates. The lists may change later."""
    model, x = Layers(), torch.randn(3)
    cell: Any = model if outside else abt.cell(model)
    run = abt.batched(lambda x: cell(x, way), module=model, backend="reference")
    for change in (lambda: None, lambda: model.layers.append(nn.Tanh()), lambda: model.steps.append(nn.ReLU())):
        change()
        torch.testing.assert_close(run([x])[0], model(x, way))
    before = run([x])[0]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)
    torch.testing.assert_close(run([x])[0], model(x, way))
    assert not torch.equal(run([x])[0], before)


def test_a_method_reads_the_attributes_of_its_own_module() -> None:
    """The stand-ins that a recording sets for the module's cells do not count."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.k = nn.Linear(3, 3), 2.0

        @abt.cell
        def step(self, x: Tensor) -> Any:
            return self.lin(x) * vars(self)["k"] * len([name for name in self.__dict__ if name[0] != "_"])

        def forward(self, x: Tensor) -> Any:
            return self.step(self.step(x))

    model, x = Model(), torch.randn(3)
    run = abt.batched(model.forward, module=model, backend="reference")
    for name, value in {"k": 2.0, "other": 1.0, "another": 2.0}.items():
        setattr(model, name, value)
        for _ in range(2):
            torch.testing.assert_close(run([x, x])[0], model(x))
