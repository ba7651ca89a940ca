"""Compile modules to object code, and load functions that are called by their addresses.

    AUTOBATCH_CPU=name     compile for the processor with this name in LLVM, such as `haswell` or `generic`

Machine code is found in this process, in the cache on disk, or by compiling in a background thread.

An entry of the cache is object code as LLVM emits it. Its name is a digest of everything on which it depends: the text
of the module, the processor, and the version of LLVM. Reading it executes nothing, and it contains no addresses.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache, partial
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from autobatch.errors import BackendError
from autobatch.system.background import Job, compiling, submit
from autobatch.system.cache import find_code, keep_code

VARIABLE = "AUTOBATCH_CPU"
EXAMPLES = "haswell or generic"
UNKNOWN = "not a recognized processor"
TRY = """
import sys
from autobatch.compiler.llvm.machine import Processor, compile_module

compile_module("define double @f(double %x) {\\n  ret double %x\\n}\\n", Processor(sys.argv[1], ""))
"""


class Processor(NamedTuple):
    """A target processor.

    Attributes:
        name: its name in LLVM.
        features: LLVM's list of features that it has or lacks, compared with the processor of that name.
    """

    name: str
    features: str


def find_processor() -> Processor:
    """Return this processor, or the one that `AUTOBATCH_CPU` names.

    Raises:
        BackendError: LLVM cannot compile for a processor of that name.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    return _named(chosen) if chosen else _host()


@cache
def _named(name: str) -> Processor:
    """Return the processor of a name, after a check in another process, because LLVM aborts on an unknown name."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run([sys.executable, "-c", TRY, name], env=environment, capture_output=True, text=True)
    if done.returncode or UNKNOWN in done.stderr:
        raise BackendError(
            f"{VARIABLE} must be a processor that LLVM can compile for, such as {EXAMPLES}, got {name!r}."
        )
    return Processor(name, "")


@cache
def _host() -> Processor:
    binding = _binding()
    features = binding.get_host_cpu_features()
    return Processor(binding.get_host_cpu_name(), features.flatten() if features else "")


@cache
def _binding() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def llvm_version() -> str:
    """Return the version of LLVM."""
    return ".".join(map(str, _binding().llvm_version_info))


def _machine(processor: Processor) -> Any:
    """Build LLVM's target machine for a processor; an engine takes ownership of its machine."""
    options = {"opt": 3, "reloc": "default", "codemodel": "jitdefault", "jit": True}
    return _binding().Target.from_default_triple().create_target_machine(processor.name, processor.features, **options)


def optimise(text: str, processor: Processor) -> Any:
    """Optimise the text of a module; return LLVM's module, whose `str` is the result."""
    binding, machine = _binding(), _machine(processor)
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.loop_interleaving = True
    tuning.loop_unrolling = False  # would take 20% of the compile time, without gain
    builder = binding.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module


def compile_module(text: str, processor: Processor) -> bytes:
    """Compile the text of a module to object code. Cost: 20 to 200 ms."""
    code: bytes = _machine(processor).emit_object(optimise(text, processor))
    return code


class Loaded:
    """Object code in executable memory, which is freed with this object."""

    def __init__(self, code: bytes, processor: Processor) -> None:
        binding = _binding()
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine(processor))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function; raise a BackendError if the code does not have it."""
        found: int = self._engine.get_function_address(name)
        if not found:
            raise BackendError(f"compiled code must have a function {name!r}, but has none.")
        return found


KIND = "kernels"
FORMAT = "2"  # the version of compilation and storage; a new number invalidates old entries


class Code:
    """The machine code of a module, which may still be compiling; it is freed with this object."""

    def __init__(self, job: Job[Loaded]) -> None:
        self._job = job

    def wait(self, seconds: float) -> bool:
        """Wait for the code until this many seconds after it was requested; return whether it is available."""
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
