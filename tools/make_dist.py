"""Build both archives of a release from the last commit, into `dist/`, and check them: `make dist`.

They are built twice, in two folders, and have to be the same bytes. The wheel is then installed, with what it requires
from the package index, in an environment of its own, where `autobatch doctor` has to find everything in place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from checkout import ROOT

DIST = ROOT / "dist"


class Refused(Exception):
    """Archives that must not be released, and why."""


def make_dist() -> list[Path]:
    """Build, check and place the archives; what they replace in `dist/` is gone."""
    if changes := run("git", "status", "--porcelain", cwd=ROOT):
        raise Refused(f"archives hold what is committed, and these files differ from the last commit:\n{changes}")
    with TemporaryDirectory() as place:
        first, second = (build(export_commit(Path(place, name)), Path(place, name, "dist")) for name in ("one", "two"))
        check_same(first, second)
        check_metadata(first)
        try_wheel(first[1], Path(place, "environment"))
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        return [Path(shutil.copy(path, DIST)) for path in first]


def export_commit(place: Path) -> Path:
    """Write the files of the last commit to `place/autobatch`; this folder."""
    tree = place / "autobatch"
    tree.mkdir(parents=True)
    run("git", "archive", "--format", "tar", "--output", place / "commit.tar", "HEAD", cwd=ROOT)
    shutil.unpack_archive(place / "commit.tar", tree, filter="data")
    return tree


def build(tree: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist of a tree, and the wheel from the sdist; their paths. Nothing is fetched."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=tree)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_same(first: tuple[Path, Path], second: tuple[Path, Path]) -> None:
    """Refuse archives that differ between two builds."""
    for one, other in zip(first, second, strict=True):
        if one.name != other.name or one.read_bytes() != other.read_bytes():
            raise Refused(f"two builds of {one.name} differ.")


def check_metadata(archives: tuple[Path, Path]) -> None:
    """Let twine check that the package index takes and shows the metadata."""
    run(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=ROOT)


def try_wheel(wheel: Path, environment: Path) -> None:
    """Install a wheel and what it requires in an empty environment, and let the doctor look at it there."""
    venv.create(environment, with_pip=True)
    python = venv.EnvBuilder().ensure_directories(environment).env_exe
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=environment)
    run(python, "-m", "autobatch", "doctor", cwd=environment)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in `cwd`, with the dates in archives left to the backend, which has one for all; what it printed.

    Raises:
        Refused: it failed; the message is what it printed.
    """
    rest = {name: value for name, value in os.environ.items() if name not in ("SOURCE_DATE_EPOCH", "PYTHONPATH")}
    done = subprocess.run(command, cwd=cwd, env=rest, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    try:
        for path in make_dist():
            print(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(ROOT))
    except Refused as error:
        sys.exit(f"make dist: {error}")
