"""Measure how close a fused kernel comes to memory bandwidth: many rows of a small cell, compared with a copy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.gpu.check import Check, Result
from harness import take_turns

WIDTHS = (256, 64, 1024, 128, 512)
ELEMENTS = 1 << 25  # of all rows: 128 MB, more than a cache holds
ROWS = 512  # of the recorded instance, which the mini-batch repeats
WORDS = 100
BLOCKS = (1, 2, 4)
"""Blocks of threads per processor: more blocks have more reads in flight, and fewer registers each."""


class Rows(ab.Module):
    """Reads rows of a table, computes one fused kernel on each, and sums the results."""

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.table = ab.Parameter(rng.standard_normal((WORDS, width)))
        self.a, self.b = (ab.Parameter(rng.standard_normal(width)) for _ in range(2))

    @ab.cell
    def read(self, word: Any) -> Any:
        """Read a row of the table."""
        return ab.lookup(self.table, word)

    @ab.cell
    def fused(self, x: Any) -> Any:
        """Run the timed kernel: read a row and write one."""
        return ab.tanh(self.a * x + self.b)

    @ab.cell
    def total(self, x: Any) -> Any:
        """Sum a row."""
        return ab.sum(x)

    def loss(self, words: Sequence[int]) -> Any:
        """Sum all rows."""
        return ab.sum_n([self.total(self.fused(self.read(word))) for word in words])


def time_kernels(check: Check) -> Result:
    """Time a fused kernel, a sum, and a copy of as many rows, each with its launch and the wait for it."""
    columns = (
        "width", "rows", "blocks", "copy GB/s", "tanh(a x + b) GB/s", "of the copy", "sum(x) GB/s", "of the copy, sum",
    )  # fmt: skip
    result = Result("bandwidth of fused kernels, bytes read and written", columns)
    widths, blocks = check.choose(WIDTHS, (8, 16)), check.choose(BLOCKS, BLOCKS[:2])
    settings = [(width, count) for width in widths for count in blocks]
    check.measure_each(result, settings, partial(time_width, check, result))
    return result


def time_width(check: Check, result: Result, width: int, blocks: int) -> None:
    """Time rows of a width, with a number of blocks per processor."""
    repeats, n_rows = check.choose((11, ELEMENTS // width), (1, 2 * ROWS))
    n_bytes = 4 * n_rows * width
    seconds = time_batches(check, width, n_rows, repeats, blocks) | {"copy": time_copy(check, n_rows * width, repeats)}
    result.seconds |= {f"width {width}, {blocks} blocks: {what}": timings for what, timings in seconds.items()}
    moved = {"copy": 2 * n_bytes, "fused": 2 * n_bytes, "total": n_bytes}
    copy, fused, total = (moved[what] / 1e9 / statistics.median(seconds[what]) for what in moved)
    result.add(width, n_rows, blocks, copy, fused, fused / copy, total, total / copy)


def time_copy(check: Check, size: int, repeats: int) -> list[float]:
    """Return the seconds of copies within the device."""
    device = check.device
    source, target = (device.empty(size, np.dtype(np.float32)) for _ in range(2))
    source[...] = 1.0
    return take_turns({"copy": check.waited(lambda: target.__setitem__(..., source))}, repeats)["copy"]


def time_batches(check: Check, width: int, n_rows: int, repeats: int, blocks: int) -> dict[str, list[float]]:
    """Return the seconds of each cell's batch, by the cell's name, from a profile, which uses the device's clock."""
    rng = np.random.default_rng(check.seed)
    model = Rows(width, rng).astype("float32")
    loss: Any = ab.batched(model.loss, backend=check.backend(blocks=blocks), policy="agenda")
    graphs = loss.record_all([rng.integers(WORDS, size=ROWS).tolist()]) * (n_rows // ROWS)
    loss(graphs)
    with loss.profile(n_calls=repeats) as profile:
        for _ in range(repeats):
            loss(graphs)
    names = loss.last.graph.types.names
    found: dict[str, list[float]] = {}
    for call in profile.calls:
        for batch in call.batches:
            found.setdefault(names[batch.type_id].rpartition(".")[2], []).append(batch.end - batch.start)
    return found
