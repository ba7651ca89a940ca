"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from autobatch.serving.counts import Counts
from autobatch.serving.workers import BUCKETS, SECONDS, SUM, Board


class Metrics(Collector):
    """The counts of instances by status and latency, and the gauges of all live workers."""

    def __init__(self) -> None:
        self._board, self._registry = Board.here(), CollectorRegistry()
        self._registry.register(self)
        self.count = self._board.count

    def show(self, counts: Counts) -> None:
        """Publish the current gauges of this worker."""
        self._board.show(counts.gauges())

    def write(self, counts: Counts) -> tuple[bytes, int, None, str]:
        """Return the arguments of the response: the text for all workers, the status, headers and media type."""
        self.show(counts)
        return generate_latest(self._registry), 200, None, CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        board = self._board
        instances = CounterMetricFamily("autobatch_instances", "Instances answered", labels=["status"])
        for status, n in board.statuses():
            instances.add_metric([str(status)], n)
        yield instances
        limits = [*map(str, SECONDS), "+Inf"]
        # Buckets of Prometheus count all values up to their limit.
        counted = accumulate(board.total(BUCKETS + k) for k in range(len(limits)))
        yield HistogramMetricFamily(
            "autobatch_instance_seconds", "Seconds from the request to the answer",
            buckets=[*zip(limits, counted, strict=True)], sum_value=board.total(SUM),
        )  # fmt: skip
        now = GaugeMetricFamily("autobatch_requests", "Requests now", labels=["state"])
        for state in ("waiting", "running"):
            now.add_metric([state], sum(board.gauges(state)))
        yield now
        yield GaugeMetricFamily("autobatch_batch_rows", "Mean rows of the last batches", max(board.gauges("rows")))
        yield GaugeMetricFamily(
            "autobatch_round_seconds", "Mean seconds of the last rounds", max(board.gauges("round_s"))
        )
