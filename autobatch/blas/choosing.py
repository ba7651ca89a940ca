"""Choose the fastest library for matrices of a size on this machine: measured once, kept in the user's cache.

Sizes are rounded to powers of two, at most 1024, so a few dozen measurements of some milliseconds serve all models.
A product uses one thread: several threads run different tiles. Measurements are valid for one processor and one set of
library versions. Those taken while a helper process compiles are unreliable, and are used by this process only. Without
a cache NumPy is used, because measurements, and with them results, could differ from run to run.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from autobatch._native import add_outer_bf16, multiply_packed, pack, repeat_product
from autobatch.blas.finding import find_versions, get_provider, list_providers
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import panel_words
from autobatch.blas.provider import Provider, describe_product
from autobatch.blas.threads import limit_threads
from autobatch.errors import BackendError
from autobatch.system.background import n_waiting
from autobatch.system.cache import cache_folder, find_entry, keep_entry
from autobatch.system.processor import cpu_name, has_amx, has_avx512, has_bf16

FORMAT = "autobatch matmul 7"
MAX_SIZE = 1024
BY_SIZE = "by size"  # the name of a chooser without a fixed provider
# Our own product is used if it reaches LEAST_SHARE of the highest speed, or a library would save less than LEAST_NS ns.
LEAST_SHARE, LEAST_NS = 0.9, 100.0
TIMING_S, TIMINGS = 1e-3, 5
FRESH_BYTES = 1 << 22  # total bytes of the operands used in turn: more than the private cache of a core
Table = dict[str, dict[str, float]]  # GFLOP/s by size, then by provider


class Chooser:
    """The choice of a provider for each size.

    Args:
        provider: the name of the only provider to use; None chooses by measurement, or numpy if there is no cache.

    Raises:
        BackendError: the provider is unknown or absent.

    >>> Chooser("numpy").choose(64, 320, 128).name
    'numpy'
    """

    def __init__(self, provider: str | None = None) -> None:
        if provider is None and cache_folder() is None:
            provider = "numpy"
        self._only = None if provider is None else get_provider(provider)
        self.name = BY_SIZE if self._only is None else self._only.name
        self._chosen: dict[str, Provider] = {}
        self._speeds: dict[str, float] = {}
        self._bf16: dict[str, bool] = {}

    def choose(
        self, m: int, n: int, k: int, dtype: str = "float32", a_flipped: bool = False, b_flipped: bool = False
    ) -> Provider:
        """Choose for products of (m, k) by (k, n), on one thread.

        Args:
            m, n, k: the sizes.
            dtype: "float32" or "float64".
            a_flipped, b_flipped: whether an operand is the transpose of rows in memory. If `a` is not, it is assumed to
                be rows of a batch, and `b` a matrix that all batches share: our own product packs `b` once per change.

        Cost: a few milliseconds per provider for a size that was never measured here, else less than a microsecond.
        """
        if self._only is not None:
            return self._only
        size = _name_size(m, n, k, dtype, a_flipped, b_flipped)
        if size not in self._chosen:
            self._chosen[size] = get_provider(self._fastest(size))
        return self._chosen[size]

    def prefers_bf16(self, m: int, n: int, k: int, a_flipped: bool = False) -> bool:
        """Return whether our own product of bf16 is faster than float32 on the rounded operands, on one thread.

        If the provider is fixed, so that speeds are not measured, the answer is whether the processor has bf16
        instructions.

        Args:
            m, n, k, a_flipped: see `choose`.

        Cost: see `choose`.
        """
        if not has_bf16() or self._only is not None:
            return has_bf16()
        size, wide = (_name_size(m, n, k, dtype, a_flipped, False) for dtype in ("bf16", "float32"))
        if size not in self._bf16:
            self._bf16[size] = self._table(size)[size][PACKED] > fastest(self._table(wide)[wide])[1]
        return self._bf16[size]

    def speed(self, m: int, n: int, k: int, dtype: str = "float32") -> float:
        """Look up the measured GFLOP/s, on one thread, of the provider chosen for products of (m, k) by (k, n).

        Cost: see `choose`; if there is only one provider, 10 ms for a size that was not asked for before.
        """
        size = _name_size(m, n, k, dtype, False, False)
        if size not in self._speeds:
            speeds = measure([self._only], *_read_size(size)) if self._only is not None else self._table(size)[size]
            self._speeds[size] = max(speeds.values())
        return self._speeds[size]

    def _fastest(self, size: str) -> str:
        m, n, k, *_ = _read_size(size)
        return prefer_own(self._table(size)[size], 2 * m * n * k)

    def _table(self, size: str) -> Table:
        """Read the stored table; measure a missing size, and store it unless a helper process compiles."""
        signature = _sign()
        table = find_entry("matmul", signature, _parse) or {}
        if size not in table:
            m, n, k, dtype, a_flipped, b_flipped = _read_size(size)
            if dtype == "bf16":
                measured = {PACKED: measure_bf16(m, n, k, a_flipped)}
            else:
                measured = measure(list_providers(), m, n, k, dtype, a_flipped, b_flipped)
            table = {**(find_entry("matmul", signature, _parse) or {}), size: measured}  # other processes write too
            if not n_waiting():
                keep_entry("matmul", signature, _described(table))
        return table


def fastest(speeds: Mapping[str, float]) -> tuple[str, float]:
    """Return the name with the highest speed, and the speed."""
    return max(speeds.items(), key=lambda item: item[1])


def prefer_own(speeds: Mapping[str, float], n_operations: int) -> str:
    """Return the name of our own product unless another saves more than 10% of its time, and at least `LEAST_NS`.

    A run that calls a library must limit its threads before the calls and restore them afterwards, which takes 5 µs.

    Args:
        speeds: the measured GFLOP/s by name.
        n_operations: the floating-point operations of one product.
    """
    name, speed = fastest(speeds)
    own = speeds.get(PACKED, 0.0)
    if own and (own >= LEAST_SHARE * speed or n_operations / own - n_operations / speed < LEAST_NS):
        return PACKED
    return name


def measure(
    providers: Sequence[Provider], m: int, n: int, k: int, dtype: str = "float32",
    a_flipped: bool = False, b_flipped: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Measure GFLOP/s of products of (m, k) by (k, n) on one thread, called from native code if possible.

    As in a training step, the rows of a batch are outside the nearest caches, and the shared matrix is inside.

    Args:
        providers: the providers to compare.
        m, n, k, dtype, a_flipped, b_flipped: see `Chooser.choose`.

    Returns:
        GFLOP/s by name, for the providers that multiply this dtype.

    Cost: about 10 ms per provider, or the time of eight products if that is longer.
    """
    rng = np.random.default_rng(0)
    # If `a` is flipped, the product is the gradient of a weight, and both operands are rows of a batch.
    n_copies = max(1, FRESH_BYTES // (np.dtype(dtype).itemsize * k * (m + n if a_flipped else m)))
    a = _draw(rng, (n_copies, m, k), dtype, a_flipped)
    b = _draw(rng, (n_copies if a_flipped else 1, k, n), dtype, b_flipped)
    out = np.zeros((m, n), dtype)
    product, copies = describe_product(a[0], b[0], out), (n_copies, a[0].nbytes, b[0].nbytes if a_flipped else 0)
    is_packed = dtype == "float32" and not a_flipped and any(one.name == PACKED for one in providers)
    panels = np.empty(panel_words(k, n, False) if is_packed else 0, np.uint32)
    if is_packed:
        pack(b[0], panels, False)

    def run(provider: Provider, times: int) -> float:
        began = perf_counter()
        if is_packed and provider.name == PACKED:
            multiply_packed(a, panels, out, False, False, times)
        elif dtype in provider.addresses:
            repeat_product(times, out.itemsize, provider.addresses[dtype], tuple(product), 0.0, copies)
        else:
            for time in range(times):
                provider.multiply(a[time % len(a)], b[time % len(b)], out)
        return perf_counter() - began

    # A library without an address is called from Python; our own product can only be called by address.
    able = [p for p in providers if dtype in p.addresses or p.name != PACKED]
    with limit_threads():
        seconds = _least_seconds({provider.name: partial(run, provider) for provider in able})
    return {name: round(2e-9 * m * n * k / least, 2) for name, least in seconds.items()}


def measure_bf16(m: int, n: int, k: int, a_flipped: bool = False) -> float:
    """Measure GFLOP/s of our own product of bf16 on one thread, rounding of `a` included.

    Args:
        m, n, k, a_flipped: see `measure`; if `a` is not flipped, the other operand is packed beforehand, untimed.

    Cost: about 10 ms, or the time of eight products if that is longer.
    """
    rng = np.random.default_rng(0)
    a, b = rng.random((k, m) if a_flipped else (m, k), np.float32), rng.random((k, n), np.float32)
    out, panels = np.zeros((m, n), np.float32), np.empty(panel_words(k, n, True), np.uint32)
    pack(b, panels, True)

    def run(times: int) -> float:
        began = perf_counter()
        if a_flipped:
            add_outer_bf16(a, b, out, times)
        else:
            multiply_packed(a[None], panels, out, True, False, times)
        return perf_counter() - began

    return round(2e-9 * m * n * k / _least_seconds({PACKED: run})[PACKED], 2)


def _least_seconds(runs: Mapping[str, Callable[[int], float]]) -> dict[str, float]:
    """Return the seconds per product in the fastest timing, by name.

    `runs` run a number of products and return the seconds. Timings of all names alternate, so that a disturbance
    affects all of them.
    """
    for run in runs.values():
        run(1)  # warm-up: lazy loading and compiling
    times = {name: max(1, int(TIMING_S / max(1e-7, min(run(1), run(1))))) for name, run in runs.items()}
    timings = [{name: run(times[name]) / times[name] for name, run in runs.items()} for _ in range(TIMINGS)]
    return {name: min(timing[name] for timing in timings) for name in runs}


def _draw(rng: np.random.Generator, shape: tuple[int, int, int], dtype: str, is_flipped: bool) -> Any:
    """Draw random matrices; if `is_flipped`, they are transposes of rows in memory."""
    if is_flipped:
        return _draw(rng, (shape[0], shape[2], shape[1]), dtype, False).swapaxes(1, 2)
    return rng.random(shape, np.dtype(dtype).type)


def _name_size(m: int, n: int, k: int, dtype: str, a_flipped: bool, b_flipped: bool) -> str:
    """Name a class of sizes: the key of its speeds in the table.

    >>> _name_size(100, 1280, 3, "float32", False, True)
    'float32 128 1024 4 NT'
    """
    sizes = (min(MAX_SIZE, 2 ** round(np.log2(max(1, size)))) for size in (m, n, k))
    return f"{dtype} {' '.join(map(str, sizes))} {'NT'[a_flipped]}{'NT'[b_flipped]}"


def _read_size(name: str) -> tuple[int, int, int, str, bool, bool]:
    """Read the arguments of `measure` from the name of a class of sizes."""
    dtype, m, n, k, flips = name.split()
    return int(m), int(n), int(k), dtype, flips[0] == "T", flips[1] == "T"


def _sign() -> str:
    """Return a hash of the processor and the libraries that speeds are valid for, including torch once it is loaded."""
    content = json.dumps([FORMAT, cpu_name(), has_avx512(), has_bf16(), has_amx(), find_versions(), sys.platform])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _described(table: Table) -> dict[str, Any]:
    return {"format": FORMAT, "cpu": cpu_name(), "versions": find_versions(), "gflops": table}


def _parse(content: Mapping[str, Any]) -> Table:
    """Convert the result of `_described` to a table."""
    table: Table = {
        size: {name: float(speed) for name, speed in speeds.items()} for size, speeds in content["gflops"].items()
    }
    if any(not speeds for speeds in table.values()):
        raise BackendError("a size has no speeds")
    return table
