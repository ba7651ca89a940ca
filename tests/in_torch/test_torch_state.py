"""Test the state of torch cells, changed between calls: parameters, buffers, plain tensors, parametrizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn
from torch.nn.utils import parametrizations, parametrize, prune, remove_weight_norm, spectral_norm, weight_norm

import autobatch.torch as abt
from autobatch.errors import GraphError
from autobatch.ir.arguments import exact
from helpers.counters.counting import count_calls
from helpers.runs.recorded import guard_set_of, traced


class Everything(nn.Module):
    """State of each kind."""

    f: Tensor
    i: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.w, self.v = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.register_buffer("f", torch.ones(4))
        self.register_buffer("i", torch.ones(4, dtype=torch.int64))
        self.plain, self.many = torch.ones(4), [torch.ones(4)]
        self.v.gain = self.plain.gain = 2.0  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        gain = getattr(self.v, "gain", 1.0) * getattr(self.plain, "gain", 1.0)
        return self.l(x) * self.f * self.w * self.i + self.plain * self.v * gain + self.many[0]  # type: ignore[no-any-return]


def drawn() -> Tensor:
    return torch.randn(4)


def doubled(c: Any) -> dict[str, Tensor]:
    return {name: 2 * x for name, x in c.state_dict().items()}


def toggle_weight_norm(c: Any) -> None:
    (remove_weight_norm if hasattr(c.l, "weight_g") else weight_norm)(c.l)


def toggle_parametrization(c: Any) -> None:
    if parametrize.is_parametrized(c.l):
        parametrize.remove_parametrizations(c.l, "weight")
    else:
        parametrizations.weight_norm(c.l)


def make_buffer(c: Any) -> None:
    data = c.w.detach() * 2
    del c.w
    c.register_buffer("w", data)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "assigned float buffer": lambda c: setattr(c, "f", drawn()),
    "float buffer in place": lambda c: c.f.normal_(),
    "assigned int buffer": lambda c: setattr(c, "i", torch.randint(2, 9, (4,))),
    "int buffer in place": lambda c: c.i.random_(2, 9),
    "assigned tensor": lambda c: setattr(c, "plain", drawn()),
    "tensor in place": lambda c: c.plain.normal_(),
    "data of a tensor in place": lambda c: c.plain.data.normal_(),
    "assigned data of a tensor": lambda c: setattr(c.plain, "data", drawn()),
    "an element of a list": lambda c: c.many.__setitem__(0, drawn()),
    "an element of a list in place": lambda c: c.many[0].normal_(),
    "load_state_dict": lambda c: c.load_state_dict(doubled(c)),
    "load_state_dict, assigned": lambda c: c.load_state_dict(doubled(c), assign=True),
    "assigned parameter": lambda c: setattr(c, "w", nn.Parameter(drawn())),
    "assigned data of a parameter": lambda c: setattr(c.w, "data", drawn()),
    "data of a parameter in place": lambda c: c.w.data.normal_(),
    "late tying": lambda c: setattr(c, "w", c.v),
    "late tying across modules": lambda c: setattr(c.l, "bias", c.v),
    "a parameter as a plain tensor": lambda c: setattr(c, "plain", c.v),
    "an attribute of a parameter": lambda c: setattr(c.v, "gain", c.v.gain + 1.0),
    "an attribute of a tensor": lambda c: setattr(c.plain, "gain", c.plain.gain + 1.0),
    "frozen and back": lambda c: c.w.requires_grad_(not c.w.requires_grad),
    "all frozen and back": lambda c: c.requires_grad_(not c.w.requires_grad),
    "a parameter becomes a buffer": lambda c: make_buffer(c),
    "no bias": lambda c: setattr(c.l, "bias", None),
    "another module": lambda c: setattr(c, "l", nn.Linear(4, 4)),
    "prune": lambda c: prune.l1_unstructured(c, "w", 0.5),  # type: ignore[no-untyped-call]
    "prune inside": lambda c: prune.l1_unstructured(c.l, "weight", 0.5),  # type: ignore[no-untyped-call]
    "weight_norm inside, and removed": toggle_weight_norm,
    "spectral_norm inside": lambda c: spectral_norm(c.l.eval()) and None,
    "parametrization inside, and removed": toggle_parametrization,
    "parametrization of eval": lambda c: parametrizations.spectral_norm(c.l.eval()) and None,
}
ONCE = ("a parameter becomes a buffer", "spectral_norm inside")
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def assert_equal(model: nn.Module, found: Tensor, expected: Tensor) -> None:
    """Check that values and the gradients of all parameters equal torch's."""
    torch.testing.assert_close(found, expected)
    of_each = []
    for y in (found, expected):
        model.zero_grad()
        if y.requires_grad:
            (y * torch.arange(1.0, 5.0)).sum().backward()  # type: ignore[no-untyped-call]
        of_each.append({name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(*of_each)


def model_of(runs: str = "auto") -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Module()
    model.c = abt.cell(Everything(), runs=runs)
    return model, abt.batched(lambda x: model.c(x), module=model, backend="reference")  # type: ignore[operator]


@pytest.mark.cases(20)
@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("case", CHANGES)
def test_state_that_changes_between_calls(case: str, runs: str) -> None:
    model, f = model_of(runs)
    x = drawn()
    assert_equal(model, f([x])[0], model.c(x))
    for _ in range(1 if case in ONCE else 3):
        CHANGES[case](model.c)
        assert_equal(model, f([x])[0], model.c(x))


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_the_default_dtype_takes_effect(runs: str) -> None:
    cell: Any = abt.cell(lambda x: x + torch.arange(2) / 3, runs=runs)
    batched, x = abt.batched(lambda x: cell(x), module=nn.Linear(1, 1).double()), torch.ones(2, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert torch.equal(batched([x])[0], cell(x))
        finally:
            torch.set_default_dtype(torch.float32)


def test_tensors_are_compared_by_identity() -> None:
    one = torch.ones(2)
    assert exact(one) == exact(one)
    assert exact(one) != exact(torch.ones(2))
    assert exact((1, one)) != exact((1, torch.ones(2)))


def test_an_unchanged_model_is_not_traced_again() -> None:
    model, f = model_of()
    with torch.no_grad():
        f([drawn()])
        before = traced(f)
        model.c.w.normal_()
        model.c.f.normal_()
        f([drawn()])
    assert traced(f) == before


class Scaling(nn.Module):
    """A parameter, a layer, a buffer and a number that are read, and attributes that are not."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.l, self.w, self.scale = nn.Linear(4, 4), nn.Parameter(torch.randn(4)), 1.5
        self.register_buffer("offset", torch.ones(4))
        self.steps, self.log, self.best = 0, list[int](), object()

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x) * self.w * self.scale + self.offset  # type: ignore[no-any-return]


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_what_no_body_reads_may_change_in_every_step(runs: str) -> None:
    torch.manual_seed(0)
    model = abt.cell(Scaling(), runs=runs)
    f = abt.batched(model, backend="reference")
    x = drawn()
    n_traced = set()
    for step in range(4):
        assert_equal(model, f([x])[0], model(x))
        n_traced.add(traced(f))
        model.steps, model.best = step, object()
        model.log.append(step)
    assert len(n_traced) == 1
    for model.scale in (2.0, 3.0, 3.5):
        assert_equal(model, f([x])[0], model(x))


def test_a_check_of_all_guards_makes_few_calls() -> None:
    """However many dicts of hooks the modules have."""
    model, f = model_of()
    model.c.many = [torch.ones(4)] * 2
    model.c.l = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    with torch.no_grad():
        f([drawn()])
    guard_set = guard_set_of(f)
    n_deep = sum(guard.is_deep for guard in guard_set.guards)
    assert len(guard_set.guards) > 300
    assert n_deep < 5
    assert guard_set.holds()
    assert count_calls(guard_set.holds) <= 20 + 100 * n_deep


class Functional(nn.Module):
    """A module that applies dropout through a function."""

    def __init__(self, drop: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.l, self.drop = nn.Linear(4, 4), drop

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.l(x), self.training)


def drop(x: Tensor, is_on: bool) -> Tensor:
    return nn.functional.dropout(x, 0.5, is_on)


def attend(x: Tensor, is_on: bool) -> Tensor:
    """Drop the attention weight of the only key."""
    key, value = torch.zeros(1, 1, 4), torch.ones(1, 1, 1)
    return nn.functional.scaled_dot_product_attention(key, key, value, dropout_p=0.5 * is_on).reshape(()) * x


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize(("make", "first"), [
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), True),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), False),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), True),
    (lambda: Functional(drop), True),
    (lambda: Functional(drop), False),
    (lambda: Functional(lambda x, on: nn.functional.dropout1d(x[:, None], 0.5, on)[:, 0]), False),
    (lambda: Functional(attend), False),
])  # fmt: skip
def test_graphs_recorded_in_train_run_after_eval_and_back(make: Any, first: bool, runs: str) -> None:
    torch.manual_seed(0)
    model = nn.Module()
    model.c = abt.cell(make(), runs=runs)
    f = abt.batched(lambda x: model.c(x), module=model, backend="reference")  # type: ignore[operator]
    xs = [drawn() for _ in range(20)]
    model.train(first)
    graphs = f.record_all(xs)
    for mode in (first, not first, first, not first):
        model.train(mode)
        found = f(graphs)
        if mode and "0.0" not in repr(model):
            assert 20 < (found == 0).sum() < 60
        else:
            torch.testing.assert_close(found, torch.stack([model.c.eval()(x) for x in xs]))  # type: ignore[union-attr]
            model.train(mode)


class WithPlainTensor(nn.Module):
    """A tensor that requires a gradient but is not a parameter."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
        self.scaled = abt.cell(self._scaled, runs=runs)

    def _scaled(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.scale
        return y

    def inside(self, x: Tensor) -> Any:
        return self.scaled(x).sum()

    def outside(self, x: Tensor) -> Any:
        return (self.linear(x) * self.scale).sum()


@pytest.mark.parametrize("runs", ["auto", "autobatch", "torch"])
def test_a_constant_that_asks_for_a_gradient_gets_it_or_is_refused(runs: str) -> None:
    model = WithPlainTensor(runs)
    with pytest.raises(GraphError, match=r"shape \(2,\) that requires a gradient, .*; make it an nn.Parameter"):
        abt.batched(model.inside)([torch.ones(2)])
    abt.batched(model.outside)([torch.ones(2)]).sum().backward()
    torch.testing.assert_close(model.scale.grad, model.linear(torch.ones(2)).detach())
    model.scale = model.scale.detach()
    abt.check_batched(model.inside, [torch.ones(2)])


class Passing(autograd.Function):
    """The identity, which passes the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


def passed(x: Tensor) -> Any:
    return Passing.apply(x)  # type: ignore[no-untyped-call]


OF_PARAMETERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a product": lambda w: w * 2,
    "a view": lambda w: w[:],
    "a function with a backward of its own": passed,
}


@pytest.mark.parametrize("runs", ["auto", "autobatch", "torch"])
@pytest.mark.parametrize("how", ["alone", "with a value"])
@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_what_was_computed_of_parameters_outside_of_a_cell_is_refused_in_it(name: str, how: str, runs: str) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(2))
    outside = OF_PARAMETERS[name](model.w)
    body = (lambda x: x * outside) if how == "with a value" else (lambda x: x.detach() + passed(outside * 2))
    cell: Any = abt.cell(body, runs=runs)
    with pytest.raises(GraphError, match=r"shape \(2,\) that requires a gradient, .* read it in the cell, give it"):
        abt.batched(lambda x: cell(x).sum(), module=model)([torch.ones(2)])
    outside = outside.detach()
    abt.check_batched(lambda x: cell(x).sum(), [torch.ones(2)], module=model)


class Paired(nn.Module):
    """An embedding that is read through an op that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.pairs = nn.Embedding(5, 2), nn.Bilinear(2, 2, 2)

    def forward(self, token: Tensor) -> Tensor:
        vector: Tensor = self.embedding(token)
        total: Tensor = (vector + self.pairs(vector, vector)).sum()
        return total


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_parameters_that_are_trained_after_all_were_frozen_have_whole_gradients(runs: str) -> None:
    """A cell traced while nothing required gradients stays the same cell afterwards."""
    module = Paired().double()
    cell = abt.cell(module, runs=runs)
    loss = abt.batched(lambda token: cell(token), module=module, backend="reference")
    tokens = [torch.tensor(k) for k in (3, 1, 3)]
    module.requires_grad_(False)
    loss(tokens)
    module.embedding.requires_grad_(True)
    loss(tokens).sum().backward()
    found, module.embedding.weight.grad = module.embedding.weight.grad, None
    torch.stack([module(token) for token in tokens]).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, module.embedding.weight.grad)
