"""Read JSON lines, an instance per line, of any depth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autobatch.keywords import checked
from autobatch.readers.lines import Line, parse_lines
from autobatch.system.nested_json import parse_json

EXPECTED = "JSON, an instance per line"


@checked()
def read_jsonl(path: str | os.PathLike[str]) -> list[Any]:
    """Read a file of JSON lines, an instance per line; blank lines are skipped.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read, holds no instance, or a line is not JSON.
    """
    return parse_lines(Path(path), "instances", _parse, EXPECTED)


def _parse(line: Line) -> Any:
    try:
        return parse_json(line.text)
    except ValueError as error:
        raise line.fault("an instance", getattr(error, "pos", 0), EXPECTED) from error
