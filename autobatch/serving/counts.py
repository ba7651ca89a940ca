"""What a server did: requests, rounds, and how full batches were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles

from autobatch.serving.running import Round

N_KEPT = 1000  # rounds and latencies that are kept, the last ones


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

    def __str__(self) -> str:
        lines = [
            f"requests: {self.done} done, {self.failed} failed, {self.cancelled} cancelled, {self.running} running, "
            f"{self.waiting} waiting"
        ]
        if len(self.latencies) > 1:
            cuts = [1e3 * cut for cut in quantiles(self.latencies, n=100, method="inclusive")]
            lines.append(f"latency of the last {len(self.latencies)}: p50 {cuts[49]:.2f}, p99 {cuts[98]:.2f} ms")
        if self.rounds:
            n_batches, n_nodes = (sum(getattr(r, name) for r in self.rounds) for name in ("n_batches", "n_nodes"))
            lines.append(
                f"last {len(self.rounds)} rounds: {fmean(r.places for r in self.rounds):.1f} requests, "
                f"{n_batches / len(self.rounds):.1f} batches of {n_nodes / max(n_batches, 1):.1f} nodes, "
                f"{1e3 * fmean(r.seconds for r in self.rounds):.2f} ms, of which "
                f"{1e3 * fmean(r.kernels for r in self.rounds):.2f} in kernels"
            )
        return "\n".join(lines)
