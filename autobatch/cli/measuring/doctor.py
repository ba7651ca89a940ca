"""`autobatch doctor`: is everything in place on this machine?"""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

import autobatch as ab
from autobatch.cli.experiment import UNAVAILABLE
from autobatch.cli.machine import blas_name, package_version
from autobatch.cli.measuring.products import describe_bf16, describe_providers, show_speeds
from autobatch.cli.places import FILE
from autobatch.cli.threads import threads_in_force
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from autobatch.models.data.listops import N_CLASSES, draw_trees
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.system.cache import cache_folder
from autobatch.system.processor import cpu_name, usable_cores

TWICE = "define i64 @twice(i64 %x) {\n  %y = add i64 %x, %x\n  ret i64 %y\n}\n"
REQUIRED = ("numpy", "llvmlite", "click", "rich", "safetensors", "threadpoolctl")
OPTIONAL = {
    "matplotlib": "plots",
    "networkx": "draws state machines (policy show --plot)",
    "scipy": "proves better bounds (explain --bound pairs)",
    "cma": "learns the weights of a rule (policy learn --algorithm es)",
    "gymnasium": "environments to learn policies in",
    "stable_baselines3": "learns networks (policy learn --algorithm dqn)",
    "sb3_contrib": "learns networks (policy learn --algorithm ppo)",
    "torch": "needed by autobatch.torch; learns networks, and runs the twins that the tests compare with",
    "tensorboard": "shows training (train --tensorboard)",
    "sacrebleu": "measures translations (BLEU)",
    "starlette": "serves over HTTP (serve)",
    "uvicorn": "serves over HTTP (serve)",
    "prometheus_client": "counts what is served (serve)",
    "ray": "sweeps over several machines (--ray)",
    "jax": "one more of the peers (bench --peers)",
    "mkl": "multiplies matrices, see doctor --matmul",
    "cupy": "runs on GPUs, see cuda below",
}
TOLERANCE = 1e-10  # relative, in float64: batched and eager runs differ in the order of sums only


class Fault(Exception):
    """Something that does not work."""


class Finding(NamedTuple):
    """A line of the report."""

    state: str
    """ok, none (not installed and not needed) or FAULT."""
    what: str
    detail: str


@click.command()
@click.option("--matmul", is_flag=True, help="Instead, measure the libraries that multiply matrices.")
@click.option("--gpu", is_flag=True, help="Instead, check the GPU in some minutes, and write a report.")
@click.option(
    "--out",
    type=FILE,
    default="autobatch-gpu.json",
    show_default=True,
    help="Where the report of --gpu goes.",
)
def doctor(matmul: bool, gpu: bool, out: Path) -> int:
    """Check the installation, and train a tiny model.

    It shows the versions of packages, the processor, BLAS, the compiler, and the result of a training step. The exit
    status is 1 if something does not work.

    With --matmul, it measures the speed of matrix products of each installed library.

    With --gpu, it compares what the GPU computes with the processor, trains on both, times products and launches, and
    writes all of it to one file, to attach to a report. The exit status is 69 if there is no GPU.

    \b
    Examples:
      autobatch doctor
      autobatch doctor --matmul
      autobatch doctor --gpu --out gpu.json
    """
    if matmul:
        show_speeds()
        return 0
    if gpu:
        return _check_gpu(out)
    checks = {"matmul": describe_providers, "bf16": describe_bf16, "compiler": _compile, "self-check": _train_a_step}
    findings = [*_versions(), *_hardware(), _gpu(), *(_try(what, check) for what, check in checks.items())]
    width = max(len(finding.what) for finding in findings)
    for state, what, detail in findings:
        click.echo(f"{state:<5}  {what:<{width}}  {detail}")
    faults = [finding.what for finding in findings if finding.state == "FAULT"]
    click.echo(f"\nAt fault: {', '.join(faults)}." if faults else "\nEverything is in place.")
    return 1 if faults else 0


def _check_gpu(out: Path) -> int:
    """Write a report of the GPU; give the exit status."""
    from autobatch.cli.measuring.gpu.short import report

    try:
        found = report(out)
    except BackendError as error:
        click.echo(f"autobatch: {error}", err=True)
        return UNAVAILABLE
    right = "What was checked is right, but no time was left for all" if found.notes else "All is right"
    click.echo(f"\nAttach {out} to your report." if found.failures else f"\n{right}; {out} has the figures.")
    return 1 if found.failures else 0


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "python", platform.python_version())
    for package in REQUIRED:
        found = package_version(package)
        yield Finding("ok" if found else "FAULT", package, found or f"not installed: pip install {package}")
    for package, use in OPTIONAL.items():
        version = package_version(package)  # that of MKL is no module, only a library
        there = importlib.util.find_spec(package) is not None or version is not None
        yield Finding("ok" if there else "none", package, f"{version or ''} {use}".strip())


def _hardware() -> Iterator[Finding]:
    yield Finding("ok", "processor", f"{cpu_name()}, {usable_cores()} cores to use")
    yield Finding("ok", "BLAS", f"{blas_name()}, threads: {threads_in_force()}")


def _gpu() -> Finding:
    """The device of the cuda backend, or why there is none; none is needed."""
    try:
        return Finding("ok", "cuda", find_device().name)
    except BackendError as error:
        return Finding("none", "cuda", str(error))


def _try(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", what, check())
    except Exception as error:  # a doctor reports whatever is wrong
        return Finding("FAULT", what, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _compile() -> str:
    """Compile a function; say where compiled cells are kept."""
    from ctypes import CFUNCTYPE, c_int64

    from autobatch.compiler.llvm.machine import Loaded, compile_module, find_processor

    processor = find_processor()
    code = Loaded(compile_module(TWICE, processor), processor)
    if CFUNCTYPE(c_int64, c_int64)(code.address("twice"))(21) != 42:
        raise Fault("a compiled function gave a wrong result; reinstall llvmlite.")
    folder = cache_folder()
    if folder is None:
        return "works, and keeps no compiled cells: the cache is off"
    if not _can_write(folder):
        return f"works, but {folder}, the cache, cannot be written: each run compiles anew; set AUTOBATCH_CACHE"
    return f"works, and keeps compiled cells in {folder}"


def _can_write(folder: Path) -> bool:
    """Whether a folder, which may have to be made, can be written."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _train_a_step() -> str:
    """Compare batched with eager losses before and after a step of training."""
    rng = np.random.default_rng(0)
    drawn = draw_trees(8, rng, max_depth=2)
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    trees = [vocabulary.encode(tree) for tree in drawn]
    model = TreeLSTM(n_words=len(vocabulary), dim=8, n_classes=N_CLASSES, rng=rng).astype("float64")
    batched = ab.batched(model.loss)
    optimizer = ab.optim.Adam(model, lr=1e-2)
    before, grads = batched.value_and_grad(trees)
    optimizer.step(grads)
    losses = batched(trees)
    difference = float(np.max(np.abs(losses / [float(model.loss(tree)) for tree in trees] - 1)))
    if difference > TOLERANCE:
        raise Fault(
            f"batched and eager losses differ by {difference:.1e}, more than {TOLERANCE:.0e}; please report it."
        )
    if not losses.mean() < before:
        raise Fault(f"a training step raised the loss from {before:.4f} to {losses.mean():.4f}; please report it.")
    return f"a training step lowers the loss, batched and eager losses differ by {difference:.0e}"
