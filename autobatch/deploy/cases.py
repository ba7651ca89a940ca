"""Write a mini-batch to one file without the code that it comes from, and read it again: for reports of errors.

A case is a zip of two files: `case.json` has the programs of all cells, what every argument of them was, the shapes of
parameters and results, how the mini-batch was planned and run, and versions; `numbers.safetensors` has the graph of the
instances with their data, the constants of programs, and the parameters. Nothing in it is executed.
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
from autobatch.deploy.encoding import Decoder, Encoder
from autobatch.deploy.loading import make_parameter
from autobatch.deploy.policy import describe_policy, read_policy
from autobatch.engine.results import loss_slot
from autobatch.errors import AutobatchError, DataError
from autobatch.graph.build import check_ranges, merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.words import HEADER, encoded_size, sections
from autobatch.ir.arguments import Key
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
ADVICE = "give a file that ab.testing.dump wrote"
SAME_DAY = (1980, 1, 1, 0, 0, 0)
"""The date of all files in a zip, so that equal cases are equal files."""

DAMAGED = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError,
    OverflowError, RuntimeError, AssertionError,
)  # fmt: skip
"""What reading a file that is no case may raise."""


class Setting(NamedTuple):
    """How a mini-batch is planned and run.

    Attributes:
        policy: see `autobatch.deploy.policy`.
        backend, rewrites, precision, threads, max_bytes, seed: as for `autobatch.batched`.
        planner: the switches of a `MemoryPlanner`.
        dtype: of the parameters.
        step: on which random numbers depend, beside the seed.
        training: whether gradients are asked for; has_aux: as for `value_and_grad`.
        draws: whether the module is in training mode, and dropout on.
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
    """A mini-batch, and what it needs to run.

    Attributes:
        types: of its nodes; a type's number is its index.
        words, floats, keys: of the merged graph of the instances, see `autobatch.graph.graph.Graph`.
        slots: the shape of each slot of the results, and what its numbers stand for.
        parameters: all that the types read, by name.
        setting: how it runs.
        versions: of what it was written with.
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
        """The case without the types that no node has, the slots that nothing is in, and parameters that no type reads.

        A type that is the sum of values in another's place stays with that. Where no parameter is read there is one
        still, which has the float type of the case.
        """
        words = self.words.copy()
        parts = sections(words)
        used = set(np.unique(parts.type_id).tolist())
        used |= {self.types[number].sum_type for number in used} - {-1}
        number = {old: new for new, old in enumerate(sorted(used))}
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
        """What runs the case as it is set, and the graph of each instance.

        Its module has the parameters of this case, so that a change of their float type is one for all that run it.

        Args:
            changes: of what `autobatch.batched` takes.
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
    """Parameters under their names, which may hold dots."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        vars(self).update(parameters)


class ShownKey(Key):
    """The key of an argument of which only the texts are known: with sizes, and without."""

    def text(self, sizes: bool) -> str:
        """One of them."""
        shown: str = self.detail[0 if sizes else 1]
        return shown


def make_case(function: Batched, instances: Any, training: bool, has_aux: bool) -> Case:
    """The case of a mini-batch of a batched function; see `autobatch.testing.dump`."""
    recorder, options, planner = function.recorder, function.options, function.planner
    listed = recorder.arrived(list_instances(instances))
    if not listed:
        raise DataError("a case of no instances computes nothing; give the instances of the call that failed.")
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
    """Write a case to a file; an existing one is replaced only once all is written.

    Args:
        values: whether the numbers of parameters are written, and not only their shapes.

    Raises:
        GraphError: a cell depends on something that no file can hold.
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
            f"cannot write {os.fspath(path)!r}: {error.strerror}; give a file in a folder that exists, can be written "
            f"and has room."
        ) from error


def read_case(path: str | os.PathLike[str]) -> Case:
    """Read what `write_case` wrote; parameters whose numbers were left out get normal ones, always the same.

    Raises:
        DataError: the file is missing, damaged, of another format or of a later version, or needs an op that is unknown
            here.
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
            raise DataError(f"it is {described['format']!r}, version {described['version']!r}")
        return _decode(described, arrays)
    except (*DAMAGED, AutobatchError, safetensors.SafetensorError) as error:
        what = str(error).rstrip(".") if isinstance(error, AutobatchError) else repr(error)
        raise DataError(f"{doing}: it is damaged, or no case of this version ({what}); {ADVICE}.") from error


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
    """The numbers of a parameter, or drawn ones, of the size that initial ones have."""
    if array is None:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1] if shape else 1)).astype(dtype)
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise DataError(f"a parameter of shape {tuple(shape)} and type {dtype} is {array.shape} of {array.dtype}")
    return array


def _check(case: Case) -> None:
    """Check all that compiled code relies on: it reads and writes where programs and graph say."""
    table = TypeTable()
    for node_type in case.types:
        check_cell(node_type.program)
        table.put(node_type)
    if not all(-1 <= node_type.sum_type < len(case.types) for node_type in case.types):
        raise DataError("a type names another as its sum that does not exist")
    words = case.words
    types = [(words.dtype, np.int32), (case.floats.dtype, np.float64), (case.keys.dtype, np.int64)]
    if words.ndim != 1 or any(found != wanted for found, wanted in types):
        raise DataError("its graph is no array of int32, float64 and int64")
    if words.size < HEADER or min(words[:HEADER].tolist()) < 0 or encoded_size(words) != words.size:
        raise DataError("its graph does not have the size that it says")
    graph = Graph(words, case.floats, table, (None,) * int(words[0]), case.keys)
    if case.keys.shape != (graph.n_instances,) or not graph.n_instances:
        raise DataError(f"it has {graph.n_instances} instances and {case.keys.shape} keys")
    check_graph(graph)
    check_ranges(graph)
    split_graph(graph)
    _check_results(case, graph)


def _check_results(case: Case, graph: Graph) -> None:
    """Check that slots exist and have the shapes of what is in them, and that a loss is first in training."""
    if graph.n_outputs and not 0 <= graph.out_slot.min() <= graph.out_slot.max() < len(case.slots):
        raise DataError("a result has a slot that does not exist")
    if case.setting.training and not np.diff(graph.output_ptr).all():
        raise DataError("an instance has no loss")


def _structures(words: IntArray, slots: Sequence[Slot], setting: Setting) -> tuple[Any, ...]:
    """What each instance returns, which has a loss first in training: all else is in a list."""
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
    raise DataError("a case runs the graphs that are in it, and no other instances.")
