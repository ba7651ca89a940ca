"""Format signatures as the source writes them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from textwrap import dedent
from types import FunctionType
from typing import Any

WIDTH = 100
NO_DEFAULT = inspect.Parameter.empty


def signature_of(name: str, function: Any) -> str:
    """Format a call's signature, in one line or, if that is too long, several: names, types and defaults."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    written = list(_write_parameters(parameters, _sources(function)))
    result = signature.return_annotation
    ending = "" if result is NO_DEFAULT or inspect.isclass(function) else f" -> {write_type(result)}"
    line = f"{name}({', '.join(written)}){ending}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n{''.join(f'    {one},' + chr(10) for one in written)}){ending}"


def _sources(function: Any) -> dict[str, str]:
    """Return default values as the source writes them; empty for a class or an op without its own constructor."""
    is_record = inspect.isclass(function) and is_dataclass(function)
    if inspect.isclass(function) and not is_record:
        function = function.__init__
    function = inspect.unwrap(function)
    if not is_record and not isinstance(function, FunctionType):
        return {}
    source = dedent(inspect.getsource(function))
    defined = ast.parse(source).body[0]
    pairs: Iterable[tuple[Any, ast.expr | None]] = ()
    if isinstance(defined, ast.ClassDef):
        fields = [x for x in defined.body if isinstance(x, ast.AnnAssign) and not isinstance(x.value, ast.Call)]
        pairs = [(x.target, x.value) for x in fields]
    elif isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef):
        given = defined.args
        by_position = [*given.posonlyargs, *given.args][::-1]
        pairs = [
            *zip(by_position, given.defaults[::-1], strict=False),
            *zip(given.kwonlyargs, given.kw_defaults, strict=True),
        ]
    found = {getattr(one, "id", getattr(one, "arg", "")): default for one, default in pairs}
    return {name: source_of(source, default) for name, default in found.items() if default is not None}


def source_of(source: str, node: ast.AST) -> str:
    """Return the source text of a node."""
    return ast.get_source_segment(source, node) or ""


def _default(value: Any, source: str | None) -> str:
    """Format a default value: the value of a name in the source, if it can be written, else the source."""
    if source is None or (source.replace(".", "").isidentifier() and isinstance(value, int | float | str)):
        written = f'"{value}"' if isinstance(value, str) else repr(value)
        return "..." if written.startswith("<") else written
    return source


def _write_parameters(parameters: Sequence[inspect.Parameter], sources: Mapping[str, str]) -> Iterator[str]:
    """Format parameters as in a definition, with the marks for positional-only and keyword-only ones."""
    kinds = [p.kind for p in parameters]
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for i, parameter in enumerate(parameters):
        before = kinds[i - 1] if i else None
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (parameter.kind, parameter.VAR_POSITIONAL):
            yield "*"
        typed = "" if parameter.annotation is NO_DEFAULT else f": {write_type(parameter.annotation)}"
        equals = " = " if typed else "="
        default = (
            ""
            if parameter.default is NO_DEFAULT
            else f"{equals}{_default(parameter.default, sources.get(parameter.name))}"
        )
        yield f"{stars.get(parameter.kind, '')}{parameter.name}{typed}{default}"
    if kinds and kinds[-1] is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def write_type(annotation: Any) -> str:
    """Format an annotation as the source writes it."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return written.replace("'", '"')
