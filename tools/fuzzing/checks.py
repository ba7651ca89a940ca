"""Run a program in many configurations, which must agree: eager, interpreted, compiled; alone, batched; gradients,
slopes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.devices.finding import make_host_device
from autobatch.devices.store import Store
from autobatch.graph.rewrite import DEFAULT, PASSES
from autobatch.memplan.planner import MemoryPlanner
from autobatch.params.module import shared_store
from fuzzing.differences import checked_derivatives, leaves
from fuzzing.program import Program

RELATIVE = 1e-10
SLOPE_STEP, SLOPE_RELATIVE = 1e-5, 2e-6
NOISE, NOISE_FACTOR = 1e-14, 30.0  # of parameters; larger multiples of its effect are not rounding
POLICIES = (
    "agenda", "depth", "unbatched", "score", "critical", "sufficient", "score+both+compact", "agenda+backward",
    "depth+compact", "auto",
)  # fmt: skip
SWITCHES = ("simplifies", "joins", "stacks", "sums", "cuts", "hoists", "fuses", "reuses")
BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
    "cuda": lambda: Cuda(poison=True, device=make_host_device()),
    "resident": lambda: Cuda(poison=True, device=make_host_device()),
}
"""On cuda, parameters are on the host; on resident, which is the same otherwise, they are on the device."""
ON_PROCESSOR = ("reference", "cpu")
RECOMPUTES = ("cheap", "more", "all", "nothing")


@dataclass(frozen=True)
class Way:
    """How a program is run: policy and planner, which passes run, and whether structures are checked.

    Attributes:
        alone: whether mini-batches have one instance.
        recorded: whether to run recorded graphs, so that the second call finds the plan.
        copies: copies of each instance in a mini-batch.
    """

    policy: str = "agenda"
    rewrites: tuple[str, ...] = DEFAULT
    planner: dict[str, Any] = field(default_factory=dict)
    checked: bool = False
    alone: bool = False
    recorded: bool = False
    copies: int = 1

    def __str__(self) -> str:
        planner = f"MemoryPlanner({', '.join(f'{k}={v!r}' for k, v in self.planner.items())})"
        words = [f"policy={self.policy!r}", f"rewrites={self.rewrites}", f"planner={planner}"]
        words += ["AUTOBATCH_CHECK=1"] * self.checked + ["one at a time"] * self.alone
        words += ["record_all, twice"] * self.recorded + [f"instances * {self.copies}"] * (self.copies > 1)
        return ", ".join(words)

    def batched(self, function: Any, backend: Any) -> ab.Batched:
        """Return the batched function in this configuration."""
        planner = MemoryPlanner(**self.planner)
        return ab.batched(function, backend=backend, policy=self.policy, rewrites=self.rewrites, planner=planner)

    def simpler(self) -> Iterator[Way]:
        """Yield configurations that are simpler in one respect."""
        if self.checked:
            yield replace(self, checked=False)
        if self.alone:
            yield replace(self, alone=False)
        if self.recorded:
            yield replace(self, recorded=False)
        if self.copies > 1:
            yield replace(self, copies=1)
        for name in self.planner:
            yield replace(self, planner={k: v for k, v in self.planner.items() if k != name})
        if self.rewrites:
            yield replace(self, rewrites=())
        if self.policy != "agenda":
            yield replace(self, policy="agenda")


def draw_way(seed: int) -> Way:
    """Draw the configuration of a program by number."""
    rng = np.random.default_rng([seed, 1])
    rewrites = [DEFAULT, DEFAULT, PASSES, (), tuple(name for name in PASSES if rng.random() < 0.5)]
    planner: dict[str, Any] = {}
    if rng.random() < 0.5:
        planner = {name: False for name in SWITCHES if rng.random() < 0.2}
        recomputes = RECOMPUTES[int(rng.integers(len(RECOMPUTES)))]
        planner |= {} if recomputes == "cheap" else {"recomputes": recomputes}
    policy = POLICIES[int(rng.integers(len(POLICIES)))]
    checked, alone, recorded = (bool(x) for x in rng.random(3) < (0.3, 0.15, 0.15))
    return Way(policy, rewrites[int(rng.integers(5))], planner, checked, alone, recorded, int(rng.choice((1, 1, 1, 4))))


@dataclass(frozen=True)
class Failure:
    """A failure: its kind ("forward", "gradient", "slope", "crash" or "complaint") and its place.

    Attributes:
        what: the message without numbers and names, so that failures with one cause have the same.
        where: the backend and the stage.
    """

    kind: str
    where: str
    what: str
    detail: str = ""

    @property
    def signature(self) -> str:
        """Return a text that is equal for failures with the same cause."""
        return f"{self.kind} in {self.where}" + (f": {self.what}" if self.what else "")


class Wrong(Exception):
    """Raised when a comparison fails."""


@contextmanager
def checkers(on: bool) -> Iterator[None]:
    """Check every structure that is made."""
    before = os.environ.get("AUTOBATCH_CHECK")
    os.environ["AUTOBATCH_CHECK"] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["AUTOBATCH_CHECK"]
        else:
            os.environ["AUTOBATCH_CHECK"] = before


def find_failure(program: Program, way: Way, backends: Sequence[str] = ON_PROCESSOR) -> Failure | None:
    """Run a program. Return the first failure, None if there is none."""
    with checkers(way.checked), np.errstate(all="ignore"):
        run = _Runs(program, way, backends)
        for kind, where, check in run.checks():
            failure = attempt(kind, where, check)
            if failure is not None:
                return failure
    return None


def attempt(kind: str, where: str, check: Callable[[], None]) -> Failure | None:
    """Run a check. Return its failure."""
    try:
        check()
    except Wrong as wrong:
        return Failure(kind, where, "", str(wrong))
    except Exception as error:  # any error is a finding
        complains = isinstance(error, AssertionError) or "check" in _file_of(error)
        text = re.sub(r"'[^']*'|\(.*?\)|\d+", "_", str(error).split(";")[0])[:90]
        what = f"{type(error).__name__} {text}"
        return Failure("complaint" if complains else "crash", where, what, f"{type(error).__name__}: {error}")
    return None


def shaken(parameters: Iterable[ab.Parameter], compute: Callable[[], Any]) -> Any:
    """Compute with slightly disturbed parameters."""
    rng, listed = np.random.default_rng(0), list(parameters)
    kept = [p.data.copy() for p in listed]
    for p in listed:
        p.data = p.data * (1.0 + NOISE * rng.standard_normal(p.shape))
    try:
        return compute()
    finally:
        for p, data in zip(listed, kept, strict=True):
            p.data = data


def is_valid(program: Program) -> bool:
    """Return whether a program runs eagerly."""
    try:
        with np.errstate(all="ignore"):
            model = program.build()
            for item in program.items:
                model.everything(item)  # type: ignore[attr-defined]
    except Exception:
        return False
    return True


class _Runs:
    """The results of a program, computed on demand."""

    def __init__(self, program: Program, way: Way, backends: Sequence[str]) -> None:
        self.program, self.way = program, way
        self.backends = {name: BACKENDS[name]() for name in backends}
        self.items = program.items * way.copies
        self.weights = np.random.default_rng(0).uniform(0.5, 2.0, len(self.items))
        self.has_inputs = program.has_arrays and not way.recorded
        self.gradients: dict[str, Any] = {}
        self.functions: dict[tuple[str, str], ab.Batched] = {}

    def checks(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """Yield the checks, in order."""
        yield "eager", "eager", self.eager
        if self.program.smooth and any(line.inner for f in self.program.functions for line in f.all_lines):
            yield "derivative", "eager", self.derivatives
        yield "stages", "compiler", self.stages
        for name in self.backends:
            yield "forward", name, lambda name=name: self.forward(name)  # type: ignore[misc]
        for name in self.backends:
            yield "gradient", name, lambda name=name: self.gradient(name)  # type: ignore[misc]
        if self.program.smooth and self.backends:
            yield "slope", "eager", self.slope

    def eager(self) -> None:
        """Compute the instances one by one."""
        self.model: Any = self.program.build()
        self.expected = self.compute(self.model, training=True)

    def derivatives(self) -> None:
        """Compare the derivatives that instances and cells ask for, in eager mode, with finite differences."""
        with checked_derivatives(Wrong):
            self.compute(self.model, training=True)

    def stages(self) -> None:
        """Compile the stages of cells, for inference and for training, with every check of the compiler."""
        batched = self.way.batched(self.model.loss, "reference")
        with checkers(True):
            for training in (False, True):
                for cell in batched.prepare(self.items, training=training).cells.cells:
                    compile_forward(cell)
                    if cell.derivative is not None:
                        compile_backward(cell)

    def compute(self, model: Any, training: bool) -> list[Any]:
        """Compute the instances eagerly, with the random numbers that they have in a mini-batch."""
        found = []
        for key, item in enumerate(self.items):
            with ab.randomness(key=0 if self.way.alone else key, training=training):
                found.append(model.everything(item))
        return found

    def forward(self, backend: str) -> None:
        """Compare a mini-batch, or its instances one after the other, with eager results."""
        with self.placed(backend):
            every = self.run_all(self.batched(self.way, backend))
        for found, expected in zip(every, self.expected, strict=True):
            difference = compare(found, expected, RELATIVE)
            if difference and not self.is_rounding(found, expected):
                raise Wrong(f"batched differs from eager: {difference}")

    def batched(self, way: Way, backend: str) -> ab.Batched:
        """Return the batched function on a backend, the same one for inference and training."""
        known = str(way), backend
        if known not in self.functions:
            self.functions[known] = way.batched(self.model.everything, self.backends[backend])
        return self.functions[known]

    @contextmanager
    def placed(self, backend: str) -> Iterator[None]:
        """Move the parameters to where a backend expects them, and back."""
        if backend == "resident":
            self.model.to(self.backends[backend].device)
        try:
            yield
        finally:
            self.model.to("cpu")

    def run_all(self, batched: ab.Batched) -> list[Any]:
        """Return the results of each instance."""
        if self.way.alone:
            return [rows(batched(self.instances(batched, [item])), 1)[0] for item in self.items]
        instances = self.instances(batched, self.items)
        if self.way.recorded:
            batched(instances)
        return rows(batched(instances), len(self.items))

    def instances(self, batched: ab.Batched, items: list[Any]) -> list[Any]:
        """Return the instances of a mini-batch, recorded if necessary."""
        return list(batched.record_all(items)) if self.way.recorded else items

    def is_rounding(self, found: Any, expected: Any) -> bool:
        """Return whether results differ about as much as they change with slightly disturbed parameters."""
        shaken = self.shaken(lambda: self.compute(self.model, training=True))
        k = next(i for i, one in enumerate(self.expected) if one is expected)
        return not compare(found, expected, RELATIVE, NOISE_FACTOR * distance(shaken[k], expected))

    def shaken(self, compute: Callable[[], Any]) -> Any:
        """Compute with slightly disturbed parameters."""
        return shaken(self.model.parameters().values(), compute)

    def gradient(self, backend: str) -> None:
        """Compare losses with eager ones, and gradients with those of the reference backend without passes."""
        found = self.grads(self.way, backend)
        losses = losses_of(self.expected)
        difference = compare(found[0], self.weights @ losses, RELATIVE)
        if difference and not self.program.smooth:
            raise Wrong(f"the loss in training differs from eager: {difference}")
        if "plain" not in self.gradients:
            switches = dict.fromkeys(SWITCHES, False) | {"recomputes": "nothing"}
            plain = Way("unbatched", (), switches)
            self.gradients["plain"] = self.grads(replace(plain, alone=self.way.alone), "reference")
        expected = self.gradients["plain"]
        if not all(np.all(np.isfinite(gradient)) for gradient in leaves(expected)):
            raise Wrong("gradients without passes are not finite, though no value that the loss reads is large")
        difference = compare(found, expected, RELATIVE)
        if not difference:
            return
        shaken = self.shaken(lambda: self.grads(self.way, "reference"))
        if compare(found, expected, RELATIVE, NOISE_FACTOR * distance(shaken, expected)):
            raise Wrong(f"gradients differ from those without passes: {difference}")

    def grads(self, way: Way, backend: str) -> tuple[Any, dict[str, Any], list[Any]]:
        """Return the weighted loss of all instances, and its gradients: those of parameters and those of arrays."""
        with self.placed(backend):
            return self.placed_grads(way, backend)

    def placed_grads(self, way: Way, backend: str) -> tuple[Any, dict[str, Any], list[Any]]:
        """Return the same, with the parameters in their place."""
        batched, store = self.batched(way, backend), shared_store(self.model)
        batched.step = 0
        if not way.alone:
            value, grads, inputs = self.differentiate(batched, self.items, self.weights)
            return value, {name: on_host(g, store) for name, g in grads.items()}, inputs
        total, summed = 0.0, {n: np.zeros(p.shape) for n, p in self.model.parameters().items() if p.trainable}
        of_inputs = list[Any]()
        for item, weight in zip(self.items, self.weights, strict=True):
            batched.step = 0
            value, grads, inputs = self.differentiate(batched, [item], [weight])
            total += float(value)
            of_inputs += inputs
            for parameter, gradient in grads.items():
                summed[parameter] += on_host(gradient, store)
        return np.float64(total), summed, of_inputs

    def differentiate(
        self, batched: ab.Batched, items: list[Any], weights: Any
    ) -> tuple[Any, dict[str, Any], list[Any]]:
        """Return the loss and gradients of some instances: of the parameters, and of the arrays of each instance."""
        instances, inputs = self.instances(batched, items), list[Any]()
        if not self.has_inputs:
            (value, _), grads = batched.value_and_grad(instances, reduce=weights, has_aux=True)
        else:
            (value, _), grads, inputs = batched.value_and_grad(instances, reduce=weights, has_aux=True, inputs=True)
        return value, grads, [found[1] if found else () for found in inputs]

    def slope(self) -> None:
        """Compare gradients with finite differences of the eager loss along a direction."""
        rng = np.random.default_rng(1)
        trainable = {name: p for name, p in self.model.parameters().items() if p.trainable}
        along = {name: rng.standard_normal(p.shape) for name, p in trainable.items()}
        _, gradients, inputs = self.gradients["plain"]
        slope = sum(float((gradients[name] * v).sum()) for name, v in along.items())
        arrays = [array for item in self.items for array in item[1]] if self.has_inputs else []
        moved = {id(array): (array, array.copy(), rng.standard_normal(array.shape)) for array in arrays}
        of_inputs = zip(arrays, [g for found in inputs for g in found], strict=True)
        slope += sum(float((g * moved[id(array)][2]).sum()) for array, g in of_inputs)
        start, losses = {name: p.data.copy() for name, p in trainable.items()}, list[float]()

        def difference(size: float) -> float:
            for step in (size, -size):
                for name, p in trainable.items():
                    p.data = start[name] + step * along[name]
                for array, before, direction in moved.values():
                    array[...] = before + step * direction
                losses.append(float(self.weights @ losses_of(self.compute(self.model, training=True))))
            return (losses[-2] - losses[-1]) / (2 * size)

        def is_close(found: float) -> bool:
            scale = 1.0 + max(abs(slope), abs(found)) + max(map(abs, losses))
            return abs(slope - found) <= SLOPE_RELATIVE * scale

        try:
            found = difference(SLOPE_STEP)
            if not is_close(found):  # the loss has a strong curvature: Richardson's extrapolation
                found = (4.0 * difference(0.5 * SLOPE_STEP) - found) / 3.0
        finally:
            for name, p in trainable.items():
                p.data = start[name]
            for array, before, _ in moved.values():
                array[...] = before
        if not is_close(found):
            raise Wrong(f"<gradient, direction> is {slope:.8g}, the eager loss has the slope {found:.8g}")


def on_host(gradient: Any, store: Store) -> Any:
    """Return a gradient as a separate NumPy array."""
    return np.array(gradient if isinstance(gradient, ab.Rows) else store.get(gradient))


def losses_of(results: list[Any]) -> Any:
    """Return the losses of instances."""
    return np.array([float(leaves(loss)[0]) for loss, _ in results])


def rows(stacked: Any, n: int) -> list[Any]:
    """Return the results of each instance of a mini-batch."""
    loss, lists = stacked
    return [(loss[k], lists[k]) for k in range(n)]


def compare(found: Any, expected: Any, relative: float, noise: float = 0.0) -> str:
    """Describe how structures of arrays differ by more than rounding; empty if they do not."""
    pairs = [(leaves(found), leaves(expected))]
    if len(pairs[0][0]) != len(pairs[0][1]):
        return f"{len(pairs[0][0])} values instead of {len(pairs[0][1])}"
    for one, other in zip(*pairs[0], strict=True):
        if one.shape != other.shape:
            return f"shape {one.shape} instead of {other.shape}"
        if other.dtype.kind == "f" and one.dtype != other.dtype:
            return f"{one.dtype} instead of {other.dtype}"
        limit = relative * float(np.max(np.abs(other[np.isfinite(other)]), initial=1e-3)) + noise
        differences = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
        if not np.all(differences <= limit):
            worst = np.max(differences, initial=0.0)
            return f"by {worst:.3g}: {shorten(one)} instead of {shorten(other)}"
    return ""


def distance(found: Any, expected: Any) -> float:
    """Return the largest difference between structures of arrays."""
    pairs = zip(leaves(found), leaves(expected), strict=True)
    return max((float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs), default=0.0)


def shorten(array: Any) -> str:
    """Format an array in one line."""
    return np.array2string(np.asarray(array), precision=6, threshold=12).replace("\n", "")


def _file_of(error: BaseException) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else os.path.basename(traceback.tb_frame.f_code.co_filename)
