"""Time the sweep's tiled matrix product against the library's, and launches and grid barriers.

The steps of the timed sweeps are written by hand, without a model: products, and empty steps.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cuda.binding import STEP, WAIT
from autobatch.backends.cuda.device_cell import THREADS, TILE_BYTES, count_product_tiles
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.racing import time_ways
from autobatch.compiler.cuda.source import MULTIPLY, module_text
from autobatch.devices.device import Device, DeviceGemm, Launch

REAL = np.dtype(np.float32)
NOTHING = -1  # a number that selects no function, so that a step only waits for the others


class Sweeps:
    """Repeated launches of the same steps, with a barrier after each step.

    The counter of a barrier can be used only once, so each launch has its own copy of the steps.

    Args:
        steps: array of `STEP`, (n,).
        blocks: blocks per launch.
        launches: largest number of launches.
    """

    def __init__(self, device: Device, steps: NDArray[Any], blocks: int, launches: int) -> None:
        source = module_text({}, REAL.name, "int32")
        self._device, self._kernel = device, device.load(source, ["sweep"], "steps that are timed")["sweep"]
        self._steps, self._n = device.put(np.tile(steps, launches).view(np.int64)), len(steps)
        self._blocks, self._ran = blocks, 0

    def launch(self) -> None:
        first = self._ran * self._n
        self._ran += 1
        args = self._device.address(self._steps), first, first + self._n
        self._device.launch(self._kernel, Launch(self._blocks, THREADS, TILE_BYTES, args))


def empty_steps(n: int) -> NDArray[Any]:
    """Make steps that only wait for all blocks."""
    steps = np.zeros(n, STEP)
    steps["function"], steps["then"] = NOTHING, WAIT
    return steps


class Sizes(NamedTuple):
    """Sizes of a product: rows [n_rows, inner] times the transpose of a weight [n, inner], as in `ab.Linear`."""

    n_rows: int
    n: int
    inner: int

    @property
    def flops(self) -> int:
        """Return the number of multiplications and additions."""
        return 2 * self.n_rows * self.n * self.inner


class Product:
    """A product that both the sweep and a library compute, each to its own array."""

    def __init__(self, device: Device, sizes: Sizes, rng: np.random.Generator) -> None:
        n_rows, n, inner = sizes
        self.device, self.sizes = device, sizes
        self.rows, self.weight = (rng.standard_normal(shape).astype(REAL) for shape in ((n_rows, inner), (n, inner)))
        self._held = [device.put(array) for array in (self.rows, self.weight)]
        self._outs = [device.empty(n_rows * n, REAL) for _ in range(2)]
        a, b, own, library = map(device.address, (*self._held, *self._outs))
        self._library = DeviceGemm(REAL, "float32", n_rows, n, inner, a, inner, b, inner, True, library, n, False)
        # The operands as `rows_by_matrix` in `compiler/cuda/sweep.cuh` reads them: one tile (number of rows, first
        # elements of a and of the result), the slots, of which the last is the row stride of b, and the descriptor.
        self._table = device.put(np.array([n_rows, 0, 0], np.int64))
        self._slots = device.put(np.array([device.address(self._table), a, b, own, inner], np.int64))
        self._descriptor = device.put(np.array([0, 1, 2, 3, 0, 1, 0, inner, 2, 0, n, 4, n, inner, 1, 3], np.int64))

    def sweeps(self, times: int, launches: int) -> Sweeps:
        """Make launches that each compute the product `times` times."""
        slots, descriptor = self.device.address(self._slots), self.device.address(self._descriptor)
        steps = np.array([(MULTIPLY, slots, descriptor, 0, THREADS, WAIT, 0, 0)] * times, STEP)
        n_rows, n, _ = self.sizes
        return Sweeps(self.device, steps, min(count_product_tiles(n_rows, n), self.device.n_processors), launches)

    def ask_library(self) -> None:
        self.device.multiply(self._library)

    def errors(self) -> tuple[float, float]:
        """Compute the errors of the sweep's and the library's first and last rows, relative to the largest number."""
        some = np.unique(np.r_[: min(16, len(self.rows)), max(len(self.rows) - 16, 0) : len(self.rows)])
        expected = self.rows[some].astype(np.float64) @ self.weight.astype(np.float64).T
        own, library = (self._error(out, some, expected) for out in self._outs)
        return own, library

    def _error(self, out: Any, some: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
        found = self.device.get(out).reshape(self.sizes.n_rows, self.sizes.n)[some]
        return float(np.nan_to_num(np.abs(found - expected).max() / np.abs(expected).max(), nan=np.inf))


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
    # A launch of many + 1 steps costs as much as one of a single step, plus many barriers.
    one, launches, barriers = map(statistics.median, seconds.values())
    for what, cost in zip(ways, (one, launches / many, (barriers - one) / many), strict=True):
        result.add(what, blocks, 1e6 * cost)
