"""The archives contain the whole checkout, and work.

An editable install finds every folder, even one that the archives lack. So both archives are built without network from
a copy, compared file by file, and the wheel is imported outside the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import build_backend
from autobatch.release import NAME, VERSION
from checkout import PACKAGE, ROOT, module_files
from helpers.runs.copies import BESIDE_THE_PACKAGE, NATIVE, copy_checkout
from make_dist import build, check_metadata, check_same, run

# Imports everything from `home` and loads the console script. If a package is missing there, the editable install would
# provide it, so a module from another place is an error too.
IMPORT_ALL = """
import importlib, importlib.metadata, sys
home, *names = sys.argv[1:]
sys.path.insert(0, home)
for name in names:
    importlib.import_module(name)
for script in importlib.metadata.distribution("autobatch-nn").entry_points:
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

MODULE = f"autobatch/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
NEEDS_A_COMPILER = "needs a C++ compiler: pip install '.[wheels]' brings one"


def files_of(folder: Path) -> set[str]:
    """Return the files in a folder of the checkout, except built ones."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(ROOT).as_posix() for path in paths if path.suffix not in (".pyd", ".so")}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build an sdist, and a wheel from it."""
    if not build_backend.has_compiler() and find_spec("ziglang") is None:
        pytest.skip(NEEDS_A_COMPILER)
    place = tmp_path_factory.mktemp("archives")
    return build(copy_checkout(place), place / "dist")


@pytest.fixture(scope="module")
def home(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a folder outside the checkout; return it."""
    place = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", place, archives[1], cwd=place)
    return place


@pytest.fixture(scope="module")
def installed(home: Path) -> Distribution:
    """Return the metadata of the wheel."""
    (found,) = distributions(path=[str(home)])
    return found


def test_every_folder_of_modules_is_a_package() -> None:
    homeless = {path.parent for path in module_files().values() if not (path.parent / "__init__.py").exists()}
    assert not homeless, f"modules in folders without __init__.py: {sorted(homeless)}"


def test_the_wheel_holds_every_file_and_nothing_else(archives: tuple[Path, Path]) -> None:
    held = {name for name in zipfile.ZipFile(archives[1]).namelist() if ".dist-info/" not in name}
    assert held == {*files_of(PACKAGE), MODULE}
    assert "autobatch/py.typed" in held


def test_the_sdist_holds_what_the_wheel_is_built_of(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert held == {*files_of(PACKAGE), *files_of(NATIVE), *BESIDE_THE_PACKAGE, "PKG-INFO"}


def test_another_build_gives_the_same_bytes(archives: tuple[Path, Path], tmp_path: Path) -> None:
    tree = copy_checkout(tmp_path / "elsewhere")
    for path in tree.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    check_same(archives, build(tree, tmp_path / "dist"))


def test_the_metadata_is_complete(archives: tuple[Path, Path], installed: Distribution) -> None:
    check_metadata(archives)
    told = installed.metadata
    assert (told["Name"], told["Version"]) == (NAME, VERSION)
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(told.get_all("Classifier") or ())
    assert (installed.read_text("licenses/LICENSE") or "").splitlines() == (ROOT / "LICENSE").read_text().splitlines()


def test_every_extra_that_a_message_names_is_one(installed: Distribution) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    named = {*re.findall(r"pip_install\(['\"](\w+)['\"]\)", sources), *re.findall(r"needs the extra (\w+)", sources)}
    assert len(named) > 5
    assert named <= set(installed.metadata.get_all("Provides-Extra") or ())


def test_every_module_imports_from_the_wheel(home: Path, tmp_path: Path) -> None:
    names = (name for name in module_files() if not name.endswith("__main__"))
    run(sys.executable, "-W", "error", "-c", IMPORT_ALL, home, *names, cwd=tmp_path)


def test_the_wheel_has_no_device_of_tests(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    command = (sys.executable, "-c", FIND_DEVICE, home)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "BackendError: AUTOBATCH_CUDA=host works only in a checkout" in done.stderr


@pytest.mark.slow
def test_the_wheel_works_with_what_it_requires_and_nothing_else(
    archives: tuple[Path, Path], installed: Distribution, tmp_path: Path
) -> None:
    """Runs in a new environment, with links to the packages that the wheel requires."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = venv.EnvBuilder().ensure_directories(tmp_path / "environment").env_exe
    places = {"base": str(tmp_path / "environment"), "platbase": str(tmp_path / "environment")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=places))
    for lent in required_by(installed):
        for name in {file.parts[0] for file in lent.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(Path(str(lent.locate_file(name))))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", archives[1], cwd=tmp_path)
    told = run(Path(python).parent / "autobatch", "doctor", cwd=tmp_path)
    assert re.search(r"^none +torch ", told, re.MULTILINE)
    assert told.endswith("\nAll checks passed.\n")


def required_by(wanting: Distribution) -> list[Distribution]:
    """Return the distributions that one requires without extras, and their requirements in turn."""
    found: dict[str, Distribution] = {}
    waiting = [wanting]
    while waiting:
        for requirement in map(Requirement, waiting.pop().requires or ()):
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_needed and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                waiting.append(found[requirement.name])
    return list(found.values())
