"""What installs is what lies in the checkout.

The editable install finds a folder that setuptools leaves out; a wheel does not have it. So a wheel is built, compared
file by file, and imported away from the checkout, and in it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from checkout import PACKAGE, ROOT, module_files

# Imports everything from `home` and loads the console script. Where a package is missing there, the editable
# install would lend its own: a module from another place is an error too.
IMPORT_ALL = """
import importlib, importlib.metadata, sys
home, *names = sys.argv[1:]
sys.path.insert(0, home)
for name in names:
    importlib.import_module(name)
for script in importlib.metadata.distribution("autobatch").entry_points:
    script.load()
for name, module in sys.modules.items():
    if name.partition(".")[0] == "autobatch" and not str(module.__file__).startswith(home):
        sys.exit(f"{name} is not in the wheel: it came from {module.__file__}")
"""

FIND_DEVICE = """
import sys
sys.path.insert(0, sys.argv[1])
from autobatch.devices.finding import find_device
find_device()
"""


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command in `cwd`; what it printed is the message when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built, without network, from a copy: setuptools leaves a `build/` where it works."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps")
    run(*pip_wheel, "--wheel-dir", place / "dist", place, cwd=place)
    (built,) = (place / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed, away from the checkout."""
    place = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", place, wheel, cwd=place)
    return place


def test_every_folder_of_modules_is_a_package() -> None:
    homeless = {path.parent for path in module_files().values() if not (path.parent / "__init__.py").exists()}
    assert not homeless, f"modules in folders without __init__.py: {sorted(homeless)}"


def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_every_module_imports_from_the_wheel(home: Path, tmp_path: Path) -> None:
    names = (name for name in module_files() if not name.endswith("__main__"))
    run(sys.executable, "-W", "error", "-c", IMPORT_ALL, home, *names, cwd=tmp_path)


def test_the_wheel_has_no_device_of_tests(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    command = (sys.executable, "-c", FIND_DEVICE, home)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "BackendError: AUTOBATCH_CUDA=host is for checkouts" in done.stderr
