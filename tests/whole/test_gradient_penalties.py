"""Every model with a penalty on its own gradient: batched equals eager, and double backward of the twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.ops.operators import Symbol
from autobatch.trace.inputs import Held
from helpers.twins import cases as of_literature
from helpers.zoo import cases as of_zoo
from helpers.zoo.case import to_torch

FACTOR, N_INSTANCES = 0.02, 5
POLICIES = ("agenda", "depth", "score", "unbatched")
QUICK = ("tree-lstm", "child-sum tree-lstm", "lattice-gru")
WITHOUT_TWIN = ("transformer", "memory network", "soft alignment", "ctc")  # with ops that PyTorch differentiates once
MAKES_ARRAYS = ("pointer network",)  # with NumPy, from their inputs, which is refused

BACKENDS: tuple[Callable[[], Backend], ...] = (
    lambda: Reference(poison=True), lambda: Cpu(poison=True),
)  # fmt: skip
Losses = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Drawn:
    """A float64 model, instances, and the twin: its parameters by the model's names, and its loss of an instance."""

    model: Any
    instances: list[Any]
    weights: dict[str, torch.Tensor]
    loss: Losses


def _of_zoo(case: Any) -> Drawn:
    rng = np.random.default_rng(3)
    model = case.make(rng).astype("float64")
    weights = to_torch(model)
    return Drawn(model, [case.draw(rng) for _ in range(N_INSTANCES)], weights, partial(case.twin, weights))


def _of_literature(case: Any) -> Drawn:
    model, instances = case.draw(3, n_instances=N_INSTANCES, dim=4)
    twin = case.make_twin(model.state_dict())
    own = dict(twin.named_parameters())
    weights = {name: own[case.name_in_twin(name)] for name, p in model.parameters().items() if p.trainable}
    return Drawn(model, instances, weights, twin.loss)


MODELS: dict[str, Callable[[], Drawn]] = {
    **{case.name: partial(_of_literature, case) for case in (*of_literature.CASES, *of_literature.MORE)},
    **{case.name: partial(_of_zoo, case) for case in of_zoo.CASES},
}
every_model = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def penalised(model: Any, parameters: list[ab.Parameter]) -> Callable[[Any], Any]:
    """Return the loss with a penalty on its gradient."""

    def loss(instance: Any) -> Any:
        value, gradients = ab.value_and_grad(model.loss, wrt=lambda instance: tuple(parameters))(instance)
        return value + FACTOR * ab.sum_n([ab.sum(g * g) for g in gradients], shape=())

    return loss


def by_twin(drawn: Drawn, names: list[str]) -> tuple[Any, dict[str, Any]]:
    """Return the twin's losses with penalties, and the gradients of their sum."""
    losses = []
    weights = [drawn.weights[name] for name in names]
    for instance in drawn.instances:
        value = drawn.loss(instance)
        is_constant = not value.requires_grad
        gradients = () if is_constant else torch.autograd.grad(value, weights, create_graph=True, allow_unused=True)
        losses.append(value + FACTOR * sum((g * g).sum() for g in gradients if g is not None))
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    found = {
        name: np.zeros(w.shape) if w.grad is None else w.grad.numpy() for name, w in zip(names, weights, strict=True)
    }
    return torch.stack(losses).detach().numpy(), found


def assert_close(found: Any, expected: Any, what: str, relative: float = 1e-9) -> None:
    """Check equality up to rounding, relative to the largest expected number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, what
    assert np.max(np.abs(found - expected), initial=0.0) <= relative * np.max(np.abs(expected), initial=1e-3), what


@every_model
def test_penalties_on_gradients_of_parameters_are_the_twins(name: str) -> None:
    drawn = MODELS[name]()
    parameters = {name: p for name, p in drawn.model.parameters().items() if p.trainable}
    loss = penalised(drawn.model, list(parameters.values()))
    eager = np.array([float(loss(instance)) for instance in drawn.instances])
    losses, gradients = (eager, None) if name in WITHOUT_TWIN else by_twin(drawn, list(parameters))
    assert_close(eager, losses, "eager losses")
    number = list(MODELS).index(name)
    for k, make in enumerate(BACKENDS):
        policy = POLICIES[(number + k) % len(POLICIES)]
        run = ab.batched(loss, module=drawn.model, backend=make(), policy=policy)
        assert_close(run(drawn.instances), losses, "losses")
        value, found = run.value_and_grad(drawn.instances, reduce="sum")
        assert_close(value, losses.sum(), "sum of losses")
        if gradients is None:
            ab.testing.check_grads(run, drawn.instances, drawn.model, np.random.default_rng(0))
            continue
        for key, gradient in found.items():
            assert_close(gradient, gradients[key], f"gradient of {key}")


def holds_arrays(name: str) -> bool:
    """Return whether the instances of a model hold float arrays."""
    return any(Held(instance).arrays for instance in MODELS[name]().instances)


def is_number(x: Any) -> bool:
    """Return whether x is a derivative."""
    return isinstance(x, (Symbol, np.ndarray, np.floating))


@pytest.mark.slow
def test_penalties_on_gradients_of_inputs_have_the_slope_of_central_differences() -> None:
    """Checks all models whose instances hold float arrays, along a random direction."""
    names = [name for name in MODELS if name not in MAKES_ARRAYS and holds_arrays(name)]
    assert len(names) > 5
    for name in names:
        drawn = MODELS[name]()
        instances = [instance for instance in drawn.instances if Held(instance).arrays]

        def loss(instance: Any, model: Any = drawn.model) -> Any:
            value, gradients = ab.value_and_grad(model.loss)(instance)
            found = Held(gradients, is_number).arrays
            return value + FACTOR * ab.sum_n([ab.sum(g * g) for g in found], shape=())

        rng = np.random.default_rng(0)
        arrays = {id(a): a for instance in instances for a in Held(instance).arrays}
        along = {key: rng.standard_normal(a.shape) for key, a in arrays.items()}
        run = ab.batched(loss, module=drawn.model, backend="reference")
        assert_close(run(instances), [float(loss(instance)) for instance in instances], f"losses of {name}")
        _, _, inputs = run.value_and_grad(instances, reduce="sum", inputs=True)
        pairs = [(Held(a).arrays, Held(b).arrays) for a, b in zip(instances, inputs, strict=True)]
        slope = sum(float((along[id(a)] * g).sum()) for held, found in pairs for a, g in zip(held, found, strict=True))
        ends = []
        for step in (1e-6, -2e-6):
            for key, array in arrays.items():
                array += step * along[key]
            ends.append(float(run(instances).sum()))
        for key, array in arrays.items():
            array += 1e-6 * along[key]
        difference = (ends[0] - ends[1]) / 2e-6
        assert abs(slope - difference) <= 1e-5 * (1.0 + abs(slope)), name
