"""`import autobatch` is fast and replaces no name. `pyproject.toml` says which folder may import which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import autobatch as ab
from checkout import module_files

HEAVY = ("cupy", "llvmlite", "matplotlib", "networkx", "sacrebleu", "tensorboard", "torch")
NOT_AT_IMPORT = (*HEAVY, "click", "rich", "safetensors")
MAX_MODULES = 175


def run_python(program: str, *args: str, cwd: Path) -> list[str]:
    """Run a program in a new interpreter, outside the checkout; return the words that it prints."""
    done = subprocess.run([sys.executable, "-c", program, *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_dir_lists_the_public_names() -> None:
    assert dir(ab) == sorted(ab.__all__)
    assert [name for name in dir(ab) if getattr(ab, name) is None] == []


def test_import_autobatch_loads_little_and_no_heavy_module(tmp_path: Path) -> None:
    """Counts modules, because times depend on the machine."""
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
    """Except for the modules that are for PyTorch."""
    program = """
import importlib, sys
heavy = sys.argv[1].split(",")
for module in sys.argv[2:]:
    importlib.import_module(module)
    print(*(f"{module}:{name}" for name in heavy if name in sys.modules))
"""
    modules = (n for n in module_files() if not n.endswith("__main__") and not n.startswith("autobatch.torch"))
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


def test_a_free_threaded_build_is_refused_in_a_sentence(tmp_path: Path) -> None:
    code = "import sys; sys.abiflags = 't'; import autobatch"
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert out.returncode == 1
    assert out.stderr.splitlines()[-1].startswith("ImportError: autobatch needs a regular build of Python")
