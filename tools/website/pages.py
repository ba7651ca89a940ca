"""Generate the site's pages that are not in `docs/`: examples with their output, sources, an index of all names."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File

from checkout import ROOT
from website.names import Names

EXAMPLES, FIGURES = ROOT / "examples", ROOT / "experiments" / "results"
FENCE = "`" * 5  # docstrings may contain three


def list_pages(config: Any, names: Names) -> Iterator[File]:
    """List the generated pages and pictures."""
    yield File.generated(config, "examples/index.md", content=(EXAMPLES / "README.md").read_text(encoding="utf-8"))
    for path in sorted(EXAMPLES.glob("*.py")):
        yield File.generated(config, f"examples/{path.stem}.md", content=show_script(path))
    for path in sorted(EXAMPLES.glob("files/*.py")):
        yield File.generated(config, f"examples/files/{path.stem}.md", content=show_script(path))
    for path in sorted(EXAMPLES.glob("notebooks/*.ipynb")):
        text, pictures = show_notebook(path)
        yield File.generated(config, f"examples/notebooks/{path.stem}.md", content=text)
        for name, picture in pictures.items():
            yield File.generated(config, f"examples/notebooks/{name}", content=picture)
    for path in sorted(FIGURES.glob("*.png")):
        yield File.generated(config, f"figures/{path.name}", abs_src_path=str(path))
    yield File.generated(config, "reference/names.md", content=names.index())
    for module in names.modules():
        yield File.generated(config, names.page_of(module), content=show_source(ROOT / module))


def show_script(path: Path) -> str:
    """Write the page of a script: its title, its text, and its output if it is recorded."""
    text, output = path.read_text(encoding="utf-8"), path.parent / "outputs" / f"{path.stem}.txt"
    shown = f"## Output\n\n```text\n{output.read_text(encoding='utf-8')}```\n" if output.exists() else ""
    return f"# {path.name}\n\n{FENCE}python\n{text}{FENCE}\n\n{shown}"


def show_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Write the page of a notebook with its outputs. Return its pictures too, by name."""
    parts, pictures = list[str](), dict[str, bytes]()
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"{FENCE}python\n{cell.source}\n{FENCE}")
        for output in cell.outputs:
            name = f"{path.stem}-{len(pictures)}.png"
            parts.append(_show_output(output, name))
            if name in parts[-1]:
                pictures[name] = b64decode(output["data"]["image/png"])
    return "\n\n".join(parts), pictures


def _show_output(output: Mapping[str, Any], picture: str) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">\n{data["text/html"]}\n</div>'
    if "image/png" in data:
        return f"![]({picture})"
    return f"{FENCE}text\n{output.get('text', data.get('text/plain', '')).rstrip()}\n{FENCE}"


def show_source(path: Path) -> str:
    """Write the page of a source file, with numbered lines that have anchors."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    return f'# {name}\n\n{FENCE} {{ .python linenums="1" }}\n{text}{FENCE}\n'
