"""Test parameters on the device: runs read them there, and gradients are accumulated there."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends import compiled
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.devices.late import Late
from autobatch.errors import BackendError
from autobatch.ops.randomness import Randomness
from autobatch.params.gradients import GradientBuffers
from autobatch.params.module import shared_store
from autobatch.params.stacks import make_stack
from helpers.checkers.parity import assert_equal
from helpers.checkers.refusals import refused
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.twins.cases import CASES, Case
from host_device import HostArray, HostDevice

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def to_host(grads: dict[str, Any], device: HostDevice) -> dict[str, Any]:
    """Copy gradients to NumPy arrays after checking that they are on the device."""
    assert grads
    assert all(g.store is device if isinstance(g, ab.Rows) else type(g) is HostArray for g in grads.values())
    return {name: np.array(g) if isinstance(g, ab.Rows) else device.get(g) for name, g in grads.items()}


class Scale(ab.Module):
    """sum(log(w * x)), which is not finite for x = 0."""

    def __init__(self) -> None:
        self.w = ab.Parameter([1.0, 2.0])

    def loss(self, x: Any) -> Any:
        return ab.sum(ab.log(self.w * x))


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_run_where_their_parameters_are(case: Case) -> None:
    """Twice, also in inference, and back on the host as before."""
    model, instances = case.draw(seed=3, n_instances=5, dim=5)
    model.astype("float64")
    reference = ab.batched(model.loss, backend=Reference(poison=True))
    start = model.state_dict()
    wanted, gradients = reference.value_and_grad(instances)
    gradients = {name: np.array(gradient) for name, gradient in gradients.items()}
    values, device = reference(instances), HostDevice(5)
    model.to(device)
    assert shared_store(model) is device
    for backend in (Cuda(poison=True, device=device), Reference(poison=True, store=device)):
        loss = ab.batched(model.loss, backend=backend)
        for _ in range(2):
            value, grads = loss.value_and_grad(instances)
            assert_equal(float(value), float(wanted))
            assert_equal(to_host(grads, device), gradients)
        assert_equal(loss(instances), values)
    model.to("cpu")
    assert_equal(model.state_dict(), start, 0.0)
    assert_equal(reference.value_and_grad(instances)[0], wanted, 0.0)


def test_a_training_step_waits_for_nothing() -> None:
    """It uploads the ints of the mini-batch, with the addresses of gradients and the order of rows of a table, once.

    Seeds that differ are another upload, and so is the order of rows that are added to those of earlier calls.
    """
    model, instances = CASES[0].draw(seed=3, n_instances=8, dim=5)
    device = HostDevice()
    loss = ab.batched(model.to(device).loss, backend=Cuda(device=device))
    graphs = loss.record_all(instances)
    loss.value_and_grad(graphs)
    late: Any = loss.value_and_grad(graphs)[0]
    late.get()
    before = copy.copy(device.traffic)
    value, _ = loss.value_and_grad(graphs)
    assert isinstance(value, Late)
    after = copy.copy(device.traffic)
    assert (after.uploads - before.uploads, after.downloads - before.downloads) == (1, 1)
    assert after.downloaded_bytes - before.downloaded_bytes == model.dtype.itemsize * len(instances)
    assert after.waits == before.waits
    assert after.launches - before.launches == 4, "forward, backward, gradients of parameters, and of the table"
    assert np.isfinite(float(value))
    assert device.traffic.waits == before.waits + 1
    assert float(value) == value.get()
    assert device.traffic.waits == before.waits + 1
    for options, n_uploads in (({"reduce": [*range(1, 9)]}, 2), ({"out": loss.value_and_grad(graphs)[1]}, 2)):
        device.traffic.uploads = 0
        loss.value_and_grad(graphs, **options)
        assert device.traffic.uploads == n_uploads


def test_a_loss_that_is_not_finite_is_told_when_it_is_read_or_by_the_next_call() -> None:
    device = HostDevice()
    loss = ab.batched(Scale().to(device).loss, backend=Cuda(device=device))
    good, bad = [np.ones(2)], [np.ones(2), np.zeros(2)]
    with np.errstate(divide="ignore", invalid="ignore"):
        value: Any
        grads: Any
        value, grads = loss.value_and_grad(bad)
        for same in (grads, grads.copy(), grads | {"w": grads["w"]}):
            assert not device.get(same.finite).any()
        with refused(ab.NumericError, "1 of 2 instances", "instance 1"):
            float(value)
        value, grads = loss.value_and_grad(good)
        assert device.get(grads.finite).all()
        loss.value_and_grad(bad)
        with refused(ab.NumericError, "1 of 2 instances"):
            loss.value_and_grad(good)
        assert np.isfinite(float(value))
        assert np.isfinite(float(loss.value_and_grad(good)[0]))
        with refused(ab.NumericError, "1 of 2 instances"):
            loss.value_and_grad(bad, out={"w": device.put(np.zeros(2, np.float32))})


def test_gradients_of_several_calls_are_added_up_on_the_device() -> None:
    for case in (CASES[0], CASES[4]):
        model, instances = case.draw(seed=3, n_instances=6, dim=4)
        model.astype("float64")
        _, wanted = ab.batched(model.loss, backend=Reference()).value_and_grad(instances, reduce="sum")
        wanted = {name: np.array(gradient) for name, gradient in wanted.items()}
        device = HostDevice()
        model.to(device)
        for limit in (None, 40_000):
            loss = ab.batched(model.loss, backend=Cuda(device=device), max_bytes=limit)
            out = None
            for part in (instances[:2], instances[2:3], instances[3:]):
                _, grads = loss.value_and_grad(part, reduce="sum", out=out)
                out = {name: g.copy() for name, g in grads.items()} if out is None else grads
            assert_equal(to_host(grads, device), wanted)


def test_a_table_that_is_also_read_otherwise_has_an_array() -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.table = ab.Parameter(np.arange(12.0).reshape(4, 3))

        @ab.cell
        def read(self, i: int, j: int) -> Any:
            return ab.sum(ab.lookup(self.table, i) * ab.lookup(self.table, j)) + ab.sum(self.table[1])

        def loss(self, ids: Any) -> Any:
            return self.read(*ids)

    model, ids = Model().astype("float64"), [(0, 1), (3, 3), (1, 0)]
    wanted = {k: np.array(g) for k, g in ab.batched(model.loss, backend=Reference()).value_and_grad(ids)[1].items()}
    device = HostDevice()
    _, grads = ab.batched(model.to(device).loss, backend=Cuda(device=device)).value_and_grad(ids)
    assert_equal(to_host(grads, device), wanted)


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    rng, device = np.random.default_rng(70 + seed), HostDevice(seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    value, wanted = ab.batched(model.loss, backend=Reference()).value_and_grad(instances)
    wanted = {name: np.array(gradient) for name, gradient in wanted.items()}
    loss = ab.batched(model.to(device).loss, backend=Cuda(poison=True, device=device))
    found, grads = loss.value_and_grad(instances)
    assert_equal(float(found), float(value))
    assert_equal(to_host(grads, device), wanted)


def test_copies_and_pickles() -> None:
    """A deep copy stays on the device, and a pickle is on the host; both have their own arrays."""
    device = HostDevice()
    model, instances = CASES[0].draw(seed=3, n_instances=3, dim=4)
    model.to(device)
    value, _ = ab.batched(model.loss, backend=Cuda(device=device)).value_and_grad(instances)
    twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert shared_store(twin) is device
    assert shared_store(loaded).kind == "cpu"
    for other, backend in ((twin, Cuda(device=device)), (loaded, Cuda(device=device))):
        found, _ = ab.batched(other.loss, backend=backend).value_and_grad(instances)
        assert_equal(float(found), float(value), 1e-6)
    before = model.state_dict()
    for parameter in twin.parameters().values():
        parameter.data = np.zeros(parameter.shape)
    assert_equal(model.state_dict(), before, 0.0)


def test_arrays_of_the_device_are_taken_and_given() -> None:
    import torch

    device = HostDevice()
    parameter = ab.Parameter([1.0, 2.0, 3.0]).to(device)
    tensor = torch.from_dlpack(parameter.data)  # type: ignore[attr-defined]
    tensor += 1
    np.testing.assert_array_equal(device.get(parameter.data), [2, 3, 4])
    uploads = device.traffic.uploads
    parameter.data = parameter.data * 2
    assert device.traffic.uploads == uploads
    np.testing.assert_array_equal(device.get(parameter.data), [4, 6, 8])
    parameter.data = [1, 2, 3]
    parameter.astype("float64")
    np.testing.assert_array_equal(device.get(parameter.data), [1, 2, 3])
    assert type(parameter.data) is HostArray
    with refused(ab.ShapeError, "shape (2,)", "shape (3,)"):
        parameter.data = parameter.data[:2]


def test_auto_is_the_backend_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reference", ""):
        monkeypatch.setenv("AUTOBATCH_BACKEND", name)
        model, device = Scale(), HostDevice()
        assert ab.batched(model.loss).backend.name == (name or "cpu")
        loss = ab.batched(model.to(device).loss)
        assert (loss.backend.name, loss.backend.device) == ("cuda", device)  # type: ignore[attr-defined]
        assert_equal(loss([np.ones(2)]), np.log(np.array([2.0], np.float32)), 1e-6)


def test_what_is_on_the_wrong_device_is_refused() -> None:
    device = HostDevice()
    model = Scale()
    instances = [np.ones(2)]
    model.to(device)
    for backend in ("cpu", "reference", Cuda(device=HostDevice())):
        with refused(ab.BackendError, "the parameters are on cuda", 'to("cpu")'):
            ab.batched(model.loss, backend=backend)(instances)
    with refused(ab.GraphError, "shape (2,)", "on cuda", 'to("cpu")'):
        model.loss(instances[0])
    loss = ab.batched(model.loss, backend=Cuda(device=device))
    with refused(ab.ShapeError, "ndarray for parameter 'w'"):
        loss.value_and_grad(instances, out={"w": np.zeros(2, np.float32)})
    with refused(ab.ShapeError, "Rows for parameter 'w'"):
        loss.value_and_grad(instances, out={"w": ab.Rows.zeros((2,))})
    with refused(ab.BackendError, "'cpu' or 'cuda'", "got 'gpu'"):
        model.to("gpu")
    other = ab.Parameter([[1.0, 2.0]])
    model.other = other  # type: ignore[attr-defined]
    with refused(ab.GraphError, "'w' on cuda", "'other' on cpu", "to()"):
        loss.value_and_grad(instances)
    with refused(ab.GraphError, "devices differ", "to()"):
        _ = make_stack([ab.Parameter([[3.0, 4.0]]).to(device), other]).data


def test_no_room_on_the_device_names_the_plan_and_the_limit() -> None:
    model, instances = CASES[0].draw(seed=3, n_instances=8, dim=16)
    for limit, text in ((None, "max_bytes is not set"), (200_000, "max_bytes is 200000")):
        loss = ab.batched(model.loss, backend=Cuda(device=HostDevice(most_bytes=8_000)), max_bytes=limit)
        n_bytes = loss.prepare(instances, training=True).parts[0].n_bytes
        with refused(ab.BackendError, f"takes {n_bytes} bytes", text, "a lower max_bytes"):
            loss.value_and_grad(instances)


class Sums(ab.Module):
    """w * v, which is computed once per run."""

    def __init__(self) -> None:
        self.w, self.v = ab.Parameter([1.0, 2.0]), ab.Parameter([3.0, 4.0])

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.sum(self.w * self.v * x)

    def loss(self, x: Any) -> Any:
        return self.step(x)


def test_what_parameters_determine_is_computed_again_after_memory_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostDevice()
    model = Sums().to(device)
    loss = ab.batched(model.loss, backend=Cuda(device=device))
    graphs = loss.record_all([np.ones(2)])
    assert loss(graphs).tolist() == [11.0]
    model.w.data = [0.0, 1.0]
    assert loss(graphs).tolist() == [4.0]
    model.w.data = [2.0, 2.0]

    def fail(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "run_kernel", fail)
        with refused(BackendError, "has no room"):
            loss(graphs)
    assert loss(graphs).tolist() == [14.0]


class Ways(ab.Module):
    """A cell for each way in which steps read parameters: in place, copied, and computed with."""

    def __init__(self) -> None:
        self.matrix, self.weight = (ab.Parameter(np.linspace(-1.0, end, 9).reshape(3, 3)) for end in (1.0, 2.0))
        self.scale, self.unused = ab.Parameter([0.5, 1.0, 2.0]), ab.Parameter([1.0])

    @ab.cell
    def in_place(self, x: Any) -> Any:
        return ab.tanh(self.matrix @ x)

    @ab.cell
    def copied(self, x: Any) -> Any:
        return ab.tanh(self.weight[::-1, ::-1] @ x)  # neither rows nor columns are contiguous

    @ab.cell
    def computed(self, x: Any) -> Any:
        return x * (self.scale * self.scale)

    def loss(self, xs: Any) -> Any:
        state = xs[0]
        for x in xs[1:]:
            state = self.in_place(state) + self.copied(x) + self.computed(state)
        return ab.sum(state)


def read(grads: dict[str, Any], device: HostDevice) -> dict[str, Any]:
    """Copy gradients to NumPy arrays, wherever they are."""
    return {name: np.array(g if isinstance(g, ab.Rows) else device.get(g)) for name, g in grads.items()}


@pytest.mark.parametrize("is_resident", [False, True])
def test_steps_after_parameters_have_changed_or_moved(is_resident: bool) -> None:
    """Each step has another plan. Addresses that a step stored must not outlive what they refer to."""
    device, rng = HostDevice(2), np.random.default_rng(0)
    model, twin = Ways().astype("float64"), Ways().astype("float64")
    if is_resident:
        model.to(device)
    loss = ab.batched(model.loss, backend=Cuda(poison=True, device=device))
    reference = ab.batched(twin.loss, backend=Reference())

    def move() -> None:
        if is_resident:
            model.to("cpu")
            model.to(device)

    def change(name: str) -> None:
        numbers = rng.standard_normal(getattr(twin, name).shape)
        for one in (model, twin):
            getattr(one, name).data = numbers

    def freeze() -> None:
        for one in (model, twin):
            one.unused.trainable = False  # so that gradients are allocated again

    each = [partial(change, name) for name in ("matrix", "weight", "scale")]
    changes: list[Callable[[], None]] = [lambda: None, *each, move, *each, freeze, *each]
    for n, do in enumerate(changes, start=2):
        do()
        for n_instances in (1, n):
            instances = [rng.standard_normal((n - k % 2, 3)) for k in range(n_instances)]
            value, grads = loss.value_and_grad(instances)
            wanted, gradients = reference.value_and_grad(instances)
            assert_equal(float(value), float(wanted))
            assert_equal(read(grads, device), gradients)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_runs_that_are_open_at_the_same_time_do_not_disturb_each_other(precision: str) -> None:
    """Each has another plan, and adds to gradients of its own."""
    for is_resident in (False, True):
        device = HostDevice(4)
        model, instances = CASES[0].draw(seed=3, n_instances=6, dim=5)
        model.astype("float32")
        if is_resident:
            model.to(device)
        backend = Cuda(poison=True, device=device)
        loss = ab.batched(model.loss, backend=backend, precision=precision)
        parts = [instances[:4], instances[4:]]
        expected = []
        for part in parts:
            _, grads = loss.value_and_grad(part, reduce="sum")
            expected.append(
                {name: np.array(device.get(g) if not isinstance(g, ab.Rows) else g) for name, g in grads.items()}
            )
        trainable, found, runs = loss.parameters.trainable, [], []
        for part in parts:
            step = loss.prepare(part, training=True)
            run = step.parts[0].executable.begin(Randomness(0, 0, step.graph.keys, True))
            with run:
                run.forward()
            runs.append((run, GradientBuffers(), step.cells.row_parameters, len(part)))
        for run, buffers, rows, n in runs:
            grads = buffers.zeros(trainable, rows)
            with run:
                run.backward({0: np.ones(n, np.float32)}, {id(trainable[name]): g for name, g in grads.items()})
            found.append(
                {name: np.array(device.get(g) if not isinstance(g, ab.Rows) else g) for name, g in grads.items()}
            )
        for run, *_ in runs:
            run.close()
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, 0.0)


def test_gradients_may_be_changed_in_place() -> None:
    """Also the ids of rows, which the plan has, too."""
    model, instances = CASES[0].draw(seed=3, n_instances=4, dim=4)
    device = HostDevice()
    loss = ab.batched(model.to(device).loss, backend=Cuda(device=device))
    graphs = loss.record_all(instances)
    expected = None
    for _ in range(3):
        _, grads = loss.value_and_grad(graphs)
        found = read(grads, device)
        expected = expected or found
        assert_equal(found, expected, 0.0)
        for gradient in grads.values():
            if isinstance(gradient, ab.Rows):
                gradient.ids[...] = 0
                gradient *= 2.0
            else:
                gradient.fill(7.0)
