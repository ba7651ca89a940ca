"""Test `abt.batched`: its arguments and results, habits of torch users, and refusals."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import AutobatchError, GraphError
from helpers.models.torch_modules import tagger_case, tree_case


class Net(nn.Module):
    """A network over rows, with a method that is a cell, a batched method, and an unused parameter."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.read = abt.cell(nn.Linear(3, 6))
        self.step = abt.cell(nn.LSTMCell(6, 6))
        self.drop, self.norm = nn.Dropout(rate), nn.LayerNorm(6)
        self.idle = nn.Parameter(torch.ones(2))

    @abt.cell
    def out(self, h: Tensor) -> Tensor:
        return self.drop(self.norm(h))  # type: ignore[no-any-return]

    def states(self, rows: Tensor) -> dict[str, Any]:
        state = (torch.zeros(6, dtype=rows.dtype),) * 2
        seen = []
        for row in rows:
            state = self.step(self.read(row), state)
            seen.append(self.out(state[0]))
        return {"h": state[0], "all": seen, "n": len(rows), "best": state[1].argmax()}

    def last(self, rows: Tensor) -> Tensor:
        return self.states(rows)["all"][-1]  # type: ignore[no-any-return]

    @abt.batched(backend="reference")
    def run(self, rows: Tensor) -> dict[str, Any]:
        return self.states(rows)

    @abt.batched(backend="reference", policy="depth")
    def loss(self, rows: Tensor) -> Tensor:
        return sum(h.pow(2).sum() for h in self.states(rows)["all"])  # type: ignore[no-any-return]


def make(rate: float = 0.5) -> tuple[Net, list[Tensor]]:
    torch.manual_seed(0)
    return Net(rate).double().eval(), [torch.randn(n, 3, dtype=torch.float64) for n in (2, 3, 1)]


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_structures_of_tensors_come_back_and_all_of_them_have_gradients() -> None:
    net, instances = make()
    found = net.run(instances)
    assert found["h"].shape == (3, 6)
    assert [len(rows) for rows in found["all"]] == found["n"].tolist() == [2, 3, 1]
    expected = [net.states(rows) for rows in instances]
    assert found["best"].tolist() == [int(one["best"]) for one in expected]
    assert found["best"].dtype == torch.int64
    autograd.backward(found["h"].sum() + sum((h**2).sum() for rows in found["all"] for h in rows))
    ours = gradients(net)
    autograd.backward(sum(one["h"].sum() + sum((h**2).sum() for h in one["all"]) for one in expected))
    assert_same(ours, gradients(net))
    assert net.idle.grad is None


def test_tensors_among_the_instances_have_gradients_too() -> None:
    net, instances = make()
    below = nn.Linear(3, 3).double()
    autograd.backward(net.loss([below(rows) for rows in instances]).sum())
    ours = gradients(net) + gradients(below)
    autograd.backward(
        sum(Net.states(net, below(rows))["all"][k].pow(2).sum() for rows in instances for k in range(len(rows)))
    )
    assert_same(ours, gradients(net) + gradients(below))
    again = net.loss([below(rows).detach() for rows in instances])
    assert again.requires_grad
    for p in net.parameters():
        p.requires_grad_(False)
    assert not net.loss(instances).requires_grad
    autograd.backward(net.loss([below(rows) for rows in instances]).sum())
    assert below.weight.grad is not None
    with pytest.raises(GraphError, match="requires a gradient, which a recorded graph would lose"):
        net.loss.record_all([below(instances[0])])


def test_dropout_follows_the_seed_of_torch_and_the_mode_of_the_module() -> None:
    net, instances = make()
    assert torch.equal(net.loss(instances), net.loss(instances))
    net.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(net.loss(instances))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(net.loss(instances), net.loss(instances))
    with torch.no_grad():
        assert not torch.equal(net.loss(instances), net.loss(instances))
        torch.manual_seed(1)
        assert torch.equal(net.loss(instances), drawn[0])
    zeros = torch.cat([h for rows in net.run(instances * 20)["all"] for h in rows]) == 0
    assert 0.4 < zeros.double().mean() < 0.6
    before = torch.get_rng_state()
    net.eval().loss(instances)
    with torch.no_grad():
        net.loss(instances)
    assert torch.equal(torch.get_rng_state(), before)


def test_awaited_values_are_those_of_the_results_if_numbers_are_random() -> None:
    net, (rows, *_) = make()
    net.train()

    async def best(rows: Tensor) -> tuple[Any, Tensor]:
        h = net.out(rows.repeat(1, 2)[0])
        return await ab.value(h.sum()), h

    run, seen = abt.batched(best, module=net), set[float]()
    for grad in (True, True, False, False):
        with torch.set_grad_enabled(grad):
            awaited, h = run([rows])
        assert awaited.item() == pytest.approx(h.sum().item())
        seen.add(awaited.item())
    assert len(seen) > 1


def test_changes_of_a_module_take_effect() -> None:
    net, instances = make()
    before = net.loss(instances)
    with torch.no_grad():
        net.norm.weight.mul_(2.0)
    torch.testing.assert_close(net.loss(instances), 4 * before)
    net.norm.eps = 0.5
    assert_eager(net, instances)
    net.load_state_dict({name: tensor * 0.5 for name, tensor in net.state_dict().items()})
    assert_eager(net, instances)
    net.read.weight.data = torch.ones(6, 3, dtype=torch.float64)
    assert_eager(net, instances)
    net.norm.weight.requires_grad_(False)
    autograd.backward(net.loss(instances).sum())
    assert net.norm.weight.grad is None
    assert net.norm.bias.grad is not None
    net.float()
    assert net.loss([x.float() for x in instances]).dtype == torch.float32
    with pytest.raises(GraphError, match=r"the dtype of the module, torch.float32, got torch.float64"):
        net.loss(instances)
    net.double()
    assert_eager(net, instances)


def assert_eager(net: Net, instances: list[Tensor]) -> None:
    expected = [sum(h.pow(2).sum() for h in net.states(rows)["all"]) for rows in instances]
    torch.testing.assert_close(net.loss(instances), torch.stack(expected), rtol=1e-10, atol=1e-12)


def test_gradients_accumulate_as_in_torch() -> None:
    net, instances = make()
    autograd.backward(net.loss(instances).sum())
    once = gradients(net)
    for _ in range(3):
        autograd.backward(net.loss(instances).sum() / 3)
    kept = net.step.weight_hh.grad
    assert_same(gradients(net), once)
    assert kept is not None
    before = kept.clone()
    autograd.backward(2 * net.loss(instances).sum())
    assert torch.equal(kept, before), "the gradients of a call are its own"
    found = autograd.grad(net.loss(instances).mean(), [net.read.weight, net.idle], allow_unused=True)
    torch.testing.assert_close(found[0], once[1] / 3)  # type: ignore[operator]
    assert found[1] is None


def test_copies_and_pickles_of_a_model_are_on_their_own() -> None:
    net, instances = make()
    expected = net.loss(instances)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.norm.weight.zero_()
        twin.norm.bias.zero_()
    assert torch.equal(net.loss(instances), expected)
    assert not twin.loss(instances).any()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded.loss(instances), expected)
    assert list(loaded.state_dict()) == list(net.state_dict()) == list(Net().state_dict())
    assert type(net.step) is nn.LSTMCell


@pytest.mark.parametrize("name", ["loss", "free"])
def test_copies_and_pickles_of_a_batched_function_too(name: str) -> None:
    net, instances = make()
    made = net.loss if name == "loss" else abt.batched(net.last, module=net, backend="reference")
    expected = made(instances)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        owner = twin.recorder.function.__self__
        assert owner is not net
        assert (twin is owner.loss) == (name == "loss")
        assert torch.equal(twin(instances), expected)
        with torch.no_grad():
            owner.norm.bias.add_(1.0)
        assert not torch.equal(twin(instances), expected)
    assert torch.equal(made(instances), expected)


def unnamed(function: Callable[..., Any]) -> Any:
    """Wrap a function without `functools.wraps`, so that all wrappers have one name."""

    def wrapper(self: Any, x: Tensor) -> Any:
        return function(self, x)

    return wrapper


class Base(nn.Module):
    """A module with a batched method that another class overrides."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    @abt.cell
    def cell(self, x: Tensor) -> Tensor:
        return (x * self.scale).sum()

    @abt.batched()
    def loss(self, x: Tensor) -> Tensor:
        return self.cell(x)


class Several(Base):
    """A module whose batched methods have the same names."""

    @abt.batched()
    def loss(self, x: Tensor) -> Tensor:
        return 10.0 * self.cell(x)

    @property
    def base_loss(self) -> Any:
        return super().loss

    first = abt.batched()(unnamed(lambda self, x: 2.0 * self.cell(x)))
    second = abt.batched()(unnamed(lambda self, x: 3.0 * self.cell(x)))
    third = abt.batched()(lambda self, x: 4.0 * self.cell(x))
    fourth = abt.batched()(lambda self, x: 5.0 * self.cell(x))


@pytest.mark.parametrize("copied", [lambda x: x, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_batched_methods_of_the_same_name_are_different_functions(copied: Callable[[Any], Any]) -> None:
    net, xs = Several(), [torch.ones(2)]
    for k, method in enumerate((net.base_loss, net.loss, net.first, net.second, net.third, net.fourth)):
        twin = copied(method)
        assert twin(xs).item() == 2 * (1.0, 10.0, 2.0, 3.0, 4.0, 5.0)[k]
    assert net.loss is net.loss
    assert net.base_loss is net.base_loss


def test_a_shallow_copy_has_batched_methods_of_its_own() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.k = nn.Parameter(torch.ones(2)), 1.0

        @abt.cell
        def part(self, x: Tensor) -> Tensor:
            return (x * self.w).sum() * self.k

        @abt.batched()
        def loss(self, x: Tensor) -> Any:
            return self.part(x)

    model, xs = Scaled(), [torch.ones(2)]
    assert model.loss(xs).item() == 2
    other = copy.copy(model)
    other.k = 5.0
    assert (other.loss(xs).item(), model.loss(xs).item()) == (10, 2)
    assert other.loss is other.loss is not model.loss


def test_no_gradients_are_kept_where_none_are_asked_for() -> None:
    net, instances = make()
    with torch.no_grad():
        assert not net.loss(instances).requires_grad
    with torch.inference_mode():
        assert net.loss(instances).is_inference()
    assert net.loss([]).shape == (0,)


def test_a_minibatch_is_differentiated_as_often_as_torch_does_with_the_parameters_that_it_ran_with() -> None:
    net, instances = make()
    loss = net.loss(instances).sum()
    autograd.backward(loss, retain_graph=True)
    once = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    autograd.backward(loss)
    for name, grad in once.items():
        torch.testing.assert_close(net.get_parameter(name).grad, 2 * grad)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        autograd.backward(loss)
    loss = net.loss(instances).sum()
    with torch.no_grad():
        net.norm.bias.add_(1.0)
    with pytest.raises(GraphError, match=r"parameter .* has changed since the mini-batch ran forward"):
        autograd.backward(loss)


def test_memory_of_what_nobody_differentiates_is_given_back() -> None:
    model, trees = tree_case()
    loss = abt.batched(model.loss, backend="reference")
    for _ in range(3):
        loss(trees)
    held = loss.last.buffer_bytes
    for _ in range(5):
        loss(trees)
    assert loss.last.buffer_bytes == held


class Words(nn.Module):
    """A model that sums rows of a table with sparse gradients; `tied` reads the whole table as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = abt.cell(nn.Embedding(9, 4, sparse=True).double())

    def loss(self, words: list[int]) -> Tensor:
        return torch.stack([self.table(word) for word in words]).sum(0).pow(2).sum()

    def tied(self, words: list[int]) -> Tensor:
        return self.loss(words) + self.all().sum()

    @abt.cell
    def all(self) -> Tensor:
        return self.table.weight * 2.0


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradients_of_sparse_tables_are_sparse(backend: str) -> None:
    model = Words()
    alone = copy.deepcopy(model)
    loss = abt.batched(model.loss, backend=backend)
    steps = [torch.optim.SparseAdam(m.parameters(), lr=0.1) for m in (model, alone)]
    for instances in ([[1, 2, 1], [5]], [[5, 7], [5], [1]]):
        for optimizer in steps:
            optimizer.zero_grad()
        autograd.backward(loss(instances).sum())
        autograd.backward([alone.loss(words) for words in instances])
        found, expected = model.table.weight.grad, alone.table.weight.grad
        assert found is not None
        assert expected is not None
        assert found.is_sparse
        assert found.coalesce().indices().tolist() == expected.coalesce().indices().tolist()
        torch.testing.assert_close(found.to_dense(), expected.to_dense())
        for optimizer in steps:
            optimizer.step()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(model.table.weight, alone.table.weight)
    model.zero_grad()
    autograd.backward(abt.batched(model.tied, backend=backend)([[1, 2]]).sum())
    assert model.table.weight.grad is not None
    assert not model.table.weight.grad.is_sparse


@pytest.mark.slow
def test_two_functions_of_a_model_share_its_parameters() -> None:
    model, sentences = tagger_case()
    train, look = (abt.batched(model.loss, backend="cpu"), abt.batched(model.loss, backend="reference"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = look(sentences).mean()
    for _ in range(5):
        optimizer.zero_grad()
        autograd.backward(train(sentences).mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.testing.assert_close(look(sentences), train(sentences), rtol=1e-9, atol=1e-9)
    assert look(sentences).mean() < first


def in_cell(function: Callable[..., Any], module: nn.Module | None = None, runs: str = "auto") -> Any:
    called = abt.cell(_Calls(function, nn.Linear(4, 4) if module is None else module), runs=runs)
    return abt.batched(lambda x: called(x), module=called, backend="reference")([torch.randn(4), torch.randn(4)])


class _Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.inner)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a condition": (lambda x, inner: x if x.sum() > 0 else -x, "a number that its condition, .item"),
    "an item": (lambda x, inner: x * x.max().item(), "asks for the numbers of a tensor"),
    "a shape by values": (lambda x, inner: x[x > 0], "asks for the places where a condition holds"),
    "an argument in place": (lambda x, inner: x.add_(1.0), "torch changes a tensor in place that others read"),
    "a parameter in place": (lambda x, inner: x + inner.weight.mul_(2.0)[0], "a leaf Variable that requires grad"),
    "a list": (lambda x, inner: x.tolist(), "asks for the numbers of a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_cell_must_not_do_is_refused_in_a_sentence(name: str) -> None:
    function, sentence = REFUSED[name]
    with pytest.raises(AutobatchError, match=sentence) as caught:
        in_cell(function)
    assert "in cell '_Calls'" in str(caught.value)


CHANGES: dict[str, Callable[..., Any]] = {
    "an argument": lambda x, inner: x.add_(1.0),
    "a view of an argument": lambda x, inner: x[1:].mul_(2.0),
    "a parameter": lambda x, inner: x + inner.weight.detach().mul_(2.0)[0],
    "a buffer of ints": lambda x, inner: x * inner.seen.add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_torch_runs_changes_nothing_that_others_read(name: str) -> None:
    inner = nn.Linear(4, 4)
    inner.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    before = {name: x.clone() for name, x in inner.state_dict().items()}
    with pytest.raises(GraphError, match="torch changes a tensor in place that others read"):
        in_cell(CHANGES[name], inner, runs="torch")
    torch.testing.assert_close(dict(inner.state_dict()), before, rtol=0, atol=0)


def test_what_torch_runs_may_change_its_own_tensors() -> None:
    def fill(x: Tensor, inner: nn.Module) -> Tensor:
        made = torch.zeros(4)
        made[1:].add_(1.0)
        return x * made

    found = in_cell(fill, runs="torch")
    assert found[:, 0].eq(0).all()
    assert found[:, 1:].ne(0).all()


def test_batch_norm_is_refused_in_training() -> None:
    norm = nn.BatchNorm1d(4)
    norm.running_mean.copy_(torch.arange(4.0))  # type: ignore[union-attr]
    with pytest.raises(GraphError, match="depends on the other rows of its batch"):
        in_cell(lambda x, inner: inner(x[None])[0], norm)
    norm.eval()
    found = in_cell(lambda x, inner: inner(x[None])[0] - (x - torch.arange(4.0)) / (1 + 1e-5) ** 0.5, norm)
    assert float(found.detach().abs().max()) < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by imports of torch.compile
def test_compiled_modules_are_refused() -> None:
    with pytest.raises(GraphError, match=r"the module itself, not a torch\.compile wrapper"):
        abt.cell(torch.compile(nn.Linear(1, 1)))


def test_bad_arguments_are_refused_in_a_sentence() -> None:
    with pytest.raises(GraphError, match="must be given a torch module or a function of tensors, got 3"):
        abt.cell(3)  # type: ignore[call-overload]
    with pytest.raises(GraphError, match="runs must be one of 'auto', 'autobatch', 'torch', got 'gpu'"):
        abt.cell(nn.Linear(1, 1), runs="gpu")
    with pytest.raises(GraphError, match="'<lambda>' must be a method of a module"):
        abt.batched(lambda x: x)([1])
    with pytest.raises(GraphError, match=r"must be given a method of a torch module.* and 3"):
        abt.batched(lambda x: x, module=3)  # type: ignore[call-overload]
    net, instances = make()
    with pytest.raises(GraphError, match=r"'idle' must be float32 or float64, got torch.float16; call .float\(\)"):
        net.half().loss(instances)
    with pytest.raises(GraphError, match=r"on the CPU or an NVIDIA GPU, got a tensor on meta"):
        Net().to("meta").loss(instances)
    mixed = Net()
    mixed.read.double()
    with pytest.raises(GraphError, match=r"must have one dtype, got float32 for '.*' and float64 for 'read.bias'"):
        mixed.loss(instances)
    with pytest.raises(GraphError, match="on the CPU or an NVIDIA GPU, got a tensor on meta"):
        make()[0].loss([torch.ones(2, 3, device="meta")])


def test_completion_offers_public_names_alone() -> None:
    assert dir(abt) == sorted(abt.__all__)
