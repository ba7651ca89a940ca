"""Test in-place operations on recorded values and buffers: they compute what torch computes, or raise an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import GraphError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.lstm = abt.cell(nn.Linear(3, 3)), abt.cell(nn.LSTMCell(3, 3))
        self.same, self.flat = abt.cell(nn.Identity()), abt.cell(nn.Flatten(0))
        self.drop = abt.cell(nn.Dropout(0.5))
        self.double().eval()


torch.manual_seed(0)
NET = Net()
ROWS = [torch.randn(3).double() for _ in range(3)]
L = NET.lin


def program(text: str) -> Callable[[Tensor], Any]:
    """Compile statements into a function; the last statement is the result."""
    *lines, result = text.split("; ")
    body = "\n".join(f"    {line}" for line in [*lines, f"return {result}"])
    names: dict[str, Any] = {"torch": torch, "F": F, "NET": NET, "L": L}
    exec(f"def f(x):\n{body}", names)
    found: Callable[[Tensor], Any] = names["f"]
    return found


COMPUTED = [
    *(f"h = L(x).abs() + 1; g = [h]; h {op}= 1.5; g[0] + h" for op in ("+", "-", "*", "/", "%")),
    "h = (L(x).abs() + 1).detach(); h = h + 1; g = h; h **= 1.5; g + L(x)",
    "h = L(x) > 0; g = h; h &= x > 0; g",
    "h = L(x) > 0; g = h; h |= x > 0; g",
    "h = L(x) > 0; g = h; h ^= x > 0; g",
    "t = 0; t += L(x).sum(); t += L(x).sum(); t",
    "t = L(x).sum(); t += L(x).sum(); t += t; t",
    "t = sum(L(x) for _ in range(3)); t /= 3; t",
    "h = L(x); o = [h]; h = h + 1; h += 2; o[0] + h",
    "h = L(x); o = {'a': h}; h += x; o['a'] * h",
    "h = L(x); o = (h, [h]); h -= L(x) * 2; o[1][0] * o[0]",
    "h = L(x); h.mul_(2); h",
    "h = L(x); g = h; F.relu_(h); g",
    "h = L(x); g = h; torch.relu_(h); g",
    "h = L(x); g = h; F.relu(h, inplace=True); g",
    "h = L(x); g = h; torch.nn.ReLU(inplace=True)(h); g",
    "h = L(x); g = h; h.zero_(); g + L(x)",
    "h = L(x); g = h; h.fill_(2.0); g + L(x)",
    "h = L(x); g = h; h.copy_(L(L(x))); g",
    "h = L(x); g = h; h.clamp_(min=0); g",
    "h = L(x); g = h; h.add_(L(x), alpha=2); g",
    "h = L(x); g = h; h.masked_fill_(torch.tensor([True, False, True]), 0.0); g",
    "h = L(x); g = h; h[0] = 1.0; g",
    "h = L(x); g = h; h[0] = L(x)[1]; g",
    "h = L(x); g = h; h[:2] = x[:2]; g * h",
    "h = L(x); g = h; h[torch.tensor([0, 2])] = x[:2]; g * h",
    "h, c = NET.lstm(x); h += 1; h * c",
    "h, c = NET.lstm(x); h += 1; h2, c2 = NET.lstm(x, (h, c)); h2 * c2 + h",
    "s = NET.lstm(x); s[0].add_(1); NET.lstm(x, s)[0]",
    "h = L(x).clone(); g = h; h += 1; g",
    "h = L(x); g = h.clone(); h += 1; g * h",
    "h = torch.stack([L(x), L(x)]).sum(0); g = h; h += 1; g",
    "a = L(x); s = torch.stack([a, L(x)]); a += 1; s.sum(0) + a",
    "a = L(x); s = torch.stack([a, L(x)]); a += 1; s + a",
    "h = L(x); h += L(x) > 0; h",
    "h = L(x).cumsum(0); g = h; h += 1; g",
    "h = torch.zeros_like(L(x)); h += 1; h + L(x)",
    "h = L(x); a = h.sum(); h += 1; h + a",
    "h = L(x) + 0; f = lambda: h; h += 1; f() + h",
    "z = torch.zeros(3).double(); z += x; z * L(x)",
]
REFUSED = [
    "h = L(x); v = h[0]; h += 1; h * v",
    "h = L(x); v = h[:2]; v += 1; h",
    "h = L(x); v = h.view(3, 1); v.mul_(2); h",
    "h = L(x); v = h.view(3, 1); h.mul_(2); v",
    "h = L(x); v = h.detach(); h += 1; v + L(x)",
    "h = L(x); v = h.data; v += 1; v + L(x)",
    "h = L(x); v = NET.same(h); v += 1; h",
    "h = L(x); v = NET.flat(h); h += 1; v",
    "h = L(x); v = NET.drop(h); v += 1; h",
    "h = L(x); a, b, c = h.unbind(); a += 1; h",
    "h = L(x); a = h.expand(2, 3); h += 1; a",
    "s = torch.stack([L(x), L(x)]); r = s[0]; r += 1; s",
    "s = torch.stack([L(x), L(x)]); s += 1; s",
    "t = torch.zeros(3).double(); t += L(x); t",
    "t = torch.zeros(3).double(); t[0] = L(x)[0]; t",
    "t = torch.zeros(3).double(); t.copy_(L(x)); t",
    "t = torch.zeros(3).double(); torch.add(L(x), 1, out=t); t",
    "h = L(x).long(); h += 0.5; h",
    "h = L(x).sum(); h += x; h",
]


@pytest.mark.parametrize("text", COMPUTED)
def test_a_changed_value_is_changed_under_all_its_names(text: str) -> None:
    function = program(text)
    abt.check_batched(function, ROWS, module=NET, backend="reference")
    batched = abt.batched(function, module=NET, backend="reference")
    wanted = torch.stack([function(x) for x in ROWS])
    for _ in range(3):  # nothing of one recording may leak into the next
        torch.testing.assert_close(batched(ROWS), wanted)
    assert len(batched.record_all(ROWS * 300)) == 900
    torch.testing.assert_close(batched(ROWS), wanted)


@pytest.mark.parametrize("text", REFUSED)
def test_changes_that_others_would_see_are_refused_by_the_name_of_torch(text: str) -> None:
    batched = abt.batched(program(text), module=NET, backend="reference")
    for _ in range(2):
        with pytest.raises(ab.AutobatchError, match=r"torch\.(Tensor\.)?\w+.* (changes|must)"):
            batched(ROWS)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(L(x))


def opaque(x: Tensor) -> Tensor:
    return cast(Tensor, torch.special.log_ndtr(L(x)))


SHARING: dict[str, Callable[[Tensor], Any]] = {
    "the same": lambda h: (h, h),
    "parts that overlap": lambda h: (h[:2], h[1:]),
    "a view": lambda h: (h, h.view(3, 1)),
    "a view of a view": lambda h: (h.expand(2, 3), h.view(3, 1)[1:]),
    "detached": lambda h: (h, h.detach()),
    "in a list": lambda h: (h, [h.sum(), h.unsqueeze(0)]),
}
APART: dict[str, Callable[[Tensor], Any]] = {
    "another function": lambda h: (h, h * 2),
    "a copy": lambda h: (h, h + 0),
    "stacked": lambda h: (h, torch.stack([h, h])),
    "views of two": lambda h: ((h + 1).view(3, 1), h.view(3, 1)),
}


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("first", [tanh, opaque])
@pytest.mark.parametrize("name", [*SHARING, *APART])
def test_outputs_of_a_cell_that_share_memory_are_not_changed_one_by_one(
    name: str, first: Callable[[Tensor], Tensor], runs: Any
) -> None:
    give = {**SHARING, **APART}[name]

    @abt.cell(runs=runs)
    def cell(x: Tensor) -> Any:
        return give(first(x))

    def change(x: Tensor) -> Any:
        a, b = cell(x)
        a += 1
        return torch.cat([a.flatten(), b.flatten()])

    batched = abt.batched(change, module=NET, backend="reference")
    if name in SHARING:
        with pytest.raises(ab.GraphError, match="a view or has views"):
            batched(ROWS)
    else:
        torch.testing.assert_close(batched(ROWS), torch.stack([change(x) for x in ROWS]))


def test_shared_outputs_are_not_changed_after_an_await_either() -> None:
    cell: Any = abt.cell(lambda x: (tanh(x),) * 2)

    async def change(x: Tensor) -> Any:
        a, b = cell(x)
        await ab.value(a.sum())
        a += 1
        return b

    with pytest.raises(ab.GraphError, match="a view or has views"):
        abt.batched(change, module=NET, backend="reference")(ROWS)


def test_changes_without_gradients_are_refused_where_there_are_gradients() -> None:
    def change(x: Tensor) -> Any:
        h = L(x)
        with torch.no_grad():
            h += 1
        return h

    batched = abt.batched(change, module=NET, backend="reference")
    with pytest.raises(ab.AutobatchError, match="while gradients are off"):
        batched(ROWS)
    with torch.no_grad():
        torch.testing.assert_close(batched(ROWS), torch.stack([L(x) + 1 for x in ROWS]))


CHANGED_LATER = [
    "s = x * 1.0; h = L(s); s.mul_(10.0); h + L(s)",
    "s = x * 1.0; h = L(s); s += x; h",
    "s = x * 1.0; h = L(s[1:].repeat(2)[:3]) + L(s.view(3)); s[0] = 2.0; h",
]


@pytest.mark.parametrize("text", CHANGED_LATER)
def test_tensors_with_gradients_must_not_change_after_a_cell_got_them(text: str) -> None:
    """A torch graph has only the new tensor, so the gradient of the old numbers would be that of the new ones."""
    run = abt.batched(program(text), module=NET)
    with pytest.raises(GraphError, match="requires a gradient was changed in place after it was passed to a cell"):
        run([x.clone().requires_grad_() for x in ROWS])
    with torch.no_grad():
        torch.testing.assert_close(run(ROWS), torch.stack([run.recorder.function(x) for x in ROWS]))


def test_tensors_with_gradients_may_change_before_and_in_inference_mode() -> None:
    changed = program("s = x * 1.0; s += x; h = L(s); u = s * 2; u += 1; h + L(u)")
    xs = [x.clone().requires_grad_() for x in ROWS]
    found, expected = abt.batched(changed, module=NET)(xs), torch.stack([changed(x) for x in xs])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), xs), torch.autograd.grad(expected.sum(), xs))
    with torch.inference_mode():
        made = torch.ones(3, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(abt.batched(L)([made])[0], L(made))


def test_async_programs_add_up() -> None:
    async def total(x: Tensor) -> Any:
        score, h = L(x).sum(), L(x)
        kept = [h]
        for _ in range(3):
            score += L(x).max()
            h *= 0.5
            await ab.value(score)
        return score + kept[0]

    abt.check_batched(total, ROWS, module=NET, backend="reference")


class Tracks(nn.Module):
    """A module whose `forward` changes a buffer in training mode."""

    def __init__(self, how: Callable[[Any, Any, Tensor], Any]) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        if self.training:
            self.how(self, h.detach(), x)
        return (h - self.mean).sum()  # type: ignore[no-any-return]


def put(m: Any, x: Any) -> None:
    m.mean = x


def count(m: Any) -> None:
    m.n += 1


CHANGES: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "of a value": lambda m, h, x: m.mean.mul_(0.9).add_(0.1 * h.mean(0)),
    "of data": lambda m, h, x: m.mean.lerp_(x.mean(0), 0.1),
    "assigned": lambda m, h, x: put(m, 0.9 * m.mean + 0.1 * h.mean(0)),
    "assigned of data": lambda m, h, x: put(m, 0.9 * m.mean + 0.1 * x.mean(0)),
    "registered": lambda m, h, x: m.register_buffer("mean", h.mean(0)),
    "copied": lambda m, h, x: m.mean.copy_(h.mean(0)),
    "an element": lambda m, h, x: m.mean.__setitem__(0, h.mean()),
    "out": lambda m, h, x: torch.add(m.mean, x.mean(0), out=m.mean),
    "normalize": lambda m, h, x: F.normalize(m.mean + x.mean(0), dim=0, out=m.mean),
    "a count": lambda m, h, x: count(m),
}
MAKERS: dict[str, Callable[[], nn.Module]] = {
    **{name: (lambda how=how: Tracks(how)) for name, how in CHANGES.items()},  # type: ignore[misc]
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "batch norm of data": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)),
    "batch norm that tracks nothing": lambda: nn.Sequential(
        nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3)
    ),
    "batch norm in eval": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval(),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(0, (1, 4)), nn.InstanceNorm1d(4, track_running_stats=True)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    "spectral norm in eval": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval(),
}


@pytest.mark.parametrize("is_cell", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_statistics_are_kept_as_torch_keeps_them_or_refused(name: str, is_cell: bool) -> None:
    rows = [torch.randn(4, 3) for _ in range(3)]
    module = MAKERS[name]()
    twin = copy.deepcopy(module)
    holder = nn.ModuleList([abt.cell(module) if is_cell else module, nn.Linear(1, 1)])
    batched = abt.batched(lambda x: holder[0](x), module=holder, backend="reference")
    try:
        found = batched(rows)
    except ab.AutobatchError:
        assert module.training
        assert "nothing" not in name
        assert all(type(x) is Tensor for x in module.buffers())
    else:
        assert "eval" in name or "nothing" in name or (name == "a count" and not is_cell)
        for one, other in zip(found, [twin(x) for x in rows], strict=True):
            torch.testing.assert_close(one, other)
        for one, other in zip(module.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other)
