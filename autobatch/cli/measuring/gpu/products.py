"""Time the sweep's tiled matrix product against the library's, and launches and grid barriers."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np

from autobatch.cli.measuring.gpu.check import Check, Result
from autobatch.cli.measuring.gpu.sweeps import Product, Sizes, Sweeps, empty_steps
from autobatch.cli.measuring.racing import time_ways

ROWS, WIDTHS = (256, 16, 1024, 64, 4096, 16384), (256, 64, 1024)
OPERATIONS = 2e10  # per timing: a product is repeated up to this number of operations, and at most MOST times
MOST = 20
TOLERANCE = 2e-5


def time_products(check: Check) -> Result:
    """Time the sweep's and the library's product at all sizes; the former includes a barrier, the latter a launch."""
    columns = ("rows", "n", "inner", "sweep us", "library us", "sweep GFLOP/s", "library GFLOP/s", "sweep / library")
    result = Result("products of rows and a weight, in float32", columns)
    widths, rows = check.choose((WIDTHS, ROWS), ((9, 70), (5, 520)))
    sizes = [(n_rows, n, inner) for n, inner, n_rows in itertools.product(widths, widths, rows)]
    check.measure_each(result, sizes, partial(time_product, check, result))
    return result


def time_product(check: Check, result: Result, n_rows: int, n: int, inner: int) -> None:
    """Time a product in the sweep and in the library, in turn, and compare both results with float64."""
    sizes, repeats = Sizes(n_rows, n, inner), check.choose(9, 1)
    product = Product(check.device, sizes, np.random.default_rng(check.seed))
    times = check.choose(max(1, min(MOST, int(OPERATIONS // sizes.flops))), 2)
    sweeps = product.sweeps(times, repeats + 1)
    ways = {"sweep": check.waited(sweeps.launch), "library": check.waited(product.ask_library, times)}
    seconds = time_ways(ways, repeats)
    result.seconds |= {f"{sizes}, {times} times, {way}": timings for way, timings in seconds.items()}
    own, library = (statistics.median(timings) / times for timings in seconds.values())
    speeds = (sizes.flops / 1e9 / each for each in (own, library))
    result.add(*sizes, 1e6 * own, 1e6 * library, *speeds, own / library)
    for who, error in zip(ways, product.errors(), strict=True):
        if error > TOLERANCE:
            result.failures.append(f"the {who}'s product for {sizes} differs by {error:.2g} from float64")


def time_launches(check: Check) -> Result:
    """Time launches and grid barriers without other work."""
    result = Result("launches and barriers", ("what", "blocks", "microseconds"))
    n = check.device.n_processors
    blocks = sorted({1, min(8, n), n // 2, n})
    check.measure_each(result, [(some,) for some in blocks], partial(time_blocks, check, result))
    return result


def time_blocks(check: Check, result: Result, blocks: int) -> None:
    """Time launches and barriers of `blocks` blocks."""
    repeats, many = check.choose((21, 1000), (1, 4))
    device = check.device
    alone = Sweeps(device, empty_steps(1), blocks, repeats + 1)
    in_a_row = Sweeps(device, empty_steps(1), blocks, many * (repeats + 1))
    waiting = Sweeps(device, empty_steps(many + 1), blocks, repeats + 1)
    ways: dict[str, Callable[[], None]] = {
        "a launch, until it is done": check.waited(alone.launch),
        "a launch among many": check.waited(in_a_row.launch, many),
        "a barrier": check.waited(waiting.launch),
    }
    seconds = time_ways(ways, repeats)
    result.seconds |= {f"{what}, {blocks} blocks": timings for what, timings in seconds.items()}
    one, launches, barriers = map(statistics.median, seconds.values())
    for what, cost in zip(ways, (one, launches / many, (barriers - one) / many), strict=True):
        result.add(what, blocks, 1e6 * cost)
