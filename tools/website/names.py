"""The public names: the place of each in the reference, and its source."""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from markdown.extensions.toc import slugify, unique  # type: ignore[import-untyped]

from checkout import ROOT
from list_ops import public_ops
from list_public_names import MODULES, names_of
from reference import PAGES, names_in

PLAIN = re.compile(r"(<a\b.*?</a>|<pre\b.*?</pre>|<h[1-6]\b.*?</h[1-6]>)", re.DOTALL)
CODE = re.compile(r"<code>(@?)([\w.]+)(\([^<]*\))?</code>")


class Source(NamedTuple):
    """The definition of a name: a file of the checkout, and a line."""

    module: str
    line: int


@dataclass(frozen=True)
class Names:
    """All public names as users write them, `ab.tanh`.

    Attributes:
        described: page and anchor of each name in the reference.
        sources: the place where each name is defined.
    """

    described: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Names:
        """Read the reference and the sources."""
        described, sources = dict[str, tuple[str, str]](), dict[str, Source | None]()
        for page in PAGES:
            place, used = f"reference/{page.name}", set[str]()
            for name, path, members in names_in(page.read_text(encoding="utf-8")):
                described[name] = place, unique(slugify(name, "-"), used)
                for member in members:
                    if member != "__init__":
                        short = f"{name.rpartition('.')[2]}.{member}"
                        described[f"{name}.{member}"] = described[short] = place, unique(slugify(short, "-"), used)
                        sources[f"{name}.{member}"] = find_source(f"{path}.{member}")
                sources[name] = find_source(path)
        for name in public_ops():
            for full in (f"ab.{name}", f"ab.ops.{name}"):
                described.setdefault(full, ("reference/ops.md", slugify(f"ab.{name}", "-")))
        places = defaultdict[str, set[tuple[str, str]]](set)
        for name, found in described.items():
            places[name.rpartition(".")[2]].add(found)
        # Without a module or a class, only a unique name is a link: `value_and_grad`, not `step`.
        described |= {name: min(some) for name, some in places.items() if "_" in name.strip("_") and len(some) == 1}
        for module in MODULES:
            for name in names_of(import_module(module)):
                short = f"{module}.{name}".replace("autobatch", "ab", 1)
                sources.setdefault(short, find_source(f"{module}.{name}"))
        return cls(described, {name: source for name, source in sources.items() if source is not None})

    def modules(self) -> list[str]:
        """List the files of the checkout that define names."""
        return sorted({source.module for source in self.sources.values()})

    def boosts(self) -> dict[str, float]:
        """Return the weight of each description in the search, by its address.

        The search takes a word for the beginning of a name, so all names that begin with it match; the shortest must
        come first.
        """
        found = dict[str, float]()
        for name, (page, anchor) in self.described.items():
            owner, dot, short = name.rpartition(".")
            if dot:
                holder = owner.rpartition(".")[2]
                short = f"{holder}.{short}" if holder[:1].isupper() else short  # a member, such as `Module.to`
                address = f"{page.removesuffix('.md')}.html#{anchor}"
                found[address] = max(found.get(address, 0), 1e6 / (len(short) ** 2 * len(name)))
        return found

    @staticmethod
    def page_of(module: str) -> str:
        """Return the page that shows a source."""
        return f"source/{module.removesuffix('.py')}.md"

    def index(self) -> str:
        """Write the page of all names."""
        rows = [self._row(name) for name in sorted(self.sources, key=str.lower)]
        head = (
            "# All names\n\nThe public names of Python. [The command line](command_line.md) has a page of its own.\n\n"
        )
        return f"{head}| name | source |\n|---|---|\n{''.join(rows)}"

    def _row(self, name: str) -> str:
        source, page = self.sources[name], self.described.get(name)
        shown = f"`{name}`" if page is None else f"[`{name}`]({posixpath.relpath(page[0], 'reference')}#{page[1]})"
        # HTML, because MkDocs does not know anchors of lines, and would warn about each.
        link = f"../{self.page_of(source.module).removesuffix('.md')}.html#__codelineno-0-{source.line}"
        return f'| {shown} | <a href="{link}">{source.module}:{source.line}</a> |\n'

    def link(self, html: str, page: str) -> str:
        """Link the names in the prose of a page to their descriptions."""

        def link(found: re.Match[str]) -> str:
            described = self.described.get(found[2])
            if described is None:
                return found[0]
            place, anchor = described
            target = posixpath.relpath(place, posixpath.dirname(page) or ".").removesuffix(".md") + ".html"
            return f'<a class="name" href="{"" if place == page else target}#{anchor}">{found[0]}</a>'

        return "".join(part if i % 2 else CODE.sub(link, part) for i, part in enumerate(PLAIN.split(html)))


def find_source(path: str) -> Source | None:
    """Find where a dotted path is defined; None if it is not defined in Python."""
    parts = path.split(".")
    for n in range(len(parts) - 1, 0, -1):
        file = ROOT.joinpath(*parts[:n])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.is_file():
            return _find_in(file, parts[n:]) or _follow(".".join(parts[:n]), parts[n:])
    return None


def _find_in(file: Path, names: list[str]) -> Source | None:
    """Find a name in a file, or a name in a class."""
    body: list[ast.stmt] = _parse(file).body
    found: ast.stmt | None = None
    for name in names:
        found = next((statement for statement in _flatten(body) if name in _defined(statement)), None)
        if found is None:
            return None
        body = getattr(found, "body", [])
    return None if found is None else Source(file.relative_to(ROOT).as_posix(), found.lineno)


def _follow(module: str, names: list[str]) -> Source | None:
    """Find a name that a module imports from another."""
    found = getattr(import_module(module), names[0], None)
    place = getattr(found, "__module__", None)
    if not isinstance(place, str) or place == module or not place.startswith("autobatch"):
        return None
    name = getattr(found, "__qualname__", names[0]).split(".")
    return find_source(".".join([place, *name, *names[1:]]))


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _flatten(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Iterate over statements, and over those in conditions."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flatten([*statement.body, *statement.orelse])


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    flat = [x for target in targets for x in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {x.id for x in flat if isinstance(x, ast.Name)}
