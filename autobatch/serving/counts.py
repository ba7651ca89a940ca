"""What a server did: requests, rounds, and how full batches were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

from autobatch.serving.running import Round

N_KEPT = 1000  # rounds and latencies that are kept, the last ones
N_SHOWN = 120  # rounds of a summary


@dataclass
class Counts:
    """Counts of a server, and the last rounds and latencies.

    Attributes:
        done, failed, cancelled: requests.
        waiting, running: requests now.
        rounds: the last ones.
        latencies: of the last requests that were done, in seconds.
    """

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting: int = 0
    running: int = 0
    rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=N_KEPT))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=N_KEPT))

    def finish(self, latency: float) -> None:
        """Count a request that is done."""
        self.done += 1
        self.latencies.append(latency)

    def copy(self, waiting: int, running: int) -> Counts:
        """The counts as they are now."""
        return replace(
            self, waiting=waiting, running=running, rounds=self.rounds.copy(), latencies=self.latencies.copy()
        )

    def seconds_for(self, n: int) -> float:
        """How long so many requests take, at the rate of the last ones."""
        busy = sum(done.seconds for done in self.rounds)
        return n * busy / len(self.latencies) if self.latencies else 1.0

    def summary(self) -> dict[str, Any]:
        """The figures as JSON holds them: counts, percentiles of latencies, means of the last rounds; 0 without any."""
        rounds, latencies = [*self.rounds], [1e3 * x for x in self.latencies]
        n = max(len(rounds), 1)
        n_batches, n_nodes = sum(r.n_batches for r in rounds), sum(r.n_nodes for r in rounds)
        cuts = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99 or [0.0] * 99
        return {
            "done": self.done, "failed": self.failed, "cancelled": self.cancelled, "waiting": self.waiting,
            "running": self.running, "p50_ms": cuts[49], "p99_ms": cuts[98], "rounds": len(rounds),
            "requests": sum(r.places for r in rounds) / n, "batches": n_batches / n,
            "rows": n_nodes / max(n_batches, 1), "round_ms": 1e3 * sum(r.seconds for r in rounds) / n,
            "kernels_ms": 1e3 * sum(r.kernels for r in rounds) / n,
            "last": [[r.n_nodes / max(r.n_batches, 1), r.places] for r in rounds[-N_SHOWN:]],
        }  # fmt: skip

    def __str__(self) -> str:
        found = self.summary()
        lines = [
            f"requests: {self.done} done, {self.failed} failed, {self.cancelled} cancelled, {self.running} running, "
            f"{self.waiting} waiting"
        ]
        if self.latencies:
            lines.append(
                f"latency of the last {len(self.latencies)}: p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f} ms"
            )
        if self.rounds:
            lines.append(
                f"last {found['rounds']} rounds: {found['requests']:.1f} requests, {found['batches']:.1f} batches of "
                f"{found['rows']:.1f} nodes, {found['round_ms']:.2f} ms, of which {found['kernels_ms']:.2f} in kernels"
            )
        return "\n".join(lines)
