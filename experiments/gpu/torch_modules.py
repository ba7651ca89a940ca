"""Check PyTorch modules on the device: results and gradients, idioms of training, and steps compared with PyTorch's.

Everything is compared with PyTorch itself, one instance at a time on the same device. Without a GPU, tensors on the CPU
stand in for tensors on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any

from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.workload import load_workload
from digest import ROOT
from gpu.race import LR, N_MINIBATCHES, Way, draw, their_ways, time_ways

SETTINGS = [(256, 256), (64, 256), (256, 16)]  # dim and instances of a mini-batch
N_ALONE = 8  # instances that run one at a time
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 3e-2}  # relative to the largest number


def check_torch(check: Check) -> Result:
    """Compare models and idioms, and then time as many settings as there is time for."""
    result = Result("PyTorch modules", ("part", "case", "way", "difference or ms"))
    if find_spec("torch") is None:
        result.note("everything is left out, because PyTorch is not installed")
        return result
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.models.torch_modules import CASES
    from helpers.runs.tensors_on_device import holding_tensors

    with holding_tensors(check.device) as tensors:
        from gpu.torch_idioms import IDIOMS

        work: dict[str, Callable[..., None]] = {
            "parity": partial(compare_model, check, result, tensors),
            "idiom": partial(compare_idiom, result, tensors),
            "race": partial(race_modules, check, result, tensors),
        }
        settings: list[tuple[Any, ...]]
        settings = [("parity", name, dtype) for name in check.choose([*CASES], ["tree"]) for dtype in TOLERANCES]
        settings += [("idiom", name) for name in check.choose([*IDIOMS], [*IDIOMS][:2])]
        settings += [("race", *sizes) for sizes in check.choose(SETTINGS, [(5, 3)])]
        check.measure_each(result, settings, lambda part, *about: work[part](*about))
    return result


def compare_model(check: Check, result: Result, tensors: Any, name: str, dtype: str) -> None:
    """Compare the losses and gradients of a model; "bfloat16" is float32 under autocast."""
    import torch

    import autobatch.torch as abt
    from helpers.models.torch_modules import CASES

    torch.manual_seed(check.seed)
    model, instances = CASES[name](dim=check.choose(32, 4))
    model.to(torch.float64 if dtype == "float64" else torch.float32)
    tensors.hold(model)
    alone = deepcopy(model)
    with torch.autocast(tensors.place.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        losses = abt.batched(model.loss)(instances)
    expected = torch.stack([alone.loss(x) for x in instances])
    torch.autograd.backward([losses.sum(), expected.sum()])
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), alone.parameters(), strict=True)]
    judge(result, "parity", f"{name}, {dtype}", [(losses, expected), *pairs], TOLERANCES[dtype])


def compare_idiom(result: Result, tensors: Any, name: str) -> None:
    """Compare the tensors of an idiom with those of PyTorch."""
    from gpu.torch_idioms import IDIOMS, compare

    judge(result, "idiom", name, compare(IDIOMS[name], tensors), TOLERANCES["float64"])


def judge(result: Result, part: str, case: str, pairs: Sequence[tuple[Any, Any]], tolerance: float) -> None:
    """Add the largest difference of pairs of tensors, relative to the largest number; a failure if it is too large."""
    import torch

    largest, apart = (
        float(torch.stack([x.abs().max().double() for x in each]).max())  # the maximum of torch keeps NaN
        for each in ([y for _, y in pairs], [x - y for x, y in pairs])
    )
    apart /= largest
    result.add(part, case, "", apart)
    if not apart <= tolerance:
        result.failures.append(f"{part}, {case}: tensors differ by {apart:.2g} of the largest number")


def race_modules(check: Check, result: Result, tensors: Any, dim: int, size: int) -> None:
    """Time a Tree-LSTM of modules compared with the models that are batched by hand, and with one at a time."""
    workload = load_workload("tree-lstm", None, dim, check.seed)
    instances = draw(workload, size * N_MINIBATCHES)
    theirs = their_ways(check, workload, instances, size, result)
    raced = Result("", ())
    for mode in ("infer", "train"):
        time_ways(check, raced, ("tree-lstm", dim, size, mode), theirs | our_ways(tensors, workload, instances, size))
    for model, _, _, mode, way, ms, *_ in raced.rows:
        result.add("race", f"{model}, dim {dim}, {size} instances, {mode}", way, ms)
    result.seconds.update(raced.seconds)


def our_ways(tensors: Any, workload: Any, instances: Sequence[Any], size: int) -> dict[str, Way]:
    """Make the variants of modules: with recorded graphs, recorded in each step, and one instance at a time."""
    import torch

    import autobatch.torch as abt
    from modules_of_torch import make_modules

    made = [make_modules(workload.model.state_dict(), workload.dataset.sizes, workload.dim, "auto") for _ in range(3)]
    for model in made:
        tensors.hold(model)
    recorded, afresh, alone = made
    batched = [abt.batched(model.loss) for model in (recorded, afresh)]
    graphs = batched[0].record_all(instances)

    def way(model: Any, loss: Callable[[Any], Any], items: Sequence[Any], n: int, last: Any = None) -> Way:
        minibatches = [items[first : first + n] for first in range(0, len(items), size)]
        optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)

        def infer(number: int) -> None:
            with torch.no_grad():
                loss(minibatches[number])

        def train(number: int) -> None:
            optimizer.zero_grad()
            torch.autograd.backward(loss(minibatches[number]).mean())
            optimizer.step()

        return Way(infer, train, last)

    def one_at_a_time(items: Sequence[Any]) -> Any:
        return torch.stack([alone.loss(x) for x in items])

    n_alone = min(N_ALONE, size)
    return {
        "modules, recorded graphs": way(recorded, batched[0], graphs, size, batched[0]),
        "modules, recorded afresh": way(afresh, batched[1], instances, size, batched[1]),
        f"modules, one at a time, {n_alone} instances": way(alone, one_at_a_time, instances, n_alone),
    }
