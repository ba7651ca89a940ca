"""Test that optimizers equal torch's step by step, check before they change anything, and resume from stored state."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from autobatch.errors import CheckpointError, DataError, GraphError, ShapeError
from autobatch.nn.layers import Linear
from autobatch.optim import SGD, Adam, AdamW, Group, Optimizer
from autobatch.params.module import Module
from autobatch.params.parameter import FloatArray, Parameter
from helpers.runs.ways import each

SHAPES = {"matrix": (3, 4), "vector": (5,), "number": ()}

OPTIONS: list[tuple[type[Any], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (SGD, {"lr": 0.1, "momentum": 0.5, "nesterov": True, "weight_decay": 0.05}),
    (Adam, {}),
    (Adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3}),
    (Adam, {"lr": 0.02, "weight_decay": 0.1}),
    (Adam, {"lr": 0.02, "betas": (0.0, 0.0)}),
    (AdamW, {}),
    (AdamW, {"lr": 0.02, "weight_decay": 0.3}),
    (AdamW, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.0}),
]

KINDS = [SGD, Adam, AdamW]


class Model(Module):
    """A parameter of each of SHAPES, drawn from `rng`; `again` is a second name of `vector`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.matrix = Parameter(rng.standard_normal(SHAPES["matrix"]))
        self.vector = Parameter(rng.standard_normal(SHAPES["vector"]))
        self.number = Parameter(rng.standard_normal())
        self.again = self.vector


def make_model(dtype: str = "float64") -> Model:
    return Model(np.random.default_rng(0)).astype(dtype)


def draw_grads(n_steps: int, dtype: str = "float64") -> Iterator[dict[str, FloatArray]]:
    """Yield gradients of very different sizes, some of them zero."""
    rng = np.random.default_rng(1)
    for _ in range(n_steps):
        scale = 10.0 ** rng.uniform(-4, 2) * (rng.random() > 0.1)
        yield {name: np.asarray(scale * rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def make_all(optimizer: Callable[..., Optimizer]) -> tuple[Model, Optimizer]:
    model = make_model()
    return model, optimizer(model, lr=0.1)


def values_of(model: Module) -> dict[str, Any]:
    return {name: parameter.data.tolist() for name, parameter in model.parameters().items()}


@each("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
@each("kind, options", OPTIONS)
def test_a_hundred_steps_equal_those_of_torch(
    kind: type[Any], options: dict[str, Any], dtype: str, tolerance: float
) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    model = make_model(dtype)
    twins = {name: torch.from_numpy(parameter.data.copy()) for name, parameter in model.parameters().items()}
    optimizer = kind(model, **options)
    twin = getattr(torch.optim, kind.__name__)(list(twins.values()), **options)
    for step, grads in enumerate(draw_grads(100, dtype)):
        for name, tensor in twins.items():
            tensor.grad = torch.from_numpy(grads[name].copy())
        if step == 50:
            optimizer.lr = twin.param_groups[0]["lr"] = 0.003
        optimizer.step(grads)
        twin.step()
        for name, tensor in twins.items():
            np.testing.assert_allclose(
                model.parameters()[name].data, tensor.numpy(), rtol=tolerance, atol=tolerance, err_msg=f"step {step}"
            )


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_stay_and_do_not_age(kind: Callable[..., Optimizer]) -> None:
    model, optimizer = make_all(kind)
    other, fresh = make_all(kind)
    grads = next(draw_grads(1))
    model.matrix.trainable = False
    for _ in range(3):
        optimizer.step({name: grad for name, grad in grads.items() if name != "matrix"})
    assert model.matrix.data.tolist() == other.matrix.data.tolist()
    model.matrix.trainable = True
    optimizer.step(grads)
    fresh.step(grads)
    assert model.matrix.data.tolist() == other.matrix.data.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_frozen_parameters_are_ignored(kind: Callable[..., Optimizer]) -> None:
    model, optimizer = make_all(kind)
    before = model.matrix.data.tolist()
    model.matrix.trainable = False
    optimizer.step(next(draw_grads(1)))
    assert model.matrix.data.tolist() == before


@each("kind, options", OPTIONS)
def test_gradients_are_only_read(kind: type[Any], options: dict[str, Any]) -> None:
    optimizer = kind(make_model(), **options)
    for grads in draw_grads(3):
        before = {name: grad.copy() for name, grad in grads.items()}
        optimizer.step(grads)
        for name, grad in grads.items():
            np.testing.assert_array_equal(grad, before[name])


@each("kind, options", OPTIONS)
def test_a_step_allocates_no_array(kind: type[Any], options: dict[str, Any]) -> None:
    model = Module()
    model.table = Parameter(np.ones((500, 100)))  # type: ignore[attr-defined]
    optimizer = kind(model, **options)
    grads = {"table": np.ones((500, 100), np.float32)}
    optimizer.step(grads)
    tracemalloc.start()
    try:
        optimizer.step(grads)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < grads["table"].nbytes / 10


@each("kind, options", OPTIONS)
def test_a_model_may_change_its_dtype_between_steps(kind: type[Any], options: dict[str, Any]) -> None:
    model, reference = make_model("float32"), make_model()
    optimizer, exact = kind(model, **options), kind(reference, **options)
    for step, grads in enumerate(draw_grads(6)):
        if step == 3:
            model.astype("float64")
        optimizer.step(grads)
        exact.step(grads)
    assert model.dtype == np.float64
    np.testing.assert_allclose(model.matrix.data, reference.matrix.data, rtol=1e-4)


def test_parameters_that_are_views_are_changed_in_place() -> None:
    block = np.ones((2, 6))
    model = make_model()
    for parameter, place in ((model.matrix, np.empty((4, 3)).T), (model.vector, block[1, 1:])):
        parameter.data = np.ones_like(place)
        parameter.move_to(place)
    optimizer = SGD(model, lr=1.0)
    optimizer.step({name: np.ones(shape) for name, shape in SHAPES.items()})
    assert block.tolist() == [[1.0] * 6, [1.0] + [0.0] * 5]
    assert not model.matrix.data.any()


def as_field(numbers: FloatArray, before: str) -> FloatArray:
    """Return the numbers as a field of a structured array whose records start with another field."""
    fields: FloatArray = np.zeros(numbers.shape, [("before", before), ("number", numbers.dtype)])["number"]
    fields[...] = numbers
    return fields


LAYOUTS: dict[str, Callable[[FloatArray], Any]] = {
    "a field behind 4 bytes": lambda grad: as_field(grad, "i4"),
    "a field behind 1 byte": lambda grad: as_field(grad, "i1"),
    "a field behind 8 bytes": lambda grad: as_field(grad, "f8"),
    "rows of a field": lambda grad: np.array(
        [(0, row) for row in np.atleast_2d(grad)], [("before", "i4"), ("row", grad.dtype, np.atleast_2d(grad).shape[1])]
    )["row"].reshape(grad.shape),
    "backwards": lambda grad: grad[..., ::-1].copy()[..., ::-1] if grad.ndim else grad,
    "columns first": lambda grad: np.array(grad, order="F"),
    "other bytes first": lambda grad: grad.astype(grad.dtype.newbyteorder()),
    "a list": lambda grad: grad.tolist(),
    "a user's class": lambda grad: grad.view(type("Own", (np.ndarray,), {})),
}  # fmt: skip


@each("layout", LAYOUTS)
@each("kind", KINDS)
@each("dtype", ["float32", "float64"])
def test_gradients_may_lie_in_memory_as_they_like(kind: Callable[..., Optimizer], layout: str, dtype: str) -> None:
    (model, optimizer), (expected, plain) = make_all(kind), make_all(kind)
    for one in (model, expected):
        one.astype(dtype)
    for grads in draw_grads(3, dtype):
        optimizer.step({name: LAYOUTS[layout](grad) for name, grad in grads.items()})
        plain.step(grads)
    assert values_of(model) == values_of(expected)


@each(
    "change, error, message",
    [
        (
            {"other": np.ones(2)},
            GraphError,
            r"gradient 'other' matches no parameter that Model had",
        ),
        ({"again": np.ones(5)}, GraphError, r"gradient 'again' matches no parameter that Model had"),
        ({"vector": None}, GraphError, r"parameter 'vector' of Model has no gradient"),
        ({"vector": np.ones((5, 1))}, ShapeError, r"gradient of 'vector' must have .*shape \(5,\), got \(5, 1\);"),
        ({"number": np.ones(1)}, ShapeError, r"gradient of 'number' must have .*shape \(\), got \(1,\);"),
        ({"vector": np.array(["1"] * 5)}, DataError, r"gradient of 'vector' must be an array of numbers: .*dtype <U1"),
        (
            {"vector": np.ones(5, complex)},
            DataError,
            r"gradient of 'vector' must be an array of numbers: .*dtype complex128",
        ),
        (
            {"vector": np.ones(5, object)},
            DataError,
            r"gradient of 'vector' must be an array of numbers: .*dtype object",
        ),
        (
            {"vector": [1.0, [2.0]]},
            DataError,
            r"gradient of 'vector' must be an array of numbers: .*got \[1\.0, \[2\.0\]\]",
        ),
        ({"vector": np.ma.ones(5)}, DataError, r"gradient of 'vector' must be an array of numbers: .* masked array"),
    ],
)
@each("kind", KINDS)
def test_gradients_that_do_not_fit_change_nothing(
    kind: Callable[..., Optimizer], change: dict[str, Any], error: type[Exception], message: str
) -> None:
    model, optimizer = make_all(kind)
    before = values_of(model)
    grads = {name: grad for name, grad in {**next(draw_grads(1)), **change}.items() if grad is not None}
    with pytest.raises(error, match=rf"^cannot take a step of {optimizer.__class__.__name__}: .*{message}"):
        optimizer.step(grads)
    assert values_of(model) == before
    assert set(optimizer.state_dict()["steps"].values()) == {0}


@each(
    "kind, options, message",
    [
        (SGD, {"lr": -0.1}, r"lr of SGD must be .*got -0\.1"),
        (SGD, {"lr": math.nan}, r"lr of SGD must be a number, got nan"),
        (SGD, {"lr": 0.1, "momentum": -1}, r"momentum of SGD must be .*got -1"),
        (SGD, {"lr": 0.1, "nesterov": True}, r"momentum of SGD must be .*nesterov=True, got 0"),
        (Adam, {"lr": math.inf}, r"lr of Adam must be .*got inf"),
        (Adam, {"betas": (0.9, 1.0)}, r"beta_2 of Adam must be .*below 1\.0, got 1\.0"),
        (Adam, {"eps": -1e-8}, r"eps of Adam must be .*got -1e-08"),
        (Adam, {"weight_decay": -1.0}, r"weight_decay of Adam must be .*got -1\.0"),
        (AdamW, {"weight_decay": math.nan}, r"weight_decay of AdamW must be a number, got nan"),
    ],
)
def test_options_out_of_range_are_refused(kind: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        kind(make_model(), **options)


def test_the_learning_rate_is_checked_when_set() -> None:
    _, optimizer = make_all(Adam)
    optimizer.lr = 0.5
    with pytest.raises(DataError, match=r"lr of Adam must be a number, got nan"):
        optimizer.lr = math.nan
    assert optimizer.lr == 0.5


@each("kind, options", OPTIONS)
def test_training_goes_on_from_stored_state_bit_by_bit(kind: type[Any], options: dict[str, Any]) -> None:
    model, other = make_model(), make_model()
    optimizer = kind(model, **options)
    grads = list(draw_grads(10))
    for step in grads[:5]:
        optimizer.step(step)
    optimizer.lr = 0.01
    state = optimizer.state_dict()
    other.load_state_dict(model.state_dict())
    for step in grads[5:]:
        optimizer.step(step)

    resumed = kind(other, **options)
    resumed.load_state_dict(state)
    assert resumed.lr == 0.01
    for step in grads[5:]:
        resumed.step(step)
    assert values_of(other) == values_of(model)


def test_stored_state_takes_the_dtype_that_the_model_has_now() -> None:
    _, optimizer = make_all(Adam)
    optimizer.step(next(draw_grads(1)))
    state = optimizer.state_dict()
    cast = make_model("float32")
    resumed = Adam(cast)
    cast.astype("float64")
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(resumed.state_dict()["arrays"]["mean.matrix"], state["arrays"]["mean.matrix"])


def test_state_is_a_copy_with_readable_names() -> None:
    _, optimizer = make_all(Adam)
    state = optimizer.state_dict()
    assert state["kind"] == "Adam"
    assert state["options"] == {
        "lr": 0.1, "beta_1": 0.9, "beta_2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "lazy": 0.0
    }  # fmt: skip
    assert state["overrides"] == {}
    assert state["steps"] == {"matrix": 0, "vector": 0, "number": 0}
    assert list(state["arrays"]) == [f"{slot}.{name}" for name in SHAPES for slot in ("mean", "mean_square")]
    optimizer.step(next(draw_grads(1)))
    assert not state["arrays"]["mean.matrix"].any()


@each(
    "spoil, error, message",
    [
        (lambda state: state.clear(), CheckpointError, r"got none; .*SGD\.state_dict\(\)"),
        (
            lambda state: state.update(kind="Adam"),
            CheckpointError,
            r"the optimizer must be Adam",
        ),
        (lambda state: state["options"].pop("momentum"), CheckpointError, r"missing: 'momentum'"),
        (lambda state: state["steps"].pop("matrix"), CheckpointError, r"missing: 'matrix'"),
        (lambda state: state["overrides"].update(other={}), CheckpointError, r"unexpected: 'other'"),
        (
            lambda state: state["overrides"].update(matrix={"lr_factor": -1.0}),
            DataError,
            r"cannot load the group of 'matrix': lr_factor must be",
        ),
        (
            lambda state: state["overrides"].update(matrix={"momentum": 0.5}),
            DataError,
            r"cannot load the group of 'matrix': an option .* got 'momentum'",
        ),
        (lambda state: state["arrays"].clear(), CheckpointError, r"missing: 'velocity\.matrix', 'velocity\.vector'"),
        (
            lambda state: state["arrays"].update({"velocity.vector": np.ones(2)}),
            CheckpointError,
            r"'velocity\.vector' \(\(2,\) instead of \(5,\)\)",
        ),
        (lambda state: state["options"].update(lr=-1.0), DataError, r"lr.*-1\.0"),
    ],
)
def test_foreign_state_changes_nothing(spoil: Callable[[Any], object], error: type[Exception], message: str) -> None:
    optimizer = SGD(make_model(), lr=0.1, momentum=0.9)
    state = SGD(make_model(), lr=0.2, momentum=0.8).state_dict()
    spoil(state)
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.lr == 0.1
    assert not any(array.any() for array in optimizer.state_dict()["arrays"].values())


# --- groups


GROUPS = [Group("mat*", lr_factor=0.25, weight_decay=0.0), Group({"number"}, weight_decay=0.2)]


def as_torch_groups(twins: dict[str, Any], lr: float) -> list[dict[str, Any]]:
    return [
        {"params": [twins["matrix"]], "lr": 0.25 * lr, "weight_decay": 0.0},
        {"params": [twins["number"]], "weight_decay": 0.2},
        {"params": [twins["vector"]]},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_steps_with_groups_equal_those_of_torch(kind: type[Any]) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    model = make_model()
    twins = {name: torch.from_numpy(parameter.data.copy()) for name, parameter in model.parameters().items()}
    options = {"lr": 0.02, "weight_decay": 0.05}
    optimizer = kind(model, **options, groups=GROUPS)
    twin = getattr(torch.optim, kind.__name__)(as_torch_groups(twins, 0.02), **options)
    for step, grads in enumerate(draw_grads(100)):
        for name, tensor in twins.items():
            tensor.grad = torch.from_numpy(grads[name].copy())
        if step == 50:
            optimizer.lr = 0.004
            for group, factor in zip(twin.param_groups, (0.25, 1.0, 1.0), strict=True):
                group["lr"] = factor * 0.004
        optimizer.step(grads)
        twin.step()
        for name, tensor in twins.items():
            np.testing.assert_allclose(
                model.parameters()[name].data, tensor.numpy(), rtol=1e-12, atol=1e-12, err_msg=f"step {step}"
            )


def test_the_first_group_that_selects_a_parameter_counts() -> None:
    groups = [Group("vector", lr_factor=0.0), Group("*", lr_factor=0.5), Group("[", lr_factor=3.0)]
    optimizer = Adam(make_model(), groups=groups[:2])
    assert optimizer.state_dict()["overrides"] == {
        "vector": {"lr_factor": 0.0}, "matrix": {"lr_factor": 0.5}, "number": {"lr_factor": 0.5}
    }  # fmt: skip
    with pytest.raises(DataError, match=r"cannot make Adam: '\[' in groups= .*: matrix, vector"):
        Adam(make_model(), groups=groups)


def test_a_name_is_also_taken_literally() -> None:
    model = Module()
    model.tables = {"[a]": Parameter(np.ones(2))}  # type: ignore[attr-defined]
    optimizer = SGD(model, lr=1.0, groups=[Group("tables.[a]", lr_factor=0.5)])
    assert list(optimizer.state_dict()["overrides"]) == ["tables.[a]"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(make_model(), groups=[Group({"matrix", "bias"})]), r"cannot make Adam: 'bias' in groups= "),
        (
            lambda: SGD(make_model(), lr=1.0, groups=[Group("*"), Group("matrix")]),
            r"cannot make SGD: earlier groups .* \['matrix'\] in groups=",
        ),
        (lambda: Group("*", lr_factor=-1.0), r"cannot make a Group of \['\*'\]: lr_factor must be .*got -1\.0"),
        (lambda: Group("*", weight_decay=math.inf), r"weight_decay must be .*got inf"),
        (lambda: Group(set()), r"names of Group must not be empty"),
    ],
)
def test_groups_that_make_no_sense_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_groups_come_back_from_stored_state() -> None:
    model, other = make_model(), make_model()
    optimizer, resumed = AdamW(model, groups=GROUPS), AdamW(other)
    resumed.load_state_dict(optimizer.state_dict())
    for grads in draw_grads(3):
        optimizer.step(grads)
        resumed.step(grads)
    assert values_of(other) == values_of(model)
    assert resumed.state_dict()["overrides"] == optimizer.state_dict()["overrides"]


def test_a_parameter_that_was_replaced_is_not_stepped() -> None:
    model = make_model()
    optimizer = Adam(model)
    grads = next(draw_grads(1))
    kept, model.vector = model.vector, Parameter(np.ones(5)).astype("float64")
    before = kept.data.copy()
    with pytest.raises(GraphError, match="'vector' of Model was replaced"):
        optimizer.step(grads)
    np.testing.assert_array_equal(kept.data, before)


def test_what_is_no_module_or_no_gradients_is_named() -> None:
    model = make_model()
    with pytest.raises(DataError, match=r"model of Adam must be a Module, got a dict"):
        Adam(model.parameters())  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="got a tuple; value_and_grad"):
        Adam(model).step((0.0, next(draw_grads(1))))  # type: ignore[arg-type]


def test_an_optimizer_shows_its_options() -> None:
    layer = Linear(2, 3, rng=np.random.default_rng(0))
    groups = [Group("bias", lr_factor=0.5)]
    shown = repr(SGD(layer, lr=0.01, momentum=0.9, groups=groups))
    assert shown.startswith("SGD(lr=0.01, momentum=0.9, ")
    assert shown.endswith("; 2 parameters of Linear, 1 parameters in groups)")
