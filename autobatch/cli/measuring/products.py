"""`autobatch doctor --matmul`: the libraries for matrix products, and their speeds on this machine."""

from __future__ import annotations

import click

from autobatch.blas import Chooser, list_absent, list_providers, measure
from autobatch.blas.choosing import fastest, measure_bf16
from autobatch.blas.finding import faster_routines
from autobatch.blas.packed import NAME as PACKED
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.system.processor import has_amx, has_bf16

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
