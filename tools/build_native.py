"""Rebuild the native core of this checkout: `make native`, in 2 s.

Object files stay in `build/`, so only changed sources are compiled. If CMake, ninja or a compiler is missing, pip
installs them and builds everything.

    python tools/build_native.py               # in place, as pip builds it
    python tools/build_native.py --debug       # in place, with symbols and without optimization, for gdb
    python tools/build_native.py --sanitize address,undefined    # separately, with these sanitizers; or with `thread`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from checkout import ROOT

BUILD = ROOT / "build" / str(sys.implementation.cache_tag)
MODULE = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def build_in_place(build_type: str) -> None:
    """Build the module into the package, by pip if this machine lacks a tool."""
    try:
        build(BUILD, CMAKE_BUILD_TYPE=build_type, AUTOBATCH_IN_PLACE="ON")
    except FileNotFoundError:
        pip = (sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--editable", ROOT)
        subprocess.run(pip, check=True)


def build_sanitized(folder: Path, sanitizers: str) -> Path:
    """Build the module with sanitizers, such as "address,undefined" or "thread", in its own folder. Return its path."""
    build(folder, AUTOBATCH_SANITIZE=sanitizers, CMAKE_CXX_COMPILER="g++")
    return folder / MODULE


def build(folder: Path, **options: str) -> None:
    """Configure and build in `folder`.

    Raises:
        FileNotFoundError: CMake, ninja or a compiler is missing.
        subprocess.CalledProcessError: the sources do not compile.
    """
    env = os.environ | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    defines = (f"-D{name}={value}" for name, value in {"Python_EXECUTABLE": sys.executable, **options}.items())
    configure = ["cmake", "-S", str(ROOT / "native"), "-B", str(folder), "-G", "Ninja", *defines]
    configured = subprocess.run(configure, env=env, capture_output=True, text=True)
    if configured.returncode:
        raise FileNotFoundError(f"{' '.join(configure)} failed:\n{configured.stdout}{configured.stderr}")
    subprocess.run(("cmake", "--build", folder), env=env, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rebuild the native core of this checkout.")
    parser.add_argument("--debug", action="store_true", help="build with symbols and without optimization")
    parser.add_argument(
        "--sanitize", metavar="NAMES", help="build separately with these sanitizers: address,undefined or thread"
    )
    options = parser.parse_args()
    if options.sanitize:
        print(build_sanitized(BUILD.with_name(f"{BUILD.name}-{options.sanitize}"), options.sanitize))
    else:
        build_in_place("Debug" if options.debug else "Release")
