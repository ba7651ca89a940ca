"""The two worlds in which a program of torch runs: eagerly, one instance at a time, and batched by autobatch.

A program is a function of a world. It makes modules, marks some with `world.cell`, runs mini-batches with
`world.batched`, and logs its results; both worlds must log the same.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import autobatch.torch as abt
from autobatch.errors import AutobatchError

N_TOKENS, N_CLASSES = 5, 3
TOLERANCE = 1e-9  # relative to the largest number of a tensor
NOISE, N_NOISY = 1e-14, 3  # relative noise of each op of torch (at least its last digit); number of noisy runs
ROUNDED = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "sum", "mean", "var", "var_mean", "std",
    "linalg_vector_norm", "native_layer_norm", "native_group_norm", "native_batch_norm", "_softmax", "_log_softmax",
    "logsumexp", "cumsum",
    "add", "sub", "rsub", "mul", "div", "pow", "exp", "log", "tanh", "sigmoid", "softplus", "gelu", "silu", "mish",
    "elu", "sin", "cos", "sqrt", "rsqrt", "convolution", "hypot", "erf",
}  # fmt: skip
"""Ops whose results round differently in a batch; the others select or move numbers."""
ROUNDING = 1e-5  # largest difference that is attributed to rounding
NARROW = {"half": 2e-2, "float16": 2e-2, "float32": 1e-4, ".float()": 1e-4}
"""Tolerances for programs whose text contains a narrower float type, such as (b)float16."""


class Triple(torch.autograd.Function):
    """Three times its argument, with a deliberately wrong gradient: twice that of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class Norm(nn.BatchNorm1d):
    """A batch norm that stays in eval mode."""

    def train(self, mode: bool = True) -> Norm:
        """Stay in eval mode."""
        return super().train(False)


@dataclass
class World:
    """The library that runs a program: eager torch if `backend` is empty, else autobatch.

    Attributes:
        logged: name and value of each result of the program.
    """

    backend: str = ""
    logged: list[tuple[str, Any]] = field(default_factory=list)

    def cell(self, module: Any, runs: str = "auto") -> Any:
        """Return the module, as a cell if the world is batched."""
        return abt.cell(module, runs=runs) if self.backend else module

    def batched(self, function: Callable[[Any], Any], model: nn.Module) -> Callable[[list[Any]], Any]:
        """Return the function over mini-batches."""
        if self.backend:
            batched: Callable[[list[Any]], Any] = abt.batched(function, module=model, backend=self.backend)
            return batched
        return lambda instances: stack([function(one) for one in instances])

    def log(self, name: str, value: Any) -> None:
        """Log a copy of a result."""
        found = [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves(value)]
        self.logged.append((name, found))

    def gradients(self, model: nn.Module, instances: list[Any]) -> None:
        """Log the gradients of all parameters and inputs."""
        for name, p in model.named_parameters():
            self.log(f"gradient of {name}", p.grad)
        for k, x in enumerate(inputs(instances)):
            self.log(f"gradient of input {k}", x.grad)


def tree(seed: int, dim: int, depth: int, wants: bool) -> dict[str, Any]:
    """Draw a tree of nodes with features, a token, a label and a mask; features require gradients if `wants`."""
    draw = torch.Generator().manual_seed(seed)

    def node(depth: int) -> dict[str, Any]:
        def below(n: int) -> int:
            return int(torch.randint(n, (), generator=draw))

        x = torch.randn(dim, generator=draw, dtype=torch.float64).requires_grad_(wants)
        mask = torch.randint(2, (dim,), generator=draw).bool()
        made = {"x": x, "token": torch.tensor(below(N_TOKENS)), "label": torch.tensor(below(N_CLASSES)), "mask": mask}
        return made | {"children": [node(depth - 1) for _ in range(below(3) if depth else 0)]}

    return node(depth)


def chain(seed: int, dim: int, length: int, wants: bool) -> list[dict[str, Any]]:
    """Draw a list of nodes."""
    return [tree(seed * 100 + k, dim, 0, wants) for k in range(length)]


def nodes(x: Any) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a tree or a chain."""
    if isinstance(x, list):
        for part in x:
            yield from nodes(part)
    else:
        yield from nodes(x["children"])
        yield x


def inputs(instances: list[Any]) -> list[Tensor]:
    """Return the tensors of instances that require gradients."""
    return [node["x"] for node in nodes(instances) if node["x"].requires_grad]


def is_float(x: Any) -> bool:
    """Return whether something is a float tensor."""
    return isinstance(x, Tensor) and x.is_floating_point()


def weaker(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model with smaller floats."""
    return {name: x * 0.9 if x.is_floating_point() else x.clone() for name, x in model.state_dict().items()}


def leaves(x: Any) -> list[Any]:
    """Return the leaves of a structure."""
    if isinstance(x, dict):
        return [leaf for key in sorted(x) for leaf in leaves(x[key])]
    if isinstance(x, (list, tuple)):
        return [leaf for part in x for leaf in leaves(part)]
    return [x]


def stack(results: list[Any]) -> Any:
    """Stack the results of all instances, as a batched function does."""
    first = results[0]
    if isinstance(first, dict):
        return {key: stack([one[key] for one in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(stack, (list(parts) for parts in zip(*results, strict=True))))
    return torch.stack(results)


def total(y: Any) -> Any:
    """Sum all numbers that have gradients, each with its own weight."""
    parts = [x for x in leaves(y) if isinstance(x, Tensor) and x.requires_grad]
    return sum((x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape)).sum() for x in parts)


@dataclass(frozen=True)
class Failure:
    """The failure of a program, or the reason why it cannot run.

    Attributes:
        kind: "wrong", "crash", "refused", "invalid" if torch itself fails, or "unsteady" if torch's results depend on
            how its ops round.
        what: the message without numbers, so that failures with one cause have the same.
    """

    kind: str
    what: str
    detail: str

    @property
    def signature(self) -> str:
        """Return a text that is equal for failures with the same cause."""
        return f"{self.kind}: {self.what}"

    @property
    def is_set_apart(self) -> bool:
        """Return whether it is not a defect: a proper error, or a program that torch cannot run, or not accurately."""
        return self.kind in ("refused", "invalid", "unsteady")


def find_failure(text: str, backend: str) -> Failure | None:
    """Run a program in both worlds. Return the first difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, batched = World(), World(backend)
        try:
            run(text, eager)
        except Exception as error:
            return Failure("invalid", type(error).__name__, str(error))
        try:
            run(text, batched)
        except AutobatchError as error:
            return Failure("refused", shorten(str(error)), str(error))
        except Exception as error:  # any error is a finding
            return Failure("crash", f"{type(error).__name__} {shorten(str(error))}", f"{type(error).__name__}: {error}")
        tolerance = max([TOLERANCE, *(limit for word, limit in NARROW.items() if word in text)])
        failure = compare(eager.logged, batched.logged, tolerance)
        if failure is not None and is_unsteady(text, eager, tolerance):
            return Failure("unsteady", failure.what, failure.detail)
        return failure


def is_unsteady(text: str, eager: World, tolerance: float) -> bool:
    """Return whether torch's results change if its ops round differently."""
    for number in range(N_NOISY):
        noisy = World()
        with Noise(number):
            run(text, noisy)
        if compare(eager.logged, noisy.logged, tolerance):
            return True
    return False


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes the last digits of the results of torch's ops, forward and backward."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        is_rounded = op.overloadpacket.__name__ in ROUNDED
        return pytree.tree_map_only(Tensor, self._disturbed, result) if is_rounded else result

    def _disturbed(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        noise = max(NOISE, torch.finfo(x.dtype).eps)
        return x * (1 - noise * torch.rand(x.shape, generator=self._draw, dtype=torch.float64)).to(x.dtype)


def run(text: str, world: World) -> None:
    """Run a program in a world."""
    torch.default_generator.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "drawn"}
    exec(compile(text, "<drawn program>", "exec"), namespace)
    with torch.random.fork_rng(devices=()):
        namespace["program"](world)


def compare(expected: list[tuple[str, Any]], found: list[tuple[str, Any]], tolerance: float) -> Failure | None:
    """Return how logged results differ."""
    for (name, wanted), (_, given) in zip(expected, found, strict=True):
        kind = name.split()[0]
        if len(wanted) != len(given):
            return Failure("wrong", f"{kind}: number of values", f"{name}: {len(given)} values, not {len(wanted)}")
        for x, y in zip(wanted, given, strict=True):
            if difference := differ(x, y, tolerance):
                return Failure("wrong", f"{kind}: {difference.split(':')[0]}", f"{name}: {difference}")
    return None


def differ(wanted: Any, found: Any, tolerance: float) -> str:
    """Describe how a value differs from the expected one; a gradient that is None counts as zero."""
    if wanted is None or found is None:
        other = found if wanted is None else wanted
        return "" if other is None or not other.any() else f"None: {wanted} and {found}"
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return "" if type(wanted) is type(found) else f"type: {type(found).__name__}, not {type(wanted).__name__}"
    if wanted.dtype != found.dtype:
        return f"dtype: {found.dtype}, not {wanted.dtype}"
    if wanted.shape != found.shape:
        return f"shape: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    x, y = wanted.double(), found.double()
    limit = tolerance if wanted.is_floating_point() else 0.0
    scale = max(1.0, float(x[x.isfinite()].abs().max())) if x.isfinite().any() else 1.0
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs() / scale).flatten()
    if (apart <= limit).all():
        return ""
    worst = int(apart.nan_to_num(torch.inf).argmax())
    how = "values" if not apart[worst] <= ROUNDING else "last digits"
    return f"{how}: {y.flatten()[worst].item()}, not {x.flatten()[worst].item()}, at {worst} of {x.numel()}"


def shorten(message: str) -> str:
    """Return the beginning of a message, without names and numbers."""
    return re.sub(r"'[^']*'|\(.*?\)|\d+|0x\w+", "_", message.splitlines()[0] if message else "")[:90]
