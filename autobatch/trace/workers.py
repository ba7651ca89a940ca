"""Record many instances in worker processes; each records some at a time, and sends them back as one graph.

Where possible, a worker is a fork of this process, which has the function and the instances already; elsewhere it is a
new process, which receives both. `portable` converts the graphs to the types of this process.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeAlias

from autobatch.arguments import check_int
from autobatch.errors import GraphError
from autobatch.graph.build import split_graph
from autobatch.graph.graph import Graph
from autobatch.trace.portable import dump_graphs
from autobatch.trace.record import Recorder

MOST_WORKERS = 2**15
PARTS = 4  # parts per worker, so that one with long instances does not delay the result

Function: TypeAlias = Callable[[Any], Any]


class _Work:
    """The recorder and the instances of a worker process."""

    recorder: Recorder
    instances: Sequence[Any]


def record_in_processes(recorder: Recorder, instances: Sequence[Any], n_workers: int) -> Iterator[Graph]:
    """Record instances in worker processes; yield their graphs in order.

    Raises:
        DataError: `n_workers` is not a positive int.
        GraphError: the function is async, or cannot be sent to a worker; graphs cannot be sent back; a worker died.
        As `Recorder.record`.
    """
    n_workers = check_int("workers of record_all", n_workers, at_least=1, below=MOST_WORKERS)
    if recorder.is_async:
        raise GraphError(
            f"workers must be 1 for an async function, whose instances run together, got {n_workers}; pass workers=1."
        )
    if multiprocessing.current_process().daemon:
        raise GraphError(
            f"workers must be 1 inside a worker process, which cannot start others, got {n_workers}; pass workers=1."
        )
    has_fork = can_fork()
    given = (recorder,) if has_fork else (recorder.function, recorder.module)
    size = max(-(-len(instances) // (n_workers * PARTS)), 1)
    parts = [slice(first, first + size) for first in range(0, len(instances), size)]
    context: Any = multiprocessing.get_context("fork" if has_fork else "spawn")
    pool = ProcessPoolExecutor(n_workers, context, _begin, (given, instances))
    try:
        for part, content in zip(parts, _contents(pool, parts, n_workers), strict=True):
            yield from _read(recorder, instances, part, content)
    finally:
        pool.shutdown(cancel_futures=True)


def _contents(pool: ProcessPoolExecutor, parts: Sequence[slice], n_workers: int) -> Iterator[bytes]:
    """Record parts in the processes of a pool; yield the pickled graph of each part."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads: the forks only record
            found = pool.map(_record, parts)
        yield from found
    except BrokenProcessPool as error:
        raise GraphError(f"workers={n_workers}: a worker process ended while it recorded ({error}).") from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise GraphError(
            f"workers={n_workers}: the function, its module or the instances cannot be sent to a new process "
            f"({error}); pass functions that can be found by their names, or workers=1."
        ) from error


def can_fork() -> bool:
    """Return whether a fork of this process can record; on macOS, system libraries may abort it."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def _read(recorder: Recorder, instances: Sequence[Any], part: slice, content: bytes) -> list[Graph]:
    """Return the graphs of a part, from the pickle of their merged graph; if that is empty, record them here."""
    if not content:
        # Record from the first instance on, so that errors give the right number.
        return split_graph(recorder.record(instances[: part.stop]))[part]
    (whole,) = recorder.arrived([pickle.loads(content)])
    graphs = split_graph(whole)
    # The worker numbered the instances of each part from 0.
    for position, graph in enumerate(graphs, part.start):
        graph.key = position
    return graphs


def _begin(given: tuple[Recorder] | tuple[Function, Any], instances: Sequence[Any]) -> None:
    _Work.recorder = given[0] if isinstance(given[0], Recorder) else Recorder(*given)
    _Work.instances = instances


def _record(part: slice) -> bytes:
    try:
        graph = _Work.recorder.record(_Work.instances[part])
    except Exception:  # raised again, with its traceback, where the caller records the same instances
        return b""
    return dump_graphs(graph)
