"""The build backend that `pyproject.toml` names: scikit-build-core with two additions.

1. Where no C++ compiler is found, zig becomes a build requirement (`ziglang` on PyPI) and compiles.
2. An editable install consists of a path to the checkout, into whose package the module is built. The modes of
   scikit-build-core put an import hook in front of `sys.path`, so that a second checkout could not be imported, and
   keep the module in `site-packages`, or CMake's files among the sources.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from tempfile import TemporaryDirectory
from typing import TypeAlias

from scikit_build_core import build as core
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMPILERS = ("c++", "g++", "clang++", "cl")
ZIG = "ziglang==0.17.1"
# With a target, zig uses its own C library headers instead of looking for a system compiler's. Without the other flags
# it would first build its own libraries, and libc++ alone takes minutes. `baseline` is the oldest processor of an
# architecture; on x86-64 `CMakeLists.txt` raises it to x86-64-v2.
LIBC = "gnu.2.17" if platform.libc_ver()[0] == "glibc" else "musl"
ZIG_FLAGS = f"-target native-native-{LIBC} -mcpu=baseline -nostdlib -lc -O2 -g0"

Settings: TypeAlias = dict[str, str | list[str]] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what scikit-build-core requires (CMake and ninja if missing), and zig if there is no compiler."""
    zig = [] if has_compiler() else [ZIG]
    return [*core.get_requires_for_build_wheel(config_settings), *zig]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return the same as for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the metadata; nothing is compiled."""
    return core.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the metadata; nothing is compiled."""
    return core.prepare_metadata_for_build_wheel(metadata_directory, in_place(config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build a wheel with whichever compiler there is."""
    with compiler():
        return core.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the module into the package of this checkout, and a wheel that holds the path to it."""
    with compiler():
        return core.build_wheel(wheel_directory, in_place(config_settings), metadata_directory)


def has_compiler() -> bool:
    """Return whether CMake will find a C++ compiler; on Windows that is Visual Studio, which is not on PATH."""
    return bool(os.environ.get("CXX")) or any(map(shutil.which, COMPILERS)) or sys.platform == "win32"


@contextmanager
def compiler() -> Iterator[None]:
    """Let CMake find zig if there is no other compiler; zig's cache is deleted afterwards."""
    with TemporaryDirectory() as cache:
        if not has_compiler():
            os.environ["CXX"] = zig_command()
            os.environ["ZIG_GLOBAL_CACHE_DIR"] = cache
        yield


def zig_command() -> str:
    """Return the command that runs zig as a C++ compiler, for the environment variable CXX."""
    return f'"{files("ziglang") / "zig"}" c++ {ZIG_FLAGS}'


def in_place(config_settings: Settings) -> dict[str, str | list[str]]:
    """Add the settings of an editable install."""
    return {**(config_settings or {}), "wheel.exclude": "/autobatch", "cmake.define.AUTOBATCH_IN_PLACE": "ON"}
