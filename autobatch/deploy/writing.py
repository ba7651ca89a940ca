"""Export a trained model to one file: its parameters, and the programs of the cells that a function calls."""

from __future__ import annotations

import inspect
import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from autobatch.api import Batched, batched
from autobatch.arguments import check_int
from autobatch.deploy.encoding import Encoder, describe_policy, key_text, kinds_of
from autobatch.errors import CheckpointError, GraphError
from autobatch.keywords import checked
from autobatch.params.checkpoint import MODEL_FORMAT, write_arrays
from autobatch.params.module import Module, modules_in
from autobatch.trace.calls import Calls
from autobatch.trace.elements import NeedsLength
from autobatch.trace.fold import Fold, Scan
from autobatch.trace.recursion import BoundRecursion, Recursion
from autobatch.trace.traces import Specialization

FORMAT, VERSION = MODEL_FORMAT, 1
PARAMETER = "parameter."
LONGEST = 64
CALL = "__call__"
METHODS = frozenset(dir(Module)) - {CALL}
"""Names that a cell of a file cannot have."""
OWN = frozenset({"about", "options", "_source", "_function", "_parts"})
"""Names of attributes of a loaded model, which its cells and parts cannot have."""


@checked()
def export(
    function: Callable[[Any], Any] | Batched,
    path: str | os.PathLike[str],
    *,
    examples: Iterable[Any],
    module: Module | None = None,
    longest: int = LONGEST,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the parameters and the called cells of a model to one file, for `autobatch.load`.

    The file holds all parameters, the programs of the cells that the function calls for the examples in evaluation
    mode, the attributes of modules made by `autobatch.fold`, `autobatch.scan` and `autobatch.fold_edges` that name such
    cells, and for a batched function its policy and precision. Loading needs neither the model's classes nor code: the
    file is safetensors and JSON. Other functions, such as a recursion in Python, are not in the file.

    Args:
        function: a function of one instance, as for `autobatch.batched`, or a batched function.
        path: file to write; an existing one is replaced atomically.
        examples: instances that call each cell with each combination of argument types and shapes in use.
        module: the owner of the parameters, as for `autobatch.batched`.
        longest: largest number of elements of lists that a cell iterates over in Python. Lists that are only passed to
            list ops may have any length.
        about: JSON values, available as the `about` of the loaded model.

    Raises:
        GraphError: there is no module or it is in training mode, the examples call no cell, or a cell depends on a
            value that a file cannot hold. Or the function is a fold, a scan or a `fold_edges` of functions that are not
            exported cells.
        CheckpointError: `about` is not JSON, or the file cannot be written; `path` is unchanged.

    >>> import tempfile
    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Sum(ab.Module):
    ...     def __init__(self):
    ...         self.weight = ab.Parameter(np.full(2, 3.0))
    ...     @ab.cell
    ...     def add(self, x, y):
    ...         return x + self.weight * y
    ...     def of(self, rows):
    ...         total = np.zeros(2)
    ...         for row in rows:
    ...             total = self.add(total, row)
    ...         return total
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ab.export(Sum().eval().of, f"{folder}/sum.ab", examples=[np.ones((3, 2))])
    ...     model = ab.load(f"{folder}/sum.ab")
    >>> model.add(np.ones(2), np.ones(2))
    array([4., 4.], dtype=float32)
    """
    check_int("longest of export", longest, at_least=0)
    given = function if isinstance(function, Batched) else None
    function = given.recorder.function if given is not None else function
    module = given.recorder.module if given is not None else module
    fresh = batched(function, module=module, policy="agenda", backend="reference")
    module = fresh.recorder.module
    if module is None:
        raise GraphError("a function to export must have a module, got none; pass module=, which owns its parameters.")
    if any(part.training for part in modules_in(module)):
        raise GraphError(f"{type(module).__name__} must be in evaluation mode to be exported; call eval() on it first.")
    fresh(examples)
    if not any(
        specialization.entry.origin[0] == "cell" for specialization in fresh.recorder.calls.traces.specializations
    ):
        raise GraphError("examples of export must call at least one cell; give instances that do.")
    names = {id(x): name for name, x in module._named_parts()}
    cells = _called_cells(fresh.recorder.calls, names)
    encoder = Encoder(lambda x: names.get(id(x)))
    content = {
        "parts": {n: type(x).__name__ if isinstance(x, Module) else x.trainable for n, x in module._named_parts()},
        "shared": dict(module._shared_parts()),
        "cells": [_cell(path, of, fresh.recorder.calls, names, encoder, longest) for (path, _), of in cells.items()],
        "recursions": _recursions(module, cells),
        "function": _exported_recursion(function, module, names, cells),
        "about": dict(about or {}),
        "policy": {"name": "auto"} if given is None else describe_policy(given.policy, "cannot export the policy"),
        "precision": "float32" if given is None else given.options.precision,
    }
    _check_names(content)
    arrays = {PARAMETER + name: array for name, array in module.state_dict().items()} | encoder.arrays
    doing = f"cannot export {type(module).__name__} to {os.fspath(path)!r}"
    try:
        json.dumps(content["about"], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{doing}: about must be JSON values ({error}).") from error
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError as error:  # ints with too many digits
        raise CheckpointError(f"{doing}: static arguments must be JSON values ({error}).") from error
    write_arrays(path, arrays, {"format": FORMAT, "version": str(VERSION), "content": text}, doing)


def _check_names(content: Mapping[str, Any]) -> None:
    """Raise a GraphError for a cell, a recursion or a part that a loaded model could not have under its name."""
    methods = [(one["module"], one["name"]) for one in (*content["cells"], *content["recursions"])]
    parts = [("", name.partition(".")[0]) for name in (*content["parts"], *content["shared"])]
    reserved = [name for _, name in methods if name in METHODS]
    reserved += [name for path, name in (*methods, *parts) if not path and name in OWN]
    if reserved:
        raise GraphError(
            f"the names of cells and parts of a model must not be those of a loaded model itself, got {reserved[0]!r}; "
            f"rename it."
        )


def _called_cells(calls: Calls, names: dict[int, str]) -> dict[tuple[str, str], list[Specialization]]:
    """Return the variants of each called cell, by the path of its module and its name."""
    specializations: dict[tuple[str, str], list[Specialization]] = defaultdict(list)
    for specialization in calls.traces.specializations:
        if specialization.number >= 0 and specialization.entry.origin[0] == "cell":
            _, cell, owner = specialization.entry.origin
            if owner is not None and id(owner) not in names:
                raise GraphError(f"cell {cell.name!r} must belong to the model, got one of a {type(owner).__name__}.")
            specializations[names.get(id(owner), ""), cell.name].append(specialization)
    return specializations


def _recursions(module: Module, cells: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
    """Describe those recursions, of all modules, that a file can hold."""
    names, found = [name for name, _ in module._named_parts()], []
    for path, part in module._named_parts():
        for name in dir(type(part)) if isinstance(part, Module) else ():
            recursion = inspect.getattr_static(type(part), name)
            if isinstance(recursion, Recursion) and _is_data(recursion, path, cells, names):
                found.append({"kind": recursion.kind, "module": path, "name": name, **recursion.describe()})
    return found


def _is_data(recursion: Recursion, path: str, cells: Collection[tuple[str, str]], names: Iterable[str]) -> bool:
    """Return whether a recursion reads fields, and calls cells of its module that are in the file, by their names."""
    if isinstance(recursion, Scan) and recursion.initial is not None:
        initial = recursion.initial
        whole = f"{path}.{initial}".removeprefix(".")
        is_parameter = any(f"{name}.".startswith(f"{whole}.") for name in names)
        if not isinstance(initial, str) or not (is_parameter or (path, initial) in cells):
            return False
    reads_fields = not (isinstance(recursion, Fold) and callable(recursion.children))
    return reads_fields and all((path, function) in cells for function in recursion.functions())


def _exported_recursion(
    function: Any, module: Module, names: dict[int, str], cells: Collection[tuple[str, str]]
) -> list[str] | None:
    """Return the path of the module and the name of the exported function if it is a bound `fold`, `scan` or
    `fold_edges`.

    Raises:
        GraphError: the file cannot hold it.
    """
    is_foreign = isinstance(function, BoundRecursion) and id(function.owner) not in names
    if isinstance(function, Recursion) or is_foreign:
        raise GraphError(f"{function!r} must be an attribute of a module of the model to be exported.")
    if not isinstance(function, BoundRecursion):
        return None
    recursion, path = function.recursion, names[id(function.owner)]
    if not recursion.name or not _is_data(recursion, path, cells, [name for name, _ in module._named_parts()]):
        raise GraphError(
            f"cannot export {function!r}: its functions must be cells of its module that the examples call, given by "
            f"their names, its children fields, and its initial state None, or the name of a Parameter or a cell."
        )
    return [path, recursion.name]


def _cell(
    path: str,
    specializations: list[Specialization],
    calls: Calls,
    names: dict[int, str],
    encoder: Encoder,
    longest: int,
) -> dict[str, Any]:
    cell = specializations[0].entry.origin[1]
    if len({id(specialization.entry) for specialization in specializations}) > 1:
        raise GraphError(f"names of cells in {path or 'the model'} must differ, got {cell.name!r} twice; rename one.")
    variants, with_key = [], dict[str, Specialization]()
    for specialization in specializations:
        _walk(specialization, calls, longest)
        try:
            key = key_text(specialization.keys, lambda x: names.get(id(x)))
            _refuse_alike(with_key.setdefault(key, specialization), specialization, names)
            variants.append(
                {
                    "key": key,
                    "program": encoder.program(specialization.node_type.program),
                    "structure": encoder.structure(specialization.node_type.structure),
                    "walked": list(specialization.lengths.walked),
                    "lengths": sorted(map(list, specialization.lengths.found)),
                    "kinds": sorted(kinds_of(specialization.keys.values())),
                }
            )
        except GraphError as error:
            raise GraphError(f"cannot export cell {cell.name!r}: {error}") from error
    parameters = [
        [p.name, p.kind.name, *([] if p.default is p.empty else [encoder.default(p.name, p.default)])]
        for p in specializations[0].entry.signature.parameters.values()
    ]
    about = {"module": path, "name": cell.name, "parameters": parameters}
    return {**about, "static": list(cell.static), "ragged": list(cell.ragged), "variants": variants}


def _refuse_alike(first: Specialization, second: Specialization, names: dict[int, str]) -> None:
    """Raise a GraphError for two variants with equal keys, in which classes and enums are names, that differ."""
    if first is second or _content(first, names) == _content(second, names):
        return
    name, one, other = next((n, x, second.keys[n]) for n, x in first.keys.items() if x != second.keys[n])
    raise GraphError(
        f"argument {name!r} must not be of different classes or enums with the same name, because a file holds only "
        f"their names, got {one} and {other}; rename one."
    )


def _content(specialization: Specialization, names: dict[int, str]) -> Any:
    """Return what a cell computes and the form of its result, to be compared."""
    encoder, node_type = Encoder(lambda x: names.get(id(x))), specialization.node_type
    found = encoder.program(node_type.program), encoder.structure(node_type.structure)
    return found, [(x.dtype, x.shape, x.tobytes()) for x in encoder.arrays.values()]


def _walk(specialization: Specialization, calls: Calls, longest: int) -> None:
    """Trace a cell that iterates over lists at all lengths up to `longest`, to check that they give one program."""
    walked = specialization.lengths.walked
    if not walked:
        return
    for length in range(1, longest + 1):
        lengths = [*specialization.example]
        for group in walked:
            lengths[group] = length
        try:
            calls.traces.specialization_of(specialization.entry, specialization.keys, tuple(lengths))
        except NeedsLength:  # another program; the file holds the lengths found so far
            return
