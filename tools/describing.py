"""What a public name of the package is, as Markdown: its signature as the source writes it, and its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from textwrap import dedent
from types import FunctionType
from typing import Any

WIDTH = 100
METHODS = FunctionType, classmethod, staticmethod
NO_DEFAULT = inspect.Parameter.empty
SECTION = re.compile(r"^(Args|Attributes(?:, [^:\n]+)?|Raises|Returns|Yields):\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
FIELD = re.compile(r"^(Cost|Gradient|Shapes|Source): (.*\n(?: +.*\n)*)", re.MULTILINE)
LIST = re.compile(r"^((?! *- | {2,}).+\n)(?= *- )", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>>.*\n(?:.+\n)*\n?)+", re.MULTILINE)
CODE = re.compile(r"(`+[^`]*`+)")
NUMBER = re.compile(r"^( *\d+)\.(?= )", re.MULTILINE)
SPECIAL = re.compile(r"(?<!\w)\*+(?=\w)|<(?=\w)|__")


def find(path: str) -> Any:
    """The module, class, function or value that a dotted path names.

    A name that a package gives to one of its modules and to what is in it stands for the module.
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
    """Say what stands under the heading of a name.

    Args:
        name: as users write it, `ab.optim.Adam`.
        path: where it is defined.
        members: of a class: the methods and properties that are shown; with `__init__`, how it is made.
        level: of the heading.
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
    """The callables whose arguments a mark of this path shows, by name."""
    found = find(path)
    if not inspect.isclass(found):
        return {path: found} if inspect.isroutine(found) else {}
    methods = [name for name in members if isinstance(inspect.getattr_static(found, name), METHODS)]
    return {f"{path}.{name}": found if name == "__init__" else getattr(found, name) for name in methods}


def signature_of(name: str, function: Any, annotated: bool = True) -> str:
    """The line, or where it is long the lines, in which a call is written: names, types and defaults."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    if not annotated:
        parameters = [p.replace(annotation=p.empty) for p in parameters]
    written = list(_write_parameters(parameters, _sources(function)))
    result = signature.return_annotation
    ending = "" if result is NO_DEFAULT or inspect.isclass(function) or not annotated else f" -> {_type(result)}"
    line = f"{name}({', '.join(written)}){ending}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n{''.join(f'    {one},' + chr(10) for one in written)}){ending}"


def to_markdown(doc: str) -> str:
    """A docstring as Markdown: sections and fields become lists and paragraphs, examples blocks of code."""
    text = inspect.cleandoc(doc) + "\n"
    examples = [f"```python\n{found.rstrip()}\n```\n" for found in EXAMPLE.findall(text)]
    text = _escape(EXAMPLE.sub("\0\n", text))
    text = SECTION.sub(_write_section, text)
    text = FIELD.sub(_write_field, text)
    text = LIST.sub(r"\1\n", text)
    for example in examples:
        text = text.replace("\0", example, 1)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _describe_class(name: str, found: type, members: Sequence[str], level: int) -> str:
    """A class, and each of its members under a heading of its own."""
    made = signature_of(name, found) if "__init__" in members else name
    short = name.rpartition(".")[2]
    shown = [_describe_member(short, found, member, level + 1) for member in members if member != "__init__"]
    return "\n".join([_block(f"class {made}") + to_markdown(inspect.getdoc(found) or ""), *shown])


def _describe_member(owner: str, found: type, member: str, level: int) -> str:
    """A method or a property."""
    name = f"{owner}.{member}"
    it = inspect.getattr_static(found, member)
    function = getattr(it, "fget", None) or getattr(it, "func", None) or getattr(it, "__func__", it)
    doc = inspect.getdoc(getattr(found, member)) or inspect.getdoc(it) or ""
    if isinstance(it, METHODS):
        written = signature_of(name, function)
        written = f"async {written}" if inspect.iscoroutinefunction(function) else written
    else:
        written = f"{name}: {_type(inspect.signature(function).return_annotation)}"
    return f"{'#' * level} {_escape(name)}\n\n{_block(written)}{to_markdown(doc)}"


def _list_classes(module: Any) -> str:
    """A table of the classes of a module, in their order, each with the first line of its docstring."""
    classes = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == module.__name__]
    lines = [f"| `{x.__name__}` | {_escape(' '.join((x.__doc__ or '').split()))} |\n" for x in classes]
    return f"| name | what it says |\n|---|---|\n{''.join(lines)}"


def _assignment(path: str) -> tuple[str, str]:
    """The source of a module's value, and the docstring below it."""
    place, _, name = path.rpartition(".")
    source = inspect.getsource(importlib.import_module(place))
    body = ast.parse(source).body
    for statement, after in pairwise([*body, ast.Pass()]):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return _segment(source, statement), ast.literal_eval(_segment(source, after)) if is_doc else ""
    raise LookupError(f"{place} assigns no {name}")


def _sources(function: Any) -> dict[str, str]:
    """Default values as the source writes them; none of a class or an op that has no constructor of its own."""
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
    return {name: _segment(source, default) for name, default in found.items() if default is not None}


def _segment(source: str, node: ast.AST) -> str:
    return ast.get_source_segment(source, node) or ""


def _default(value: Any, source: str | None) -> str:
    """A default value: what a name of the source stands for, if that can be written; else the source."""
    if source is None or (source.replace(".", "").isidentifier() and isinstance(value, int | float | str)):
        written = f'"{value}"' if isinstance(value, str) else repr(value)
        return "..." if written.startswith("<") else written
    return source


def _write_parameters(parameters: Sequence[inspect.Parameter], sources: Mapping[str, str]) -> Iterator[str]:
    """Parameters as a definition writes them, with the marks of those by position and by keyword alone."""
    kinds = [p.kind for p in parameters]
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for i, parameter in enumerate(parameters):
        before = kinds[i - 1] if i else None
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (parameter.kind, parameter.VAR_POSITIONAL):
            yield "*"
        typed = "" if parameter.annotation is NO_DEFAULT else f": {_type(parameter.annotation)}"
        equals = " = " if typed else "="
        default = (
            ""
            if parameter.default is NO_DEFAULT
            else f"{equals}{_default(parameter.default, sources.get(parameter.name))}"
        )
        yield f"{stars.get(parameter.kind, '')}{parameter.name}{typed}{default}"
    if kinds and kinds[-1] is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _type(annotation: Any) -> str:
    """An annotation as the source writes it."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return written.replace("'", '"')


def _write_field(found: re.Match[str]) -> str:
    """A field as a paragraph."""
    return f"\n**{found[1]}:** {re.sub('^ +', '', found[2], flags=re.MULTILINE)}"


def _write_section(found: re.Match[str]) -> str:
    """A section of a docstring: what it returns as text, else a list of its entries."""
    title, body = found[1], dedent(found[2]).strip()
    if title in ("Returns", "Yields"):
        return f"**{title}:** {body}\n\n"
    lines = []
    for line in body.splitlines():
        if line.startswith("    ") or not line:
            lines.append(f"  {line.strip()}".rstrip())
        else:
            lines.append(f"- {ENTRY.sub(_write_names, line)}")
    return f"**{title}:**\n\n" + "\n".join(lines) + "\n\n"


def _write_names(found: re.Match[str]) -> str:
    """The names before a colon, as code."""
    return ", ".join(f"`{name}`" for name in found[1].replace("\\", "").split(", ")) + ": "


def _escape(text: str) -> str:
    """Text in which, outside of code, Markdown finds no emphasis, tags and numbered lists."""
    parts = CODE.split(NUMBER.sub(r"\1\\.", text))
    return "".join(part if i % 2 else SPECIAL.sub(_quote, part) for i, part in enumerate(parts))


def _quote(found: re.Match[str]) -> str:
    """Special characters, each behind a backslash."""
    return "".join(f"\\{character}" for character in found[0])


def _block(source: str) -> str:
    return f"```python\n{source}\n```\n\n"
