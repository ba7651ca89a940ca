"""Check that async programs run in rounds on the device as on the processor, and time the rounds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.workload import load_workload
from harness import medians, take_turns

SIZE, REPEATS = 64, 5
LEAST_EQUAL = 0.9  # share of equal translations; rounding decides between equally likely words


def decode_on_both(check: Check) -> Result:
    """Translate generated sentences greedily with an untrained model on both backends, and compare the words."""
    header = ("dim", "rounds", "nodes", "equal", "cpu ms a round", "cuda ms a round")
    result = Result("greedy decoding in rounds, seq2seq", header)
    check.measure_each(result, [(64,), (256,)], partial(decode, check, result))
    return result


def decode(check: Check, result: Result, dim: int) -> None:
    """Translate a mini-batch with a model of this width."""
    found, times = dict[str, list[Any]](), dict[str, float]()
    for name in ("cpu", "cuda"):
        workload = load_workload("seq2seq", None, check.choose(dim, 4), check.seed)
        model: Any = workload.model
        if name == "cuda":
            model.to(check.device)
        instances = [pair.source for pair in workload.up_to(check.choose(SIZE, 3))]
        translate = ab.batched(model.translate, backend=check.backend() if name == "cuda" else name)
        found[name] = translate(instances)
        times |= medians(take_turns({name: partial(translate, instances)}, check.choose(REPEATS, 1)))
        last = translate.last
    assert last is not None
    equal = float(np.mean([a == b for a, b in zip(*found.values(), strict=True)]))
    result.add(dim, last.rounds, last.nodes, equal, *(1e3 * t / max(last.rounds, 1) for t in times.values()))
    if equal < LEAST_EQUAL:
        result.failures.append(f"dim {dim}: {1 - equal:.0%} of the translations differ")
