"""Test that optimizers accept `Rows`: as a dense gradient by default, and row by row with `lazy`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError, ShapeError
from autobatch.optim import SGD, Adam, AdamW, Group
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Rows
from helpers.runs.ways import each

SHAPE = (8, 3)
TOLERANCE = 1e-12

OPTIONS: list[tuple[type[Any], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.5, "nesterov": True, "weight_decay": 0.05}),
    (Adam, {}),
    (Adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3}),
    (Adam, {"lr": 0.02, "weight_decay": 0.1}),
    (AdamW, {"lr": 0.02, "weight_decay": 0.3}),
]


class Table(Module):
    """A table, and a bias whose gradient is always dense."""

    def __init__(self, dtype: str = "float64") -> None:
        rng = np.random.default_rng(0)
        self.table = Parameter(rng.standard_normal(SHAPE))
        self.bias = Parameter(rng.standard_normal(2))
        self.astype(dtype)


def draw_rows(n_steps: int, seed: int = 1) -> Iterator[Rows]:
    """Yield gradients of some, all and no rows, of very different sizes."""
    rng = np.random.default_rng(seed)
    for step in range(n_steps):
        share = (0.3, 1.0, 0.0, 0.6)[step % 4]
        ids = np.flatnonzero(rng.random(SHAPE[0]) < share)
        yield Rows(ids, 10.0 ** rng.uniform(-3, 1) * rng.standard_normal((ids.size, SHAPE[1])), SHAPE)


def with_bias(grad: Any) -> dict[str, Any]:
    return {"table": grad, "bias": np.ones(2)}


class Definition:
    """The definition of `lazy=True`: the optimizer's rule for each row of the gradient, and nothing for the others."""

    def __init__(self, kind: type[Any], rows: Any, options: dict[str, Any]) -> None:
        self.kind = kind.__name__
        self.rows = [row.copy() for row in rows]
        self.first = [np.zeros_like(row) for row in rows]
        self.second = [np.zeros_like(row) for row in rows]
        self.lr = options.get("lr", 1e-3)
        self.decay = options.get("weight_decay", 0.01 if kind is AdamW else 0.0)
        self.betas = options.get("betas", (0.9, 0.999))
        self.eps = options.get("eps", 1e-8)
        self.momentum = options.get("momentum", 0.0)
        self.nesterov = options.get("nesterov", False)
        self.n_steps = 0

    def step(self, grad: Rows) -> None:
        self.n_steps += 1
        for i, g in zip(grad.ids, grad.values, strict=True):
            if self.kind == "AdamW":
                self.rows[i] = self.rows[i] - self.lr * self.decay * self.rows[i]
            else:
                g = g + self.decay * self.rows[i]
            self.rows[i] = self.rows[i] - self.lr * (self._sgd(i, g) if self.kind == "SGD" else self._adam(i, g))

    def _sgd(self, i: int, g: Any) -> Any:
        self.first[i] = self.momentum * self.first[i] + g
        return g + self.momentum * self.first[i] if self.nesterov else self.first[i]

    def _adam(self, i: int, g: Any) -> Any:
        beta_1, beta_2 = self.betas
        self.first[i] = beta_1 * self.first[i] + (1 - beta_1) * g
        self.second[i] = beta_2 * self.second[i] + (1 - beta_2) * g**2
        mean = self.first[i] / (1 - beta_1**self.n_steps)
        mean_square = self.second[i] / (1 - beta_2**self.n_steps)
        return mean / (np.sqrt(mean_square) + self.eps)


@each("kind, options", OPTIONS)
def test_a_hundred_lazy_steps_are_those_of_the_definition(kind: type[Any], options: dict[str, Any]) -> None:
    model = Table()
    definition = Definition(kind, model.table.data, options)
    optimizer = kind(model, **options, lazy=True)
    for step, grad in enumerate(draw_rows(100)):
        optimizer.step(with_bias(grad))
        definition.step(grad)
        np.testing.assert_allclose(
            model.table.data, definition.rows, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"step {step}"
        )


@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_lazy_adam_is_the_sparse_adam_of_torch(eps: float) -> None:
    """torch adds eps before dividing the root, so eps is divided here for the comparison."""
    torch = pytest.importorskip("torch", reason="compares with torch")
    model = Table()
    twin = torch.nn.Parameter(torch.from_numpy(model.table.data.copy()))
    optimizer = Adam(model, lr=0.02, eps=eps, lazy=True)
    theirs = torch.optim.SparseAdam([twin], lr=0.02, eps=eps)
    for step, grad in enumerate(draw_rows(100), start=1):
        ids, values = torch.from_numpy(grad.ids.copy()), torch.from_numpy(grad.values.copy())
        twin.grad = torch.sparse_coo_tensor(ids[None], values, SHAPE, check_invariants=True, is_coalesced=True)
        theirs.param_groups[0]["eps"] = eps * math.sqrt(1 - 0.999**step)
        theirs.step()
        optimizer.step(with_bias(grad))
        np.testing.assert_allclose(
            model.table.data, twin.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"step {step}"
        )


@each("kind, options", OPTIONS)
def test_rows_are_the_dense_gradient_bit_by_bit(kind: type[Any], options: dict[str, Any]) -> None:
    model, dense_model = Table(), Table()
    optimizer, dense = kind(model, **options), kind(dense_model, **options)
    for grad in draw_rows(20):
        optimizer.step(with_bias(grad))
        dense.step(with_bias(np.asarray(grad)))
        np.testing.assert_array_equal(model.table.data, dense_model.table.data)


class Passes:
    """A dense step as NumPy passes that round each operation, which compiled passes must equal."""

    def __init__(self, kind: type[Any], data: Any, options: dict[str, Any]) -> None:
        self.kind, self.data, self.n_steps = kind.__name__, data.copy(), 0
        self.first, self.second = np.zeros_like(data), np.zeros_like(data)
        self.options: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01 if kind is AdamW else 0.0}
        self.options |= {"betas": (0.9, 0.999), "eps": 1e-8, "momentum": 0.0, "nesterov": False, **options}

    def step(self, grad: Any) -> None:
        self.n_steps += 1
        lr, decay, momentum = self.options["lr"], self.options["weight_decay"], self.options["momentum"]
        if self.kind == "AdamW":
            self.data *= 1.0 - lr * decay
        elif decay:
            grad = self.data * decay + grad
        if self.kind != "SGD":
            self.data -= self._moments(grad) * (lr / (1.0 - self.options["betas"][0] ** self.n_steps))
            return
        if momentum:
            self.first = self.first * momentum + grad
            grad = self.first * momentum + grad if self.options["nesterov"] else self.first
        self.data -= grad * lr

    def _moments(self, grad: Any) -> Any:
        beta_1, beta_2 = self.options["betas"]
        self.first = self.first * beta_1 + grad * (1.0 - beta_1)
        self.second = self.second * beta_2 + grad * grad * (1.0 - beta_2)
        root = np.sqrt(self.second) / math.sqrt(1.0 - beta_2**self.n_steps)
        return self.first / (root + self.options["eps"])


@each("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 70), (300,), (), (0, 3), (3, 0), (50, 1), (7, 3, 5)])
@each("kind, options", OPTIONS)
def test_dense_steps_are_passes_of_numpy_bit_by_bit(
    kind: type[Any], options: dict[str, Any], shape: tuple[int, ...], dtype: str
) -> None:
    """Also where a parameter or gradient is part of a wider array, transposed, or read-only."""
    rng = np.random.default_rng(0)
    models = [Module() for _ in range(4)]
    start = np.asarray(rng.standard_normal(shape), dtype)
    for model in models:
        model.table = Parameter(start)  # type: ignore[attr-defined]
        model.astype(dtype).table.data = start  # type: ignore[attr-defined]
    wide = np.zeros((*shape[:1], 2 * int(np.prod(shape[1:])) + 1), dtype)
    if shape:
        models[1].table.move_to(wide[:, : wide.shape[1] // 2].reshape(shape))  # type: ignore[attr-defined]
    models[2].table.move_to(np.empty_like(start.T, order="C").T)  # type: ignore[attr-defined]
    optimizers, expected = [kind(model, **options) for model in models], Passes(kind, start, options)
    for _ in range(10):
        grad = np.asarray(rng.standard_normal(shape), dtype)
        read_only = grad.copy()
        read_only.flags.writeable = False
        for optimizer, given in zip(optimizers, (grad, read_only, grad, grad.T.copy().T), strict=True):
            optimizer.step({"table": given})
        expected.step(grad)
        for model in models:
            np.testing.assert_array_equal(model.table.data, expected.data)  # type: ignore[attr-defined]
    assert not wide[..., wide.shape[-1] // 2 :].any()


RARE = [*OPTIONS, (Adam, {"eps": 0.0}), (Adam, {"betas": (0.0, 0.0)}), (AdamW, {"weight_decay": 0.0})]


@each("dtype", ["float32", "float64"])
@each("kind, options", RARE)
def test_rows_that_never_had_a_gradient_are_left_out_and_no_bit_changes(
    kind: type[Any], options: dict[str, Any], dtype: str
) -> None:
    """Random rows, with arrays and loaded states in between. Until then, half of the rows never have a gradient."""
    rng, shape = np.random.default_rng(0), (40, 3)
    models = []
    for _ in range(2):
        model = Module()
        model.table = Parameter(np.random.default_rng(1).standard_normal(shape))  # type: ignore[attr-defined]
        models.append(model.astype(dtype))
    rows, arrays = (kind(model, **options) for model in models)
    for step in range(60):
        ids = np.flatnonzero(rng.random(40 if step >= 40 else 20) < rng.choice([0.0, 0.1, 0.4]))
        grad = Rows(ids, rng.standard_normal((ids.size, 3)).astype(dtype), shape)
        if step in (20, 30):  # before the second half has gradients: loaded by another optimizer and by the same one
            state = rows.state_dict()
            rows = kind(models[0], **options) if step == 20 else rows
            rows.load_state_dict(state)
        with np.errstate(invalid="ignore"):
            rows.step({"table": np.asarray(grad) if step == 50 else grad})
            arrays.step({"table": np.asarray(grad)})
        for one, other in zip(
            [models[0].table.data, *rows.state_dict()["arrays"].values()],  # type: ignore[attr-defined]
            [models[1].table.data, *arrays.state_dict()["arrays"].values()],  # type: ignore[attr-defined]
            strict=True,
        ):
            assert one.tobytes() == other.tobytes(), f"step {step}"


def test_copies_of_an_optimizer_change_their_own_model() -> None:
    """For a parameter inside a larger array, as in stacks."""
    model = Table()
    model.table.move_to(np.empty((SHAPE[0], 2 * SHAPE[1]))[:, : SHAPE[1]])
    optimizer = Adam(model)
    optimizer.step(with_bias(np.ones(SHAPE)))
    copied, copied_model = copy.deepcopy((optimizer, model))
    before = model.table.data.copy()
    copied.step(with_bias(np.ones(SHAPE)))
    np.testing.assert_array_equal(model.table.data, before)
    optimizer.step(with_bias(np.ones(SHAPE)))
    np.testing.assert_array_equal(copied_model.table.data, model.table.data)


@each("lazy", [False, True])
@each("kind, options", OPTIONS)
def test_all_rows_are_a_dense_step(kind: type[Any], options: dict[str, Any], lazy: bool) -> None:
    """The same holds for arrays, also with a lazy optimizer."""
    rng = np.random.default_rng(0)
    models = Table(), Table(), Table()
    dense, rows, array = kind(models[0], **options), *(kind(model, **options, lazy=lazy) for model in models[1:])
    for _ in range(10):
        grad = rng.standard_normal(SHAPE)
        dense.step(with_bias(grad))
        rows.step(with_bias(Rows(np.arange(SHAPE[0]), grad, SHAPE)))
        array.step(with_bias(grad))
    for model in models[1:]:
        np.testing.assert_array_equal(model.table.data, models[0].table.data)


@each("kind, options", OPTIONS)
def test_other_rows_and_their_state_stay_in_a_lazy_step(kind: type[Any], options: dict[str, Any]) -> None:
    model = Table()
    optimizer = kind(model, **options, lazy=True)
    optimizer.step(with_bias(np.ones(SHAPE)))
    before = {"": model.table.data.copy(), **optimizer.state_dict()["arrays"]}
    optimizer.step(with_bias(Rows([2, 5], np.ones((2, 3)), SHAPE)))
    after = {"": model.table.data, **optimizer.state_dict()["arrays"]}
    rest = [0, 1, 3, 4, 6, 7]
    for name in (name for name in before if name == "" or name.endswith("table")):
        np.testing.assert_array_equal(after[name][rest], before[name][rest])
        assert (after[name][[2, 5]] != before[name][[2, 5]]).all()


@each("lazy", [False, True])
@each("kind, options", OPTIONS)
def test_rows_are_only_read(kind: type[Any], options: dict[str, Any], lazy: bool) -> None:
    optimizer = kind(Table(), **options, lazy=lazy)
    for grad in draw_rows(4):
        before = grad.copy()
        optimizer.step(with_bias(grad))
        np.testing.assert_array_equal(grad.ids, before.ids)
        np.testing.assert_array_equal(grad.values, before.values)


@pytest.mark.parametrize("lazy", [False, True])
def test_training_goes_on_from_stored_state_bit_by_bit(lazy: bool) -> None:
    model, other = Table(), Table()
    optimizer = AdamW(model, lazy=lazy)
    grads = list(draw_rows(10))
    for grad in grads[:5]:
        optimizer.step(with_bias(grad))
    resumed = AdamW(other)
    resumed.load_state_dict(optimizer.state_dict())
    other.load_state_dict(model.state_dict())
    for grad in grads[5:]:
        optimizer.step(with_bias(grad))
        resumed.step(with_bias(grad))
    np.testing.assert_array_equal(other.table.data, model.table.data)


def test_groups_reach_lazy_steps() -> None:
    model, slower = Table(), Table()
    optimizer = SGD(model, lr=0.1, momentum=0.9, lazy=True, groups=[Group("table", lr_factor=0.25)])
    expected = SGD(slower, lr=0.025, momentum=0.9, lazy=True)
    for grad in draw_rows(8):
        optimizer.step(with_bias(grad))
        expected.step(with_bias(grad))
    np.testing.assert_array_equal(model.table.data, slower.table.data)


def test_float32_stays_float32() -> None:
    model = Table("float32")
    optimizer = Adam(model, lazy=True)
    for grad in draw_rows(4):
        optimizer.step(with_bias(Rows(grad.ids, grad.values.astype(np.float32), SHAPE)))
    assert model.table.data.dtype == np.float32
    assert {array.dtype for array in optimizer.state_dict()["arrays"].values()} == {np.dtype(np.float32)}


def test_rows_of_another_shape_change_nothing() -> None:
    model = Table()
    before = model.state_dict()
    with pytest.raises(ShapeError, match=r"gradient of 'table' must have .*shape \(8, 3\), got \(9, 3\)"):
        Adam(model).step(with_bias(Rows([0], np.ones((1, 3)), (9, 3))))
    np.testing.assert_array_equal(model.table.data, before["table"])


@each(
    "name, wrong, error",
    [
        ("ids", np.array([1, 0]), DataError),
        ("ids", np.array([0, 8]), DataError),
        ("ids", np.array([0]), ShapeError),
        ("ids", np.array([0.0, 1.0]), DataError),
        ("values", np.ones((1, 3)), ShapeError),
        ("values", np.ones((2, 3), complex), DataError),
    ],
)
def test_rows_that_have_been_spoiled_change_nothing(name: str, wrong: Any, error: type[Exception]) -> None:
    model, grad = Table(), Rows([0, 1], np.ones((2, 3)), SHAPE)
    optimizer, before = Adam(model), model.state_dict()
    setattr(grad, name, wrong)
    with pytest.raises(error):
        optimizer.step({"bias": np.ones(2), "table": grad})
    for key, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[key])
    assert set(optimizer.state_dict()["steps"].values()) == {0}
