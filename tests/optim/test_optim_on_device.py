"""Test optimizers and clipping on a device: bit-identical to the host, in one launch, without waiting."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.devices.device import Device
from autobatch.devices.late import Late
from autobatch.errors import BackendError, DataError, NumericError, ShapeError
from autobatch.optim import SGD, Adam, AdamW, Group, clip_by_norm, clip_by_value, on_device
from autobatch.params.gradients import Gradients
from autobatch.params.module import shared_store
from autobatch.params.sparse_rows import Rows
from helpers.runs.gpu_compiler import compile_for_gpus, needs_compiler
from helpers.runs.ways import each
from helpers.twins.cases import CASES

OPTIONS: list[tuple[type[Any], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.5, "nesterov": True, "weight_decay": 0.05}),
    (Adam, {}),
    (Adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    (Adam, {"lr": 0.02, "betas": (0.0, 0.0), "eps": 0.0}),
    (AdamW, {"lr": 0.02, "weight_decay": 0.3}),
]
SHAPES = {"matrix": (5, 300), "vector": (7,), "number": (), "deep": (3, 2, 5), "nothing": (0, 3), "table": (40, 6)}
GROUPS = [Group("mat*", lr_factor=0.25, weight_decay=0.0), Group({"number", "table"}, weight_decay=0.2)]


class Model(ab.Module):
    """A parameter of each of SHAPES."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        for name, shape in SHAPES.items():
            setattr(self, name, ab.Parameter(rng.standard_normal(shape)))

    table: ab.Parameter


def lay_apart(model: Model, device: Device) -> None:
    """Move parameters to rectangles of larger arrays, as in stacks, and one to non-contiguous rows."""
    for name, parameter in model.parameters().items():
        shape = parameter.shape
        if name in ("matrix", "vector", "table"):
            wide = device.xp.zeros((shape[0], 2 * math.prod(shape[1:]) + 3), parameter.dtype)
            parameter.move_to(wide[:, 2 : 2 + math.prod(shape[1:])].reshape(shape))
        elif name == "deep":
            parameter.move_to(device.xp.zeros(shape[::-1], parameter.dtype).T)


def draw_grads(n_steps: int, dtype: str, sparse: bool) -> Iterator[dict[str, Any]]:
    """Yield gradients of very different sizes; if sparse, the table's are some, all or no rows."""
    rng = np.random.default_rng(1)
    for step in range(n_steps):
        scale = 10.0 ** rng.uniform(-4, 2)
        grads: dict[str, Any] = {n: np.asarray(scale * rng.standard_normal(s), dtype) for n, s in SHAPES.items()}
        if sparse:
            ids = np.flatnonzero(rng.random(SHAPES["table"][0]) < (0.3, 1.0, 0.0, 0.6)[step % 4])
            grads["table"] = Rows(ids, grads["table"][ids], SHAPES["table"])
        yield grads


def put(grads: dict[str, Any], device: Device, apart: bool = False) -> dict[str, Any]:
    """Copy gradients to the device; if `apart`, some become parts of larger arrays."""
    found: dict[str, Any] = {}
    for name, grad in grads.items():
        if isinstance(grad, Rows):
            found[name] = Rows(grad.ids, device.put(grad.values), grad.shape, device)
        elif apart and name in ("matrix", "deep"):
            found[name] = device.put(np.concatenate([grad, grad], 1))[:, : grad.shape[1]]
        else:
            found[name] = device.put(grad)
    return found


def without_sign_of_nan(array: Any) -> Any:
    """Replace all NaN by the same one."""
    return np.where(np.isnan(array), np.nan, array).astype(array.dtype)


def assert_same_bits(model: ab.Module, optimizer: Any, other: ab.Module, other_optimizer: Any, about: Any) -> None:
    """Check that parameters and stored states are bit-identical, except for the sign of NaN."""
    for one, two in (
        (model.state_dict(), other.state_dict()),
        (optimizer.state_dict()["arrays"], other_optimizer.state_dict()["arrays"]),
    ):
        for name, array in one.items():
            assert type(two[name]) is np.ndarray, name
            assert array.dtype == two[name].dtype, name
            assert without_sign_of_nan(array).tobytes() == without_sign_of_nan(two[name]).tobytes(), (name, about)
    assert optimizer.state_dict()["steps"] == other_optimizer.state_dict()["steps"]


@each("sparse, lazy", [(False, False), (True, False), (True, True)])
@each("dtype, apart, groups", [("float32", False, []), ("float64", True, GROUPS), ("float32", True, [])])
@each("kind, options", OPTIONS)
def test_steps_equal_those_of_the_host_to_the_bit(
    device: Device, kind: type[Any], options: dict[str, Any], dtype: str, apart: bool, groups: Any, sparse: bool,
    lazy: bool,
) -> None:  # fmt: skip
    """For all optimizers, groups, sparse gradients, and layouts of parameters and gradients."""
    host, model = Model().astype(dtype), Model().astype(dtype).to(device)
    if apart:
        lay_apart(model, device)
    wanted, optimizer = (kind(one, **options, groups=groups, lazy=lazy) for one in (host, model))
    for step, grads in enumerate(draw_grads(6, dtype, sparse)):
        if step == 3:
            wanted.lr = optimizer.lr = 0.003
        with np.errstate(invalid="ignore"):
            wanted.step(grads)
        optimizer.step(put(grads, device, apart))
        assert_same_bits(host, wanted, model, optimizer, step)


def test_numbers_around_the_rectangles_stay(device: Device) -> None:
    model = Model().to(device)
    wide = device.put(np.ones((5, 310), np.float32))
    model.parameters()["matrix"].move_to(wide[:, 4:304])
    Adam(model).step(put(next(draw_grads(1, "float32", False)), device))
    around = np.delete(device.get(wide), np.s_[4:304], axis=1)
    np.testing.assert_array_equal(around, 1)


@each("kind, options", OPTIONS[3:5])
def test_a_step_is_one_launch_and_one_upload_and_waits_for_nothing(
    device: Device, kind: type[Any], options: dict[str, Any]
) -> None:
    """With dense and sparse gradients. Clipping takes two launches, an upload and a download."""
    model = Model().to(device)
    optimizer = kind(model, **options)
    for step, grads in enumerate(draw_grads(5, "float32", True)):
        given = Gradients(put(grads, device))
        given.finite = device.put(np.ones(1, bool))
        before = copy.copy(device.traffic)
        optimizer.step(given)
        if step:  # the first step compiles
            assert_traffic(before, device, launches=1, uploads=1)
        before = copy.copy(device.traffic)
        norm = clip_by_norm(given, 1e-3)
        if step:
            assert_traffic(before, device, launches=2, uploads=1, downloads=1)
        assert isinstance(norm, Late)
        assert norm == pytest.approx(clip_by_norm(grads, 1.0), rel=1e-6)


def assert_traffic(before: Any, device: Device, **expected: int) -> None:
    """Check what the device was asked to do since `before`."""
    counted = {name: getattr(device.traffic, name) - getattr(before, name) for name in vars(before)}
    counted = {name: n for name, n in counted.items() if n and not name.endswith("bytes")}
    assert counted == expected


def test_training_goes_to_a_device_and_back_bit_by_bit(device: Device) -> None:
    """State moves with the model at the next step. The model may also be cast on the way."""
    host, model = Model(), Model()
    wanted, optimizer = Adam(host), Adam(model)
    for step, grads in enumerate(draw_grads(12, "float64", True)):
        if step in (2, 6):
            model.to(device)
        if step in (4, 9):
            model.to("cpu")
        if step == 7:
            for one in (host, model):
                one.astype("float64")
        wanted.step(grads)
        optimizer.step(grads if shared_store(model) is not device else put(grads, device))
        assert_same_bits(host, wanted, model, optimizer, step)


@each("saved_on, resumed_on", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
@each("kind, options", OPTIONS[3:6])
def test_training_goes_on_from_stored_state_on_the_other_backend(
    device: Device, tmp_path: Path, kind: type[Any], options: dict[str, Any], saved_on: str, resumed_on: str
) -> None:
    """Parameters through a file, both as a pickle, and both as a deep copy."""
    host, model = Model(), Model().to(saved_on)
    wanted, optimizer = kind(host, **options), kind(model, **options)

    def step(one: ab.Module, stepped: Any, grads: Any) -> None:
        stepped.step(grads if shared_store(one) is not device else put(grads, device))

    all_grads = list(draw_grads(6, "float32", True))
    for grads in all_grads[:3]:
        step(host, wanted, grads)
        step(model, optimizer, grads)
    model.save(tmp_path / "model.safetensors")
    resumed = Model().to(resumed_on)
    resumed.load(tmp_path / "model.safetensors")
    going_on = kind(resumed, **options)
    going_on.load_state_dict(optimizer.state_dict())
    copied, copied_optimizer = copy.deepcopy((model, optimizer))
    pickled, pickled_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    assert shared_store(copied) is shared_store(model)
    assert shared_store(pickled).kind == "cpu"
    for grads in all_grads[3:]:
        step(host, wanted, grads)
        step(resumed, going_on, grads)
        step(copied, copied_optimizer, grads)
        step(pickled, pickled_optimizer, grads)
    for one, stepped in ((resumed, going_on), (copied, copied_optimizer), (pickled, pickled_optimizer)):
        assert_same_bits(host, wanted, one, stepped, type(one))


def test_parameters_on_both_sides_are_stepped_where_they_are(device: Device) -> None:
    host, model = Model(), Model()
    model.table.to(device)
    wanted, optimizer = Adam(host), Adam(model)
    for step, grads in enumerate(draw_grads(3, "float32", False)):
        wanted.step(grads)
        optimizer.step({**grads, "table": device.put(grads["table"])})
        assert_same_bits(host, wanted, model, optimizer, step)


def test_gradients_that_are_not_finite_change_nothing(device: Device) -> None:
    """The device finds them and changes neither parameters nor state. The next step works again."""
    model = Model().to(device)
    optimizer = AdamW(model)
    for finite in (True, False, True):
        grads = Gradients(put(next(draw_grads(1, "float32", True)), device))
        grads.finite = device.put(np.array([finite]))
        before = {**model.state_dict(), **optimizer.state_dict()["arrays"]}
        optimizer.step(grads)
        after = {**model.state_dict(), **optimizer.state_dict()["arrays"]}
        changed = {name for name, array in before.items() if after[name].tobytes() != array.tobytes()}
        assert ("matrix" in changed) == finite
        if not finite:
            assert changed == set()


def test_training_of_a_tree_lstm_gives_the_losses_of_the_cpu(device: Device) -> None:
    """With clipping, weight decay, and a table with row gradients, twice over the same mini-batches."""
    model, instances = CASES[0].draw(seed=3, n_instances=6, dim=5)
    model.astype("float64")
    twin = copy.deepcopy(model).to(device)

    def train(one: Any, backend: Any) -> list[float]:
        loss, optimizer = ab.batched(one.loss, backend=backend), AdamW(one, lr=0.01)
        losses = []
        for batch in [instances[:3], instances[3:]] * 2:
            value, grads = loss.value_and_grad(batch)
            norm = clip_by_norm(grads, 0.5)
            optimizer.step(grads)
            losses += [float(value), float(norm)]
        return losses

    wanted = train(model, Reference())
    assert min(wanted[1::2]) > 0.5
    np.testing.assert_allclose(train(twin, Cuda(device=device)), wanted, rtol=1e-10)
    for name, array in twin.state_dict().items():
        np.testing.assert_allclose(array, model.state_dict()[name], rtol=1e-9, atol=1e-9)


def refused_step(device: Device, name: str, grad: Any, on_device: bool) -> str:
    """Return a step's error for a gradient, after checking that nothing has changed."""
    model = Model()
    optimizer = Adam(model)
    grads = next(draw_grads(1, "float32", False))
    if on_device:
        model.to(device)
        grads = put(grads, device)
    before = model.state_dict()
    with pytest.raises((DataError, ShapeError)) as refusal:
        optimizer.step({**grads, name: grad})
    for key, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[key])
    assert set(optimizer.state_dict()["steps"].values()) == {0}
    return str(refusal.value)


def test_gradients_that_are_elsewhere_are_refused_by_name(device: Device) -> None:
    shape, rows = SHAPES["table"], Rows([1], np.ones((1, 6), np.float32), SHAPES["table"])
    begin = "cannot take a step of Adam: the gradient of 'table'"
    for grad in (np.ones(shape, np.float32), rows, np.ones(shape).tolist()):
        assert refused_step(device, "table", grad, on_device=True).startswith(
            f"{begin} must be on the parameter's device cuda, got cpu;"
        )
    there = Rows([1], device.put(rows.values), shape, device)
    for grad in (device.put(np.ones(shape, np.float32)), there):
        assert refused_step(device, "table", grad, on_device=False).startswith(
            f"{begin} must be on the parameter's device cpu, got cuda;"
        )
    wrong = device.put(np.ones(shape, complex))
    assert refused_step(device, "table", wrong, on_device=True).startswith(f"{begin} must be an array of numbers: ")
    wrong = device.put(np.ones((6, 40), np.float32))
    assert refused_step(device, "table", wrong, on_device=True).startswith(f"{begin} must have the parameter's shape")


def test_kernels_that_cannot_be_compiled_are_told_and_nothing_has_changed(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_device, "_loaded", {})
    monkeypatch.setattr(on_device, "source", lambda: "void wrong(")
    model = Model().to(device)
    optimizer, before = Adam(model), model.state_dict()
    with pytest.raises(BackendError, match=r"^the kernels of optimizers: .* cannot compile its kernels: "):
        optimizer.step(put(next(draw_grads(1, "float32", False)), device))
    assert set(optimizer.state_dict()["steps"].values()) == {0}
    np.testing.assert_array_equal(model.state_dict()["table"], before["table"])


def test_gradients_of_another_type_are_cast(device: Device) -> None:
    host, model = Model(), Model().to(device)
    wanted, optimizer = Adam(host), Adam(model)
    for step, grads in enumerate(draw_grads(3, "float64", True)):
        grads["vector"] = np.arange(7)
        wanted.step(grads)
        optimizer.step(put(grads, device))
        assert_same_bits(host, wanted, model, optimizer, step)


# --- clipping


@each("dtype, apart, sparse", itertools.product(["float32", "float64"], [False, True], [False, True]))
def test_clipping_is_that_of_the_host(device: Device, dtype: str, apart: bool, sparse: bool) -> None:
    for grads, max_norm in itertools.product(draw_grads(2, dtype, sparse), [1e-3, 1e9, math.inf]):
        there = put(grads, device, apart)
        exact = math.sqrt(sum(float((np.asarray(grad, np.float64) ** 2).sum()) for grad in grads.values()))
        norm = clip_by_norm(there, max_norm)
        assert type(norm) is float
        assert norm == pytest.approx(exact, rel=1e-12)
        clip_by_norm(grads, max_norm)
        for name, grad in grads.items():
            found = there[name]
            found = np.asarray(found) if isinstance(found, Rows) else device.get(found)
            np.testing.assert_allclose(found, np.asarray(grad), rtol=1e-6, atol=0)


@each("dtype, sparse", itertools.product(["float32", "float64"], [False, True]))
def test_clipping_by_value_is_that_of_the_host(device: Device, dtype: str, sparse: bool) -> None:
    for grads, limit in itertools.product(draw_grads(2, dtype, sparse), [0.5, math.inf]):
        there = put(grads, device)
        clip_by_value(there, limit)
        clip_by_value(grads, limit)
        for name, grad in grads.items():
            found = there[name]
            found = np.asarray(found) if isinstance(found, Rows) else device.get(found)
            np.testing.assert_array_equal(found, np.asarray(grad))


def test_the_same_gradients_have_the_same_norm_to_the_bit(device: Device) -> None:
    grads = put(next(draw_grads(1, "float32", False)), device)
    assert len({clip_by_norm(grads, math.inf) for _ in range(5)}) == 1
    assert clip_by_norm({"a": device.put(np.array([3e30, 4e30], np.float32))}, 1e40) == pytest.approx(5e30)
    assert clip_by_norm({"a": device.put(np.ones((0, 3)))}, 1.0) == 0.0


@each("wrong", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_told_when_it_is_read(device: Device, wrong: float) -> None:
    """Or by the optimizer's next step. Until then nothing has changed."""
    model = Model().to(device)
    optimizer = SGD(model, lr=0.1)
    for is_read in (True, False):
        host = next(draw_grads(1, "float32", True))
        host["vector"][3] = wrong
        grads = Gradients(put(host, device))
        grads.finite, before = device.put(np.ones(1, bool)), model.state_dict()
        norm = clip_by_norm(grads, 1e-3)
        optimizer.step(grads)
        np.testing.assert_array_equal(device.get(grads["matrix"]), host["matrix"])
        for name, array in model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
        good = put(next(draw_grads(1, "float32", True)), device)
        message = rf"^cannot clip gradients: the norm of 'vector' must be finite, got {wrong};"
        with pytest.raises(NumericError, match=message):
            float(norm) if is_read else optimizer.step(good)
        optimizer.step(good)
        with pytest.raises(NumericError, match=message):
            clip_by_norm(dict(grads), 1.0)


def test_gradients_that_cannot_be_clipped_are_named(device: Device) -> None:
    there = device.put(np.array([30.0, 40.0]))
    for wrong in (np.ones(2), [1.0, 2.0]):
        with pytest.raises(
            DataError, match=r"gradients to clip must be on one device, got 'a' on cuda and 'b' on cpu;"
        ):
            clip_by_norm({"a": there, "b": wrong}, 1.0)  # type: ignore[dict-item]
    with pytest.raises(DataError, match="'b' must be a writable array of floats"):
        clip_by_norm({"a": there, "b": device.put(np.arange(3))}, 1.0)
    assert device.get(there).tolist() == [30.0, 40.0]


@pytest.mark.slow
@needs_compiler
def test_kernels_compile_for_gpus_without_spills(tmp_path: Path) -> None:
    said = compile_for_gpus(on_device.source(), tmp_path)
    assert said.count("Compiling entry function") == 6
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == said.count("bytes spill stores")
