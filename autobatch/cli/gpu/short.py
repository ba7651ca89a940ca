"""The short GPU check of `autobatch doctor --gpu`, which writes a report.

It runs in a separate process that sends the results of each section, so that the report keeps the earlier results if a
kernel hangs or crashes the process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.gpu.correctness import check_correctness, train_on_both
from autobatch.cli.gpu.products import time_launches, time_products
from autobatch.cli.machine import describe_machine
from autobatch.cli.results import format_table
from autobatch.devices.finding import find_device
from autobatch.errors import DataError
from autobatch.system.files import write_whole

FORMAT, VERSION = "autobatch gpu report", 1
MODELS = (
    "tree-lstm", "lattice-lstm", "tree-transformer", "molecule-forces", "lstm-nmt-attention", "mv-rnn", "graph-network",
    "dag-rnn",
)  # fmt: skip
"""Models that cover all kinds of kernels, the most different first."""
SECONDS = 240.0  # enough with empty caches, where most of the time is compilation
GRACE = 120.0  # seconds until a section counts as hanging: its last setting may still compile kernels
Section = Callable[[Check], Result]


def _correctness(check: Check) -> Result:
    return check_correctness(check, [(model, "auto", "float64", "reference") for model in MODELS])


def _launches(check: Check) -> Result:
    return time_launches(replace(check, quick=not check.is_gpu))


SECTIONS: dict[str, tuple[Section, float]] = {
    "correctness": (_correctness, 0.6),
    "training": (train_on_both, 0.2),
    "products": (time_products, 0.1),
    "launches": (_launches, 0.1),
}
"""The sections, each with its share of the time; unused time goes to later sections."""


class Found(NamedTuple):
    """The failures and the notes of a report, as sentences."""

    failures: list[str]
    notes: list[str]


def report(path: Path, seconds: float = SECONDS) -> Found:
    """Check the device, print the results and write them to a JSON file.

    Raises:
        BackendError: the device is missing or unusable.
        DataError: the file cannot be written.
    """
    find_device()
    if not os.access(path.absolute().parent, os.W_OK):
        raise DataError(f"cannot write {str(path)!r}: its folder does not exist or is not writable; give another.")
    found = list(run_apart(seconds))
    device = next((facts for facts in found if "device" in facts), {})
    sections = [facts for facts in found if "section" in facts]
    failures = [f"{facts['section']}: {failure}" for facts in sections for failure in facts["failures"]]
    content = {
        "format": FORMAT, "version": VERSION, "written": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": describe_machine(), **device, "sections": sections, "failures": failures,
    }  # fmt: skip
    try:
        write_whole(path, json.dumps(content, indent=1, allow_nan=False).encode())
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {error.strerror}; give another file.") from error
    print(_show(sections))
    return Found(failures, [note for facts in sections for note in facts["notes"]])


def run_sections(seconds: float) -> Iterator[dict[str, Any]]:
    """Run the sections; yield the facts of the device, then the results of each section."""
    check = Check(find_device(), quick=True, seed=0, deadline=time.perf_counter())
    yield check.describe()
    deadline, shares = time.perf_counter() + seconds, sum(share for _, share in SECTIONS.values())
    for name, (section, share) in SECTIONS.items():
        started = time.perf_counter()
        left = max(deadline - started, 0.0)
        result = _run(name, partial(section, replace(check, deadline=started + left * share / shares)))
        shares -= share
        yield {"section": name, **result.figures(), "seconds": round(time.perf_counter() - started, 1)}


def run_apart(
    seconds: float, run: Callable[[float], Iterator[dict[str, Any]]] = run_sections
) -> Iterator[dict[str, Any]]:
    """Run the sections in a separate process; yield their results."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_all, args=(theirs, run, seconds))
    process.start()
    theirs.close()  # so that the end of the process ends the pipe
    try:
        for number in range(1 + len(SECTIONS)):
            # The deadline is checked between settings only, so a hanging kernel is found by its silence.
            if not ours.poll(seconds + GRACE):
                yield _ended(number, "did not end")
                return
            yield ours.recv()
    except EOFError:
        process.join()
        yield _ended(number, f"ended the process, exit status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _send_all(connection: Connection, run: Callable[[float], Iterator[dict[str, Any]]], seconds: float) -> None:
    for facts in run(seconds):
        connection.send(facts)


def _run(name: str, section: Callable[[], Result]) -> Result:
    """Run a section; an error becomes a failure."""
    try:
        return section()
    except Exception as error:  # report any error as a failure
        traceback.print_exc()
        return Result(name, (), failures=[f"{type(error).__name__}: {' '.join(str(error).split())}"])


def _ended(number: int, how: str) -> dict[str, Any]:
    """Return the result of a section, or of the start, during which the process ended."""
    name = ["start", *SECTIONS][number]
    return {"section": name, "rows": [], "notes": [], "failures": [how], "seconds": None}


def _show(sections: list[dict[str, Any]]) -> str:
    rows = [
        (x["section"], "ok" if not x["failures"] else f"FAILED: {'; '.join(x['failures'])}", str(len(x["rows"])))
        for x in sections
    ]
    notes = [f"note: {note}" for x in sections for note in x["notes"]]
    return "\n".join([format_table(("section", "", "checks"), rows), *notes])
