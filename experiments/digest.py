"""Digest the code that a record measures: the digest changes with the code, but not with its documentation.

A record names modules by prefix: `autobatch.schedule` means that folder and everything in it. Comments, docstrings,
blank lines and line breaks are not part of the digest. Folders named `cuda` are included only if a prefix names one,
because nothing that runs on a processor depends on them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

STRUCTURE = ("autobatch.graph", "autobatch.schedule", "autobatch.policies", "autobatch.models.shapes")
"""Modules that decide which nodes run together."""
RUNTIME = tuple(
    f"autobatch.{station}"
    for station in (
        "api", "engine", "policies", "memplan", "backends", "compiler", "blas", "plan", "nn", "trace", "schedule",
        "graph", "optim", "ir", "params", "ops",
    )
)  # fmt: skip
"""Modules that a mini-batch passes through on a processor."""
STEP = (
    *RUNTIME,
    *(f"autobatch.models.{name}" for name in ("tree_classifier", "tree_lstm", "bilstm_tagger", "lattice_tagger")),
)
"""`RUNTIME`, and the models that most experiments run."""
GPU = (*RUNTIME, "autobatch.devices", "autobatch.compiler.cuda", "autobatch.backends.cuda")


def digest_of(prefixes: Iterable[str], root: Path = ROOT) -> str:
    """Digest the code of all modules under some prefixes, such as `autobatch.schedule` or `autobatch.models.shapes`.

    Raises:
        FileNotFoundError: a prefix names no module.
    """
    found = hashlib.sha256()
    for path in sorted({path for prefix in prefixes for path in find_files(prefix, root)}):
        code = _digest_of_code(path.read_bytes(), path.suffix)
        found.update(f"{path.relative_to(root).as_posix()} {code}\n".encode())
    return found.hexdigest()


def find_files(prefix: str, root: Path = ROOT) -> list[Path]:
    """Find the files of a module, or of a package and everything in it."""
    place = root.joinpath(*prefix.split("."))
    if place.with_suffix(".py").is_file():
        return [place.with_suffix(".py")]
    wanted = [path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if not wanted:
        raise FileNotFoundError(f"an experiment measures {prefix}, but there is no such module in {root}")
    return [path for path in wanted if "cuda" in prefix or "cuda" not in path.relative_to(place).parts]


@cache
def _digest_of_code(content: bytes, suffix: str) -> str:
    if suffix == ".py":
        content = "".join(spell(ast.parse(content))).encode()
    return hashlib.sha256(content).hexdigest()


def spell(node: Any) -> Iterator[str]:
    """Write a syntax tree as text, without docstrings and empty fields, so that it is the same in all versions of
    Python.
    """
    if isinstance(node, list):
        yield "["
        for one in node:
            yield from spell(one)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = _without_docstring(value)
            if name == "values" and isinstance(node, ast.JoinedStr):
                value = _without_empty_text(value)
            if value is not None and value != []:
                yield f" {name}="
                yield from spell(value)
        yield ")"
    else:
        yield repr(node)


def _without_empty_text(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Drop the empty strings that Python 3.12.1 puts after a nested format of an f-string."""
    return [one for one in values if not (isinstance(one, ast.Constant) and one.value == "")]


def _without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Drop strings that are statements: docstrings, and those below a constant or a field."""
    return [
        one
        for one in body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str))
    ]
