"""Claim 9: requests that arrive one by one share batches, and leave as soon as they are done.

Requests are instances of a model's own data. Ways to serve them, each with one thread beside the sender's:

- server: `ab.serve`; agenda: the same with the heuristic of DyNet.
- window: requests that arrive within a window, at most `batch_size`, are one mini-batch of `ab.batched`. At each load,
  the length with the lowest 99th percentile is used. Length 0 takes what has arrived while the last mini-batch ran.
- one at a time: each request is a mini-batch; PyTorch, one at a time: a PyTorch model answers each.

Capacity is the throughput when `n_full` requests arrive at once. In the open loop, requests arrive in a Poisson
process, at fractions of the capacity of window 0, whether or not earlier ones have been answered. In the closed loop, a
number of clients each send a request when their last one has been answered.

    python experiments/serving.py only=tree-lstm-256 loads=0.5,0.8
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.policies.rules.rules import with_origin
from autobatch.system.background import wait_for_all
from charts import COLORS, EACH, OURS, THEIRS, entitle, legend_below, panels, use_log
from claims import Claim, Records, in_list, run_claim
from digest import RUNTIME
from harness import find_data
from records import Findings, Settings
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA_OF = {"tree-lstm": "sst", "lattice-lstm": "lattice", "seq2seq": "iwslt15", "early-exit": "sst"}
WIDTHS = (64, 256)
PARTS = tuple(f"{model}-{dim}" for model in DATA_OF for dim in WIDTHS)
MODULES = (*RUNTIME, "autobatch.serving")
SERVER, AGENDA, WINDOW, GREEDY = "server", "agenda", "window", "window 0"
ALONE, TORCH = "one at a time", "PyTorch, one at a time"
REPEATS = 4
Taken = tuple[list[float], float]
"""Latencies in seconds, and answers per second."""
PERCENTS = (50, 99)
COLUMNS = [*itertools.product(("0.5", "0.8"), PERCENTS, (WINDOW, SERVER))]
LATENCIES = ("p50, ms", "p99, ms", "answered/s")


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the requests' arrival."""

    loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.8, 1.0, 1.2)
    clients: tuple[int, ...] = (1, 8, 64)
    windows: tuple[float, ...] = (0.0, 0.003, 0.01, 0.03)
    batch_size: int = 64
    n_full: int = 512
    turns: int = 3
    """Number of turns of each server at each load."""
    seconds: float = 1.5
    """Duration of each turn."""


class Windows:
    """A server that collects what arrives within a window, and runs it as one mini-batch."""

    def __init__(self, call: Callable[[list[Any]], object], window: float, batch_size: int) -> None:
        self._call, self._window, self._batch_size = call, window, batch_size
        self._queue: deque[tuple[Any, Future[Any]]] = deque()
        self._changed, self._is_closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def submit(self, instance: Any) -> Future[Any]:
        """Queue an instance; the future is set when its mini-batch has run."""
        future = Future[Any]()
        with self._changed:
            self._queue.append((instance, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Stop when all requests are done."""
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
                taken = [self._queue.popleft() for _ in range(min(self._batch_size, len(self._queue)))]
            self._call([instance for instance, _ in taken])
            for _, future in taken:  # the time to split the results is not counted
                future.set_result(None)


@dataclass(frozen=True)
class Load:
    """Requests, and the servers to compare: each value makes an object with `submit` and `close`."""

    instances: Sequence[Any]
    ways: Mapping[str, Callable[[], Any]]


def make_load(part: str, config: Config) -> Load:
    """Build a model with its data, and all servers."""
    import torch

    from baselines.alone import make_predictor

    torch.set_num_threads(config.threads)
    name, _, dim = part.rpartition("-")
    workload = load_workload(name, find_data(DATA_OF[name]), int(dim), config.seed)
    spec, model = workload.spec, workload.model
    model.eval()
    function, in_torch = getattr(model, spec.predictor), make_predictor(workload)
    call = ab.batched(function, plan_cache=0)
    serve = partial(ab.serve, function, max_running=2 * config.batch_size, max_waiting=10**9)
    ways: dict[str, Callable[[], Any]] = {
        SERVER: serve,
        AGENDA: partial(serve, policy="agenda"),
        **{f"{WINDOW} {length:g}": partial(Windows, call, length, config.batch_size) for length in config.windows},
        ALONE: partial(Windows, call, 0.0, 1),
        TORCH: partial(Windows, lambda instances: [in_torch(x) for x in instances], 0.0, 1),
    }
    return Load([spec.given(instance) for instance in workload.dataset.items[: 4 * config.n_full]], ways)


def measure(config: Config, part: str) -> Findings:
    """Measure the capacity of all servers, then latencies; the servers take turns at each load."""
    load = make_load(part, config)
    servers = {way: make() for way, make in load.ways.items()}
    capacities = {
        way: find_capacity(server, load.instances[: config.n_full // 8 if way in (ALONE, TORCH) else config.n_full])
        for way, server in servers.items()
        if way == GREEDY or not way.startswith(WINDOW)
    }
    wait_for_all()  # so that no request of the loops below waits for compilation
    gc.collect()
    gc.freeze()  # as in `autobatch serve`
    seconds = dict[str, list[float]]()
    figures: dict[str, Any] = {"capacities": capacities, "open": {}, "closed": {}}
    for share in config.loads:
        rate = share * capacities[GREEDY]
        times = draw_arrivals(rate, config)
        able = {
            way: partial(send_at, server, load.instances, times)
            for way, server in servers.items()
            if way not in (ALONE, TORCH) or rate < capacities[way]  # otherwise their queue only grows
        }
        taken = take_turns(able, config.turns)
        seconds |= {f"load {share:g}, {way}": thin(turns) for way, turns in taken.items()}
        figures["open"][f"{share:g}"] = {"arrive": rate, **summarize(taken)}
    for n_clients in config.clients:
        able = {
            way: partial(send_after_answers, server, load.instances, n_clients, config.seconds)
            for way, server in servers.items()
        }
        taken = take_turns(able, config.turns)
        seconds |= {f"{n_clients} clients, {way}": thin(turns) for way, turns in taken.items()}
        figures["closed"][str(n_clients)] = summarize(taken)
    for server in servers.values():
        server.close()
    gc.unfreeze()
    return Findings(seconds, figures, "\n\n".join(table.text() for table in tables_of(part, figures)))


def take_turns(ways: Mapping[str, Callable[[], Taken]], turns: int) -> dict[str, list[Taken]]:
    """Let servers answer requests in turn. Return the latencies and the rate of each turn."""
    taken: dict[str, list[Taken]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, send in ways.items():
            taken[way].append(send())
    return taken


def thin(turns: Sequence[Taken]) -> list[float]:
    """Return the quantiles of all latencies in steps of 1%, from least to most; all latencies would take megabytes."""
    latencies = np.concatenate([latencies for latencies, _ in turns])
    quantiles: list[float] = np.quantile(latencies, np.linspace(0, 1, 101)).tolist()
    return quantiles


def summarize(taken: Mapping[str, Sequence[Taken]]) -> dict[str, Any]:
    """Return the median over turns of latency percentiles in ms and answers per second; for windows, of the best one.

    A pause of the machine of 0.1 s affects 1% of the requests of a turn, but few turns.
    """
    found = {
        way: np.median([[*(1e3 * np.percentile(one, PERCENTS)), answered] for one, answered in turns], axis=0).tolist()
        for way, turns in taken.items()
    }
    windows = [way for way in found if way.startswith(WINDOW)]
    best = min(windows, key=lambda way: found[way][1])
    others = {way: one for way, one in found.items() if way not in windows}
    return {"length": float(best.split()[-1]), "ways": {WINDOW: found[best], **others}}


def find_capacity(server: Any, instances: Sequence[Any]) -> float:
    """Return the requests answered per second when all arrive at once."""
    took = list[float]()
    for _ in range(REPEATS):  # the first time warms up
        began = time.perf_counter()
        for future in [server.submit(instance) for instance in instances]:
            future.result()
        took.append(time.perf_counter() - began)
    return len(instances) / min(took)


def draw_arrivals(rate: float, config: Config) -> list[float]:
    """Draw times of arrival in a Poisson process, in seconds."""
    rng = np.random.default_rng(config.seed + 1)
    times: list[float] = np.cumsum(rng.exponential(1 / rate, max(int(rate * config.seconds), 20))).tolist()
    return times


def send_at(server: Any, instances: Sequence[Any], times: Sequence[float]) -> Taken:
    """Send requests at given times. Return the latency of each in seconds, and the answers per second."""
    ends, futures, began = [0.0] * len(times), list[Future[Any]](), time.perf_counter()

    def note(number: int, future: Future[Any]) -> None:
        ends[number] = time.perf_counter() - began

    for number, (at, instance) in enumerate(zip(times, itertools.cycle(instances), strict=False)):
        left = at - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)
        future = server.submit(instance)
        future.add_done_callback(partial(note, number))
        futures.append(future)
    for future in futures:
        future.result()
    return [end - at for end, at in zip(ends, times, strict=True)], len(times) / max(ends)


def send_after_answers(server: Any, instances: Sequence[Any], n_clients: int, seconds: float) -> Taken:
    """Let clients send one request after the other for some time. Return latencies in seconds, and the rate."""
    taken, began = list[float](), time.perf_counter()

    def be_client(own: Sequence[Any]) -> None:
        for instance in itertools.cycle(own):
            sent = time.perf_counter()
            if sent - began > seconds:
                return
            server.submit(instance).result()
            taken.append(time.perf_counter() - sent)

    clients = [threading.Thread(target=be_client, args=(instances[k::n_clients],)) for k in range(n_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return taken, len(taken) / (time.perf_counter() - began)


def tables_of(part: str, figures: Any) -> list[Table]:
    """Show the capacities, then each load and server."""
    capacities = [(way, f"{rate:,.0f}") for way, rate in figures["capacities"].items()]
    shown = [Table(f"{part}: capacity", ("way", "requests/s"), capacities)]
    for loop, what in (("open", "load"), ("closed", "clients")):
        rows = [
            (
                load, f"{way} {1e3 * found['length']:g} ms" if way == WINDOW else way, f"{p50:.1f}", f"{p99:.1f}",
                f"{answered:,.0f}",
            )
            for load, found in figures[loop].items()
            for way, (p50, p99, answered) in found["ways"].items()
        ]  # fmt: skip
        shown.append(Table(f"{part}: {loop} loop", (what, "way", *LATENCIES), rows))
    return shown


def tabulate(records: Records) -> list[Table]:
    """Show all parts."""
    return [table for part, record in records.items() for table in tables_of(part, record.figures)]


def tabulate_some(records: Records) -> Table:
    """Show capacities, and latencies at 50% and 80% of the windows' capacity."""
    header = ["", "requests/s: server", "windows", "one at a time", "PyTorch, one at a time"]
    header += [f"p{percent} at {load}, {way}" for load, percent, way in COLUMNS]
    rows = []
    for part, record in records.items():
        able, loads = record.figures["capacities"], record.figures["open"]
        row = [part, *(f"{able[way]:,.0f}" for way in (SERVER, GREEDY, ALONE, TORCH))]
        row += [f"{loads[load]['ways'][way][PERCENTS.index(percent)]:.0f} ms" for load, percent, way in COLUMNS]
        rows.append(row)
    return Table("", header, rows)


def draw(records: Records, figure: Figure) -> None:
    """Draw the 99th percentile by throughput, in the open loop, with a panel for each model and width."""
    axes = panels(figure, -(-len(records) // 2), 2 if len(records) > 1 else 1, 2.2)
    colors = {SERVER: OURS, WINDOW: THEIRS, AGENDA: COLORS[2], ALONE: COLORS[4], TORCH: EACH}
    for ax, (part, record) in zip(axes, records.items(), strict=False):
        for way, color in colors.items():
            points = [one["ways"][way] for one in record.figures["open"].values() if way in one["ways"]]
            ax.plot([one[2] for one in points], [one[1] for one in points], "o-", color=color, label=with_origin(way))
        use_log(ax, "y")
        ax.set(title=part, xlabel="throughput (requests/s)", ylabel="latency of warm requests,\n99th percentile (ms)")
    for ax in axes[len(records) :]:
        ax.set_visible(False)
    legend_below(figure, axes[0], 5)
    entitle(figure, see(records))


def see(records: Records) -> str:
    """State how the server compares with windows."""
    figures = [record.figures for record in records.values()]
    capacity = [found["capacities"][SERVER] / found["capacities"][GREEDY] for found in figures]
    latency = {
        load: [found["open"][load]["ways"][SERVER][1] / found["open"][load]["ways"][WINDOW][1] for found in figures]
        for load in figures[0]["open"]
        if float(load) < 1
    }
    shares = [f"{min(some):.2f} to {max(some):.2f} at {load}" for load, some in latency.items()]
    return (
        f"Compared with tuned windows: capacity times {min(capacity):.2f} to {max(capacity):.2f}; p99 latency times "
        f"{in_list(shares)} of that capacity."
    )


CLAIM = Claim(
    name="serving",
    heading="Requests that arrive one by one share batches, and leave when they are done",
    claimed=(
        "A server runs the programs of requests as one growing graph; they join and leave between two of its rounds. "
        "It is compared with mini-batches of the requests that arrive within a window, whose length is tuned for each "
        "load, and with one request at a time. Latency percentiles are those of requests in a Poisson process (open "
        "loop, at shares of the capacity of window 0), and of clients that wait for their answers (closed loop)."
    ),
    settings=Config(),
    quick=Config(loads=(0.5,), clients=(8,), windows=(0.0, 0.01), n_full=64, turns=1, seconds=0.5),
    parts=PARTS,
    quick_parts=("tree-lstm-64",),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=MODULES,
    needs=("torch",),
)

if __name__ == "__main__":
    run_claim(CLAIM)
