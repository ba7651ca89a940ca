"""Find libraries that multiply matrices; each is loaded when it is first needed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.blas import packed
from autobatch.blas.provider import Absent, ByAddress, ByNumPy, ByTorch, Provider
from autobatch.blas.threads import look_again
from autobatch.errors import BackendError
from autobatch.release import VERSION, pip_install
from autobatch.system.processor import has_avx512

ROUTINES = {"float32": "sgemm", "float64": "dgemm"}
OPENBLAS_NAMES = ("scipy_{}_64_", "scipy_{}_", "{}_64_", "{}_")  # in wheels of NumPy and SciPy, and elsewhere
AVX2_ROUTINES = ("Haswell", "Zen")  # OpenBLAS's names of processors without AVX-512


def get_provider(name: str) -> Provider:
    """Find a provider by its name.

    Raises:
        BackendError: the name is unknown, or the library is missing; the message names the package to install.

    >>> get_provider("numpy").name
    'numpy'
    """
    if name not in FINDERS:
        raise BackendError(f"a matmul provider must be one of {', '.join(FINDERS)}, got {name!r}.")
    if name == "torch":
        return _find_torch()  # not cached: torch may be loaded later
    return _find(name)


def list_providers() -> list[Provider]:
    """List the providers that are installed, numpy first."""
    return [found for found in map(_try, FINDERS) if isinstance(found, Provider)]


def list_absent() -> dict[str, str]:
    """List the providers that are missing, each with the reason."""
    return {name: found for name, found in zip(FINDERS, map(_try, FINDERS), strict=True) if isinstance(found, str)}


def find_versions() -> dict[str, str]:
    """List the versions of the installed libraries, without loading any."""
    versions = {"numpy": np.__version__, packed.NAME: VERSION, **_installed_versions()}
    if "torch" in sys.modules:
        versions["torch"] = str(sys.modules["torch"].__version__)
    return versions


@cache
def _installed_versions() -> dict[str, str]:
    """List the versions of the packages that provide products; reading them takes some milliseconds."""
    versions = {}
    for name in ("mkl", "scipy"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def faster_routines() -> str | None:
    """Name the faster routines that NumPy's OpenBLAS does not use because it fails to recognize an AVX-512 processor.

    The environment variable OPENBLAS_CORETYPE selects them, if it is set before Python starts.
    """
    pool = _pool_of_numpy()
    unused = pool is not None and has_avx512() and pool.architecture in AVX2_ROUTINES
    return "SkylakeX" if unused else None


def _try(name: str) -> Provider | str:
    try:
        return get_provider(name)
    except Absent as absent:
        return absent.why


@cache
def _find(name: str) -> Provider:
    provider = FINDERS[name]()
    # A finder may have loaded a library, whose threads must be limited as well.
    look_again()
    return provider


def _find_numpy() -> Provider:
    pool = _pool_of_numpy()
    if pool is None:
        return ByNumPy({})
    return ByNumPy(_addresses(ctypes.CDLL(pool.filepath), OPENBLAS_NAMES))


def _find_mkl() -> Provider:
    remedy = pip_install("mkl")
    try:
        found = version("mkl")
    except PackageNotFoundError:
        raise Absent("mkl", "the package mkl is not installed", remedy) from None
    for path in _files_of_mkl():
        library = ctypes.CDLL(str(path))
        addresses = _addresses(library, ("{}", "{}_"))
        if addresses:
            library.MKL_Set_Num_Threads(1)  # a library that we load starts with one thread
            return ByAddress("mkl", found, addresses)
    raise Absent("mkl", f"the package mkl {found} has no library mkl_rt", remedy)


def _find_torch() -> Provider:
    torch = sys.modules.get("torch")
    if torch is None:
        raise Absent("torch", "torch is not loaded in this process", "import torch first")
    return _torch_of(str(torch.__version__), Path(str(torch.__file__)).parent / "lib")


@cache
def _torch_of(torch_version: str, folder: Path) -> Provider:
    path = folder / "libtorch_cpu.so"
    addresses = _addresses(ctypes.CDLL(str(path)), ("{}",), str.upper) if path.exists() else {}
    return ByTorch("torch", torch_version, addresses)


def _find_scipy() -> Provider:
    found = find_spec("scipy")
    if found is None:
        raise Absent("scipy", "scipy is not installed", pip_install("search"))
    for folder in found.submodule_search_locations or ():
        for path in Path(folder).parent.glob("scipy.libs/*openblas*"):  # of a wheel; importing scipy.linalg takes 0.2 s
            addresses = _addresses(ctypes.CDLL(str(path)), OPENBLAS_NAMES)
            if addresses:
                return ByAddress("scipy", version("scipy"), addresses)
    from scipy.linalg import cython_blas

    capsules = cython_blas.__pyx_capi__
    addresses = {dtype: _address_in(capsules[name]) for dtype, name in ROUTINES.items() if name in capsules}
    return ByAddress("scipy", version("scipy"), addresses)


def _find_packed() -> Provider:
    if not has_avx512():
        raise Absent(packed.NAME, "autobatch's own product needs AVX-512", "choose numpy")
    return packed.make_provider()


FINDERS: Mapping[str, Callable[[], Provider]] = {
    "numpy": _find_numpy,
    "mkl": _find_mkl,
    "torch": _find_torch,
    "scipy": _find_scipy,
    packed.NAME: _find_packed,
}


def _pool_of_numpy() -> Any:
    """Find the OpenBLAS that NumPy loaded, as threadpoolctl describes it; None if it has another library."""
    from threadpoolctl import ThreadpoolController

    home = Path(str(np.__file__)).parent
    pools = [pool for pool in ThreadpoolController().lib_controllers if pool.internal_api == "openblas"]
    # SciPy's wheel has an OpenBLAS of its own, so the folder of NumPy's wheel decides.
    own = [pool for pool in pools if Path(pool.filepath).parent in (home.parent / "numpy.libs", home / ".libs")]
    return next(iter(own or pools), None)


def _files_of_mkl() -> Iterator[Path]:
    """Find MKL's single dynamic library in the files of the wheel, or in the environment's folders."""
    for file in distribution("mkl").files or ():
        if "mkl_rt" in file.name and (".so" in file.name or file.suffix in (".dll", ".dylib")):
            yield Path(str(file.locate()))
    for folder in (Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin"):
        yield from sorted(folder.glob("*mkl_rt*"))


def _addresses(library: ctypes.CDLL, patterns: Sequence[str], spell: Callable[[str], str] = str) -> dict[str, int]:
    """Look up the addresses of the routines, by dtype, under any of several spellings; missing ones are left out."""
    found = {}
    for dtype, name in ROUTINES.items():
        routine = _find_symbol(library, [pattern.format(spell(name)) for pattern in patterns])
        if routine is not None:
            found[dtype] = int(ctypes.cast(routine, ctypes.c_void_p).value or 0)
    return found


def _find_symbol(library: ctypes.CDLL, names: Sequence[str]) -> Any:
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


def _address_in(capsule: Any) -> int:
    """Return the pointer in a capsule that Cython exports."""
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer_of(capsule, name_of(capsule)))
