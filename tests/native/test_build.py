"""Test that the native core can be built with and without a compiler, and for other platforms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

import build_backend
from checkout import ROOT
from helpers.runs.copies import NATIVE, copy_checkout

COMMANDS = ("cat", "echo", "env", "find", "grep", "make", "mkdir", "rm", "sed", "sh", "touch", "uname")
FLAGS = ("-std=c++20", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror")
TARGETS = {
    "aarch64-linux-gnu": "manylinux_2_28_aarch64",
    "aarch64-macos": "macosx_14_0_arm64",
    "x86_64-macos": "macosx_14_0_x86_64",
    "x86_64-windows-gnu": "win_amd64",
}
WINDOWS = """// Stands in for the file of this name in Python's installer for Windows.
#define MS_WINDOWS
#define MS_WIN64
#define NT_THREADS
#define Py_ENABLE_SHARED
#define HAVE_PY_SSIZE_T 1
#define PY_SSIZE_T_MAX LLONG_MAX
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_OFF_T 4
#define SIZEOF_FPOS_T 8
#define SIZEOF_PID_T 4
#define ALIGNOF_SIZE_T 8
#define ALIGNOF_MAX_ALIGN_T 8
typedef long long Py_ssize_t;
"""


def download(place: Path, *what: str) -> Path:
    """Download a wheel from the package index; skip the test if there is none."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*pip, "--dest", str(place), *what], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the package index does not answer: {done.stderr.strip()[-200:]}")
    (wheel,) = place.glob("*.whl")
    return wheel


def test_a_checkout_that_is_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['autobatch._native'] = None; import autobatch"
    done = subprocess.run((sys.executable, "-c", code), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: autobatch._native is not built for {sys.implementation.cache_tag} in {ROOT}: "
        "run pip install --editable . there, or make native."
    )


@pytest.mark.skipif(sys.platform == "win32", reason="CMake looks for Visual Studio itself")
def test_zig_is_required_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for ask in (build_backend.get_requires_for_build_wheel, build_backend.get_requires_for_build_editable):
        assert build_backend.ZIG in ask()
        with monkeypatch.context() as patch:
            patch.setenv("CXX", "/opt/compiler/g++")
            assert build_backend.ZIG not in ask()
    (tmp_path / "clang++").touch(mode=0o755)
    assert build_backend.ZIG not in build_backend.get_requires_for_build_wheel()


@pytest.mark.slow
def test_make_sets_up_everything_without_a_compiler(tmp_path: Path) -> None:
    """Without a compiler, CMake and ninja on PATH. The rest of `make demo` and `make test` is Python."""
    download(tmp_path / "index", build_backend.ZIG)
    (tmp_path / "bin").mkdir()
    for name in COMMANDS:
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    base = getattr(sys, "_base_executable", sys.executable)
    (tmp_path / "bin/python3").symlink_to(base)
    tree = copy_checkout(tmp_path, "Makefile", "tools")
    for module in (tree / "autobatch").glob("_native*.so"):
        module.unlink()
    env = {name: value for name, value in os.environ.items() if name not in ("CXX", "MAKEFLAGS", "PYTHONPATH")}
    env["PATH"] = str(tmp_path / "bin")
    made = subprocess.run(("make", ".venv/runtime"), cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}"
    code = "import autobatch; print(autobatch._native.__file__)"
    command = (tree / ".venv/bin/python", "-c", code)
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).parent == tree / "autobatch"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_sources_compile_for_other_platforms(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles with the headers of the platform's NumPy wheel and of this Python; nothing is linked or run."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: pip install '.[wheels]'")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig"))
    wheel = download(tmp_path / "numpy", "--platform", TARGETS[target], "numpy")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, (name for name in archive.namelist() if "/include/" in name))
    headers = Path(shutil.copytree(sysconfig.get_path("include"), tmp_path / "python"))
    if "windows" in target:
        (headers / "pyconfig.h").write_text(WINDOWS)
    include = ("-I", NATIVE, "-isystem", tmp_path / "numpy/_core/include", "-isystem", headers)
    for source in sorted(NATIVE.rglob("*.cpp")):
        zig = (str(files("ziglang") / "zig"), "c++", "-target", target, *FLAGS)
        command = (*zig, "-Wno-missing-field-initializers", "-Wno-cast-function-type", *include, "-c", source)
        done = subprocess.run((*command, "-o", tmp_path / "object"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
