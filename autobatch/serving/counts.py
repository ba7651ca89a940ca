"""Statistics of a server: requests and the parts of their latency, rounds, and the sizes of batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.graph.graph import Graph
from autobatch.plan.plan import Plan
from autobatch.schedule.schedule import Schedule
from autobatch.serving.running import Ended, Round
from autobatch.system.background import has_compiled

N_KEPT = 1000  # the number of last rounds and latencies that are kept
N_SHOWN = 120  # the number of rounds in a summary
MILLI = 1e3
SUMS = ("done", "failed", "cancelled", "waiting", "running")


class Latency(NamedTuple):
    """The latency of a request and its parts, in seconds.

    Attributes:
        seconds: the time from its arrival to its result.
        queued: the time until it began to run.
        own: the time in batches for its own nodes.
        others: the time in batches for nodes of other requests meanwhile.
        is_cold: whether kernels were being compiled meanwhile.
    """

    seconds: float
    queued: float
    own: float
    others: float
    is_cold: bool

    @property
    def rest(self) -> float:
        """Return the remaining seconds, for recording, planning and reading."""
        return self.seconds - self.queued - self.own - self.others


class RoundCounts(NamedTuple):
    """Statistics of a round.

    Attributes:
        n_programs: the number of programs whose nodes it ran.
        types, rows: the type and the number of nodes of each batch.
        seconds: the duration.
        kernels: the part of the duration in batches.
    """

    n_programs: int
    types: IntArray
    rows: IntArray
    seconds: float
    kernels: float

    @classmethod
    def of(cls, done: Round) -> Self:
        ends = [plan.schedule.batch_ptr for plan in done.plans]
        types = np.concatenate([plan.schedule.batch_type for plan in done.plans])
        rows = np.concatenate([ptr[1:] - ptr[:-1] for ptr in ends])
        return cls(done.n_programs, types, rows, done.seconds, done.kernels)


class Visit(NamedTuple):
    """A state of the scheduler (the ready types), and the batch that it chose there (its type and number of rows)."""

    ready: tuple[str, ...]
    ran: str
    rows: int


@dataclass
class Counts:
    """Counts of a server's requests, and its last rounds and latencies.

    Attributes:
        done, failed, cancelled: the numbers of requests that ended this way.
        waiting, running: the numbers of current requests.
        rounds: the last rounds.
        plans: the plans of the last round.
        latencies: the latencies of the last completed requests.
        names: the names of the types.
    """

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting: int = 0
    running: int = 0
    rounds: deque[RoundCounts] = field(default_factory=lambda: deque(maxlen=N_KEPT))
    latencies: deque[Latency] = field(default_factory=lambda: deque(maxlen=N_KEPT))
    plans: Sequence[Plan] = ()
    names: Sequence[str] = ()

    def add(self, done: Round) -> None:
        """Count a round."""
        self.rounds.append(RoundCounts.of(done))
        self.plans = done.plans

    def finish(self, arrived: float, begun: float, now: float, ended: Ended) -> None:
        """Count a completed request, from the times when it arrived, got a place and ended."""
        self.done += 1
        parts = (begun - arrived, ended.own, ended.others)
        self.latencies.append(Latency(now - arrived, *parts, has_compiled(arrived)))

    def copy(self, waiting: int, running: int, names: Sequence[str]) -> Counts:
        """Return a snapshot, which later requests do not change."""
        return replace(
            self, waiting=waiting, running=running, rounds=self.rounds.copy(), latencies=self.latencies.copy(),
            names=names,
        )  # fmt: skip

    def seconds_for(self, n: int) -> float:
        """Estimate the seconds for `n` requests, at the rate of the last ones; 1 before any is done."""
        busy = sum(done.seconds for done in self.rounds)
        return n * busy / len(self.latencies) if self.latencies else 1.0

    def batches(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of batches and nodes of each type in the last rounds, by name."""
        if not self.rounds:
            return {}
        types = np.concatenate([done.types for done in self.rounds])
        rows = np.concatenate([done.rows for done in self.rounds])
        n_batches, n_nodes = np.bincount(types), np.bincount(types, rows)
        return {self.names[t]: (int(n_batches[t]), int(n_nodes[t])) for t in np.flatnonzero(n_batches).tolist()}

    def visits(self) -> Iterator[Visit]:
        """Follow the scheduler through the last round."""
        for plan in self.plans:
            ready = ready_types(plan.graph, plan.schedule)
            sizes = np.diff(plan.schedule.batch_ptr).tolist()
            for k, (type_id, rows) in enumerate(zip(plan.schedule.batch_type.tolist(), sizes, strict=True)):
                here = tuple(self.names[t] for t in np.flatnonzero(ready[:, k]).tolist())
                yield Visit(here, self.names[type_id], rows)

    def figures(self) -> dict[str, Any]:
        """Return the input of `summarize`, as JSON values."""
        return {
            "done": self.done, "failed": self.failed, "cancelled": self.cancelled, "waiting": self.waiting,
            "running": self.running, "latencies": [[*one] for one in self.latencies],
            "rounds": [[r.n_programs, r.rows.size, int(r.rows.sum()), r.seconds, r.kernels] for r in self.rounds],
        }  # fmt: skip

    def gauges(self) -> dict[str, float]:
        """Return the gauges of the metrics: requests, and means of the last rounds."""
        n_batches = sum(one.rows.size for one in self.rounds)
        return {
            "waiting": self.waiting, "running": self.running,
            "rows": sum(int(one.rows.sum()) for one in self.rounds) / max(n_batches, 1),
            "round_s": sum(one.seconds for one in self.rounds) / (len(self.rounds) or 1),
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Summarize the figures, see `summarize`."""
        return summarize([self.figures()])

    def __str__(self) -> str:
        found = self.summary()
        shares = found["shares"]
        lines = [
            f"requests: {self.done} done, {self.failed} failed, {self.cancelled} cancelled, {self.running} running, "
            f"{self.waiting} waiting"
        ]
        cold = f"{found['cold']} answered during compilation, slowest {found['cold_ms']:.2f} ms"
        if found["warm"]:
            requests = "1 warm request" if found["warm"] == 1 else f"{found['warm']} warm requests"
            lines += [
                f"latency of {requests}: p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f} ms"
                + (f"; {cold}" if found["cold"] else ""),
                f"of that: {shares['queued']:.0%} queued, {shares['own']:.0%} own nodes, "
                f"{shares['others']:.0%} nodes of others, {shares['rest']:.0%} recording, planning and reading",
            ]
        elif found["cold"]:
            lines.append(f"latency: {cold}")
        if self.rounds:
            lines.append(
                f"last {found['rounds']} rounds: {found['requests']:.1f} requests, {found['batches']:.1f} batches of "
                f"{found['rows']:.1f} nodes, {found['round_ms']:.2f} ms, of which {found['kernels_ms']:.2f} in kernels"
            )
            lines += [
                f"  {name}: {n_batches} batches of {n_nodes / n_batches:.1f} nodes"
                for name, (n_batches, n_nodes) in self.batches().items()
            ]
        return "\n".join(lines)


def summarize(servers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize one server, or several together, from their `Counts.figures`.

    Returns:
        Counts, percentiles of latencies, the shares of the parts of latencies, and means of the last rounds, as JSON
        values; 0 without data. Latencies are those of the last `warm` requests; `cold` counts the others, which were
        answered while kernels were being compiled, and `cold_ms` is the longest of their latencies. `last` has, for the
        last rounds of the first server, the mean rows of a batch and the number of requests.
    """
    all_latencies = [Latency(*one) for found in servers for one in found["latencies"]]
    latencies = [one for one in all_latencies if not one.is_cold]
    cold_ms = [MILLI * one.seconds for one in all_latencies if one.is_cold]
    rounds = [one for found in servers for one in found["rounds"]]
    n_programs, n_batches, n_nodes, seconds, kernels = np.array(rounds, float).reshape(-1, 5).sum(axis=0).tolist()
    ms, total, n = [MILLI * one.seconds for one in latencies], sum(one.seconds for one in latencies), len(rounds) or 1
    # `quantiles` needs two numbers; a single one is every percentile.
    cuts = quantiles(ms, n=100, method="inclusive") if len(ms) > 1 else ms * 99 or [0.0] * 99
    parts = {
        "queued": sum(one.queued for one in latencies), "own": sum(one.own for one in latencies),
        "others": sum(one.others for one in latencies), "rest": sum(one.rest for one in latencies),
    }  # fmt: skip
    return {
        **{what: sum(found[what] for found in servers) for what in SUMS},
        "p50_ms": cuts[49], "p99_ms": cuts[98], "warm": len(ms),
        "cold": len(cold_ms), "cold_ms": max(cold_ms, default=0.0),
        "shares": {what: part / (total or 1.0) for what, part in parts.items()},
        "rounds": len(rounds), "requests": n_programs / n, "batches": n_batches / n,
        "rows": n_nodes / max(n_batches, 1), "round_ms": MILLI * seconds / n, "kernels_ms": MILLI * kernels / n,
        "last": [[one[2] / max(one[1], 1), one[0]] for one in servers[0]["rounds"][-N_SHOWN:]],
    }  # fmt: skip


def ready_types(graph: Graph, schedule: Schedule) -> NDArray[np.bool_]:
    """Return which types have ready nodes before each batch of a schedule: bool[number of types, number of batches]."""
    n_batches = schedule.n_batches
    runs_in = np.empty(graph.n_nodes, np.int64)
    runs_in[schedule.order] = np.repeat(np.arange(n_batches), np.diff(schedule.batch_ptr))
    ready_from = np.zeros(graph.n_nodes, np.int64)
    readers = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    np.maximum.at(ready_from, readers, runs_in[graph.edge_src] + 1)
    # A node is ready from the batch after the last one that it waits for, up to its own. Its type counts one more when
    # that begins and one less after it; the running sums are the numbers of ready nodes.
    change = np.zeros((len(graph.types.names), n_batches + 1), np.int64)
    np.add.at(change, (graph.type_id, ready_from), 1)
    np.subtract.at(change, (graph.type_id, runs_in + 1), 1)
    ready: NDArray[np.bool_] = change.cumsum(axis=1)[:, :-1] > 0
    return ready
