"""Find the source lines of a program that record single ops outside cells, where each op is a node.

During recordings of `explain`, the methods that record single ops are replaced by ones that inspect the stack, and the
native core leaves operators and list functions to them. Other recordings have no overhead.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from autobatch.trace.calls import Calls

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
OF_USERS = os.path.join(HERE, "models") + os.sep  # models of this package count as user code
COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>|\.<locals>\.<genexpr>)+$")
STANDARD = sysconfig.get_path("stdlib") + os.sep
INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Line(NamedTuple):
    """A source line.

    Attributes:
        function: qualified name of the enclosing function.
        file: path, or a name such as "<stdin>".
        number: line number.
    """

    function: str
    file: str
    number: int


class LineReport(NamedTuple):
    """A source line that records single ops.

    Attributes:
        nodes: number of nodes recorded by the line, over all instances.
        ops: op names, most frequent first.
    """

    line: Line
    nodes: int
    ops: tuple[str, ...]


class Lines:
    """Counts of single-op nodes by source line."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Line, str]] = Counter()

    @contextmanager
    def noted(self, calls: Calls) -> Iterator[None]:
        """Count the single ops recorded in the block."""
        log, own = calls.log, vars(calls)

        def watch(record: Callable[..., Any]) -> Callable[..., Any]:
            def watched(what: Any, *args: Any) -> Any:
                before = len(log)
                made = record(what, *args)
                # Ops and functions have no such flag. Of the cells, only those that wrap a library function count.
                if len(log) > before and getattr(what, "is_single_op", True):
                    self._counts[_line_outside(), _name_of(what)] += 1
                return made

            return watched

        for name in ("apply", "apply_function", "call_cell"):
            # These attributes shadow the methods of the class, until they are deleted.
            own[name] = watch(getattr(calls, name))
        log.is_watched = True  # so that shortcuts of the core call Python, where they are counted
        try:
            yield
        finally:
            log.is_watched = False
            for name in ("apply", "apply_function", "call_cell"):
                del own[name]

    def report(self, n_instances: int) -> tuple[LineReport, ...]:
        """Return the lines that record single ops, most nodes first.

        Functions that record at most one op per instance are left out, because a cell would not save nodes.
        """
        by_line: dict[Line, Counter[str]] = defaultdict(Counter)
        by_function: Counter[tuple[str, str]] = Counter()
        for (line, op), n in self._counts.items():
            by_line[line][op] += n
            by_function[line.function, line.file] += n
        found = [
            LineReport(line, ops.total(), tuple(name for name, _ in ops.most_common()))
            for line, ops in by_line.items()
            if by_function[line.function, line.file] > n_instances
        ]
        return tuple(sorted(found, key=lambda report: -report.nodes))


def describe_lines(found: Sequence[LineReport], n_shown: int) -> Iterator[str]:
    """Yield lines of text: the functions and source lines that record single ops, and advice."""
    by_function: dict[tuple[str, str], list[LineReport]] = defaultdict(list)
    for report in found:
        by_function[report.line.function, report.line.file].append(report)
    groups = sorted(by_function.items(), key=lambda item: -sum(report.nodes for report in item[1]))
    for (function, file), reports in groups[:n_shown]:
        n = sum(report.nodes for report in reports)
        yield (
            f"{function} recorded {n} nodes of single ops outside of cells; put these lines into a cell, which is one "
            f"node per call:"
        )
        for report in sorted(reports, key=lambda report: report.line.number):
            yield f"  {os.path.basename(file)}:{report.line.number}: {report.nodes} nodes ({', '.join(report.ops)})"
    if len(groups) > n_shown:
        yield f"{len(groups) - n_shown} more functions record single ops"


def _name_of(what: Any) -> str:
    return str(getattr(what, "name", "") or getattr(what, "__name__", "op")).strip("_")


def _line_outside() -> Line:
    """Return the line of the innermost function outside libraries."""
    frame = sys._getframe(2)  # the caller of `watched`
    while frame.f_back is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return Line(COMPREHENSION.sub("", frame.f_code.co_qualname), frame.f_code.co_filename, frame.f_lineno)


@cache
def _is_of_library(file: str) -> bool:
    if file.startswith(HERE):
        return not file.startswith(OF_USERS)
    return file.startswith(("<frozen", STANDARD)) or any(name in file for name in INSTALLED)
