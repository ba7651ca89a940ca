"""Imports run one way, and `import autobatch` is quick.

    experiments -> models -> {policies, memplan} -> core

The core names policies and planners as protocols; only the public doors turn their names into objects, inside a
function. The command line may import everything. The direction is read from the source, so that an import inside a
function, or for types only, counts as well.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from checkout import ROOT, module_files

MAY_IMPORT = {
    "core": {"core"},
    "policies": {"core", "policies"},
    "memplan": {"core", "memplan"},
    "models": {"core", "policies", "memplan", "models"},
    "cli": {"core", "policies", "memplan", "models", "cli"},
}
MAY_DEFER = {  # the public doors
    "autobatch": {"policies"},
    "autobatch.batched": {"policies", "memplan"},
    "autobatch.door": {"policies", "memplan"},
}

HEAVY = ("cupy", "matplotlib", "networkx", "numba", "tensorboard", "torch")
NOT_AT_IMPORT = (*HEAVY, "click", "rich", "safetensors")
MAX_MODULES = 115


class Import(NamedTuple):
    """One imported module, and whether the import waits for a call."""

    module: str
    line: int
    deferred: bool


def layer_of(module: str) -> str:
    """The layer that a module of the package belongs to; what has no layer of its own is core."""
    second = (*module.split("."), "")[1]
    return second if second in MAY_IMPORT else "core"


def imports_of(source: str) -> Iterator[Import]:
    """Every module that a source text imports: by statement, or by name through `import_module`."""
    tree = ast.parse(source)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    deferred = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        for module in imported_names(node):
            yield Import(module, getattr(node, "lineno", 0), id(node) in deferred)


def imported_names(node: ast.AST) -> list[str]:
    """The modules one syntax node imports; `from package import name` may mean the module `package.name`."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return [module]
    return []


def is_allowed(importer: str, found: Import) -> bool:
    """Whether one import runs in the allowed direction."""
    target = layer_of(found.module)
    if found.deferred and target in MAY_DEFER.get(importer, ()):
        return True
    return target in MAY_IMPORT[layer_of(importer)]


def wrong_imports(importer: str, source: str) -> list[str]:
    """The imports of a module that run against the direction, as `line: module`."""
    ours = (found for found in imports_of(source) if found.module.partition(".")[0] == "autobatch")
    return [f"{found.line}: {found.module}" for found in ours if not is_allowed(importer, found)]


def run_python(program: str, *args: str, cwd: Path) -> list[str]:
    """Run a program in a fresh interpreter, away from the checkout; the words it printed."""
    done = subprocess.run([sys.executable, "-c", program, *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{found}"
        for module, path in module_files().items()
        for found in wrong_imports(module, path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "against the direction:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "source", "wrong"),
    [
        ("autobatch.graph.graph", "import autobatch.policies.agenda", ["1: autobatch.policies.agenda"]),
        ("autobatch.graph.graph", "def f():\n    from autobatch import models", ["2: autobatch.models"]),
        ("autobatch.graph.graph", "import importlib\nimportlib.import_module('autobatch.cli')", ["2: autobatch.cli"]),
        ("autobatch.graph.graph", "import numpy\nfrom autobatch.errors import GraphError", []),
        ("autobatch.batched", "def f():\n    import autobatch.policies", []),
        ("autobatch.batched", "import autobatch.policies", ["1: autobatch.policies"]),
        ("autobatch.batched", "def f():\n    import autobatch.models", ["2: autobatch.models"]),
        ("autobatch", "def __getattr__(name):\n    import autobatch.policies", []),
        ("autobatch", "import autobatch.policies", ["1: autobatch.policies"]),
        ("autobatch.policies.fsm.machine", "import autobatch.memplan", ["1: autobatch.memplan"]),
        ("autobatch.models.tree_lstm", "import autobatch.memplan, autobatch.policies", []),
        ("autobatch.models.tree_lstm", "from autobatch.cli import main", ["1: autobatch.cli.main"]),
        ("autobatch.cli.main", "import autobatch.models", []),
    ],
)
def test_the_reading_of_imports(importer: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(importer, source) == wrong


def test_import_autobatch_loads_little_and_no_heavy_module(tmp_path: Path) -> None:
    """Few modules beside NumPy: a time would depend on the machine, what has to be loaded does not."""
    program = """
import sys, numpy
before = set(sys.modules)
import autobatch
print(len(set(sys.modules) - before), *(name for name in sys.argv[1:] if name in sys.modules))
"""
    loaded, *heavy = run_python(program, *NOT_AT_IMPORT, cwd=tmp_path)
    assert heavy == [], "imported by `import autobatch`; import these inside the function that needs them"
    assert 30 < int(loaded) <= MAX_MODULES


def test_no_module_loads_a_heavy_module_when_imported(tmp_path: Path) -> None:
    program = """
import importlib, sys
heavy = sys.argv[1].split(",")
for module in sys.argv[2:]:
    importlib.import_module(module)
    print(*(f"{module}:{name}" for name in heavy if name in sys.modules))
"""
    modules = (name for name in module_files() if not name.endswith("__main__"))
    assert run_python(program, ",".join(HEAVY), *modules, cwd=tmp_path) == []


def test_no_module_takes_the_place_of_a_public_name(tmp_path: Path) -> None:
    """A subpackage `autobatch.sum` would replace the function `ab.sum` when it is first imported."""
    program = """
import importlib, sys
import autobatch
before = {name: getattr(autobatch, name) for name in autobatch.__all__}
for module in sys.argv[1:]:
    importlib.import_module(module)
print(len(before), *(name for name, value in before.items() if getattr(autobatch, name) is not value))
"""
    n_names, *replaced = run_python(program, *(m for m in module_files() if not m.endswith("__main__")), cwd=tmp_path)
    assert int(n_names) > 50
    assert replaced == []
