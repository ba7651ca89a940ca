"""Find the machine code of modules: in this process, in the cache on disk, or by compiling in a background thread.

An entry of the cache is object code as LLVM emits it. Its name is a digest of everything on which it depends: the text
of the module, the processor, and the version of LLVM. Reading it executes nothing, and it contains no addresses.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from weakref import WeakValueDictionary

from autobatch.compiler.llvm.machine import Loaded, Processor, compile_module, find_processor, llvm_version
from autobatch.system.background import Job, submit
from autobatch.system.cache import find_code, keep_code
from autobatch.system.compiling import compiling

KIND = "kernels"
FORMAT = "2"  # the version of compilation and storage; a new number invalidates old entries


class Code:
    """The machine code of a module, which may still be compiling; it is freed with this object."""

    def __init__(self, job: Job[Loaded]) -> None:
        self._job = job

    def wait(self, seconds: float) -> bool:
        """Wait for the code, at most so many seconds after it was requested; return whether it is available."""
        return self._job.wait(seconds)

    def address(self, name: str) -> int:
        """Return the address of a function; waits for the code."""
        return self._job.result().address(name)


_known: WeakValueDictionary[str, Code] = WeakValueDictionary()  # by digest


def find_module(text: str, about: str) -> Code:
    """Find the code of a module; start compiling it if it is not in the cache.

    Args:
        text: the text of the module.
        about: a description for messages.
    """
    processor = find_processor()
    digest = sha256("\n".join((FORMAT, text, *processor, llvm_version())).encode()).hexdigest()
    found = _known.get(digest)
    if found is None:
        code = find_code(KIND, digest)
        if code is not None:
            job = Job(partial(Loaded, code, processor))
            job.do()
        else:
            job = Job(partial(_compile, text, processor, digest, about))
            submit(job)
        found = _known[digest] = Code(job)
    return found


def _compile(text: str, processor: Processor, digest: str, about: str) -> Loaded:
    with compiling(about):
        code = compile_module(text, processor)
    keep_code(KIND, digest, code)
    return Loaded(code, processor)
