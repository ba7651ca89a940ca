"""Test grad modes within a recorded program: values computed while grad mode is off have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import GraphError


class Model(nn.Module):
    """Cells of each kind."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        self.a, self.b = (abt.cell(nn.Linear(4, 4), runs=runs) for _ in range(2))
        self.w = nn.Parameter(torch.randn(4))
        self.twice = abt.cell(twice, runs=runs)
        self.pair = abt.cell(pair, runs=runs)

    @torch.no_grad()
    def helper(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))  # type: ignore[no-any-return]


def twice(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def pair(x: Tensor) -> dict[str, Tensor]:
    return {"one": x * 3, "at": x.argmax()}


def first_alone(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    return m.b(h)  # type: ignore[no-any-return]


def both(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    with torch.no_grad():
        z = m.a(x)
    return y * z  # type: ignore[no-any-return]


def single_ops(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    with torch.no_grad():
        z, s = torch.exp(y) + y.tanh(), y * y
    return y * z + s * m.w  # type: ignore[no-any-return]


def stacked(m: Any, x: Tensor) -> Tensor:
    values = [m.a(x), m.b(x)]
    with torch.no_grad():
        off = torch.stack(values)
        total = torch.stack(values).sum(0)
    return off.sum(0) * m.a(x) + total * m.b(x)  # type: ignore[no-any-return]


def of_functions(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    with torch.no_grad():
        z, both = m.twice(y), m.pair(y)
    return m.twice(y) * z + both["one"] * m.pair(y)["one"]  # type: ignore[no-any-return]


def nested(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.a(x)
        with torch.enable_grad():
            z = m.b(y)
        u = m.b(z)
    return z * u * m.a(x)  # type: ignore[no-any-return]


def decorated(m: Any, x: Tensor) -> Tensor:
    return m.helper(x) * m.a(x)  # type: ignore[no-any-return]


def switched(m: Any, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        y = m.a(x)
    torch.set_grad_enabled(False)
    z = m.b(x)
    torch.set_grad_enabled(True)
    return y * z * m.b(x)  # type: ignore[no-any-return]


def inferred(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.a(x)
    with torch.inference_mode():
        z = m.a(x)
    return m.a(x) * 2 + y + z.clone()  # type: ignore[no-any-return]


def of_parameters(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.w * 2
    return y * m.w * m.a(x)  # type: ignore[no-any-return]


def operators(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    on = y + y * 2.0
    with torch.no_grad():
        off = -(y + y * 2.0)
    return on * off - (y + y)  # type: ignore[no-any-return]


PROGRAMS = [
    first_alone, both, single_ops, operators, stacked, of_functions, nested, decorated, switched, inferred,
    of_parameters,
]  # fmt: skip


def gradients(m: nn.Module, inputs: list[Tensor], outputs: Tensor) -> list[Tensor]:
    wanted = [*m.parameters(), *inputs]
    found = torch.autograd.grad(outputs.square().sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("runs", "backend"), [("auto", "cpu"), ("auto", "reference"), ("torch", "cpu")])
@pytest.mark.parametrize("program", PROGRAMS)
def test_grad_mode_off(program: Callable[..., Tensor], runs: str, backend: str) -> None:
    torch.manual_seed(0)
    m = Model(runs)
    inputs = [torch.randn(4, requires_grad=True) for _ in range(3)]
    run = abt.batched(lambda x: program(m, x), module=m, backend=backend)
    expected = torch.stack([program(m, x) for x in inputs])
    wanted = gradients(m, inputs, expected)
    for _ in range(2):  # the second time with all forms known
        outputs = run(inputs)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(gradients(m, inputs, outputs), wanted)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_grad_mode_that_is_off_while_an_instance_waits_is_its_own(off: Any) -> None:
    m = Model("auto")

    async def program(x: Tensor) -> Any:
        if x[0] > 0:
            with off():
                h = m.a(x)
                h = m.a(h) if await ab.value(h.sum()) > 0 else h
            return m.b(h.clone()).sum()
        h = m.a(x)
        h = m.a(h) if await ab.value(h.sum()) > 0 else h
        return m.b(h).sum()

    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4, generator=draw) for _ in range(8)]
    assert len({bool(x[0] > 0) for x in inputs}) == 2
    found, wanted = abt.batched(program, module=m)(inputs), [ab.eager(program, x) for x in inputs]
    parameters = [*m.b.parameters(), *m.a.parameters()]
    gradients = [torch.autograd.grad(sum(ys), parameters) for ys in (found, wanted)]
    torch.testing.assert_close(*gradients)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_gathered_branches_begin_in_the_grad_mode_in_which_they_were_gathered() -> None:
    m = Model("auto")

    async def grow(x: Tensor, is_off: bool) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_off):
            h = m.a(x)
            return m.a(h) if await ab.value(h.sum()) > 0 else h

    async def program(x: Tensor) -> Any:
        first = await ab.gather(grow(x, is_off=True), grow(-x, is_off=False))
        with torch.no_grad():
            second = await ab.gather(grow(x, is_off=False), grow(2 * x, is_off=False))
        return sum(m.b(h).sum() for h in (*first, *second))

    draw = torch.Generator().manual_seed(0)
    abt.check_batched(program, [torch.randn(4, generator=draw) for _ in range(5)], module=m)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_whole_call_without_gradients(off: Any) -> None:
    m, x = Model("auto"), torch.randn(4, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return m.b(m.a(x))  # type: ignore[no-any-return]

    with off():
        outputs = abt.batched(program, module=m)([x])
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, program(x)[None].detach())


def test_error_within_no_grad() -> None:
    m, x = Model("auto"), torch.randn(4)

    def program(fails: bool) -> Tensor:
        with torch.no_grad():
            m.a(x)
            if fails:
                raise RuntimeError("no")
        return m.a(x)  # type: ignore[no-any-return]

    run, kind = abt.batched(program, module=m), torch._C._InferenceMode
    with pytest.raises(RuntimeError, match="no"):
        run([True])
    run([False]).sum().backward()
    assert m.a.weight.grad is not None
    assert torch._C._InferenceMode is kind


@pytest.mark.parametrize("runs", ["auto", "torch", "autobatch"])
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norm(norm: Any, runs: str) -> None:
    m = nn.Sequential(norm(nn.Linear(4, 4)), nn.Tanh())
    abt.cell(m, runs=runs)
    before = {name: x.clone() for name, x in m.state_dict().items()}
    run, inputs = abt.batched(lambda x: m(x), module=m), [torch.randn(4), torch.randn(4)]
    with pytest.raises(GraphError, match=r"has a spectral norm in train\(\), which changes its buffers"):
        run(inputs)
    m.eval()
    torch.testing.assert_close(run(inputs), torch.stack([m(x) for x in inputs]))
    m.train()
    with pytest.raises(GraphError, match="spectral norm"):
        run(inputs)
    torch.testing.assert_close(m.state_dict(), before)
    assert m(inputs[0]).requires_grad  # a plain call is unaffected
