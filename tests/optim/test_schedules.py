"""Test that learning-rate schedules equal torch's step by step, and resume from stored state."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autobatch.errors import CheckpointError, DataError
from autobatch.optim import Adam, ConstantRate, CosineRate, Group, LearningRate, Optimizer, PlateauRate, StepRate
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from helpers.runs.ways import each

N_STEPS = 100
LR = 0.03
TO_TORCH = 1e-12


def warm_up(scheduler: Any, twin: Any, warmup: int, first: float, last: float) -> Any:
    """Return torch's version of a linear warm-up until step `warmup` and a cosine decay until N_STEPS."""
    line = scheduler.LinearLR(twin, start_factor=first, total_iters=warmup)
    cosine = scheduler.CosineAnnealingLR(twin, T_max=N_STEPS - warmup, eta_min=last * LR)
    return scheduler.SequentialLR(twin, [line, cosine], milestones=[warmup])


MakeRate = Callable[[Optimizer], Any]
PAIRS: dict[str, tuple[MakeRate, Callable[[Any, Any], Any]]] = {
    "constant": (ConstantRate, lambda s, twin: s.ConstantLR(twin, factor=1.0)),
    "constant, lower at first": (
        lambda o: ConstantRate(o, factor=0.3, n_steps=10),
        lambda s, twin: s.ConstantLR(twin, factor=0.3, total_iters=10),
    ),
    "step": (lambda o: StepRate(o, n_steps=30), lambda s, twin: s.StepLR(twin, 30)),
    "step, often": (lambda o: StepRate(o, n_steps=7, factor=0.8), lambda s, twin: s.StepLR(twin, 7, gamma=0.8)),
    "cosine": (lambda o: CosineRate(o, N_STEPS), lambda s, twin: s.CosineAnnealingLR(twin, T_max=N_STEPS)),
    "cosine to a tenth": (
        lambda o: CosineRate(o, N_STEPS, last_factor=0.1),
        lambda s, twin: s.CosineAnnealingLR(twin, T_max=N_STEPS, eta_min=0.1 * LR),
    ),
    "cosine with warm-up": (
        lambda o: CosineRate(o, N_STEPS, warmup=20),
        lambda s, twin: warm_up(s, twin, 20, first=1 / 21, last=0.0),
    ),
    "cosine with warm-up from a half to a tenth": (
        lambda o: CosineRate(o, N_STEPS, warmup=1, first_factor=0.5, last_factor=0.1),
        lambda s, twin: warm_up(s, twin, 1, first=0.5, last=0.1),
    ),
}

ABOVE_ALL_FLOORS = {"patience": 1, "factor": 0.9, "mode": "min", "threshold": 0.0, "cooldown": 1}
PLATEAUS: list[dict[str, Any]] = [
    {"patience": 2},
    {"patience": 0, "factor": 0.5},
    {"patience": 3, "factor": 0.7, "cooldown": 4, "min_lr": 0.001},
    {"patience": 1, "factor": 0.5, "mode": "max", "threshold": 0.05},
    ABOVE_ALL_FLOORS,
]


class Model(Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.first = Parameter(rng.standard_normal(4))
        self.second = Parameter(rng.standard_normal(3))
        self.astype("float64")


def make_optimizer(lr: float = LR) -> Optimizer:
    return Adam(Model(), lr=lr)


def make_pair(torch: Any) -> tuple[Model, Optimizer, dict[str, Any], Any]:
    """Return a model and its twin; `second` is a group with 30% of the learning rate."""
    model = Model()
    tensors = {name: torch.from_numpy(p.data.copy()) for name, p in model.parameters().items()}
    optimizer = Adam(model, lr=LR, groups=[Group("second", lr_factor=0.3)])
    twin = torch.optim.Adam([{"params": [tensors["first"]]}, {"params": [tensors["second"]], "lr": 0.3 * LR}], lr=LR)
    return model, optimizer, tensors, twin


def train_both(
    pair: tuple[Model, Optimizer, dict[str, Any], Any], step: Callable[[int], None], names: tuple[str, ...]
) -> list[float]:
    """Take N_STEPS, comparing rates and parameters at each; return the rates."""
    import torch

    model, optimizer, tensors, twin = pair
    rng = np.random.default_rng(1)
    rates = []
    for number in range(N_STEPS):
        rates.append(optimizer.lr)
        np.testing.assert_allclose(optimizer.lr, twin.param_groups[0]["lr"], rtol=TO_TORCH, atol=TO_TORCH)
        grads = {name: rng.standard_normal(p.shape) for name, p in model.parameters().items()}
        for name, tensor in tensors.items():
            tensor.grad = torch.from_numpy(grads[name].copy())
        optimizer.step(grads)
        twin.step()
        step(number)
        for name in names:
            ours = model.parameters()[name].data
            np.testing.assert_allclose(
                ours, tensors[name].numpy(), rtol=TO_TORCH, atol=TO_TORCH, err_msg=f"{name}, step {number}"
            )
    return rates


@each("name", PAIRS)
def test_a_hundred_steps_equal_those_of_torch(name: str) -> None:
    """The floor of torch's cosine is one absolute rate for all groups, so only the first group is compared there."""
    torch = pytest.importorskip("torch", reason="compares with torch")
    make, make_twin = PAIRS[name]
    pair = make_pair(torch)
    rate, theirs = make(pair[1]), make_twin(torch.optim.lr_scheduler, pair[3])

    def step(_: int) -> None:
        rate.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls deprecated parts of torch
            theirs.step()

    rates = train_both(pair, step, ("first",) if "tenth" in name else ("first", "second"))
    assert (len(set(rates)) > 1) == (name != "constant")


@pytest.mark.parametrize("options", PLATEAUS)
def test_a_hundred_steps_on_plateaus_equal_those_of_torch(options: dict[str, Any]) -> None:
    """torch applies its floor to each group's rate, so the second group is compared where no floor is reached."""
    torch = pytest.importorskip("torch", reason="compares with torch")
    pair = make_pair(torch)
    rate = PlateauRate(pair[1], **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(pair[3], **options)
    measures = np.abs(np.linspace(3, 1, N_STEPS) + np.random.default_rng(2).standard_normal(N_STEPS))

    def step(number: int) -> None:
        rate.step(measures[number])
        theirs.step(measures[number])

    rates = train_both(pair, step, ("first", "second") if options is ABOVE_ALL_FLOORS else ("first",))
    assert len(set(rates)) > 2


@pytest.mark.parametrize("mode", ["min", "max"])
def test_measures_that_are_no_numbers_are_never_better(mode: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    measures = (math.nan, math.inf, 2.0, -1.0, -math.inf, -math.inf, math.nan, math.inf, math.inf, 3.0)
    optimizer = make_optimizer()
    twin = torch.optim.Adam([torch.zeros(1)], lr=LR)
    rate = PlateauRate(optimizer, factor=0.5, patience=1, mode=mode)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(twin, factor=0.5, patience=1, mode=mode)
    for measure in measures:
        rate.step(measure)
        theirs.step(measure)
        assert optimizer.lr == twin.param_groups[0]["lr"]
    assert optimizer.lr < LR


def test_a_tiny_rate_is_left_alone() -> None:
    optimizer = make_optimizer(lr=1e-8)
    rate = PlateauRate(optimizer, patience=0)
    for _ in range(3):
        rate.step(1.0)
    assert optimizer.lr == 1e-8


def test_the_cosine_stays_at_its_end() -> None:
    optimizer = make_optimizer(lr=1.0)
    rate = CosineRate(optimizer, n_steps=4, last_factor=0.25)
    for _ in range(4):
        rate.step()
    assert optimizer.lr == 0.25
    rate.step()
    assert optimizer.lr == 0.25


def test_a_plateau_starts_from_the_rate_that_was_set() -> None:
    optimizer = make_optimizer()
    rate = PlateauRate(optimizer, factor=0.5, patience=0)
    rate.step(1.0)
    optimizer.lr = 0.5
    rate.step(1.0)
    assert optimizer.lr == 0.25


MAKERS: list[MakeRate] = [make for make, _ in PAIRS.values()]
MAKERS += [lambda o, options=options: PlateauRate(o, **options) for options in PLATEAUS]  # type: ignore[misc]


def take_step(rate: Any, number: int) -> None:
    if isinstance(rate, PlateauRate):
        rate.step(float(np.random.default_rng(number).standard_normal()))
    else:
        rate.step()


@each("optimizer_first", [True, False])
@each("make", MAKERS)
def test_rates_go_on_from_stored_state_bit_by_bit(make: MakeRate, optimizer_first: bool) -> None:
    """Through JSON, whichever of optimizer and schedule is loaded first."""
    optimizer = make_optimizer()
    rate = make(optimizer)
    for number in range(40):
        take_step(rate, number)
    states = optimizer.state_dict(), json.loads(json.dumps(rate.state_dict(), allow_nan=False))

    resumed = make_optimizer()
    other = make(resumed)
    if optimizer_first:
        resumed.load_state_dict(states[0])
        other.load_state_dict(states[1])
    else:
        other.load_state_dict(states[1])
        resumed.load_state_dict(states[0])
    for number in range(40, 80):
        assert resumed.lr == optimizer.lr
        take_step(rate, number)
        take_step(other, number)
    assert other.state_dict() == rate.state_dict()


def test_stored_state_brings_its_own_numbers() -> None:
    stored = StepRate(make_optimizer(lr=0.5), n_steps=2, factor=0.25)
    stored.step()
    stored.step()
    optimizer = make_optimizer(lr=0.1)
    StepRate(optimizer, n_steps=9, factor=0.9).load_state_dict(stored.state_dict())
    assert optimizer.lr == 0.125


@each(
    "spoil, message",
    [
        (lambda state: state.clear(), r"got none; .*CosineRate\.state_dict\(\)"),
        (lambda state: state.update(kind="StepRate"), r"the schedule must be StepRate"),
        (lambda state: state["values"].pop("warmup"), r"missing: 'warmup'"),
        (lambda state: state["values"].update(more=1), r"unexpected: 'more'"),
        (lambda state: state["values"].update(warmup=-1), r"warmup of CosineRate must be .*got -1"),
        (lambda state: state["values"].update(n_taken="7"), r"not supported between"),
        (lambda state: state["values"].update(base_lr=math.inf), r"base_lr of CosineRate must be .*got inf"),
    ],
)
def test_foreign_state_changes_nothing(spoil: Callable[[Any], object], message: str) -> None:
    optimizer = make_optimizer()
    rate = CosineRate(optimizer, n_steps=10, warmup=2)
    before, lr = copy.deepcopy(rate.state_dict()), optimizer.lr
    state: Any = CosineRate(make_optimizer(), n_steps=20, warmup=3).state_dict()
    spoil(state)
    with pytest.raises(CheckpointError, match=rf"^cannot load the state of the schedule CosineRate: .*{message}"):
        rate.load_state_dict(state)
    assert (rate.state_dict(), optimizer.lr) == (before, lr)


@each(
    "make, message",
    [
        (lambda o: ConstantRate(o, factor=-1.0), r"factor of ConstantRate must be .*got -1\.0"),
        (lambda o: ConstantRate(o, n_steps=-1), r"n_steps of ConstantRate must be .*got -1"),
        (lambda o: StepRate(o, n_steps=0), r"n_steps of StepRate must be at least 1, got 0"),
        (lambda o: StepRate(o, n_steps=1, factor=math.nan), r"factor of StepRate must be a number, got nan"),
        (lambda o: CosineRate(o, n_steps=0), r"warmup of CosineRate must be .*below n_steps=0, got 0"),
        (lambda o: CosineRate(o, n_steps=5, warmup=5), r"warmup of CosineRate must be .*below n_steps=5, got 5"),
        (lambda o: CosineRate(o, n_steps=5, warmup=-2), r"warmup of CosineRate must be .*got -2"),
        (lambda o: CosineRate(o, n_steps=5, first_factor=2.0), r"first_factor of CosineRate must be 0 to 1, got 2\.0"),
        (lambda o: CosineRate(o, n_steps=5, last_factor=-0.1), r"last_factor of CosineRate must be 0 to 1, got -0\.1"),
        (lambda o: PlateauRate(o, factor=1.0), r"factor of PlateauRate must be .*below 1, got 1\.0"),
        (lambda o: PlateauRate(o, mode="low"), r"mode of PlateauRate must be 'min' or 'max', got low"),
        (lambda o: PlateauRate(o, patience=-1), r"patience of PlateauRate must be .*got -1"),
        (lambda o: PlateauRate(o, threshold=1.0), r"threshold of PlateauRate must be .*got 1\.0"),
        (lambda o: PlateauRate(o, min_lr=-1.0), r"min_lr of PlateauRate must be .*got -1\.0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[Optimizer], LearningRate], message: str) -> None:
    optimizer = make_optimizer()
    with pytest.raises(DataError, match=message):
        make(optimizer)
    assert optimizer.lr == LR
