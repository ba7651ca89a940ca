"""Test hooks of modules that are cells or parts of cells, which may change between calls, and hooks of parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import autobatch.torch as abt
from autobatch.errors import GraphError
from helpers.runs.recorded import traced

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),
]
WEIGHTS = torch.arange(1.0, 5.0)


class OfChild(nn.Module):
    """Cells as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = abt.cell(nn.Linear(4, 4)), abt.cell(nn.Linear(4, 4))

    def run(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))  # type: ignore[no-any-return]

    @property
    def hooked(self) -> nn.Module:
        return self.b


class OfList(nn.Module):
    """Cells in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList([abt.cell(nn.Linear(4, 4)) for _ in range(2)])

    def run(self, x: Tensor) -> Tensor:
        for layer in self.all:
            x = layer(x)
        return x

    @property
    def hooked(self) -> nn.Module:
        return self.all[0]


class OfPart(nn.Module):
    """A cell that contains the module with hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.a = abt.cell(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def run(self, x: Tensor) -> Tensor:
        return self.a(x)  # type: ignore[no-any-return]

    @property
    def hooked(self) -> nn.Module:
        part: nn.Module = self.a[0]
        return part


class OfRoot(nn.Linear):
    """A module that is itself a cell."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        abt.cell(self)

    def run(self, x: Tensor) -> Tensor:
        return self(x)  # type: ignore[no-any-return]

    @property
    def hooked(self) -> nn.Module:
        return self


def of_linear(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda module, *args: hook(module, *args) if isinstance(module, nn.Linear) else None


def twice(module: nn.Module, *args: Any) -> Any:
    return args[-1] * 2


def plus_one(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def thrice(module: nn.Module, *gradients: Any) -> Any:
    return tuple(None if g is None else 3 * g for g in gradients[0])


def with_keywords(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tuple(2 * x for x in args), kwargs


HOOKS: dict[str, Callable[[Any], Any]] = {
    "forward": lambda m: m.register_forward_hook(twice),
    "always": lambda m: m.register_forward_hook(twice, always_call=True),
    "forward, for nothing": lambda m: m.register_forward_hook(lambda *_: None),
    "forward with keywords": lambda m: m.register_forward_hook(
        lambda m, args, kwargs, y: y * (1 + len(args)), with_kwargs=True
    ),
    "pre-forward": lambda m: m.register_forward_pre_hook(plus_one),
    "pre-forward with keywords": lambda m: m.register_forward_pre_hook(with_keywords, with_kwargs=True),
    "backward": lambda m: m.register_full_backward_hook(thrice),
    "pre-backward": lambda m: m.register_full_backward_pre_hook(thrice),
    "forward of all": lambda m: of_all.register_module_forward_hook(of_linear(twice)),
    "pre-forward of all": lambda m: of_all.register_module_forward_pre_hook(of_linear(plus_one)),
    "backward of all": lambda m: of_all.register_module_full_backward_hook(of_linear(thrice)),
    "pre-backward of all": lambda m: of_all.register_module_full_backward_pre_hook(of_linear(thrice)),
}


def results(model: nn.Module, values: Tensor, xs: list[Tensor]) -> list[Tensor | None]:
    """Return the values, and the gradients of parameters and instances."""
    model.zero_grad()
    for x in xs:
        x.grad = None
    (values * WEIGHTS).sum().backward()  # type: ignore[no-untyped-call]
    return [values.detach(), *(None if p.grad is None else p.grad.clone() for p in [*model.parameters(), *xs])]


def assert_as_torch(model: Any, f: Any, xs: list[Tensor], given: Any = None) -> None:
    found = results(model, f(xs if given is None else given), xs)
    torch.testing.assert_close(found, results(model, torch.stack([model.run(x) for x in xs]), xs))


def made(kind: Any, needs_gradient: bool = True) -> tuple[Any, Any, list[Tensor]]:
    torch.manual_seed(0)
    model = kind().double()
    xs = [torch.randn(4, requires_grad=needs_gradient, dtype=torch.float64) for _ in range(3)]
    return model, abt.batched(model.run, module=model, backend="reference"), xs


@pytest.mark.cases(20)
@pytest.mark.parametrize("kind", [OfChild, OfList, OfPart, OfRoot])
@pytest.mark.parametrize("case", HOOKS)
def test_hooks_of_modules_come_and_go(case: str, kind: Any) -> None:
    model, f, xs = made(kind)
    for _ in range(2):
        assert_as_torch(model, f, xs)
        handle = HOOKS[case](model.hooked)
        try:
            assert_as_torch(model, f, xs)
        finally:
            handle.remove()
    assert_as_torch(model, f, xs)


@pytest.mark.parametrize("case", ["forward", "pre-forward", "backward", "backward of all"])
def test_hooks_hold_for_graphs_that_were_recorded_before(case: str) -> None:
    model, f, xs = made(OfChild, needs_gradient=False)
    graphs = f.record_all(xs)
    assert_as_torch(model, f, xs, graphs)
    handle = HOOKS[case](model.hooked)
    try:
        assert_as_torch(model, f, xs, graphs)
    finally:
        handle.remove()
    assert_as_torch(model, f, xs, graphs)


@pytest.mark.parametrize("kind", [OfChild, OfList, OfPart, OfRoot])
def test_backward_hooks_see_the_gradients_of_each_instance(kind: Any) -> None:
    model, f, xs = made(kind)
    seen: list[Any] = []
    handle = model.hooked.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    (f(xs) * WEIGHTS).sum().backward()
    found, seen[:] = list(seen), []
    for x in xs:
        (model.run(x) * WEIGHTS).sum().backward()
    handle.remove()
    assert len(found) == len(seen) == 3
    in_order = [sorted(of, key=lambda one: one[1][0].tolist()) for of in (found, seen)]  # torch runs them in any order
    torch.testing.assert_close(*in_order)


class Scale(nn.Module):
    def forward(self, x: Tensor, by: Tensor | None = None, keep: bool = True) -> Tensor:
        return x if by is None else x * by


def test_hooks_see_the_arguments_of_the_call() -> None:
    model = Scale()
    model.register_forward_pre_hook(lambda m, args: (args[0] * 10 ** len(args), *args[1:]))
    run = abt.cell(model)
    f = abt.batched(lambda x: run(x) + run(x, x) + run(x, x, False), module=run, backend="reference")
    torch.testing.assert_close(f([torch.ones(4)])[0], torch.full((4,), 10.0 + 100.0 + 1000.0))


def test_a_hook_that_records_calls_is_refused() -> None:
    """It would be called once for all calls of a type, without numbers."""
    seen: list[Any] = []
    model = abt.cell(Scale())
    model.register_forward_hook(lambda m, args, result: seen.append(result))
    f = abt.batched(lambda x: model(x), module=model, backend="reference")
    with pytest.raises(GraphError, match=r"'Scale' must not change state that it reads, .*: seen around .*"):
        f([torch.ones(4)])


def test_an_old_backward_hook_is_refused() -> None:
    model, f, xs = made(OfPart)
    model.hooked.register_backward_hook(lambda m, gi, go: None)
    with pytest.raises(GraphError, match=r"a Linear has a hook of register_backward_hook.*register_full_backward_hook"):
        f(xs)


def test_backward_hooks_of_a_module_that_is_no_part_are_refused() -> None:
    other = abt.cell(nn.Linear(4, 4))
    model, _, xs = made(OfChild)
    f = abt.batched(lambda x: model.a(other(x)), module=model, backend="reference")
    other.register_full_backward_hook(thrice)
    with pytest.raises(GraphError, match="a Linear has backward hooks, which its forward alone does not run"):
        f(xs)


def test_another_thread_calls_a_cell_while_instances_are_recorded() -> None:
    model, _, xs = made(OfChild)
    found: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: found.append(model.a(xs[0])))
        thread.start()
        thread.join()
        return model.a(x)  # type: ignore[no-any-return]

    abt.batched(run, module=model, backend="reference")(xs[:1])
    torch.testing.assert_close(found, [model.a(xs[0])])
    assert found[0].requires_grad


CHANGES: dict[str, Callable[[Any], Any]] = {
    "prune": lambda m: prune.l1_unstructured(m, "weight", 0.5),  # type: ignore[no-untyped-call]
    "weight_norm": weight_norm,
    "spectral_norm": lambda m: spectral_norm(m.eval()),
    "parametrization": parametrizations.weight_norm,
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", [OfChild, OfList, OfPart, OfRoot])
@pytest.mark.parametrize("case", CHANGES)
def test_weights_that_hooks_compute(case: str, kind: Any) -> None:
    model, f, xs = made(kind)
    assert_as_torch(model, f, xs)
    CHANGES[case](model.hooked)
    for _ in range(2):
        assert_as_torch(model, f, xs)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("case", ["prune", "weight_norm", "spectral_norm"])
def test_weights_that_hooks_compute_stay_tensors_on_the_module(case: str, runs: str) -> None:
    model = nn.Module()
    model.a = abt.cell(nn.Linear(4, 4), runs=runs)
    CHANGES[case](model.a)
    f = abt.batched(lambda x: model.a(x), module=model, backend="reference")  # type: ignore[operator]
    xs = [torch.randn(4)]
    weight: Any = model.a.weight
    numbers = weight.detach().clone()
    result = f(xs)[0]
    assert model.a.weight is weight
    torch.testing.assert_close(weight.detach(), numbers)
    n_traced = traced(f)
    f(xs)
    assert traced(f) == n_traced
    torch.testing.assert_close(result, model.a(xs[0]))


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_hooks_of_parameters_run_once(runs: str) -> None:
    model = nn.Module()
    model.a = abt.cell(nn.Linear(4, 4), runs=runs)
    f = abt.batched(lambda x: model.a(model.a(x)), module=model, backend="reference")  # type: ignore[operator]
    seen: list[str] = []
    model.a.weight.register_hook(lambda g: seen.append("gradient") or 2 * g)  # type: ignore[func-returns-value, no-untyped-call]
    model.a.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))  # type: ignore[no-untyped-call]
    xs = [torch.randn(4) for _ in range(3)]
    f(xs).sum().backward()
    found, model.a.weight.grad = model.a.weight.grad, None
    assert seen == ["gradient", "accumulated"]
    torch.stack([model.a(model.a(x)) for x in xs]).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, model.a.weight.grad)


def test_hooks_of_parameters_that_no_result_depends_on_do_not_run() -> None:
    model = nn.Module()
    model.leaf, model.out = abt.cell(nn.Linear(4, 4)), abt.cell(Second())

    def of_both(x: Tensor) -> Tensor:
        return model.out(model.leaf(x), x)  # type: ignore[operator, no-any-return]

    f = abt.batched(of_both, module=model, backend="reference")
    model.leaf.weight.register_hook(lambda g: 2 * g)  # type: ignore[no-untyped-call]
    xs = [torch.randn(4, requires_grad=True) for _ in range(3)]
    f(xs).sum().backward()
    assert model.leaf.weight.grad is None
    for x in xs:
        torch.testing.assert_close(x.grad, torch.cos(x.detach()))
    constant = f([x.detach() for x in xs])
    assert not constant.requires_grad


class Second(nn.Module):
    """A module that uses only its second argument."""

    def forward(self, _: Tensor, x: Tensor) -> Tensor:
        return torch.sin(x)
