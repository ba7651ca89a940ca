"""Test torch modules on the device of the cuda backend: a GPU, or the host device with tensors of the CPU."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, autograd, nn

import autobatch as ab
import autobatch.torch as abt
from autobatch.devices.store import HOST
from autobatch.errors import GraphError
from autobatch.torch.host_copies import HostCopies
from autobatch.torch.memory import STORES, to_array
from autobatch.torch.structures import beside
from autobatch.trace.guards import content_of
from checkout import ROOT
from helpers.runs.tensors_on_device import TorchDevice
from helpers.runs.ways import each


class Chain(nn.Module):
    """An LSTM over the rows of an instance, scaled by a function of a parameter alone, which runs compute ahead."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read = abt.cell(nn.Linear(3, dim))
        self.step = abt.cell(nn.LSTMCell(dim, dim))
        self.log_scale = nn.Parameter(torch.randn(dim))
        self.idle = nn.Parameter(torch.ones(2))

    @abt.cell
    def out(self, h: Tensor) -> Tensor:
        return (self.log_scale.exp() * h).sum()

    def loss(self, rows: Tensor) -> Tensor:
        state = (rows.new_zeros(self.log_scale.shape),) * 2
        for row in rows:
            state = self.step(self.read(row), state)
        return self.out(state[0])


def make(tensors: TorchDevice, dim: int = 6) -> tuple[Any, Any, list[Tensor]]:
    """Return a model on the device, a copy of it that runs one instance at a time there, and instances."""
    model = Chain(dim).double()
    tensors.hold(model)
    rows = [torch.randn(n, 3, dtype=torch.float64).to(tensors.place) for n in (2, 3, 1)]
    return model, deepcopy(model), rows


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def assert_same_gradients(model: nn.Module, alone: nn.Module) -> None:
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            assert p.grad.device == p.device
            assert_close(p.grad, q.grad)


def counted(tensors: TorchDevice, run: Callable[[], object]) -> dict[str, int]:
    """Return the growth of the device's counts."""
    before = dict(vars(tensors.store.traffic))
    run()
    return {name: n - before[name] for name, n in vars(tensors.store.traffic).items()}


def test_a_step_takes_three_launches_and_copies_no_parameter_and_no_gradient(tensors: TorchDevice) -> None:
    """What it uploads does not grow with the parameters, and nothing comes back."""
    uploaded = []
    for dim in (6, 12):
        model, alone, rows = make(tensors, dim)
        loss = abt.batched(model.loss, module=model)
        assert loss.backend.name == "cuda"
        graphs = loss.record_all(rows)
        optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, alone)]

        def step(loss: Any = loss, graphs: Any = graphs, optimizer: Any = optimizers[0]) -> None:
            optimizer.zero_grad()
            autograd.backward(loss(graphs).mean())
            optimizer.step()

        for _ in range(3):
            counts = counted(tensors, step)
            optimizers[1].zero_grad()
            autograd.backward(torch.stack([alone.loss(x) for x in rows]).mean())
            optimizers[1].step()
            assert_same_gradients(model, alone)
        assert (counts["launches"], counts["products"]) == (3, 0)
        assert (counts["downloads"], counts["waits"]) == (0, 0)
        uploaded.append(counts["uploaded_bytes"])
        with torch.no_grad():
            found = loss(graphs)
            assert found.device == rows[0].device
            assert counted(tensors, lambda loss=loss, graphs=graphs: loss(graphs))["downloads"] == 0  # type: ignore[misc]
            assert_close(found, torch.stack([alone.loss(x) for x in rows]))
    assert uploaded[1] - uploaded[0] == 8 * 6 * len(rows)  # the first states, which are data


def test_gradients_are_made_on_the_device_and_results_are_copies(tensors: TorchDevice) -> None:
    model, _, rows = make(tensors)
    loss = abt.batched(model.loss, module=model)
    losses = loss(rows)
    kept = losses.detach().clone()
    autograd.backward(losses.sum())
    loss([x + 1 for x in rows])
    assert torch.equal(losses, kept)
    (parameter,) = (p for p in loss.parameters.all.values() if p.name == "log_scale")
    assert parameter.store is tensors.store
    assert tensors.store.address(parameter.array) == model.log_scale.data_ptr()


def test_changes_that_torch_does_not_count_are_seen(tensors: TorchDevice) -> None:
    model, alone, rows = make(tensors)
    loss = abt.batched(model.loss, module=model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, fused=True) for m in (model, alone)]
    for _ in range(3):
        losses = loss(rows), torch.stack([alone.loss(x) for x in rows])
        assert_close(*losses)
        for optimizer, found in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            found.sum().backward()
            optimizer.step()
    for m in (model, alone):
        m.log_scale.data.copy_(torch.arange(6.0) / 10)
    assert_close(loss(rows), torch.stack([alone.loss(x) for x in rows]))


def test_a_module_moves_in_both_directions_after_recording(
    tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, alone, rows = make(tensors)
    with monkeypatch.context() as patch:
        patch.setitem(STORES, "cpu", lambda: HOST)
        model.cpu()
        loss = abt.batched(model.loss, module=model)
        expected = torch.stack([alone.cpu().loss(x.cpu()) for x in rows])
        graphs = loss.record_all([x.cpu() for x in rows])
        assert_close(loss(graphs), expected)
        assert loss.backend.name == "reference"
        policy = loss.policy.name
    for _ in range(2):
        tensors.hold(model)
        found = loss(graphs)
        assert loss.backend.name == "cuda"
        assert_close(found.cpu(), expected)
        with monkeypatch.context() as patch:
            patch.setitem(STORES, "cpu", lambda: HOST)
            TorchDevice(tensors.store, torch.device("cpu")).hold(model)
            with pytest.raises(GraphError, match="has changed since the mini-batch ran"):
                autograd.backward(found.sum())
            assert_close(loss(graphs), expected)
            assert (loss.backend.name, loss.policy.name) == ("reference", policy)


def test_a_chosen_policy_stays_where_a_module_moves(tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, rows = make(tensors)
    with monkeypatch.context() as patch:
        patch.setitem(STORES, "cpu", lambda: HOST)
        model.cpu()
        given, assigned = (abt.batched(model.loss, module=model, **options) for options in ({"policy": "depth"}, {}))
        assigned.policy = given.policy
        copied = deepcopy(assigned)
    tensors.hold(model)
    tensors.hold(copied.recorder.module.module)
    for loss in (given, assigned, copied):
        loss(rows)
        assert (loss.backend.name, loss.policy.name) == ("cuda", "depth")


def test_parameters_on_two_devices_are_refused_in_a_sentence(
    tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, rows = make(tensors)
    loss = abt.batched(model.loss, module=model)
    loss(rows)
    told = r"parameters of Chain are on different devices: .* on cuda and 'idle' on cpu"
    with monkeypatch.context() as patch:
        patch.setitem(STORES, "cpu", lambda: HOST)
        model.idle.data = model.idle.data.cpu().clone()
        with pytest.raises(GraphError, match=told):
            loss(rows)


def test_halves_are_refused_in_a_sentence_that_names_the_parameter(tensors: TorchDevice) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model, _, rows = make(tensors)
        with pytest.raises(GraphError, match=rf"'.*' must be float32 or float64, got {dtype}; call .float\(\) on the"):
            abt.batched(model.to(dtype).loss, module=model)(rows)


def test_instances_may_be_on_the_device_and_have_gradients(tensors: TorchDevice) -> None:
    model, alone, rows = make(tensors)
    loss = abt.batched(model.loss, module=model)
    assert_close(loss(rows), loss([x.cpu() for x in rows]))
    below = nn.Linear(3, 3).double().to(tensors.place)
    other = deepcopy(below)
    autograd.backward(loss([below(x) for x in rows]).sum())
    autograd.backward(torch.stack([alone.loss(other(x)) for x in rows]).sum())
    assert_same_gradients(below, other)
    assert_same_gradients(model, alone)


def test_tensors_of_instances_are_copied_together_and_their_views_are_found(
    tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of instances that are slices of one tensor; what has changed since is read again."""
    model, alone, _ = make(tensors)
    whole = torch.randn(6, 3, dtype=torch.float64).to(tensors.place)
    rows = [whole[:2], whole[2:5], whole[5:]]
    copies, reads, read = list[HostCopies](), list[bool](), HostCopies.read

    def noted(self: HostCopies, x: Tensor) -> Tensor:
        copies.append(self)
        reads.append(self._find(x) is not None)
        return read(self, x)

    monkeypatch.setattr(HostCopies, "read", noted)
    expected = torch.stack([alone.loss(x) for x in rows])
    loss = abt.batched(model.loss, module=model)
    assert_close(loss(rows), expected)
    assert reads.count(True) == len(whole)
    assert len({*map(id, copies)}) == 1
    assert loss.recorder.module.copies is None

    def changing(rows: Tensor) -> Tensor:
        found = model.read(rows[0])
        rows.mul_(2)
        return found.sum() + model.read(rows[0]).sum()  # type: ignore[no-any-return]

    (first, *_) = rows
    both = model.read(first[0]).sum() + model.read(2 * first[0]).sum()
    assert_close(abt.batched(changing, module=model)([first])[0], both)


def test_instances_may_hold_values_of_an_earlier_call(tensors: TorchDevice) -> None:
    model, _, rows = make(tensors)
    items: list[dict[str, Any]] = [{"x": x[0]} for x in rows]

    def keep(item: dict[str, Any]) -> Tensor:
        item["h"] = model.read(item["x"])
        return item["h"].sum()  # type: ignore[no-any-return]

    run = abt.batched(keep, module=model)
    assert_close(run(items), run(items))


def test_views_of_copied_tensors_are_theirs() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORES, "cpu", lambda: object())
        x, y = torch.arange(24.0).reshape(4, 6), torch.arange(5)
        copies = HostCopies([{"x": x}, [y, y, x.t(), torch.zeros(0)]])
    for view in (x, x[1], x[1:3, ::2], x.t(), x[2, 3], x.expand(2, 4, 6), x.detach()[3:], y, y[4]):
        assert copies._find(view) is not None
        assert torch.equal(copies.read(view), view)
        assert copies.read(view).data_ptr() != view.data_ptr()
    with torch.inference_mode():
        held = torch.ones(2)
    for other in (x.clone(), x.view(torch.int32), x.new_zeros(0), held, torch.ones(2, dtype=torch.complex64).conj()):
        assert torch.equal(copies.read(other), other)
    x.mul_(2)
    assert copies._find(x[1]) is None
    assert torch.equal(copies.read(x[1]), x[1])


class Words(nn.Module):
    """A table whose gradient is sparse, and a mask."""

    keep: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = abt.cell(nn.Embedding(7, 4, sparse=True))
        self.register_buffer("keep", torch.tensor([True, False, True, True]))

    @abt.cell
    def masked(self, x: Tensor) -> Tensor:
        return torch.where(self.keep, x, 0.0).sum()

    def loss(self, words: Tensor) -> Tensor:
        return torch.stack([self.masked(self.table(word)) for word in words]).sum()


def test_ids_and_masks_on_the_device_and_sparse_gradients(tensors: TorchDevice) -> None:
    model = Words()
    tensors.hold(model)
    words = [torch.tensor(ids).to(tensors.place) for ids in ([1, 2, 1], [6], [0, 5])]
    found = abt.batched(model.loss, module=model)(words)
    expected = torch.stack([model.loss(x) for x in words])
    assert_close(found, expected)
    gradients = [autograd.grad(x.sum(), model.table.weight)[0] for x in (found, expected)]
    assert all(g.is_sparse and g.device == model.table.weight.device for g in gradients)
    assert_close(*(g.coalesce().to_dense() for g in gradients))


def test_a_function_without_parameters_runs_where_its_data_are(tensors: TorchDevice) -> None:
    module = nn.Module()
    run = abt.batched(lambda x: torch.tanh(x).sum(), module=module)
    rows = [torch.randn(n, 3).to(tensors.place) for n in (2, 2)]
    found = run(rows)
    assert (run.backend.name, found.device) == ("cuda", rows[0].device)
    torch.testing.assert_close(found, torch.stack([torch.tanh(x).sum() for x in rows]))
    assert run([]).shape == (0,)


def test_a_tensor_elsewhere_is_refused(tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, rows = make(tensors)
    with pytest.raises(GraphError, match="on the CPU or an NVIDIA GPU, got a tensor on meta"):
        abt.batched(model.loss, module=model)([rows[0].to("meta")])
    monkeypatch.setattr(tensors.store, "adopt", lambda tensor: None)  # as for a tensor on another GPU
    with pytest.raises(GraphError, match="must be on the one that this process uses"):
        to_array(rows[0])


@each("create_graph", (False, True))
def test_second_derivatives_are_computed_on_the_device(tensors: TorchDevice, create_graph: bool) -> None:
    model, alone, rows = make(tensors)
    loss, found = abt.batched(model.loss, module=model), []
    for m, losses in ((model, loss(rows)), (alone, torch.stack([alone.loss(x) for x in rows]))):
        weight = m.step.weight_hh
        (g,) = autograd.grad(losses.sum(), weight, create_graph=create_graph, retain_graph=True)
        found.append(autograd.grad(g.pow(2).sum(), weight)[0] if create_graph else g)
    assert_close(*found)


class Mixed(nn.Module):
    """Cells whose ops or bodies torch runs: by vmap, in one call, one by one, with draws, and with ints as results."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.read, self.pick = abt.cell(self._read, runs=runs), abt.cell(self._pick, runs=runs)

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.cumsum(self.drop(torch.tanh(self.linear(h + x))), 0)

    def _pick(self, h: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        return torch.cumprod(h, 0)[:2] + n, torch.cumsum((h > 0).long(), 0)[-1]

    def loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        h = rows.new_zeros(4)
        for row in rows:
            h = self.read(h, row)
        scores, n_positive = self.pick(h, len(rows))
        return scores.pow(2).sum(), n_positive


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_torch_runs_on_the_rows_in_the_memory_of_the_device(runs: str, tensors: TorchDevice) -> None:
    """Without copies to the host by the device."""
    model = Mixed(runs).double().eval()
    tensors.hold(model)
    alone = deepcopy(model)
    rows = [torch.randn(n, 4, dtype=torch.float64).to(tensors.place) for n in (2, 3, 1)]
    run = abt.batched(model.loss, module=model)
    (losses, ints), expected = run(rows), [alone.loss(x) for x in rows]
    assert_close(losses, torch.stack([x for x, _ in expected]))
    assert ints.tolist() == [int(n) for _, n in expected]
    counts = counted(tensors, lambda: autograd.backward(losses.sum()))
    assert counts["downloads"] == 0
    autograd.backward(torch.stack([x for x, _ in expected]).sum())
    assert_same_gradients(model, alone)
    with torch.no_grad():
        assert counted(tensors, lambda: run(rows))["downloads"] == 0
    model.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(run(rows)[0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_autocast_rounds_the_operands_of_products(tensors: TorchDevice) -> None:
    """As precision="bf16" does; half precision leaves them as they are, and so does float64."""
    model, _, rows = make(tensors)
    model.float()
    rows = [x.float() for x in rows]
    plain, rounded = (abt.batched(model.loss, module=model, precision=p) for p in ("float32", "bf16"))
    expected, exact = rounded(rows), plain(rows)
    autograd.backward(expected.sum())
    gradient, model.step.weight_hh.grad = model.step.weight_hh.grad, None
    with torch.autocast(tensors.place.type, dtype=torch.bfloat16):
        found = plain(rows)
    autograd.backward(found.sum())
    assert torch.equal(found, expected)
    assert not torch.equal(found, exact)
    assert torch.equal(model.step.weight_hh.grad, gradient)
    with torch.autocast(tensors.place.type, dtype=torch.float16):
        assert torch.equal(plain(rows), exact)
    model.double()
    rows = [x.double() for x in rows]
    exact = plain(rows)
    with torch.autocast(tensors.place.type, dtype=torch.bfloat16):
        assert torch.equal(plain(rows), exact)


def test_results_are_checked_on_the_device(tensors: TorchDevice) -> None:
    model, _, rows = make(tensors)
    abt.check_batched(model.loss, rows, module=model)


def test_an_int_given_to_a_cell_alone_is_on_the_device_of_the_module() -> None:
    words: Any = abt.cell(nn.Embedding(5, 2).to("meta"))
    add: Any = abt.cell(lambda x, n: x + n)
    assert words(3).device.type == "meta"
    assert add(torch.ones(2, device="meta"), 3).device.type == "meta"
    assert abt.cell(nn.Tanh())(1) == torch.tanh(torch.tensor(1))


def test_tensors_that_are_elsewhere_are_the_same_constant_only_if_unchanged() -> None:
    """Comparing their numbers would wait for a GPU."""
    x, other = (torch.zeros(2, device="meta") for _ in range(2))
    content = content_of(x)
    assert content_of(x) == content != content_of(other)
    x.add_(1)
    assert content_of(x) != content


def test_recorded_values_are_on_the_device_of_the_module(tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, rows = make(tensors)
    seen = list[Any]()

    def loss(rows: Tensor) -> Tensor:
        h = model.read(rows[0])
        seen.append((h.device, h.is_cpu, h.is_cuda))
        with pytest.raises(GraphError, match=r"moved to meta by torch.Tensor.to, .* the device of the module"):
            h.to("meta")
        return h.to(h.device).sum()  # type: ignore[no-any-return]

    abt.batched(loss, module=model)(rows)
    kind = tensors.place.type
    assert seen[0] == (rows[0].device, kind == "cpu", kind == "cuda")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_all_tests_of_this_folder_pass_on_the_device() -> None:
    """Cells are interpreted, so tests of the cuda backend are left out; and the device of the tests is not pickled."""
    folder = Path(__file__).parent.relative_to(ROOT).as_posix()
    left_out = f"{folder}/test_torch_batched.py::test_copies_and_pickles_of_a_batched_function_too"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "helpers.runs.torch_tests_on_device", folder]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tools", ROOT / "experiments")))
    done = subprocess.run(
        [
            *(sys.executable, *command, "--deselect", left_out),
            *(f"--ignore={folder}/test_torch_{name}.py" for name in ("device", "stream")),
        ],
        env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def test_constants_of_ops_that_torch_runs_move_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced body makes its constants on the CPU; without numbers, they stay where they are."""
    moved, to = list[Any](), Tensor.to

    def noted(x: Tensor, *where: Any) -> Tensor:
        moved.append(where)
        return to(x, *where)

    places = torch.tensor([2, 0, 1])
    cell: Any = abt.cell(lambda x: torch.scatter_reduce(x, 0, places, x, "amax"))
    module = nn.ParameterList([torch.zeros(1)])
    run, rows = abt.batched(lambda x: cell(x), module=module, backend="reference"), [torch.randn(3) for _ in range(2)]
    with torch.no_grad():
        run(rows)
        monkeypatch.setattr(Tensor, "to", noted)
        found = run(rows)
    assert (rows[0].device,) in moved
    assert_close(found, torch.stack([cell(x) for x in rows]))
    assert beside([torch.zeros(2, device="meta")], {"x": places})["x"] is places
    assert beside([], places) is places


def test_parts_reports_copies_and_value_and_grad_are_computed_on_the_device(tensors: TorchDevice) -> None:
    model, alone, rows = make(tensors)
    loss = abt.batched(model.loss, module=model)
    expected = torch.stack([alone.loss(x) for x in rows])
    autograd.backward(expected.mean())
    value, gradients = loss.value_and_grad(rows)
    assert_close(float(value), float(expected.mean().detach()))
    found = {name: tensors.store.get(g) for name, g in gradients.items()}
    for name, p in alone.named_parameters():
        assert_close(torch.from_numpy(found[name]), torch.zeros_like(p).cpu() if p.grad is None else p.grad.cpu())
    assert loss.explain(rows, training=True).launches > 0
    for twin in (deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert_close(twin(rows).detach(), expected.detach())
        assert twin.backend.name == "cuda"
    n_bytes = max(loss.prepare([x], training=True).parts[0].n_bytes for x in rows)
    parts = abt.batched(model.loss, module=model, max_bytes=n_bytes)
    found_in_parts = parts(rows)
    assert parts.last.parts > 1
    assert_close(found_in_parts.detach(), expected.detach())
    autograd.backward(found_in_parts.mean())
    assert_same_gradients(model, alone)


def test_async_functions_await_values_of_the_device(tensors: TorchDevice) -> None:
    model, _, rows = make(tensors)

    async def count(x: Tensor) -> tuple[Tensor, int]:
        h, n = model.read(x[0]), 1
        while n < 4 and await ab.value(h.sum() < 1):
            h, n = h + 1, n + 1
        return h, n

    run = abt.batched(count, module=model)
    with torch.no_grad():
        states, ns = run(rows)
        expected = [ab.eager(count, x) for x in rows]
    assert states.device == rows[0].device
    assert_close(states, torch.stack([h for h, _ in expected]))
    assert ns.tolist() == [n for _, n in expected]


def test_modules_of_autobatch_on_a_device_become_torch_modules_there(tensors: TorchDevice) -> None:
    own = ab.Linear(3, 2, rng=np.random.default_rng(0)).astype("float64").to(tensors.store)
    module: Any = abt.as_torch(own)
    assert module.weight.device.type == tensors.place.type
    run, rows = abt.batched(own.__call__), [torch.randn(3, dtype=torch.float64).to(tensors.place) for _ in range(2)]
    assert_close(run(rows), torch.stack([module.weight @ x + module.bias for x in rows]))
    assert run.backend.name == "cuda"
    assert own.weight.store is deepcopy(module).own.weight.store is tensors.store
