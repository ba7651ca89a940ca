"""Run a case that `ab.testing.dump` wrote: as it was run, and compared with one instance at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cuda.backend import Cuda
from autobatch.deploy.cases import Case, CaseModule, read_case, write_case
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from autobatch.memplan.planner import MemoryPlanner
from fuzzing.checks import (
    BACKENDS,
    NOISE_FACTOR,
    RELATIVE,
    SWITCHES,
    Failure,
    Wrong,
    attempt,
    checkers,
    compare,
    distance,
    shaken,
)
from fuzzing.pieces import put_together, shrink_case, take_apart

PLAIN = MemoryPlanner(**dict.fromkeys(SWITCHES, False), recomputes="nothing")
REFERENCE = "reference"
COMPILED = "cpu"


def replay(path: Path, seconds: float) -> bool:
    """Run the case of a file. Return whether it fails; if it does, shrink it, and write and print the smaller case."""
    case = read_case(path)
    print(_describe(case))
    failure = find_case_failure(case)
    if failure is None:
        print("right: batched equals one instance at a time, in float64")
        return False
    print(f"{failure.signature}\n    {failure.detail}")
    if seconds:
        signature = failure.signature

        def fails(smaller: Case) -> bool:
            found = find_case_failure(smaller)
            return found is not None and found.signature == signature

        smallest = put_together(shrink_case(take_apart(case), fails, seconds))
        beside = path.with_name(f"{path.stem}.small{path.suffix}")
        write_case(smallest, beside)
        print(f"\nsmaller, in {beside}: {_describe(smallest)}\n")
        made, graphs = smallest.batched(backend=REFERENCE)
        print(*(made.recorder.types[number].program for number in range(len(smallest.types))), *graphs, sep="\n\n")
    return True


def find_case_failure(case: Case) -> Failure | None:
    """Run a case as it was run, and in float64 compared with one instance at a time. Return the first failure."""
    run, backend = _Runs(case), case.setting.backend
    checks = ("alone", REFERENCE, run.alone), ("run", backend, run.as_recorded), ("batched", backend, run.in_float64)
    try:
        with checkers(on=True), np.errstate(all="ignore"):
            failures = (attempt(*check) for check in checks)
            return next((failure for failure in failures if failure is not None), None)
    finally:
        run.module.astype(case.setting.dtype)


class _Runs:
    """The runs of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.module = case, CaseModule(case.parameters)
        self.weights = np.random.default_rng(0).uniform(0.5, 2.0, len(case.keys))

    def alone(self) -> None:
        """Compute one instance after the other, by the reference backend, with all passes off."""
        self.module.astype(np.float64)
        self.expected = self.compute_alone()

    def compute_alone(self) -> Any:
        """Return the results of the instances and, in training, the loss and gradients of their weighted sum."""
        terms = {"policy": "unbatched", "rewrites": (), "planner": PLAIN, "precision": "float32", "max_bytes": None}
        made, graphs = self.case.batched(backend=REFERENCE, threads=1, **terms)
        parts = [self.answer(made, [graph], self.weights[k : k + 1]) for k, graph in enumerate(graphs)]
        outputs, sums = zip(*parts, strict=True)
        return [one for output in outputs for one in output], [sum(terms) for terms in zip(*sums, strict=True)]

    def as_recorded(self) -> None:
        """Run the mini-batch in its own float type and precision."""
        self.module.astype(self.case.setting.dtype)
        made, graphs = self.case.batched(backend=_backend(self.case.setting.backend))
        self.answer(made, graphs, self.weights)

    def in_float64(self) -> None:
        """Compare the mini-batch with one instance at a time."""
        self.module.astype(np.float64)
        made, graphs = self.case.batched(backend=_backend(self.case.setting.backend), precision="float32")
        found = self.answer(made, graphs, self.weights)
        for what, one, other in zip(("results", "the loss or gradients"), found, self.expected, strict=True):
            difference = compare(one, other, RELATIVE)
            if difference and not self.is_rounding(one, other):
                raise Wrong(f"{what} differ from those of one instance at a time: {difference}")

    def is_rounding(self, found: Any, expected: Any) -> bool:
        """Return whether results differ about as much as they change with slightly disturbed parameters."""
        noisy = shaken(self.case.parameters.values(), self.compute_alone)
        place = next(i for i, one in enumerate(self.expected) if one is expected)
        return not compare(found, expected, RELATIVE, NOISE_FACTOR * distance(noisy[place], expected))

    def answer(self, made: ab.Batched, graphs: list[Any], weights: Any) -> tuple[list[Any], list[Any]]:
        """Return each instance's result and, in training, the loss and gradients of the weighted sum."""
        setting = self.case.setting
        found = made(graphs)
        if not setting.training:
            return list(found), []
        outputs = [(found[0][k], found[1][k]) if setting.has_aux else found[k] for k in range(len(graphs))]
        made.step = setting.step
        value, gradients = made.value_and_grad(graphs, reduce=weights, has_aux=setting.has_aux)
        loss = value[0] if setting.has_aux else value
        return outputs, [np.float64(loss), *(np.array(gradients[name]) for name in sorted(gradients))]


def _backend(name: str) -> Any:
    """Make a case's backend: compiled if it is `cpu`; on a processor if it is `cuda` and there is no GPU."""
    if name != "cuda":
        return BACKENDS[COMPILED if name == "cpu" else name]()
    try:
        find_device()
    except BackendError:
        return BACKENDS["cuda"]()
    return Cuda(poison=True)


def _describe(case: Case) -> str:
    n_instances, n_nodes = case.words[:2].tolist()
    setting = case.setting
    policy = setting.policy.get("name", "of the file")
    doing = "training" if setting.training else "inference"
    return (
        f"{n_instances} instances, {n_nodes} nodes, {len(case.types)} types; {doing}, policy {policy}, backend "
        f"{setting.backend}, {setting.dtype}"
    )
