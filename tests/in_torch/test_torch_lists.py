"""Test torch cells that take lists: bodies that treat all elements alike have one type, and all are right."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autobatch.torch as abt
from autobatch.errors import AutobatchError, GraphError
from helpers.runs.recorded import count_types, types_of

DIM, TOLERANCE = 3, 1e-10
SIZES: tuple[list[int], ...] = ([1, 2], [7, 3, 1], [4, 3])  # per instance, per node: the length of its lists
MIXED_SIZES: tuple[list[int], ...] = ([0, 2, 1], [5, 0, 3], [1], [3, 4, 0])
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Body = Callable[..., Any]


class Net(nn.Module):
    """A cell with a query and two lists."""

    def __init__(self, body: Body, runs: str = "auto") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.f, self.g = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.score, self.wide = nn.Linear(2 * DIM, 1), nn.Linear(DIM, 2 * DIM)
        self.norm, self.gru = nn.LayerNorm(DIM), nn.GRUCell(DIM, DIM)
        self.scale = nn.Parameter(torch.randn(DIM))
        self.body, self.rate = body, 1.0
        self.node: Any = abt.cell(self._node, runs=runs)
        self.double()

    def _node(self, q: Tensor, xs: Any, ys: Any) -> Any:
        return self.body(self, q, xs, ys)

    @abt.cell
    def feed(self, x: Tensor) -> Tensor:
        return x * self.scale + 0.1

    def only(self, nodes: Sequence[tuple[Tensor, list[Tensor], list[Tensor]]]) -> Any:
        (node,) = nodes
        return self.node(*node)

    def forward(self, nodes: Sequence[tuple[Tensor, list[Tensor], list[Tensor]]]) -> Tensor:
        total = 0.0 * self.scale.sum()
        for q, xs, ys in nodes:
            found = self.node(q, [self.feed(x) for x in xs], [torch.tanh(y) for y in ys])
            total = total + (found * found.abs()).sum() + found.sum()
        return total


def draw(sizes: Sequence[Sequence[int]], asks: bool = True) -> list[Any]:
    """Draw instances, with or without requires_grad; both lists of a node have the same length."""
    random = torch.Generator().manual_seed(1)

    def vector() -> Tensor:
        return torch.randn(DIM, generator=random, dtype=torch.float64).requires_grad_(asks)

    return [[(vector(), [vector() for _ in range(n)], [vector() for _ in range(n)]) for n in nodes] for nodes in sizes]


def tensors_in(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [leaf for part in x for leaf in tensors_in(part)]


def run(body: Body, sizes: Sequence[Sequence[int]] = SIZES, backend: str = "reference", runs: str = "auto") -> int:
    """Compare a body's outputs and gradients with one instance at a time; return the number of its types."""
    net, instances, again = Net(body, runs), draw(sizes), draw(sizes)
    batched = abt.batched(net.forward, backend=backend)
    found = batched(instances)
    torch.autograd.backward(found.sum())
    gradients = [p.grad for p in net.parameters()]
    net.zero_grad()
    expected = torch.stack([net(nodes) for nodes in again])
    torch.autograd.backward(expected.sum())
    assert_close(found, expected)
    for ours, p in zip(gradients, net.parameters(), strict=True):
        assert_close(ours, p.grad)
    for one, other in zip(tensors_in(instances), tensors_in(again), strict=True):
        assert_close(one.grad, other.grad)
    return count_types(batched, "_node")


def assert_close(found: Any, expected: Any) -> None:
    zeros = torch.zeros((), dtype=torch.float64)
    found, expected = (zeros if x is None else x.detach() for x in (found, expected))
    assert float((found - expected).abs().max()) < TOLERANCE * max(1.0, float(expected.abs().max()))


def attention(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
    """Apply additive attention (Bahdanau et al. 2015)."""
    scores = torch.stack([w.score(torch.cat((q, x)).tanh()) for x in xs]).squeeze(-1)
    return torch.softmax(scores, 0) @ torch.stack(list(ys))


def rows_attention(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
    """Apply attention by products of rows, with a softmax along (n, 1)."""
    keys = torch.stack(xs)
    weights = functional.softmax((w.f(keys) @ q).unsqueeze(1) / DIM**0.5, dim=0)
    return (weights * w.g(torch.stack(ys))).sum(0)


def child_sum(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
    """Compute a child-sum Tree-LSTM node on rows, also without children."""
    x = q.unsqueeze(0)
    h = torch.cat([child.view(1, -1) for child in xs], dim=0) if xs else torch.zeros_like(x)
    c = torch.cat([child.view(1, -1) for child in ys], dim=0) if ys else torch.zeros_like(x)
    i, o = torch.chunk(w.wide(h.sum(dim=0, keepdim=True)), 2, dim=1)
    f = torch.sigmoid(w.f(x) + w.g(h))
    return torch.tanh(torch.sigmoid(i) * o + (f * c).sum(dim=0, keepdim=True))


def loop(w: Net, q: Tensor, xs: Any, ys: Any) -> Tensor:
    """Sum in a loop that starts with zeros, in place and not."""
    total = torch.zeros_like(q)
    for x in xs:
        total += torch.tanh(w.f(x)) * q
    other = torch.zeros(DIM, dtype=q.dtype)
    for y in ys:
        other = other + y
    return total + other


def as_rows(xs: Any) -> Tensor:
    return torch.cat([x[None] for x in xs])


ALIKE: dict[str, Body] = {
    "sum": lambda w, q, xs, ys: sum(torch.sigmoid(w.f(x)) * y for x, y in zip(xs, ys, strict=True)),
    "sum of all": lambda w, q, xs, ys: sum(xs) * q,
    "loop": loop,
    "stack and sum": lambda w, q, xs, ys: torch.stack([torch.tanh(w.f(x)) for x in xs]).sum(0),
    "stack and mean": lambda w, q, xs, ys: torch.stack([w.f(x) * q for x in xs]).mean(dim=0) + q,
    "stack and max": lambda w, q, xs, ys: torch.stack([x + w.scale for x in xs]).amax(0) * torch.stack(ys).amin(0),
    "largest values": lambda w, q, xs, ys: torch.stack(xs).max(dim=0).values + torch.max(torch.stack(ys), 0)[0],
    "logsumexp": lambda w, q, xs, ys: torch.logsumexp(torch.stack(xs), 0) + torch.logsumexp(as_rows(ys), 1).sum(),
    "log softmax": lambda w, q, xs, ys: (functional.log_softmax(torch.stack(xs), 0) * torch.stack(ys)).sum(0),
    "softmax of rows": lambda w, q, xs, ys: (torch.stack(xs).softmax(-1) * torch.stack(ys)).sum(0),
    "all of it": lambda w, q, xs, ys: torch.stack(xs).sum() * q + torch.stack(ys).mean() + torch.stack(xs).max(),
    "attention": attention,
    "attention of rows": rows_attention,
    "dot": lambda w, q, xs, ys: q * torch.dot(torch.stack(xs) @ q, torch.stack([y.sum() for y in ys])),
    "child sum": child_sum,
    "linear of rows": lambda w, q, xs, ys: w.f(torch.stack(xs)).sigmoid().mul(torch.stack(ys)).sum(0, keepdim=True),
    "linear of rows of rows": lambda w, q, xs, ys: w.f(torch.stack([x[None] for x in xs])).tanh().sum(0) * q,
    "product": lambda w, q, xs, ys: (torch.stack(xs) @ w.f.weight.T @ torch.outer(q, q)).sum(0),
    "gates of rows": lambda w, q, xs, ys: sum(
        part.tanh().sum(0) for part in (*w.wide(torch.stack(xs)).chunk(2, dim=-1), w.wide(torch.stack(ys))[:, 2:5])
    ),
    "columns": lambda w, q, xs, ys: torch.stack(xs)[:, 0].sum() * q + torch.stack(ys)[:, None, 1:].sum((0, 1, 2)),
    "join of rows": lambda w, q, xs, ys: w.score(torch.cat((torch.stack(xs), torch.stack(ys)), dim=1)).sum(0) * q,
    "join in the walk": lambda w, q, xs, ys: sum(w.score(torch.cat(z)) for z in zip(xs, ys, strict=True)) * q,
    "stack in the walk": lambda w, q, xs, ys: sum(torch.stack((x, x * q)).sum(0) for x in xs),
    "views": lambda w, q, xs, ys: w.wide(as_rows(xs)).view(-1, 2, DIM).reshape(len(xs), -1)[:, :DIM].sum(0),
    "unit vectors": lambda w, q, xs, ys: functional.normalize(torch.stack(xs), dim=1).sum(0),
    "broadcasts": lambda w, q, xs, ys: ((torch.stack(xs) + q) * q[None] - w.scale[:1] + q.sum()).square().mean(0),
    "centred": lambda w, q, xs, ys: (as_rows(xs) - as_rows(xs).mean(0, keepdim=True)).abs().sum(dim=0),
    "layer norm": lambda w, q, xs, ys: w.norm(as_rows(xs)).sum(0) + functional.layer_norm(as_rows(ys), (DIM,)).sum(0),
    "spread of rows": lambda w, q, xs, ys: torch.stack(xs).var(1).sum() * q + torch.stack(ys).norm(dim=-1).sum(),
    "conditions": lambda w, q, xs, ys: torch.where(torch.stack(xs) > q, torch.stack(ys), 0.1 * q).clamp(min=0).sum(0),
    "a module for each": lambda w, q, xs, ys: torch.stack([w.gru(x, y) for x, y in zip(xs, ys, strict=True)]).sum(0),
    "a map of a map": lambda w, q, xs, ys: sum([g * w.scale for g in [w.norm(w.f(x)) for x in xs]]),
    "the same twice": lambda w, q, xs, ys: torch.stack([w.f(x) for x in xs]).sum(0) * sum(w.f(x) for x in xs),
    "inside out": lambda w, q, xs, ys: sum(torch.tanh(x * torch.stack(ys).sum(0)) for x in xs),
    "vstack": lambda w, q, xs, ys: torch.vstack(list(xs)).sum(0),
    "reduced": lambda w, q, xs, ys: torch.stack([x.sum() for x in xs]).softmax(0).max() * q,
    "nothing of it": lambda w, q, xs, ys: q * w.scale,
}  # fmt: skip
APART: dict[str, Body] = {
    "first": lambda w, q, xs, ys: w.f(xs[0]) * q,
    "last of a map": lambda w, q, xs, ys: [w.f(x) for x in xs][-1],
    "backwards": lambda w, q, xs, ys: (torch.stack(list(reversed(xs))) * torch.stack(ys)).sum(0),
    "backwards and summed": lambda w, q, xs, ys: torch.stack(xs[::-1]).sum(0),
    "shifted": lambda w, q, xs, ys: sum((x * y for x, y in pairwise([*xs, q])), q),
    "begun with a value": lambda w, q, xs, ys: sum(xs, q),
    "numbered": lambda w, q, xs, ys: sum(x * float(k + 1) for k, x in enumerate(xs)),
    "divided by the length": lambda w, q, xs, ys: sum(xs) / len(xs),
    "divided by the rows": lambda w, q, xs, ys: torch.stack(xs).sum(0) / torch.stack(xs).shape[0],
    "running sums": lambda w, q, xs, ys: torch.cumsum(torch.stack(xs), 0).tanh().sum(0),
    "rows": lambda w, q, xs, ys: torch.stack(xs)[0] + torch.stack(ys)[-1] + torch.stack(ys)[:2].sum(0),
    "all rows one by one": lambda w, q, xs, ys: sum(row * q for row in torch.stack(xs)),
    "transposed": lambda w, q, xs, ys: (q @ torch.stack(xs).T).softmax(0) @ torch.stack(ys),
    "columns of elements": lambda w, q, xs, ys: torch.stack(xs, dim=1).sum(1),
    "joined": lambda w, q, xs, ys: torch.cat(xs).sum() * q,
    "joined with another": lambda w, q, xs, ys: torch.cat((as_rows(xs), q[None])).amax(0),
    "every pair": lambda w, q, xs, ys: sum(x * y for x in xs for y in ys),
    "products of all": lambda w, q, xs, ys: (torch.stack(xs) @ torch.stack(ys).T).sum() * q,
    "squeezed": lambda w, q, xs, ys: torch.stack(xs).squeeze().tanh().sum() * q,
    "flattened": lambda w, q, xs, ys: torch.stack(xs).flatten().logsumexp(0) * q,
    "repeated": lambda w, q, xs, ys: (q.expand(len(xs), -1) * torch.stack(xs)).sum(0),
    "spread over the rows": lambda w, q, xs, ys: torch.stack([*xs, q]).std(0),
    "largest place": lambda w, q, xs, ys: functional.one_hot(torch.stack(xs).max(0).indices, 8).sum() * q,
    "begun and not ended": lambda w, q, xs, ys: torch.stack([x + 0.0 for x in xs]).sum(0),
    "weights that are rows": lambda w, q, xs, ys: functional.linear(q, torch.stack(xs)).softmax(0).max() * q,
    "rows and their sums": lambda w, q, xs, ys: (torch.stack(xs) * torch.stack(ys).sum(1)[:1]).sum(0),
    "rows by an element": lambda w, q, xs, ys: sum((torch.stack(xs) * y).sum(0) for y in ys),
    "one of two lists": lambda w, q, xs, ys: torch.stack([*xs[:1], *ys[1:]]).sum(0),
    "unequal lists": lambda w, q, xs, ys: sum(x * y for x, y in zip(xs, ys[:-1] or ys, strict=False)),
    "stopped early": lambda w, q, xs, ys: sum(x for k, x in enumerate(xs) if k < 2),
}  # fmt: skip


@pytest.mark.cases(12)
@pytest.mark.parametrize("name", ALIKE)
def test_what_treats_all_elements_alike_is_one_type(name: str) -> None:
    assert run(ALIKE[name], runs="autobatch") == 1


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("name", ALIKE)
def test_so_it_is_where_cells_are_compiled(name: str) -> None:
    assert run(ALIKE[name], backend="cpu") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["child sum", "attention of rows", "loop"])
def test_compiled_cells_take_lists_of_any_length(name: str) -> None:
    assert run(ALIKE[name], backend="cpu") == 1


@pytest.mark.cases(10)
@pytest.mark.parametrize("name", APART)
def test_what_does_not_is_a_type_for_each_length_and_right(name: str) -> None:
    assert run(APART[name], sizes=([1, 2], [3, 2], [4])) > 1


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["sum", "stack and mean", "attention", "child sum", "a module for each"])
def test_without_elements_a_cell_has_a_type_of_its_own(name: str) -> None:
    def body(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return ALIKE[name](w, q, xs, ys) if xs or name == "child sum" else 2.0 * q

    for backend in ("reference", "cpu"):
        assert run(body, MIXED_SIZES, backend) == 2
    rng = np.random.default_rng(0)
    assert run(body, [rng.integers(6, size=3).tolist() for _ in range(6)]) == 2


class Structures(nn.Module):
    """Cells that take lists in dicts and tuples, lists of pairs, and lists of rows."""

    def __init__(self, runs: str = "auto") -> None:
        super().__init__()
        torch.manual_seed(5)
        self.f = nn.Linear(DIM, DIM)
        self.parts: Any = abt.cell(self._parts, runs=runs)
        self.pairs: Any = abt.cell(self._pairs, runs=runs)
        self.rows: Any = abt.cell(self._rows, runs=runs)
        self.double()

    @abt.cell
    def feed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x), self.f(x)

    def _parts(self, given: dict[str, Any]) -> dict[str, Any]:
        (xs, scale), ys = given["pair"], given["list"]
        return {"h": torch.stack([self.f(x) * scale for x in xs]).amax(0), "c": sum(y * y for y in ys)}

    def _pairs(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        hs, cs = zip(*pairs, strict=True)
        return (torch.sigmoid(self.f(torch.stack(hs))) * torch.stack(cs)).sum(0)

    def _rows(self, rows: list[Tensor], q: Tensor) -> Tensor:
        """Apply attention over rows of shape (1, d); return one row."""
        h = torch.cat(rows, dim=0)
        return torch.sum(torch.softmax(torch.sum(h * q, dim=1, keepdim=True), dim=0) * h, dim=0, keepdim=True)

    def forward(self, nodes: list[list[Tensor]]) -> Tensor:
        total = 0.0 * self.f.bias.sum()
        for xs in nodes:
            fed = [self.feed(x) for x in xs]
            found = self.parts({"pair": ([h for h, _ in fed], 0.5), "list": [c for _, c in fed]})
            row = self.rows([h.unsqueeze(0) for h, _ in fed], self.pairs(fed).unsqueeze(0))
            total = total + (found["h"] * found["c"]).sum() + row.sum()
        return total


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_lists_may_be_parts_of_structures_and_elements_may_be_too(backend: str) -> None:
    net, random = Structures(), torch.Generator().manual_seed(0)
    instances = [[[torch.randn(DIM, generator=random).double() for _ in range(n)] for n in ns] for ns in SIZES]
    batched = abt.batched(net.forward, backend=backend)
    found, expected = batched(instances), torch.stack([net(nodes) for nodes in instances])
    assert_close(found, expected)
    ours = torch.autograd.grad(found.sum(), list(net.parameters()))
    for one, other in zip(ours, torch.autograd.grad(expected.sum(), list(net.parameters())), strict=True):
        assert_close(one, other)
    names = [kind.name for kind in types_of(batched)]
    assert [names.count(name) for name in ("_parts", "_pairs", "_rows")] == [1, 1, 1]


def test_lists_of_different_lengths_are_combined_as_torch_does() -> None:
    def both(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return w.f(torch.stack(xs)).sum(0) + torch.stack([torch.tanh(y) for y in ys]).mean(0)

    def zipped(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return sum(x * y for x, y in zip(xs, ys, strict=False))

    def broadcast(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return (torch.stack(xs) * torch.stack(ys)).sum(0)

    for body, pairs, n_types in (
        (both, [(2, 3), (1, 4), (3, 1)], 1),
        (zipped, [(2, 3), (2, 2), (3, 1), (4, 4)], 3),
        (broadcast, [(1, 3), (3, 3), (2, 1), (2, 2), (1, 1)], 3),
    ):
        net, instances = Net(body), draw([[4]] * len(pairs))
        cut = [[(q, xs[:n], ys[:m])] for [(q, xs, ys)], (n, m) in zip(instances, pairs, strict=True)]
        batched = abt.batched(net.forward, backend="reference")
        assert_close(batched(cut), torch.stack([net(nodes) for nodes in cut]))
        assert count_types(batched, "_node") == n_types


def test_cells_that_torch_runs_have_a_type_for_each_length() -> None:
    assert run(ALIKE["stack and sum"], runs="torch") == 5
    assert run(APART["running sums"]) == 5
    net = Net(ALIKE["stack and sum"], "torch")
    told = str(abt.batched(net.forward, backend="reference").explain(draw([[2]], asks=False)))
    assert "_node has a type for each length of xs, because the body is run by torch, which sees a list" in told


@pytest.mark.parametrize("name", ["divided by the length", "first", "running sums"])
def test_explain_says_why_a_cell_has_a_type_for_each_length(name: str) -> None:
    batched = abt.batched(Net(APART[name]).forward, backend="reference")
    assert "_node has a type for each length of" in str(batched.explain(draw([[2, 3]], asks=False)))


def test_errors_of_a_body_are_those_of_lists_of_one_length() -> None:
    def wrong(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return torch.stack(xs).sum(0) @ torch.zeros(DIM + 1, dtype=q.dtype)

    with pytest.raises(AutobatchError, match="inconsistent tensor size"):
        run(wrong)
    with pytest.raises(GraphError, match="asks for the numbers of a tensor"):
        run(lambda w, q, xs, ys: q * sum(x.sum().item() for x in xs))


def test_numbers_that_a_body_reads_may_change() -> None:
    def body(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return sum(torch.tanh(x * w.rate) for x in xs) + torch.stack(ys).mul(w.rate).amax(0)

    net, instances = Net(body), draw([[1, 2], [3]], asks=False)
    batched = abt.batched(net.forward, backend="reference")
    for rate in (0.5, 2.0, 0.25, 0.5):
        net.rate = rate
        assert_close(batched(instances), torch.stack([net(nodes) for nodes in instances]))


def test_dropout_of_stacked_elements_is_one_type_and_of_each_one_is_not() -> None:
    def stacked(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return functional.dropout(1.0 + 0.0 * torch.stack(xs), 0.25).sum(0)

    def walked(w: Net, q: Tensor, xs: Any, ys: Any) -> Any:
        return sum(functional.dropout(1.0 + 0.0 * x, 0.25) for x in xs)

    for body, n_types in ((stacked, 1), (walked, 2)):
        net = Net(body)
        batched = abt.batched(net.only, backend="reference")
        found = batched(draw([[50], [60]] * 10))
        shares = found.detach() * 0.75 / torch.tensor([50.0, 60.0] * 10)[:, None]
        assert 0.7 < float(shares.mean()) < 0.8
        assert len(set(found.flatten().tolist())) > 10
        assert count_types(batched, "_node") == n_types


def test_the_nodes_of_the_example_are_two_types() -> None:
    example = runpy.run_path(str(EXAMPLES / "torch_after.py"))
    model, pairs = example["Relatedness"](4), example["draw_pairs"](32)
    n_children = set[int]()

    def visit(node: Any) -> None:
        n_children.add(len(node.children))
        for child in node.children:
            visit(child)

    for left, right, _ in pairs:
        visit(left)
        visit(right)
    assert len(n_children) == 5  # lists once had a type for each length: 12 batches
    report = model.loss.explain(pairs)
    assert sum(t.name.startswith("node") for t in report.types) == 2
    assert report.optimal
    assert (report.batches, len(report.types)) == (8, 5)
