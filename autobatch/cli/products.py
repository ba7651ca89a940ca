"""`autobatch doctor --matmul`: the libraries that multiply matrices, and how fast each is here."""

from __future__ import annotations

import click

from autobatch.blas import Chooser, find_bf16, list_absent, list_providers, measure
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.errors import BackendError
from autobatch.processor import has_bf16

N_OUT, N_IN = 1280, 512  # the five gates of a binary Tree-LSTM of 256 on two children
ROWS = (4, 16, 64, 256)
KINDS = (("float32", "float32"), ("float64", "float64"), ("bf16", "uint16"))


def describe_providers() -> str:
    """Name those that are there, and what the processor multiplies, in a line."""
    found = ", ".join(f"{one.name} {one.version}" for one in list_providers())
    return f"{found}; the processor has {'' if has_bf16() else 'no '}bf16"


def show_speeds() -> None:
    """Measure every library on one thread, and print a table of GFLOP/s, what is absent, and what would be chosen."""
    providers = list_providers()
    with show_progress(len(KINDS) * len(ROWS)) as progress:
        speeds = {}
        for kind, dtype in KINDS:
            for n_rows in ROWS:
                speeds[kind, n_rows] = measure(providers, n_rows, N_OUT, N_IN, dtype)
                progress.advance("measuring", f"{kind}, {n_rows} rows")
    rows = [
        (one.name, one.version, kind, *(f"{speeds[kind, n_rows][one.name]:.0f}" for n_rows in ROWS))
        for kind, _ in KINDS
        for one in providers
        if one.name in speeds[kind, ROWS[0]]
    ]
    header = ("library", "version", "numbers", *(f"{n_rows} rows" for n_rows in ROWS))
    click.echo(f"GFLOP/s of rows of {N_IN} times a matrix ({N_IN}, {N_OUT}), one thread\n")
    click.echo(format_table(header, rows))
    click.echo()
    for name, why in list_absent().items():
        click.echo(f"Without {name}: {why}.")
    try:
        find_bf16()
    except BackendError as absent:
        click.echo(f"Without bf16: {absent}")
    chosen = Chooser().choose(ROWS[-1], N_OUT, N_IN)
    click.echo(f"Chosen for {ROWS[-1]} rows: {chosen.name}.")
