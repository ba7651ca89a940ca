"""`autobatch doctor`: check the installation on this machine.

`--matmul` lists the libraries for matrix products, and their speeds on this machine.
"""

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
from autobatch.blas import Chooser, list_absent, list_providers, measure
from autobatch.blas.choosing import fastest, measure_bf16
from autobatch.blas.finding import faster_routines
from autobatch.blas.packed import NAME as PACKED
from autobatch.cli.experiment import UNAVAILABLE
from autobatch.cli.machine import blas_name, package_version, threads_in_force
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.cli.words import FILE
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from autobatch.models.data.listops import N_CLASSES, draw_trees
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.system.cache import cache_folder
from autobatch.system.processor import cpu_name, has_amx, has_bf16, usable_cores

N_OUT, N_IN = 1280, 512  # the five gates of a binary Tree-LSTM of 256 on two children
ROWS = (4, 16, 64, 256)
DTYPES = ("float32", "float64")


def describe_providers() -> str:
    """Describe the installed libraries and the processor's support of bf16 in a line."""
    found = ", ".join(f"{one.name} {one.version}" for one in list_providers())
    support = f"supports bf16{' in tiles (AMX)' if has_amx() else ''}" if has_bf16() else "does not support bf16"
    return f"{found}; the processor {support}"


def describe_bf16() -> str:
    """Compare measured speeds of products in bf16 and in float32, with many rows, in a line."""
    if not has_bf16():
        return "not supported by the processor: operands are rounded and multiplied in float32, which is slower"
    size = ROWS[-1], N_OUT, N_IN
    speed, (other, other_speed) = measure_bf16(*size), fastest(measure(list_providers(), *size))
    figures = f"{speed:.0f} GFLOP/s instead of {other_speed:.0f} ({other}), {ROWS[-1]} rows, one thread"
    if speed <= other_speed:
        return f'precision="bf16" is not faster: rounded operands are multiplied in float32, as bf16 reaches {figures}'
    return f'precision="bf16" is {speed / other_speed:.1f} times as fast as float32: {figures}'


def show_speeds() -> None:
    """Measure every library on one thread; print a table of GFLOP/s, the missing libraries, and the chosen one.

    "packed" is autobatch's own code, for matrices that are packed once per run.
    """
    providers = list_providers()
    with show_progress(len(DTYPES) * len(ROWS)) as progress:
        speeds = {}
        for dtype in DTYPES:
            for n_rows in ROWS:
                speeds[dtype, n_rows] = measure(providers, n_rows, N_OUT, N_IN, dtype)
                progress.advance("measuring", f"{dtype}, {n_rows} rows")
    rows = [
        (one.name, one.version, dtype, *(f"{speeds[dtype, n_rows][one.name]:.0f}" for n_rows in ROWS))
        for dtype in DTYPES
        for one in providers
        if one.name in speeds[dtype, ROWS[0]]
    ]
    if has_bf16():
        rows.append((PACKED, "", "bf16", *(f"{measure_bf16(n, N_OUT, N_IN):.0f}" for n in ROWS)))
    header = ("library", "version", "numbers", *(f"{n_rows} rows" for n_rows in ROWS))
    click.echo(f"GFLOP/s of products (rows, {N_IN}) times ({N_IN}, {N_OUT}), one thread\n")
    click.echo(format_table(header, rows))
    click.echo()
    for name, why in list_absent().items():
        if name == "torch":
            why = "it is used only in programs that import torch"
        click.echo(f"Not available: {name} ({why}).")
    if routines := faster_routines():
        click.echo(
            f"NumPy's OpenBLAS does not recognise this processor. Setting OPENBLAS_CORETYPE={routines} in the "
            f"environment before Python starts may make it faster, above all in float64."
        )
    if not has_bf16():
        click.echo("bf16 is not supported: the processor lacks the AVX-512 instructions for it.")
    chosen = Chooser().choose(ROWS[-1], N_OUT, N_IN)
    click.echo(f"Chosen for {ROWS[-1]} rows: {chosen.name}.")


TWICE = "define i64 @twice(i64 %x) {\n  %y = add i64 %x, %x\n  ret i64 %y\n}\n"
REQUIRED = ("numpy", "llvmlite", "click", "rich", "safetensors", "threadpoolctl")
OPTIONAL = {
    "matplotlib": "plots",
    "scipy": "better lower bounds (explain --bound pairs)",
    "cma": "learning weights of a rule (policy learn --algorithm es)",
    "gymnasium": "environments for learning policies",
    "stable_baselines3": "learning networks (policy learn --algorithm dqn)",
    "sb3_contrib": "learning networks (policy learn --algorithm ppo)",
    "torch": "autobatch.torch, learning networks, and reference models of tests",
    "tensorboard": "training curves (train --tensorboard)",
    "sacrebleu": "BLEU of translations",
    "conllu": "CoNLL-U files (readers)",
    "penman": "AMR files (readers)",
    "rdkit": "SMILES (readers)",
    "starlette": "HTTP server (serve)",
    "uvicorn": "HTTP server (serve)",
    "prometheus_client": "metrics of the server (serve)",
    "ray": "runs on several machines (--ray)",
    "jax": "comparison with JAX (bench --baselines)",
    "mkl": "matrix products, see doctor --matmul",
    "cupy": "GPUs, see cuda below",
}
TOLERANCE = 1e-10  # relative, in float64: batched and eager runs differ only in the order of sums


class Fault(Exception):
    """A failed check."""


class Finding(NamedTuple):
    """A line of the report."""

    state: str
    """ok, none (optional and not installed) or FAULT."""
    what: str
    detail: str


@click.command()
@click.option("--matmul", is_flag=True, help="Measure the libraries for matrix products instead.")
@click.option("--gpu", is_flag=True, help="Check the GPU instead, in a few minutes, and write a report.")
@click.option(
    "--out",
    type=FILE,
    default="autobatch-gpu.json",
    show_default=True,
    help="File for the report of --gpu.",
)
def doctor(matmul: bool, gpu: bool, out: Path) -> int:
    """Check the installation, and train a tiny model.

    Shows the versions of packages, the processor, BLAS, the compiler, and the result of a training step. The exit
    status is 1 if a check fails.

    With --matmul, measures the speed of matrix products with each installed library.

    With --gpu, compares results of the GPU with the CPU, trains on both, times products and launches, and writes the
    results to a file to attach to a bug report. The exit status is 69 without a GPU.

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
    click.echo(f"\nFailed: {', '.join(faults)}." if faults else "\nAll checks passed.")
    return 1 if faults else 0


def _check_gpu(out: Path) -> int:
    """Write a report on the GPU; return the exit status."""
    from autobatch.cli.gpu.short import report

    try:
        found = report(out)
    except BackendError as error:
        click.echo(f"autobatch: {error}", err=True)
        return UNAVAILABLE
    passed = "All completed checks passed, but time ran out" if found.notes else "All checks passed"
    click.echo(f"\nAttach {out} to your bug report." if found.failures else f"\n{passed}; results are in {out}.")
    return 1 if found.failures else 0


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "python", platform.python_version())
    for package in REQUIRED:
        found = package_version(package)
        yield Finding("ok" if found else "FAULT", package, found or f"not installed: pip install {package}")
    for package, use in OPTIONAL.items():
        version = package_version(package)  # MKL has a version, but is a library without a module
        there = importlib.util.find_spec(package) is not None or version is not None
        yield Finding("ok" if there else "none", package, f"{version or ''} {use}".strip())


def _hardware() -> Iterator[Finding]:
    yield Finding("ok", "processor", f"{cpu_name()}, {usable_cores()} usable cores")
    yield Finding("ok", "BLAS", f"{blas_name()}, threads: {threads_in_force()}")


def _gpu() -> Finding:
    """Return the device of the cuda backend, or the reason for having none, which is not a fault."""
    try:
        return Finding("ok", "cuda", find_device().name)
    except BackendError as error:
        return Finding("none", "cuda", str(error))


def _try(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", what, check())
    except Exception as error:  # report any error as a fault
        return Finding("FAULT", what, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _compile() -> str:
    """Compile and call a function; return a description of the cache."""
    from ctypes import CFUNCTYPE, c_int64

    from autobatch.compiler.llvm.machine import Loaded, compile_module, find_processor

    processor = find_processor()
    code = Loaded(compile_module(TWICE, processor), processor)
    if CFUNCTYPE(c_int64, c_int64)(code.address("twice"))(21) != 42:
        raise Fault("a compiled function returned a wrong result; reinstall llvmlite.")
    folder = cache_folder()
    if folder is None:
        return "works, but compiled cells are not cached: the cache is off"
    if not _can_write(folder):
        return f"works, but the cache {folder} is not writable, so each run compiles again; set AUTOBATCH_CACHE"
    return f"works, and caches compiled cells in {folder}"


def _can_write(folder: Path) -> bool:
    """Return whether a folder, which need not exist, can be written."""
    # The folder itself, or else the nearest one above that exists.
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _train_a_step() -> str:
    """Train a step, and compare batched with eager losses."""
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
    if not losses.mean() < before:  # NaN fails too
        raise Fault(f"a training step raised the loss from {before:.4f} to {losses.mean():.4f}; please report it.")
    return f"a training step lowers the loss; batched and eager losses differ by {difference:.0e}"
