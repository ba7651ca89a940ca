"""Question: what do requests wait, and how many are answered a second, when they arrive one by one?

Requests are instances of a model's own data; they arrive in a Poisson process, at shares of the capacity of the best
window, whatever has been answered by then. Ways to serve them, each by one thread beside the one that sends:

- server: `ab.serve`; server, agenda: the same with the heuristic of DyNet.
- windows: what has arrived within a window, at most `batch_size`, is one mini-batch; of several lengths the one with
  the lowest 99th percentile at each load. Length 0 takes what has arrived while the last mini-batch ran.
- one at a time: each request is a mini-batch.

Capacity is what a way answers a second when `n_full` requests are there at once.

    python experiments/serving.py models=tree-lstm dims=256 loads=0.5,0.8
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models import find_model
from digest import RUNTIME
from harness import find_data, run
from records import Findings, Settings

DATA_OF = {"tree-lstm": "sst", "lattice-lstm": "lattice", "seq2seq": "iwslt15", "early-exit": "sst"}
MODULES = (*RUNTIME, "autobatch.serving")
REPEATS = 4


@dataclass(frozen=True)
class Config(Settings):
    """What is served, and how."""

    models: tuple[str, ...] = ("tree-lstm", "lattice-lstm", "seq2seq", "early-exit")
    dims: tuple[int, ...] = (64, 256)
    loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.8, 1.0, 1.2)
    windows: tuple[float, ...] = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
    batch_size: int = 64
    n_full: int = 512
    seconds: float = 4.0
    """Of arrivals, for each way and load."""


class Windows:
    """Collects what arrives within a window, and runs it as one mini-batch."""

    def __init__(self, call: Callable[[list[Any]], list[Any]], window: float, batch_size: int) -> None:
        self._call, self._window, self._batch_size = call, window, batch_size
        self._queue: list[tuple[Any, Future[Any]]] = []
        self._changed, self._is_closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def submit(self, instance: Any) -> Future[Any]:
        """Give an instance; the future has its result."""
        future = Future[Any]()
        with self._changed:
            self._queue.append((instance, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """End, when all is done."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                if self._window:
                    self._changed.wait_for(lambda: len(self._queue) >= self._batch_size, self._window)
                taken, self._queue = self._queue[: self._batch_size], self._queue[self._batch_size :]
            for (_, future), result in zip(taken, self._call([x for x, _ in taken]), strict=True):
                future.set_result(result)


@dataclass(frozen=True)
class Load:
    """Instances that are to be served.

    Attributes:
        function: of one of them; call: of a mini-batch, to a list of results.
    """

    function: Callable[[Any], Any]
    call: Callable[[list[Any]], list[Any]]
    instances: list[Any]


def make_load(name: str, dim: int, config: Config) -> Load:
    """Build a model with its data, and its predictor batched."""
    rng = np.random.default_rng(config.seed)
    spec = find_model(name)
    dataset = spec.load(find_data(DATA_OF.get(name, name)) or spec.default_data, rng)
    model: Any = spec.build(dataset, dim, rng)
    model.eval()
    function = getattr(model, spec.predictor)
    batched = ab.batched(function, plan_cache=0, on_error="return")

    def call(instances: list[Any]) -> list[Any]:
        found = batched(instances)
        return [found] * len(instances)  # split by nothing: windows are given that for free

    instances = [spec.given(instance) for instance in dataset.items[: 4 * config.n_full]]
    return Load(function, call, instances)


def measure(config: Config) -> Iterator[Findings]:
    """Measure each model and width."""
    for name in config.models:
        for dim in config.dims:
            yield measure_load(f"{name}-{dim}", make_load(name, dim, config), config)


def measure_load(part: str, load: Load, config: Config) -> Findings:
    """Measure the capacities of all ways, then the latencies of each at each load."""
    servers: dict[str, Callable[[], Any]] = {
        "server": partial(ab.serve, load.function, max_running=2 * config.batch_size, max_waiting=10**9),
        "server, agenda": partial(
            ab.serve, load.function, policy="agenda", max_running=2 * config.batch_size, max_waiting=10**9
        ),
        **{f"window {window:g}": partial(Windows, load.call, window, config.batch_size) for window in config.windows},
        "one at a time": partial(Windows, load.call, 0.0, 1),
    }
    capacities, seconds = dict[str, float](), dict[str, list[float]]()
    for way in ("window 0", "server", "server, agenda", "one at a time"):
        n = config.n_full if way != "one at a time" else config.n_full // 8
        capacities[way] = find_capacity(servers[way], load.instances[:n])
    rows, figures = list[tuple[str, ...]](), dict[str, Any]()
    for share in config.loads:
        rate = share * capacities["window 0"]
        found = dict[str, tuple[float, float, float]]()
        for way, make in servers.items():
            if way == "one at a time" and rate > capacities[way]:
                continue  # its queue only grows
            latencies, answered = serve_poisson(make, load.instances, rate, config)
            seconds[f"{share}, {way}"] = latencies
            p50, p99 = np.percentile(latencies, (50, 99))
            found[way] = 1e3 * float(p50), 1e3 * float(p99), answered
        best = min((way for way in found if way.startswith("window")), key=lambda way: found[way][1])
        found = {"server": found["server"], "server, agenda": found["server, agenda"], best: found[best]} | {
            way: figure for way, figure in found.items() if way == "one at a time"
        }
        figures[f"{share:g}"] = {way: [round(x, 2) for x in figure] for way, figure in found.items()}
        for way, (p50, p99, answered) in found.items():
            rows.append((f"{share:g}", way, f"{rate:.0f}", f"{answered:.0f}", f"{p50:.1f}", f"{p99:.1f}"))
    table = format_table(("load", "way", "arrive/s", "answered/s", "p50, ms", "p99, ms"), rows)
    able = ", ".join(f"{way} {capacity:.0f}" for way, capacity in capacities.items())
    figures["capacities"] = {way: round(capacity, 1) for way, capacity in capacities.items()}
    return Findings(seconds, figures, f"{part}\n\n{table}\n\ncapacity, requests/s: {able}", part)


def find_capacity(make: Callable[[], Any], instances: list[Any]) -> float:
    """Requests that are answered a second, when all are there at once."""
    server, took = make(), []
    for _ in range(REPEATS):  # the first time warms up
        began = time.perf_counter()
        for future in [server.submit(instance) for instance in instances]:
            future.result()
        took.append(time.perf_counter() - began)
    server.close()
    return len(instances) / min(took)


def serve_poisson(
    make: Callable[[], Any], instances: list[Any], rate: float, config: Config
) -> tuple[list[float], float]:
    """Send requests in a Poisson process; give the seconds that each took, and how many were answered a second."""
    rng = np.random.default_rng(config.seed + 1)
    times = np.cumsum(rng.exponential(1 / rate, max(int(rate * config.seconds), 20))).tolist()
    server, ends, futures = make(), [0.0] * len(times), list[Future[Any]]()
    for instance in instances[: config.batch_size]:  # so that all is compiled, and memory is there
        futures.append(server.submit(instance))
    for future in futures:
        future.result()
    futures.clear()
    began = time.perf_counter()

    def note(number: int, future: Future[Any]) -> None:
        ends[number] = time.perf_counter() - began

    for number, at in enumerate(times):
        left = at - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)
        future = server.submit(instances[number % len(instances)])
        future.add_done_callback(partial(note, number))
        futures.append(future)
    for future in futures:
        future.result()
    server.close()
    return [end - at for end, at in zip(ends, times, strict=True)], len(times) / max(ends)


if __name__ == "__main__":
    run(Config(), measure, modules=MODULES)
