"""Metrics of a server, as Prometheus reads them."""

from __future__ import annotations

import os

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from autobatch.serving.counts import Counts
from autobatch.serving.workers import SEVERAL

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counts instances by status, and how long they took; what a server says of itself is added when it is asked."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._instances = Counter("autobatch_instances", "Instances answered", ["status"], registry=registry)
        self._seconds = Histogram(
            "autobatch_instance_seconds", "Seconds from the request to the answer", buckets=SECONDS, registry=registry
        )
        self._now = Gauge(
            "autobatch_requests", "Requests now", ["state"], registry=registry, multiprocess_mode="livesum"
        )
        self._rows = Gauge(
            "autobatch_batch_rows", "Mean rows of the last batches", registry=registry, multiprocess_mode="livemax"
        )
        self._round = Gauge(
            "autobatch_round_seconds", "Mean seconds of the last rounds", registry=registry, multiprocess_mode="livemax"
        )

    def count(self, status: int, seconds: float) -> None:
        """Count an instance that was answered."""
        self._instances.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def write(self, counts: Counts) -> tuple[bytes, int, None, str]:
        """The text, of all processes, and of its answer the status, headers and type."""
        summary = counts.summary()
        for state in ("waiting", "running"):
            self._now.labels(state).set(summary[state])
        self._rows.set(summary["rows"])
        self._round.set(summary["round_ms"] / 1e3)
        registry = self._registry
        if SEVERAL in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), 200, None, CONTENT_TYPE_LATEST
