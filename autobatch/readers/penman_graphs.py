"""Read graphs in PENMAN notation, such as abstract meaning representations (AMR), with the library penman."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.readers.extra import import_parser
from autobatch.readers.lines import Line, check_found, read_lines

_WHAT, _EXAMPLE = "a graph", "graphs such as (w / want-01 :ARG0 (b / boy))"


@checked()
def read_penman(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read graphs in PENMAN notation, such as AMR, with the library penman (`pip install 'autobatch-nn[readers]'`).

    Args:
        path: the file; comments are skipped. Nesting is limited to a few hundred levels, because penman is recursive.

    Returns:
        A dict per graph, for `autobatch.fold(edges="edges")`. Its nodes are variables in order of appearance, the top
        first, then constants, such as the "-" of `:polarity -`; a variable that is used several times is one node.
        `concept` lists the concept or the constant of each node, `edges` pairs (child, parent), and `relation` the role
        of each edge, such as ":ARG0"; inverted roles are normalised.

    Raises:
        DataError: penman is not installed; the file cannot be read, holds no graph, or is malformed; a variable is
            defined twice, or an inverted role leads to a constant.
    """
    penman, file = import_parser("penman", "PENMAN graphs"), Path(path)
    model = import_parser("penman.models.amr", "PENMAN graphs").model  # knows that :consist-of is not an inverted role
    taken, read = _Taken(check_found(file, "graphs", list(read_lines(file, "graphs")), _EXAMPLE)), []
    try:
        with _silent():
            for graph in penman.iterdecode(iter(taken), model):
                if reason := _fault_of(graph, model):
                    raise DataError(f"cannot read the graph ending at {taken.line.place}: {reason}.")
                read.append(_to_instance(graph))
    except penman.DecodeError as error:
        line = taken.lines[error.lineno - 1] if error.lineno else taken.line
        raise line.fault(_WHAT, error.offset or 0, _EXAMPLE) from error
    except penman.PenmanError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"cannot read the graph ending at {taken.line.place}: {reason}.") from error
    except RecursionError as error:
        raise DataError(f"cannot read the graph around {taken.line.place}: it must be nested less deeply.") from error
    if not taken.is_done:
        raise DataError(f"cannot read {_WHAT} from {taken.line.place}: expected '(' to open a graph after a whole one.")
    return check_found(file, "graphs", read, _EXAMPLE)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop the messages of penman, which name no file; `_fault_of` reports the same errors."""
    logger = logging.getLogger("penman")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Taken:
    """Iterate over the texts of lines and keep the last line, because penman silently stops at text between graphs."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines, self.line, self.is_done = lines, lines[0], False

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.line = line
            yield line.text
        self.is_done = True


def _to_instance(graph: Any) -> dict[str, Any]:
    attributes = graph.attributes()
    number = {source: n for n, (source, _, _) in enumerate(graph.instances())}
    concepts = [_text(target) for _, _, target in graph.instances()]
    edges = [[number[target], number[source]] for source, _, target in graph.edges()]
    for source, _, target in attributes:
        edges.append([len(concepts), number[source]])
        concepts.append(_text(target))
    relations = [role for _, role, _ in [*graph.edges(), *attributes]]
    return {"concept": concepts, "edges": edges, "relation": relations}


def _fault_of(graph: Any, model: Any) -> str:
    """Describe the error in a graph that penman accepts; "" if there is none."""
    defined = set()
    for source, role, target in graph.triples:
        if target is None and role == ":instance":
            return f"variable {source!r} must have a concept"
        if target is None:
            return f"role {role!r} of {source!r} must have a target"
        if role == ":instance" and source in defined:
            return f"variable {source!r} must be defined once"
        if role == ":instance":
            defined.add(source)
        elif model.is_role_inverted(role):  # the role of a constant, or inverted twice
            return f"role {role!r} from {source!r} to {target!r} must be inverted once, between variables"
    return ""


def _text(constant: Any) -> str:
    """Return a concept or a constant without quotes."""
    text = str(constant)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
