"""Test values and gradients at ties, limits and non-finite numbers: they equal those of the installed torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch.torch as abt
from autobatch.errors import GraphError

Function = Callable[..., Tensor]
INF, NAN = float("inf"), float("nan")
LIMITS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 20.0, -20.0, 800.0, -800.0]
SPECIAL = [*LIMITS, INF, -INF, NAN]
"""Where some of the functions below bend, jump, overflow or are undefined."""
ROWS = [
    [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, -1.0], [0.0, -0.0, 0.0], [2.0, 1.0, 2.0], [800.0, 800.0, -800.0],
    [INF, 1.0, INF], [-INF, -INF, -INF], [-INF, 0.0, -INF], [NAN, 1.0, 2.0], [1.0, NAN, NAN], [INF, -INF, NAN],
]  # fmt: skip
"""Rows with ties, zeros and non-finite numbers."""

BY_ELEMENT: dict[str, Function] = {
    name: getattr(torch, name)
    for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf",
        "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "logit",
        "nan_to_num", "neg", "positive", "rad2deg", "reciprocal", "relu", "round", "rsqrt", "sgn", "sigmoid", "sign",
        "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "i0",
    )
} | {
    name: getattr(F, name)
    for name in (
        "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
        "relu6", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink",
    )
} | {
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "clamp below": lambda x: x.clamp(min=0.5),
    "clamp above": lambda x: x.clamp(max=0.5),
    "clamp of equal limits": lambda x: x.clamp(1.0, 1.0),
    "clamp of crossed limits": lambda x: x.clamp(1.0, -1.0),
    "clamp by tensors": lambda x: x.clamp(torch.tensor(-1.0).double(), torch.tensor(1.0).double()),
    "clip": lambda x: x.clip(0.0, 6.0),
    "hardtanh of 0.5": lambda x: F.hardtanh(x, -0.5, 0.5),
    "elu of 2": lambda x: F.elu(x, 2.0),
    "elu of 0": lambda x: F.elu(x, 0.0),
    "leaky_relu of 0": lambda x: F.leaky_relu(x, 0.0),
    "leaky_relu of a negative slope": lambda x: F.leaky_relu(x, -0.5),
    "threshold": lambda x: F.threshold(x, 1.0, 20.0),
    "threshold at 0": lambda x: F.threshold(x, 0.0, -1.0),
    "softplus of beta": lambda x: F.softplus(x, 2.0, 3.0),
    "softshrink of 0": lambda x: F.softshrink(x, 0.0),
    "hardshrink of 1": lambda x: F.hardshrink(x, 1.0),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25]).double()),
    "logit of eps": lambda x: torch.logit(x, 0.25),
    "pow 0": lambda x: x**0,
    "pow 0.5": lambda x: x**0.5,
    "pow 1": lambda x: x**1,
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow -1": lambda x: x**-1,
    "pow -0.5": lambda x: x**-0.5,
    "power of 0": lambda x: 0.0**x,
    "power of 2": lambda x: 2.0**x,
    "power of -1": lambda x: torch.pow(-1.0, x),
    "fmod": lambda x: x.fmod(2.0),
    "remainder": lambda x: x % 2.0,
    "remainder by a negative": lambda x: x % -2.0,
    "true division by 0": lambda x: x / 0.0,
    "0 over": lambda x: 0.0 / x,
    "floor division": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
    "trunc division": lambda x: torch.div(x, 2.0, rounding_mode="trunc"),
    "where sqrt": lambda x: torch.where(x > 0, x.sqrt(), 0.0),
    "where log": lambda x: torch.where(x > 0, x, 1.0).log() + torch.where(x > 0, x.log(), x),
    "masked_fill": lambda x: (1 / x).masked_fill(x == 0, 0.0),
    "nan_to_num of numbers": lambda x: x.nan_to_num(1.0, 2.0, 3.0),
    "xlogy": lambda x: torch.xlogy(x, x),
    "xlogy of 0": lambda x: torch.special.xlogy(0.0, x),
    "entr": torch.special.entr,
    "x times itself": lambda x: x * x.sign(),
    "round twice": lambda x: x + (x.round() - x).detach(),
    "cut off": lambda x: x * (x > 0),
    "as ints": lambda x: x.nan_to_num(0.0, 1.0, 1.0).long() * x,
    "as conditions": lambda x: x.bool() * x,
}  # fmt: skip

OF_TWO: dict[str, Function] = {
    name: getattr(torch, name)
    for name in (
        "add", "atan2", "copysign", "div", "fmax", "fmin", "fmod", "hypot", "logaddexp", "logaddexp2", "maximum",
        "minimum", "mul", "pow", "remainder", "sub", "xlogy",
    )
} | {
    "clamp below by a tensor": lambda x, y: x.clamp(min=y),
    "clamp between tensors": lambda x, y: x.clamp(y, y + 1),
    "where larger": lambda x, y: torch.where(x > y, x, y),
    "where at least": lambda x, y: torch.where(x >= y, x, y),
    "where other is nan": lambda x, y: torch.where(y == 0, x, x / y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "dist": lambda x, y: (x - y).abs().sqrt(),
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "smooth_l1_loss of beta": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=2.0),
    "smooth_l1_loss of no beta": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none", delta=2.0),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign().detach(), reduction="none"),
    "hinge_embedding_loss": lambda x, y: F.hinge_embedding_loss(x, y.sign().detach(), reduction="none"),
    "margin_ranking_loss": lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x), reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_div of logs": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
    "poisson_nll_loss": lambda x, y: F.poisson_nll_loss(x, y, reduction="none"),
    "with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach(), reduction="none"),
}  # fmt: skip

OF_ROW: dict[str, Function] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max along": lambda x: x.max(0).values,
    "min along": lambda x: x.min(0).values,
    "place of the max": lambda x: x.max(0).indices,
    "place of the min": lambda x: x.min(0).indices,
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(0),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(),
    "aminmax": lambda x: torch.stack(tuple(torch.aminmax(x))),
    "median": lambda x: x.median(),
    "median along": lambda x: x.median(0).values,
    "nanmedian": lambda x: x.nanmedian(),
    "mode": lambda x: x.mode().values,
    "sort": lambda x: x.sort().values,
    "stable sort": lambda x: x.sort(stable=True, descending=True).values,
    "topk": lambda x: x.topk(2).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "cummax": lambda x: x.cummax(0).values,
    "cummin": lambda x: x.cummin(0).values,
    "cumprod": lambda x: x.cumprod(0),
    "cumsum": lambda x: x.cumsum(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "prod": lambda x: x.prod(),
    "prod along": lambda x: x.prod(0),
    "sum": lambda x: x.sum(),
    "nansum": lambda x: x.nansum(),
    "nanmean": lambda x: x.nanmean(),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "var": lambda x: x.var(),
    "std of the population": lambda x: x.std(0, correction=0),
    "var of the population": lambda x: x.var(correction=0),
    "std of too few": lambda x: x[:1].std(),
    "norm": lambda x: x.norm(),
    "norm 0": lambda x: x.norm(0),
    "norm 1": lambda x: x.norm(1),
    "norm 3": lambda x: x.norm(3),
    "norm inf": lambda x: x.norm(INF),
    "norm -inf": lambda x: x.norm(-INF),
    "vector_norm": lambda x: torch.linalg.vector_norm(x),
    "vector_norm 0.5": lambda x: torch.linalg.vector_norm(x, 0.5),
    "normalize": lambda x: F.normalize(x, dim=0),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=0),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "cdist": lambda x: torch.cdist(x[None], x.flip(0)[None]),
    "renorm": lambda x: x[None].renorm(2, 0, 1.0),
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(0),
    "softmin": lambda x: F.softmin(x, 0),
    "log_softmax": lambda x: x.log_softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "group_norm": lambda x: F.group_norm(x[None], 1),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2, 1),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[None], 2),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor(1)),
    "cross_entropy smoothed": lambda x: F.cross_entropy(x, torch.tensor(1), label_smoothing=0.1),
    "cross_entropy weighted": lambda x: F.cross_entropy(x, torch.tensor(1), torch.tensor([0.0, 0.5, 2.0]).double()),
    "cross_entropy of an ignored label": lambda x: F.cross_entropy(x, torch.tensor(-100)),
    "cross_entropy of another ignored label": lambda x: F.cross_entropy(x, torch.tensor(1), ignore_index=1),
    "cross_entropy of some ignored": lambda x: F.cross_entropy(x.expand(2, 3), torch.tensor([0, -100])),
    "cross_entropy of all ignored": lambda x: F.cross_entropy(x.expand(2, 3), torch.tensor([-100, -100])),
    "cross_entropy of probabilities": lambda x: F.cross_entropy(x, torch.tensor([0.0, 1.0, 0.0]).double()),
    "nll_loss": lambda x: F.nll_loss(x, torch.tensor(0)),
    "nll_loss of an ignored label": lambda x: F.nll_loss(x, torch.tensor(-100)),
    "nll_loss of some ignored": lambda x: F.nll_loss(x.expand(2, 3), torch.tensor([2, 1]), ignore_index=1),
    "nll_loss summed": lambda x: F.nll_loss(x.expand(2, 3), torch.tensor([2, -100]), reduction="sum"),
    "nll_loss apart": lambda x: F.nll_loss(x.expand(2, 3), torch.tensor([2, -100]), reduction="none"),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[None], torch.tensor([1])),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x, x.flip(0)),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.nan_to_num().clamp(0, 1), torch.ones(3).double()),
    "unique order": lambda x: x[x.argsort(stable=True)],
    "where any": lambda x: torch.where((x > 0).any(), x, -x),
    "scatter_reduce": lambda x: torch.zeros(1).double().scatter_reduce(0, torch.zeros(3).long(), x, "amax"),
    "index_add": lambda x: torch.zeros(2).double().index_add(0, torch.tensor([0, 0, 1]), x),
    "outer max": lambda x: torch.maximum(x[:, None], x[None]).amax((0, 1)),
    "cross entropy of a softmax": lambda x: -(x.softmax(0) * x.log_softmax(0)).sum(),
}

PAIRS = [*itertools.product((*LIMITS[:8], INF, -INF, NAN), repeat=2)]
UNDECIDED = (
    "celu", "elu", "elu of 0", "elu of 2", "hardtanh", "hardtanh of 0.5", "relu6", "selu",
)  # fmt: skip
"""Functions whose gradient at NaN depends, in torch, on the element's position in the tensor."""


def numbers_for(name: str) -> list[float]:
    return [x for x in SPECIAL if x == x or name not in UNDECIDED]


CASES = (
    [(name, f, [[numbers_for(name)], [numbers_for(name)[::-1]]]) for name, f in BY_ELEMENT.items()]
    + [(name, f, [[*zip(*PAIRS, strict=True)], [*zip(*PAIRS[::-1], strict=True)]]) for name, f in OF_TWO.items()]
    + [(name, f, [[row] for row in ROWS]) for name, f in OF_ROW.items()]
)


class Anchor(nn.Module):
    """A module that computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1, dtype=torch.float64))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence torch's warnings on variances of one number and on upcoming changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def expected_of(function: Function, given: list[Any]) -> tuple[Tensor, list[Tensor]]:
    """Return torch's output and the gradients of the inputs."""
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in given]
    y: Tensor = function(*leaves)
    gradients: Any = [None] * len(leaves)
    if y.requires_grad:
        gradients = torch.autograd.grad(y, leaves, weights_of(y), allow_unused=True)
    return y.detach(), [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]


def weights_of(y: Tensor) -> Tensor:
    """Return distinct gradients for the outputs."""
    return torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)


@pytest.mark.cases(10)
@pytest.mark.parametrize("runs", ["auto", "torch", pytest.param("autobatch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "function", "given"), [pytest.param(*case, id=case[0]) for case in CASES])
def test_values_and_gradients_are_those_of_torch(name: str, function: Function, given: list[Any], runs: str) -> None:
    cell: Any = abt.cell(lambda *xs: function(*xs), runs=runs)
    batched = abt.batched(lambda xs: cell(*xs), module=Anchor())
    instances = [[torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in one] for one in given]
    try:
        found = batched(instances)
    except GraphError as error:
        if runs == "autobatch":
            pytest.skip(f"autobatch cannot run it: {error}")
        raise
    leaves = [x for one in instances for x in one]
    gradients: Any = [None] * len(leaves)
    if found.requires_grad:
        weights = torch.stack([weights_of(y) for y in found])
        gradients = torch.autograd.grad(found, leaves, weights, allow_unused=True)
    left = iter(gradients)
    for k, one in enumerate(given):
        value, wanted = expected_of(function, one)
        torch.testing.assert_close(found[k], value, rtol=1e-10, atol=1e-12, equal_nan=True)
        for x, expected in zip(instances[k], wanted, strict=True):
            gradient = next(left)
            gradient = torch.zeros_like(x) if gradient is None else gradient
            torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_where_torch_is_missing_the_error_names_the_extra() -> None:
    program = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda kind, name, *rest: None if name == "torch" else find(name, *rest))
import autobatch.torch
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "autobatch.torch needs the package torch; pip install 'autobatch-nn[torch]'." in ended.stderr.splitlines()[-1]
    )
