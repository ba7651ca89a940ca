"""Run a function in several processes of `torch.distributed`, forked from the test's."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 120  # without an answer for so long, a process hangs


def run_processes(n: int, folder: Path, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Return the results of `function(rank, *given)` in n processes; for one that raises, the text of its error.

    For a process that dies, the result is its exit status.
    """
    context: Any = multiprocessing.get_context("fork")
    store = folder / f"store-{len(list(folder.iterdir()))}"
    found = []
    for rank in range(n):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(sending, rank, n, store, function, given), daemon=True)
        process.start()
        sending.close()
        found.append((process, receiving))
    results = []
    for process, receiving in found:
        assert receiving.poll(SECONDS), "a process hangs"
        try:
            results.append(receiving.recv())
        except EOFError:
            process.join(SECONDS)
            results.append(process.exitcode)
    return results


def _run(sending: Any, rank: int, n: int, store: Path, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    from torch import distributed

    try:
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        sending.send(function(rank, *given))
    except Exception as error:
        sending.send(f"{type(error).__name__}: {error}" if hasattr(error, "args") else traceback.format_exc())
    sending.close()
    os._exit(0)
