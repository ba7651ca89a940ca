"""Run many samples in child processes: an op that ends its process is a crash, and the next op runs nevertheless."""

from __future__ import annotations

import json
import os
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from torch_ops.samples import cases_of
from torch_ops.verdicts import Outcome, Verdict, judge

SECONDS = 60  # time limit of a sample


def run(
    ops: Sequence[str],
    runs: Sequence[str],
    limit: int | None = None,
    backend: str = "reference",
    explained: bool = False,
) -> Iterator[Outcome]:
    """Judge the samples of ops. Yield their outcomes.

    Args:
        ops: names in torch's table.
        runs: what runs the cells, see `abt.cell`.
        limit: most samples of each op; None for all.
        backend: the backend's name.
        explained: whether to ask `explain` what torch runs.
    """
    judge(next(cases_of("tanh")), runs[0], backend)  # imports and compiles what all processes need
    left = [(op, 0) for op in ops]
    before: tuple[str, int, str] | None = None
    while left:
        at = before or (left[0][0], 0, runs[0])
        is_done = False
        for said in _in_a_process(left, runs, limit, backend, explained):
            if "at" in said:
                at = said["at"]
            elif "done" in said:
                is_done = True
            else:
                yield Outcome(**{**said, "verdict": Verdict(said["verdict"]), "notes": tuple(said["notes"])})
        if is_done:
            return
        if at == before:
            raise RuntimeError(f"a process that runs samples of {at[0]} ends before it begins one.")
        op, number, way = before = at
        yield Outcome(op, number, way, Verdict.CRASH, "the process ends, or takes too long")
        places = [name for name, _ in left]
        left = [(op, number + 1), *left[places.index(op) + 1 :]]


def _in_a_process(left: Sequence[tuple[str, int]], *how: Any) -> Iterator[dict[str, Any]]:
    """Run the remaining samples in a child process. Yield its messages."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            with os.fdopen(writing, "w", buffering=1) as out:
                _work(out, left, *how)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as lines:
            yield from map(json.loads, lines)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(
    out: Any, left: Sequence[tuple[str, int]], runs: Sequence[str], limit: int | None, backend: str, explained: bool
) -> None:
    """Judge samples. Write a message before each, and its outcome."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns while it draws samples
    for op, first in left:
        for case in cases_of(op, limit):
            if case.number < first:
                continue
            for way in runs:
                print(json.dumps({"at": (op, case.number, way)}), file=out)
                signal.alarm(SECONDS)
                outcome = judge(case, way, backend, explained)
                signal.alarm(0)
                print(json.dumps(asdict(outcome)), file=out)
    print(json.dumps({"done": True}), file=out)
