"""Count the arrays that NumPy allocates, with a custom memory handler (NEP 49)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

SET_HANDLER = 304  # PyDataMem_SetHandler in NumPy's table of C functions
ALLOCATE = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
ALLOCATE_ZEROS = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CHANGE = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FREE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Allocator(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("malloc", ALLOCATE), ("calloc", ALLOCATE_ZEROS), ("realloc", CHANGE),
                ("free", FREE))  # fmt: skip


class _Handler(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


sizes: list[int] = []
_c = ctypes.CDLL(None)
for _name, _result, _arguments in (
    ("malloc", ctypes.c_void_p, [ctypes.c_size_t]),
    ("calloc", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]),
    ("realloc", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
    ("free", None, [ctypes.c_void_p]),
):
    getattr(_c, _name).restype, getattr(_c, _name).argtypes = _result, _arguments


def _note(size: int) -> int:
    sizes.append(size)
    return size


_allocator = _Allocator(
    None,
    ALLOCATE(lambda _, size: _c.malloc(_note(size))),
    ALLOCATE_ZEROS(lambda _, n, size: _c.calloc(n, _note(n * size) // max(n, 1))),
    CHANGE(lambda _, at, size: _c.realloc(at, _note(size))),
    FREE(lambda _, at, __: _c.free(at)),
)
_handler = _Handler(b"counting", 1, _allocator)


@contextmanager
def counting() -> Iterator[list[int]]:
    """Yield a list of the bytes of each array allocated inside; no such array may outlive the interpreter."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    functions = import_module("numpy._core._multiarray_umath")._ARRAY_API
    table = ctypes.cast(api.PyCapsule_GetPointer(functions, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
    sizes.clear()
    before = set_handler(api.PyCapsule_New(ctypes.addressof(_handler), b"mem_handler", None))
    try:
        yield sizes
    finally:
        set_handler(before)
