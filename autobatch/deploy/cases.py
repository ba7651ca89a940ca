"""Save a mini-batch to one file, without the model's source code, and load it again; for bug reports.

A case is a zip of two files. `case.json` holds the programs of all cells, descriptions of their arguments, the shapes
of parameters and results, the settings of planning and running, and versions. `numbers.safetensors` holds the graph of
the instances with their data, the constants of programs, and the parameters. Nothing in it is executed.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from autobatch.api import Batched, batched
from autobatch.arrays import FloatArray, IntArray, LongArray
from autobatch.deploy.encoding import Decoder, Encoder, describe_policy, read_policy
from autobatch.deploy.loading import make_parameter
from autobatch.engine.results import loss_slot
from autobatch.errors import AutobatchError, DataError
from autobatch.graph.build import check_ranges, merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.words import HEADER, encoded_size, sections
from autobatch.ir.arguments import Key, ShownKey
from autobatch.ir.program_check import check_cell
from autobatch.ir.typetable import NodeType, TypeTable
from autobatch.memplan.planner import MemoryPlanner
from autobatch.ops.define import Shape
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.system.files import open_regular, write_whole
from autobatch.system.processor import cpu_name
from autobatch.trace.record import list_instances
from autobatch.trace.results import Slot

FORMAT, VERSION = "autobatch case", 1
CONTENT, NUMBERS = "case.json", "numbers.safetensors"
PARAMETER, UNREAD = "parameter.", "unread"
ADVICE = "pass a file written by ab.testing.dump"
SAME_DAY = (1980, 1, 1, 0, 0, 0)
"""The date of all files in a zip, so that equal cases give equal files."""

DAMAGED = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError,
    OverflowError, RuntimeError, AssertionError,
)  # fmt: skip
"""Errors that reading an arbitrary file as a case may raise."""


class Setting(NamedTuple):
    """The settings of planning and running a mini-batch.

    Attributes:
        policy: see `autobatch.deploy.encoding`.
        backend, rewrites, precision, threads, max_bytes, seed: as for `autobatch.batched`.
        planner: options of the `MemoryPlanner`.
        step: step number, which seeds random numbers together with `seed`.
        dtype: dtype of the parameters.
        training: whether gradients are computed.
        has_aux: as for `value_and_grad`.
        draws: whether the module is in training mode, with dropout on.
    """

    policy: dict[str, str]
    backend: str
    rewrites: tuple[str, ...]
    planner: dict[str, Any]
    precision: str
    threads: int
    max_bytes: int | None
    seed: int
    step: int
    dtype: str
    training: bool
    has_aux: bool
    draws: bool


class Case(NamedTuple):
    """A mini-batch with everything that running it needs.

    Attributes:
        types: types of its nodes; a type's number is its index.
        words, floats, keys: merged graph of the instances, see `autobatch.graph.graph.Graph`.
        slots: shape and dtype of each slot of the results.
        parameters: all parameters that the types read, by name.
        setting: settings of planning and running.
        versions: versions of the software that wrote it.
    """

    types: tuple[NodeType, ...]
    words: IntArray
    floats: FloatArray
    keys: LongArray
    slots: tuple[tuple[Shape, str], ...]
    parameters: dict[str, Parameter]
    setting: Setting
    versions: Mapping[str, str]

    def without_the_unread(self) -> Case:
        """Return the case without unused types, slots and parameters.

        A type's `sum_type` counts as used. If no parameter is used, a dummy carries the dtype of the case.
        """
        words = self.words.copy()
        parts = sections(words)
        used = set(np.unique(parts.type_id).tolist())
        used |= {self.types[number].sum_type for number in used} - {-1}
        number = {old: new for new, old in enumerate(sorted(used))}
        # `parts` are views, so these assignments change `words`.
        parts.type_id[:] = [number[old] for old in parts.type_id.tolist()]
        slots, parts.out_slot[:] = np.unique(parts.out_slot, return_inverse=True)
        types = tuple(
            replace(self.types[old], number=new, sum_type=number.get(self.types[old].sum_type, -1))
            for old, new in number.items()
        )
        read = {id(parameter) for node_type in types for parameter in node_type.program.parameters}
        parameters = {name: p for name, p in self.parameters.items() if id(p) in read}
        return self._replace(
            types=types,
            words=words,
            slots=tuple(self.slots[slot] for slot in slots.tolist()),
            parameters=parameters or {UNREAD: Parameter(0.0, trainable=False).astype(self.setting.dtype)},
        )

    def batched(self, **changes: Any) -> tuple[Batched, list[Graph]]:
        """Make a batched function with the settings of the case, and the graph of each instance.

        All functions made here share the parameters of this case, so a change of dtype affects all.

        Args:
            changes: arguments of `autobatch.batched` to override.
        """
        setting, module = self.setting, CaseModule(self.parameters).train(self.setting.draws)
        options: dict[str, Any] = {
            "policy": read_policy(setting.policy, "cannot run a case"),
            "planner": MemoryPlanner(**setting.planner),
            **{name: getattr(setting, name) for name in ("backend", "rewrites", "precision", "threads", "max_bytes")},
            "seed": setting.seed,
        }
        made = batched(_refuse_instances, module=module, **options | changes)
        made.step = setting.step
        for node_type in self.types:
            made.recorder.types.put(node_type)
        slots = [
            made.recorder.slots.slot(f"value {number}", shape, dtype)
            for number, (shape, dtype) in enumerate(self.slots)
        ]
        structures = _structures(self.words, slots, setting)
        return made, split_graph(Graph(self.words, self.floats, made.recorder.types, structures, self.keys))


class CaseModule(Module):
    """A module with the parameters of a case, whose names may contain dots."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        vars(self).update(parameters)


def make_case(function: Batched, instances: Any, training: bool, has_aux: bool) -> Case:
    """Make the case of a mini-batch of a batched function; see `autobatch.testing.dump`."""
    recorder, options, planner = function.recorder, function.options, function.planner
    listed = recorder.arrived(list_instances(instances))
    if not listed:
        raise DataError("instances of a case must not be empty; give the instances of the call that failed.")
    recorded = all(isinstance(x, Graph) for x in listed)
    graph = merge_graphs(listed if recorded else function.record_all(listed), recorder.types)
    if training:
        loss_slot(graph.structures, has_aux)
    module = recorder.module
    setting = Setting(
        describe_policy(function.policy, "cannot write a case"), function.backend.name, tuple(options.rewrites),
        asdict(planner) if isinstance(planner, MemoryPlanner) else {}, options.precision, options.threads,
        options.max_bytes, options.seed, function.step, "float32" if module is None else module.dtype.name,
        training, has_aux, module is None or module.training,
    )  # fmt: skip
    slots = tuple(zip(recorder.slots.shapes, recorder.slots.dtypes, strict=True))
    parameters = {} if module is None else module.parameters()
    whole = Case(
        tuple(recorder.types.types), graph.words, graph.floats, graph.keys, slots, parameters, setting, _versions()
    )
    return whole.without_the_unread()


def write_case(case: Case, path: str | os.PathLike[str], values: bool = True) -> None:
    """Write a case to a file, atomically replacing an existing one.

    Args:
        values: whether to write the numbers of parameters as well as their shapes.

    Raises:
        GraphError: a cell depends on a value that a file cannot hold.
        DataError: the file cannot be written.
    """
    import safetensors.numpy

    names = {id(parameter): name for name, parameter in case.parameters.items()}
    encoder = Encoder(lambda x: names.get(id(x)))
    content = {
        "format": FORMAT,
        "version": VERSION,
        "versions": dict(case.versions),
        "setting": case.setting._asdict(),
        "slots": case.slots,
        "parameters": {name: [list(p.shape), p.trainable] for name, p in case.parameters.items()},
        "types": [_encode_type(node_type, encoder) for node_type in case.types],
    }
    arrays = {"words": case.words, "floats": case.floats, "keys": case.keys, **encoder.arrays}
    if values:
        arrays |= {PARAMETER + name: p.store.get(p.array) for name, p in case.parameters.items()}
    numbers = safetensors.numpy.save({name: np.asarray(x, order="C") for name, x in arrays.items()})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, data in ((CONTENT, json.dumps(content, indent=1)), (NUMBERS, numbers)):
            zipped.writestr(zipfile.ZipInfo(name, SAME_DAY), data, zipfile.ZIP_DEFLATED)
    try:
        write_whole(path, file.getvalue())
    except OSError as error:
        raise DataError(
            f"cannot write {os.fspath(path)!r}: {error.strerror}; choose an existing, writable folder with free space."
        ) from error


def read_case(path: str | os.PathLike[str]) -> Case:
    """Read a file that `write_case` wrote; parameters without stored numbers are drawn with a fixed seed.

    Raises:
        DataError: the file is missing, damaged, of another format or of a later version, or needs an unknown op.
    """
    import safetensors.numpy

    doing = f"cannot read {os.fspath(path)!r}"
    try:
        with open_regular(path) as file:
            content = io.BytesIO(file.read())
    except OSError as error:
        raise DataError(f"{doing}: {error.strerror}; {ADVICE}.") from error
    try:
        with zipfile.ZipFile(content) as zipped:
            described = json.loads(zipped.read(CONTENT))
            arrays = safetensors.numpy.load(zipped.read(NUMBERS))
        if (described["format"], described["version"]) != (FORMAT, VERSION):
            raise DataError(
                f"format and version must be those of a case, got {described['format']!r} and {described['version']!r}"
            )
        return _decode(described, arrays)
    except (*DAMAGED, AutobatchError, safetensors.SafetensorError) as error:
        reason = str(error).rstrip(".") if isinstance(error, AutobatchError) else repr(error)
        raise DataError(f"{doing}: the file is damaged, or not a case of this version ({reason}); {ADVICE}.") from error


def _encode_type(node_type: NodeType, encoder: Encoder) -> dict[str, Any]:
    program = node_type.program
    whole = {"outputs": list(program.outputs), "draws": program.draws, "n_kept": program.n_kept}
    return {
        "name": node_type.name,
        "arguments": [[name, key.text(sizes=True), key.text(sizes=False)] for name, key in node_type.arguments],
        "sum_type": node_type.sum_type,
        "program": encoder.program(program) | whole,
    }


def _decode(content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Case:
    setting = Setting(**content["setting"])
    setting = setting._replace(rewrites=tuple(setting.rewrites))
    rng = np.random.default_rng(0)
    parameters = {
        name: make_parameter(_numbers(arrays.get(PARAMETER + name), shape, setting.dtype, rng), trainable)
        for name, (shape, trainable) in content["parameters"].items()
    }
    decoder = Decoder(parameters, arrays)
    types = tuple(_decode_type(number, x, decoder) for number, x in enumerate(content["types"]))
    slots = tuple((tuple(shape), dtype) for shape, dtype in content["slots"])
    words, floats, keys = arrays["words"], arrays["floats"], arrays["keys"]
    case = Case(types, words, floats, keys, slots, parameters, setting, content["versions"])
    _check(case)
    return case


def _decode_type(number: int, content: Mapping[str, Any], decoder: Decoder) -> NodeType:
    given = content["program"]
    program = decoder.program(content["name"], given)
    arguments = tuple((name, ShownKey("shown", tuple(texts))) for name, *texts in content["arguments"])
    return NodeType(
        number, content["name"], replace(program, draws=given["draws"], n_kept=given["n_kept"]), None, arguments,
        content["sum_type"], trace=number,
    )  # fmt: skip


def _numbers(array: Any, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> Any:
    """Check and return the stored numbers of a parameter, or draw some at the scale of an initialisation."""
    if array is None:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1] if shape else 1)).astype(dtype)
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise DataError(
            f"a parameter must have shape {tuple(shape)} and dtype {dtype}, got {array.shape} and {array.dtype}"
        )
    return array


def _check(case: Case) -> None:
    """Check everything that compiled code relies on, because it computes addresses from programs and graph."""
    table = TypeTable()
    for node_type in case.types:
        check_cell(node_type.program)
        table.put(node_type)
    if not all(-1 <= node_type.sum_type < len(case.types) for node_type in case.types):
        raise DataError("sum_type of a type must be the number of a type or -1")
    words = case.words
    types = [(words.dtype, np.int32), (case.floats.dtype, np.float64), (case.keys.dtype, np.int64)]
    if words.ndim != 1 or any(found != wanted for found, wanted in types):
        raise DataError("its graph must be arrays of int32, float64 and int64")
    if words.size < HEADER or min(words[:HEADER].tolist()) < 0 or encoded_size(words) != words.size:
        raise DataError("the size of its graph does not match its header")
    graph = Graph(words, case.floats, table, (None,) * int(words[0]), case.keys)
    if case.keys.shape != (graph.n_instances,) or not graph.n_instances:
        raise DataError(
            f"keys must have one element per instance, got shape {case.keys.shape} for {graph.n_instances} instances"
        )
    check_graph(graph)
    check_ranges(graph)
    split_graph(graph)
    _check_results(case, graph)


def _check_results(case: Case, graph: Graph) -> None:
    """Check that the slots of results exist, and that every instance has a loss in training."""
    if graph.n_outputs and not 0 <= graph.out_slot.min() <= graph.out_slot.max() < len(case.slots):
        raise DataError(f"slots of results must be below {len(case.slots)}, got {graph.out_slot.max()}")
    if case.setting.training and not np.diff(graph.output_ptr).all():
        raise DataError("every instance must have a loss, got one without")


def _structures(words: IntArray, slots: Sequence[Slot], setting: Setting) -> tuple[Any, ...]:
    """Make the result structure of each instance.

    This is a list; in training, it is the loss alone or, with `has_aux`, the loss and a list of the rest.
    """
    parts = sections(words)
    bounds = parts.output_ptr.tolist()
    return tuple(
        _structure([slots[number] for number in parts.out_slot[start:stop].tolist()], setting)
        for start, stop in pairwise(bounds)
    )


def _structure(slots: Sequence[Any], setting: Setting) -> Any:
    if not setting.training:
        return Key("list", None, tuple(slots))
    return Key("tuple", None, (slots[0], Key("list", None, tuple(slots[1:])))) if setting.has_aux else slots[0]


def _versions() -> dict[str, str]:
    return {
        "autobatch": sys.modules["autobatch"].__version__,
        "numpy": np.__version__,
        "llvmlite": version("llvmlite"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": cpu_name(),
    }


def _refuse_instances(instance: object) -> Any:
    raise DataError("a case must be run on its own graphs, got another instance.")
