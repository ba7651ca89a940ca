"""Count what a step of each model takes, whatever the machine: batches, launches, copied bytes, planned bytes.

To compare two versions of the code, compare the records that both write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autobatch.cli.results import format_table
from autobatch.cli.workload import load_workload
from autobatch.models import MODELS
from harness import run
from records import Findings, Settings

COUNTS = ("nodes", "batches", "launches", "copied_bytes", "planned_bytes")


@dataclass(frozen=True)
class Config(Settings):
    """Settings; the instances are the first ones of each model's own data."""

    dim: int = 64
    batch_size: int = 32
    policies: tuple[str, ...] = ("agenda", "score+both+compact")


def measure(config: Config) -> Findings:
    """Run a step of every model, forward only and with gradients, on both backends."""
    rows: list[tuple[Any, ...]] = []
    for model in MODELS:
        workload = load_workload(model, None, config.dim, config.seed)
        instances = workload.first(config.batch_size)
        for policy in config.policies:
            for backend in ("reference", "cpu"):
                loss = workload.batched("loss", policy, backend)
                for way, step in (("inference", loss), ("training", loss.value_and_grad)):
                    step(instances)
                    rows.append((model, policy, backend, way, *(getattr(loss.last, name) for name in COUNTS)))
    figures = {", ".join(row[:4]): dict(zip(COUNTS, row[4:], strict=True)) for row in rows}
    head = ("model", "policy", "backend", "way", *(name.replace("_", " ") for name in COUNTS))
    return Findings({}, figures, format_table(head, [tuple(map(str, row)) for row in rows]))


if __name__ == "__main__":
    run(Config(), measure)
