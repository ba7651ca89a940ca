"""Describe public names of the package in Markdown: signatures as the source writes them, and docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Sequence
from itertools import pairwise
from types import FunctionType
from typing import Any

from docstrings import escape, to_markdown
from signatures import signature_of, source_of, write_type

METHODS = FunctionType, classmethod, staticmethod


def find(path: str) -> Any:
    """Return the module, class, function or value that a dotted path names.

    If a package exports a name that is also one of its modules, the name stands for the module.
    """
    parts = path.split(".")
    for n_modules in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:n_modules]))
        except ModuleNotFoundError:
            continue
        for part in parts[n_modules:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(f"{path} cannot be imported")


def describe(name: str, path: str, members: Sequence[str], level: int) -> str:
    """Write the text below the heading of a name.

    Args:
        name: the name as users write it, `ab.optim.Adam`.
        path: the dotted path of its definition.
        members: the methods and properties to show, if it is a class; `__init__` shows the constructor.
        level: level of the heading.
    """
    found = find(path)
    if inspect.ismodule(found):
        return _list_classes(found)
    if inspect.isclass(found):
        return _describe_class(name, found, members, level)
    if callable(found) and hasattr(found, "__name__"):
        return _block(signature_of(name, found)) + to_markdown(found.__doc__ or "")
    source, doc = _assignment(path)
    return _block(source) + to_markdown(doc)


def members_of(path: str, members: Sequence[str]) -> dict[str, Any]:
    """Return the callables whose arguments a mark with this path shows, by name."""
    found = find(path)
    if not inspect.isclass(found):
        return {path: found} if inspect.isroutine(found) else {}
    methods = [name for name in members if isinstance(inspect.getattr_static(found, name), METHODS)]
    return {f"{path}.{name}": found if name == "__init__" else getattr(found, name) for name in methods}


def _describe_class(name: str, found: type, members: Sequence[str], level: int) -> str:
    """Write a class, with each of its members under its own heading."""
    made = signature_of(name, found) if "__init__" in members else name
    short = name.rpartition(".")[2]
    shown = [_describe_member(short, found, member, level + 1) for member in members if member != "__init__"]
    return "\n".join([_block(f"class {made}") + to_markdown(inspect.getdoc(found) or ""), *shown])


def _describe_member(owner: str, found: type, member: str, level: int) -> str:
    name = f"{owner}.{member}"
    it = inspect.getattr_static(found, member)
    function = getattr(it, "fget", None) or getattr(it, "func", None) or getattr(it, "__func__", it)
    doc = inspect.getdoc(getattr(found, member)) or inspect.getdoc(it) or ""
    if isinstance(it, METHODS):
        written = signature_of(name, function)
        written = f"async {written}" if inspect.iscoroutinefunction(function) else written
    else:
        written = f"{name}: {write_type(inspect.signature(function).return_annotation)}"
    return f"{'#' * level} {escape(name)}\n\n{_block(written)}{to_markdown(doc)}"


def _list_classes(module: Any) -> str:
    """Write a table of a module's classes, in their order, with their docstrings."""
    classes = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == module.__name__]
    lines = [f"| `{x.__name__}` | {escape(' '.join((x.__doc__ or '').split()))} |\n" for x in classes]
    return f"| name | meaning |\n|---|---|\n{''.join(lines)}"


def _assignment(path: str) -> tuple[str, str]:
    """Return the source of a module's value, and the docstring below it."""
    place, _, name = path.rpartition(".")
    source = inspect.getsource(importlib.import_module(place))
    body = ast.parse(source).body
    for statement, after in pairwise([*body, ast.Pass()]):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return source_of(source, statement), ast.literal_eval(source_of(source, after)) if is_doc else ""
    raise LookupError(f"{place} assigns no {name}")


def _block(source: str) -> str:
    return f"```python\n{source}\n```\n\n"
