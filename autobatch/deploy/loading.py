"""Load a model from a file that `autobatch.export` wrote.

Before cells are made from a file, its content is checked: names, sizes, op options and all programs.

A file holds no code, but its content reaches code: names become attributes of classes, sizes become shapes, and options
go to kernels. Programs get the same checks as traced ones, and each op is run once on zeros.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from autobatch.arguments import RAW, is_int, kinds_of, show
from autobatch.deploy.encoding import Decoder, read_policy
from autobatch.deploy.loaded import LoadedCell, Variant
from autobatch.deploy.writing import CALL, FORMAT, PARAMETER, VERSION
from autobatch.errors import AutobatchError, CheckpointError, GraphError
from autobatch.ir.program import Attribute, CellProgram, Instruction, Port
from autobatch.ir.program_check import check_cell
from autobatch.keywords import checked
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments
from autobatch.params.checkpoint import read_arrays
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.elements import Lengths
from autobatch.trace.fold import fold, scan
from autobatch.trace.fold_edges import fold_edges
from autobatch.trace.recursion import BoundRecursion, Recursion

MOST_NUMBERS = 2**31  # in the value of one node
MOST_TRIED = 2**20  # largest total size of the values of an op that is run on zeros


def check_name(name: Any, what: str, taken: Collection[str] = ()) -> None:
    """Raise a CheckpointError for a name with a special meaning in Python or modules, such as `__del__`.

    Args:
        what: subject of the error message, such as "a cell".
        taken: names that attributes of modules already have.
    """
    if not isinstance(name, str):
        raise CheckpointError(f"the name of {what} must be a str, got {show(name)}.")
    is_special = name.startswith("__") and name.endswith("__") and name != CALL
    if is_special or name in taken:
        raise CheckpointError(f"the name of {what} must not be reserved, got {name!r}.")


def check_program(program: CellProgram) -> None:
    """Raise an error for a program that tracing a cell cannot produce.

    Raises:
        CheckpointError: a size, name or option is invalid, or an op rejects its options.
        GraphError: as for `check_cell`.
    """
    for index, var in enumerate(program.vars):
        sizes_are_ints = all(is_int(size) and 0 <= size < MOST_NUMBERS for size in var.shape)
        if not sizes_are_ints or not is_int(var.domain) or math.prod(var.shape) >= MOST_NUMBERS:
            raise _refused(program, index, f"has the invalid shape {show(var.shape)}")
        source = var.source
        if isinstance(source, (Port, Attribute)):
            for name, wanted in kinds_of(Port if isinstance(source, Port) else Attribute).items():
                if not wanted.kind.holds(getattr(source, name)):
                    raise _refused(program, index, f"has the invalid {name} {show(getattr(source, name))}")
        if isinstance(source, Instruction) and not all(map(is_int, source.args)):
            raise _refused(program, index, f"reads the invalid values {show(source.args)}")
    if not all(is_int(x) for x in (*program.outputs, *(group for tie in program.ties for group in tie))):
        raise CheckpointError(f"the outputs of cell {program.name!r} must be ints, got {show(program.outputs)}.")
    check_cell(program)
    for index, var in enumerate(program.vars):
        if isinstance(var.source, Instruction):
            _try(program, index, var.source)


def _refused(program: CellProgram, index: int, fault: str) -> CheckpointError:
    return CheckpointError(f"malformed program: value {index} of {program.name!r} {fault}; export the model again.")


def _try(program: CellProgram, index: int, source: Instruction) -> None:
    """Run an op once on zeros, because shape rules do not check all options that its kernel relies on."""
    op, static = source.op, dict(source.static)
    vars = [program.vars[arg] for arg in (*source.args, index)]
    if sum(math.prod(var.shape) for var in vars) > MOST_TRIED or op.segments == "move" or op.sums_rows:
        return
    n = 1 if op.least is None else max(1, op.least(**static))  # the smallest number of rows that the op takes
    *arrays, out = [np.zeros((1 if var.domain < 0 else n, *var.shape)) for var in vars]
    if op.index_axis is not None:
        arrays[1] = arrays[1].astype(np.int64)
    if op.random:
        static["random"] = Randomness()
    if op.segments is not None:
        one = Segments(np.array([0, n]))
        of_each = [one if var.domain >= 0 else None for var in vars]
        static["segments"] = {"choose": of_each, "pairs": (one, one)}.get(op.segments, one)
    try:
        with np.errstate(all="ignore"):
            if op.view:
                op.kernel(np, arrays[0], **static)
            else:
                run_kernel(op, np, arrays, out, static)
    except RAW as error:
        raise _refused(program, index, f"applies {op.name!r} with options that it rejects ({error})") from error


def check_outputs(structure: Any, n_outputs: int) -> None:
    """Raise a CheckpointError for a result structure that refers to missing outputs of a program."""
    if isinstance(structure, bool) or (isinstance(structure, int) and not 0 <= structure < n_outputs):
        raise CheckpointError(f"a result must be one of {n_outputs} outputs, got {structure}.")
    for part in structure if isinstance(structure, tuple) else getattr(structure, "children", ()):
        check_outputs(part, n_outputs)


EMPTY = inspect.Parameter.empty
ADVICE = "pass a file written by ab.export"


class Source(NamedTuple):
    """The content of a file, except for the parameters.

    Attributes:
        constants: arrays of programs, by name.
        content: the JSON of the file.
    """

    constants: dict[str, Any]
    content: str


class Loaded(Module):
    """A loaded model, or a submodule of one; its methods are the cells of the file.

    Copies and pickles are made from the same content, and their cells read the parameters of the copy.
    """

    _source: Source | None = None
    _function: Any = None  # the recursion that was exported
    _parts: Parts | None = None

    def __reduce__(self) -> Any:
        """Return the function and arguments that make the model again.

        Raises:
            GraphError: it is a submodule, whose cells may read parameters elsewhere in the model, or a part of the
                model has been replaced, so that its content describes another model.
        """
        if self._source is None:
            raise GraphError(
                f"{type(self).__name__} is a submodule of a loaded model and cannot be copied or pickled alone; copy "
                f"or pickle the model that ab.load returned."
            )
        assert self._parts is not None
        parts, present = self._parts.named, Parts(self).named
        for name, part in parts.items():
            if present.get(name) is not part:
                raise GraphError(
                    f"a loaded model whose parts have been replaced cannot be copied or pickled, and {name!r} has; "
                    f"make the copy first, and replace the part in both."
                )
        places = {name.rsplit(".", n)[0] for name in parts for n in range(name.count(".") + 1)}
        own = {
            name: {key: x for key, x in vars(module).items() if f"{name}.{key}".removeprefix(".") not in places | MADE}
            for name, module in parts.items()
            if isinstance(module, Module)
        }
        return _make, (self._source, {name: x for name, x in parts.items() if isinstance(x, Parameter)}), own

    def __setstate__(self, own: dict[str, dict[str, Any]]) -> None:
        """Restore the other attributes of all modules."""
        assert self._parts is not None
        for name, attributes in own.items():
            vars(self._parts.named[name]).update(attributes)


MADE = {"_source", "_function", "_parts"}
"""Attributes that a copy makes again, besides its parts."""


class Parts:
    """The modules and parameters of a model, in an object in which modules do not look for parts.

    Attributes:
        named: the parts by name, shared ones by each of their names; the model itself is "".
    """

    def __init__(self, root: Module) -> None:
        self.named = dict(root._named_parts())
        self.named |= {name: self.named[first] for name, first in root._shared_parts()}


FUNCTIONS = {"node", "leaf", "start", "message", "step", "each", "root", "last", "readout"}
"""Arguments of recursions that name cells."""
MAKERS: dict[str, Callable[..., Any]] = {"fold": fold, "scan": scan, "fold_edges": fold_edges}
TAKEN = frozenset(dir(Loaded)) - {CALL}
"""Names that a cell of a file cannot have."""


@checked(path=CheckpointError)
def load(path: str | os.PathLike[str]) -> Any:
    """Load a model from the file at `path`, which `autobatch.export` wrote, without its classes.

    Returns:
        A module in evaluation mode, with the parameters, submodules and cells of the exported one under their names:
        `model.merge(left, right)`, `model.blocks[0].step(x)`. Cells that were plain functions are its attributes as
        well, as is each `fold`, `scan` or `fold_edges` of exported cells: `model.visit(tree)`. `model.options` holds
        the policy and the precision, for `ab.batched(function, module=model, **model.options)`, and `model.about` the
        `about` of `export`.

    Raises:
        CheckpointError: the file is missing, damaged, of another format or of a later version, or needs an op that is
            unknown here.
        GraphError, PolicyError: the file holds an invalid program or policy.
    """
    arrays, metadata = read_arrays(path, "ab.export", FORMAT, VERSION)
    doing = f"cannot load {os.fspath(path)!r}"
    try:
        trainable = {name: x for name, x in json.loads(metadata["content"])["parts"].items() if isinstance(x, bool)}
        parameters = {name: make_parameter(arrays.pop(PARAMETER + name), x) for name, x in trainable.items()}
        # The remaining arrays are the constants of programs.
        return _make(Source(arrays, metadata["content"]), parameters).eval()
    except AutobatchError as error:
        raise type(error)(f"{doing}: {error}") from error
    except (*RAW, RecursionError, AssertionError, MemoryError) as error:
        raise CheckpointError(f"{doing}: malformed content ({_one_line(error)}); {ADVICE}.") from error


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _make(source: Source, parameters: Mapping[str, Parameter]) -> Any:
    """Make the model of a file with the given parameters, by name."""
    content = json.loads(source.content)
    names: dict[int, str] = {id(parameter): name for name, parameter in parameters.items()}
    decoder = Decoder(parameters, source.constants)
    for name in (*content["parts"], *content["shared"]):
        for part in name.split("."):
            check_name(part, "a part")
    kinds = {name: kind for name, kind in content["parts"].items() if name not in parameters}
    for kind in kinds.values():
        check_name(kind, "a class")
    cells: dict[str, dict[str, LoadedCell]] = {name: {} for name in kinds}
    for cell in content["cells"]:
        check_name(cell["name"], "a cell", TAKEN)
        cells[cell["module"]][cell["name"]] = _cell(cell, decoder, names)
    methods: dict[str, dict[str, Any]] = {name: dict(of) for name, of in cells.items()}
    for one in content.get("recursions", ()):  # files of version 0.2 have none
        check_name(one["name"], "a recursion", TAKEN)
        methods[one["module"]][one["name"]] = _recursion(one, cells[one["module"]])
    modules: dict[str, Any] = {name: type(kind, (Loaded,), methods[name])() for name, kind in kinds.items()}
    names |= {id(module): name for name, module in modules.items()}  # in place, because the cells look names up here
    root = modules[""]
    parts = {name: (parameters if name in parameters else modules)[name] for name in content["parts"] if name}
    parts |= {name: parts[first] for name, first in content["shared"].items()}
    _place(modules, parts)
    if content.get("function"):
        path, name = content["function"]
        root._function = BoundRecursion(methods[path][name], modules[path])
    root._source, root._parts = source, Parts(root)
    root.about = content["about"]
    root.options = {"policy": read_policy(content["policy"], "reading its policy"), "precision": content["precision"]}
    return root


def make_parameter(array: Any, trainable: bool) -> Parameter:
    """Make a parameter with exactly the numbers and the dtype of an array."""
    parameter = Parameter(array, trainable).astype(array.dtype)
    parameter.data = array
    return parameter


def _cell(content: Mapping[str, Any], decoder: Decoder, names: Mapping[int, str]) -> LoadedCell:
    parameters = [
        inspect.Parameter(name, inspect._ParameterKind[kind], default=decoder.default(default[0]) if default else EMPTY)
        for name, kind, *default in content["parameters"]
    ]
    variants = {variant["key"]: _variant(content["name"], variant, decoder) for variant in content["variants"]}
    signature = inspect.Signature(parameters)
    return LoadedCell(
        content["name"], signature, variants, lambda x: names.get(id(x)), tuple(content["static"]),
        tuple(content["ragged"]),
    )  # fmt: skip


def _recursion(content: Mapping[str, Any], cells: Mapping[str, LoadedCell]) -> Recursion:
    """Make a `fold`, `scan` or `fold_edges` whose functions are cells of the module."""
    given = {name: x for name, x in content.items() if name not in ("kind", "module", "name")}
    others = {"reverse", "rounds"} | ({"children"} if isinstance(given.get("children"), list) else set())
    if not all(isinstance(x, str) for name, x in given.items() if name not in others):
        raise CheckpointError(f"the arguments of {content['name']!r} must be names, got {show(given)}.")
    for name in FUNCTIONS & given.keys():
        if given[name] not in cells:
            raise CheckpointError(f"{name} of {content['name']!r} must be a cell, got {show(given[name])}.")
    made: Recursion = MAKERS[content["kind"]](**given)
    return made


def _variant(name: str, content: Mapping[str, Any], decoder: Decoder) -> Variant:
    """Load and check the program of a cell for one key."""
    if not isinstance(json.loads(content["key"]), dict):
        raise CheckpointError(f"a key of cell {name!r} must be a dict, got {show(content['key'])}.")
    program, structure = decoder.program(name, content["program"]), decoder.structure(content["structure"])
    check_program(program)
    check_outputs(structure, len(program.outputs))
    lengths = [*map(tuple, content["lengths"])]
    if not all(map(is_int, (*content["walked"], *(n for one in lengths for n in one)))):
        raise CheckpointError(f"the lengths of lists of cell {name!r} must be ints, got {show(lengths)}.")
    if min(content["walked"], default=0) < 0:
        raise CheckpointError(f"the list groups of cell {name!r} must not be negative, got {show(content['walked'])}.")
    return Variant(program, structure, Lengths(tuple(content["walked"]), set(lengths)), frozenset(content["kinds"]))


def _is_int(key: str) -> bool:
    """Return whether a key is written as `str` writes an int of at least 0; "01" and "²" are not."""
    return key.isascii() and key.isdecimal() and (key == "0" or key[0] != "0")


def _place(modules: Mapping[str, Module], parts: Mapping[str, Any]) -> None:
    """Set modules and parameters as attributes, with lists and dicts in between, according to their names."""
    children: dict[str, dict[str, Any]] = {}
    for name in parts:
        while name:
            above, _, key = name.rpartition(".")
            children.setdefault(above, {})[key] = name
            name = above

    def part(name: str) -> Any:
        if name in parts:
            return parts[name]
        own = {key: part(below) for key, below in children[name].items()}
        if [*own] == [str(place) for place in range(len(own))]:  # a list
            return list(own.values())
        return {int(key) if _is_int(key) else key: child for key, child in own.items()}

    for name, module in modules.items():
        for key, below in children.get(name, {}).items():
            setattr(module, key, part(below))
