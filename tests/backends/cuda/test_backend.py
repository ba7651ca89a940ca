"""Test the cuda backend, with kernels built for the CPU, against the reference backend."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.compiler.cuda.mapping import Hazards
from autobatch.devices.device import Device
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from autobatch.graph.rewrite import DEFAULT, PASSES, UNSHARED
from helpers.checkers.parity import TOLERANCES, assert_equal
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case
from host_device import HostDevice

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which builds kernels for the processor")

POLICIES = ("unbatched", "depth", "agenda", "sufficient", "critical", "score+both+compact", "search")


def compare(
    function: Any,
    instances: list[Any],
    device: Device,
    dtype: str = "float64",
    has_aux: bool = False,
    **options: Any,
) -> Cuda:
    """Compare inference and training on both backends; return the function on the device."""
    ours, weights = Cuda(poison=True, device=device), np.random.default_rng(0).uniform(0.5, 2.0, len(instances))
    found = ab.batched(function, backend=ours, **options)
    wanted = ab.batched(function, backend=Reference(poison=True), **options)
    assert_equal(found(instances), wanted(instances), TOLERANCES[dtype])
    ones, others = (run.value_and_grad(instances, reduce=weights, has_aux=has_aux) for run in (found, wanted))
    assert_equal(ones, others, TOLERANCES[dtype])
    return ours


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models(case: Case) -> None:
    model, instances = case.draw(seed=3, n_instances=6, dim=5)
    model.astype("float64")
    for seed in range(3):
        compare(model.loss, instances, HostDevice(seed))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [2, 3])
def test_several_blocks_per_processor(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks run than the device has processors, and each has less shared memory."""
    model, instances = CASES[1].draw(seed=3, n_instances=12, dim=24)
    model.astype("float64")
    device = HostDevice()
    grids: list[int] = []
    launch = device.launch

    def note(kernel: Any, about: Any) -> None:
        grids.append(about.grid)
        launch(kernel, about)

    monkeypatch.setattr(device, "launch", note)
    backend = Cuda(poison=True, device=device, blocks=blocks)
    found, wanted = (ab.batched(model.loss, backend=b) for b in (backend, Reference()))
    assert_equal(found.value_and_grad(instances), wanted.value_and_grad(instances))
    assert max(grids) == blocks * device.n_processors


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_on_a_gpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOBATCH_CUDA", raising=False)
    try:
        device = find_device()
    except BackendError as error:
        pytest.skip(str(error))
    for dtype, dim in (("float64", 5), ("float64", 300), ("float32", 64)):
        model, instances = case.draw(seed=3, n_instances=32, dim=dim)
        model.astype(dtype)
        compare(model.loss, instances, device, dtype=dtype)


@pytest.mark.parametrize("dim", [1, 40, pytest.param(300, marks=pytest.mark.slow)])
def test_float32_and_rows_of_a_warp_or_several(dim: int) -> None:
    model, instances = CASES[0].draw(seed=3, n_instances=3, dim=dim)
    compare(model.loss, instances, HostDevice(), dtype="float32")


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies(policy: str) -> None:
    model, instances = CASES[4].draw(seed=3, n_instances=4, dim=4)
    model.astype("float64")
    compare(model.loss, instances, HostDevice(), policy=policy)


def seeds() -> list[Any]:
    """Return a few seeds, and more that are slow."""
    return [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))]


@pytest.mark.cases(1, 12)
@pytest.mark.parametrize("seed", seeds())
def test_random_programs(seed: int) -> None:
    policy, rewrites = (("agenda", PASSES), ("depth", DEFAULT), ("agenda", ()))[seed % 3]
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    instances = draw_instances(rng, model, n=5)
    compare(model.everything, instances, HostDevice(seed), has_aux=True, policy=policy, rewrites=rewrites)


def test_one_launch_runs_a_mini_batch() -> None:
    model, instances = CASES[0].draw(seed=3, n_instances=8, dim=5)
    device = HostDevice()
    loss = ab.batched(model.loss, backend=Cuda(device=device))
    for trees in (instances[:5], instances[5:]):
        loss(trees)
        before = vars(device.traffic).copy()
        loss(trees)
        after = vars(device.traffic)
        counts = {name: after[name] - before[name] for name in ("launches", "products", "uploads", "downloads")}
        assert counts == {"launches": 1, "products": 0, "uploads": 2, "downloads": 1}


def test_the_same_bits_in_any_order_of_threads() -> None:
    """Also for values that several nodes add to one place."""
    model, instances = CASES[4].draw(seed=3, n_instances=4, dim=5)
    results = []
    for seed in range(3):
        loss = ab.batched(model.loss, backend=Cuda(device=HostDevice(seed)))
        value, gradients = loss.value_and_grad(instances)
        results.append([value.tobytes(), *(np.asarray(gradient).tobytes() for gradient in gradients.values())])
    assert results[0] == results[1] == results[2]


def test_a_missing_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hazards, "need_barrier", lambda self, accesses: False)

    class Model(ab.Module):
        def __init__(self) -> None:
            self.scale = ab.Parameter(np.linspace(0.5, 1.5, 6))

        @ab.cell
        def turn(self, x: Any) -> Any:
            return ab.tanh(x * self.scale)[::-1] * x

        def loss(self, x: Any) -> Any:
            return ab.sum(self.turn(x))

    model = Model().astype("float64")
    instances = [np.random.default_rng(seed).standard_normal(6) for seed in range(5)]
    with pytest.raises(AssertionError):
        compare(model.loss, instances, HostDevice())


def test_a_number_is_not_written_over_before_all_threads_read_it() -> None:
    """The gradient of a scalar overwrites a residual that each thread reads."""

    class Model(ab.Module):
        def __init__(self) -> None:
            self.weight, self.scale = ab.Parameter(np.linspace(-1.0, 1.0, 15).reshape(5, 3)), ab.Parameter(0.7)

        @ab.cell
        def cell(self, children: Any) -> Any:
            scores = ab.logsumexp_n([self.weight @ (1.5 + ab.tanh(x)) ** 1.5 for x in children])
            return ab.sigmoid(ab.cross_entropy(scores, 2) * self.scale)

        def loss(self, rows: Any) -> Any:
            return self.cell(list(rows))

    model = Model().astype("float64")
    instances = [np.random.default_rng(seed).standard_normal((2, 3)) for seed in range(3)]
    for seed in range(5):
        compare(model.loss, instances, HostDevice(seed))


def test_ints_are_compared_as_ints() -> None:
    """Both ints round to the same float32."""
    scale = ab.Parameter(np.ones(3))

    class Model(ab.Module):
        def __init__(self) -> None:
            self.scale = scale

        @ab.cell
        def choose(self, i: int, j: int) -> Any:
            return ab.sum(ab.where(i == j, self.scale, -self.scale))

        def loss(self, ints: Any) -> Any:
            return self.choose(*ints)

    compare(Model().loss, [(16_777_217, 16_777_216), (5, 5)], HostDevice(), dtype="float32")


def test_interpreted_ops_read_the_ints_of_their_rows() -> None:
    """Also in a later batch of the type."""

    class Model(ab.Module):
        def __init__(self) -> None:
            self.table = ab.Parameter(np.linspace(-1.0, 1.0, 5).reshape(5, 1), trainable=False)
            self.query = ab.Parameter([1.0])

        @ab.cell
        def read(self, ids: Any, pairs: Any) -> Any:
            seen = ab.attend(self.query, pairs[0], pairs[1], shape=(1,))
            return ab.lookup(-self.table, ids), seen + ab.sum(ab.lookup(-self.table, ids))

        def everything(self, ids: Any) -> Any:
            _, first = self.read(ids, ([], []))
            return self.read(ids[::-1], ([first, first], [first, first]))

        def loss(self, ids: Any) -> Any:
            rows, seen = self.everything(ids)
            return ab.sum(rows) * ab.sum(seen)

    model = Model().astype("float64")
    instances = [np.array(ids) for ids in ([[2, 0], [1, 1]], [[4, 3], [0, 2]])]
    found, wanted = (ab.batched(model.everything, backend=b) for b in (Cuda(device=HostDevice()), Reference()))
    assert_equal(found(instances), wanted(instances))
    compare(model.loss, instances, HostDevice())


def test_matrices_that_run_backwards() -> None:
    weight, row = ab.Parameter(np.linspace(-1.0, 1.0, 9).reshape(3, 3)), ab.Parameter(np.array([[1.0, 2.0, 4.0]]))

    class Model(ab.Module):
        def __init__(self) -> None:
            self.weight, self.row = weight, row

        @ab.cell
        def cell(self, x: Any) -> Any:
            turned = ab.transpose(self.weight[::-1]) @ x + self.weight[:, ::-1] @ x
            return turned + self.row[::-1] @ turned + ab.transpose(self.row[::-1]) @ (self.row[:, ::-1] @ x)

        def loss(self, x: Any) -> Any:
            return ab.sum(self.cell(x))

    compare(Model().astype("float64").loss, [np.array([1.0, -2.0, 0.5]), np.ones(3)], HostDevice())


def test_rows_that_do_not_fit_in_shared_memory() -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.scale = ab.Parameter(np.linspace(0.5, 1.5, 3000))

        @ab.cell
        def normal(self, x: Any) -> Any:
            y = ab.softmax(x * self.scale)
            return ab.sum(ab.tanh(y[::-1] * 100.0) * ab.softmax(y)[::-1])

        def loss(self, x: Any) -> Any:
            return self.normal(x)

    model = Model().astype("float64")
    instances = [np.random.default_rng(seed).standard_normal(3000) for seed in range(3)]
    backend = compare(model.loss, instances, HostDevice())
    plan = ab.batched(model.loss, backend=backend).prepare(instances, training=True).parts[0].executable
    assert plan.sizes[3] > 0, "no row is in global memory, so that this tests nothing"


def test_libraries_multiply_in_lower_precision() -> None:
    model, instances = CASES[0].draw(seed=3, n_instances=4, dim=8)
    model.astype("float32")
    device = HostDevice()
    compare(model.loss, instances, device, dtype="float32", precision="bf16", rewrites=UNSHARED)
    assert device.traffic.products > 0
    exact, rounded = (
        ab.batched(model.loss, backend=Cuda(device=device), precision=precision)(instances)
        for precision in ("float32", "tf32")
    )
    assert 0 < np.abs(exact - rounded).max() < 1e-2 * np.abs(exact).max()
    with pytest.raises(BackendError, match="must be \"cuda\", got 'cpu'"):
        ab.batched(model.loss, backend="cpu", precision="tf32")


@each("precision", ["float32", "tf32"])
def test_profiles_time_every_batch_where_it_runs(precision: str) -> None:
    """Profiles add no launches. "tf32" runs products in a library, between launches."""
    model, instances = CASES[0].draw(seed=3, n_instances=4, dim=5)
    device = HostDevice()
    loss = ab.batched(model.astype("float32").loss, backend=Cuda(device=device), precision=precision)
    loss.value_and_grad(instances)
    before = device.traffic.launches
    value, grads = loss.value_and_grad(instances)
    launches = device.traffic.launches - before
    grads = {name: np.array(gradient) for name, gradient in grads.items()}
    before = device.traffic.launches
    with loss.profile() as profile:
        assert_equal(loss.value_and_grad(instances), (value, grads), 0.0)
    if precision == "float32":
        assert launches == 4, "one each way, one for the gradients of parameters, and one for the rows of a table"
        assert device.traffic.launches - before == launches + 1, "the time after the rows of the table"
    (call,) = profile.calls
    (part,) = loss.prepare(instances, training=True).parts
    batches = [(batch.type_id, batch.end - batch.start) for batch in part.plan.batches]
    ran = {stage: [span for span in call.batches if span.stage == stage] for stage in ("forward", "backward")}
    assert [(span.type_id, span.rows) for span in ran["forward"]] == batches
    assert [(span.type_id, span.rows) for span in ran["backward"]] == batches[::-1]
    for stage, spans in ran.items():
        (whole,) = (span for span in call.stages if span.stage == stage)
        assert whole.start <= spans[0].start
        assert spans[-1].end <= whole.end
        assert min(span.ms for span in spans) > 0
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]


@pytest.mark.slow
def test_profiles_of_batches_with_rows_that_the_loss_does_not_depend_on() -> None:
    """Backward then runs batch by batch, with or without a profile."""
    model = draw_model(np.random.default_rng(1), smooth=True)
    instances = draw_instances(np.random.default_rng(1), model, n=5)
    loss, wanted = (
        ab.batched(model.everything, backend=backend) for backend in (Cuda(device=HostDevice()), Reference())
    )
    with loss.profile() as profile:
        found: list[Any] = [run.value_and_grad(instances, has_aux=True) for run in (loss, wanted)]
    assert_equal(*found)
    (call,) = profile.calls
    (part,) = loss.prepare(instances, training=True, has_aux=True).parts
    assert min(span.ms for span in call.batches) >= 0
    assert sum(span.stage == "backward" for span in call.batches) == part.plan.schedule.n_batches


def test_the_time_of_a_batch_is_that_of_its_steps() -> None:
    """Two types run once for the same rows; the one with a hundred times more multiplications takes longer."""

    class Model(ab.Module):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.wide = ab.Parameter(rng.standard_normal((400, 400)))

        @ab.cell
        def light(self, x: Any) -> Any:
            return 2.0 * x

        @ab.cell
        def heavy(self, x: Any) -> Any:
            return ab.sum(self.wide @ x)

        def loss(self, x: Any) -> Any:
            return self.heavy(self.light(x))

    loss = ab.batched(Model().loss, backend=Cuda(device=HostDevice()))
    calls = [loss.profile([np.ones(400, np.float32)] * 2).calls[0] for _ in range(5)]
    light, heavy = (min(call.batches[k].ms for call in calls) for k in (1, 2))  # the first batch holds the vectors
    assert heavy > 3 * light


def test_the_environment_chooses_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    model, instances = CASES[0].draw(seed=3, n_instances=4, dim=5)
    found, wanted = (ab.batched(model.loss, backend=name)(instances) for name in ("cuda", "reference"))
    assert_equal(found, wanted, TOLERANCES["float32"])
