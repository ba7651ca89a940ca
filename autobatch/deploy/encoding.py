"""Encode cells and policies as JSON. Keys of arguments become text, for comparison only; programs can be decoded.

Keys are only compared, so modules, enums and dataclasses are written as names. Programs refer to ops and parameters by
name, and to arrays by names in the safetensors part of the file.

A learned policy is stored as the text of its file, any other policy by its name.
"""

from __future__ import annotations

import enum
import json
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from typing import Any

import numpy as np

from autobatch import policies
from autobatch.errors import CheckpointError, GraphError
from autobatch.ir.arguments import Fixed, Key, Static
from autobatch.ir.program import Attribute, CellProgram, Constant, Instruction, Port, Source, Var, Weight
from autobatch.ops.define import Op
from autobatch.ops.operators import OPS
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.policies import KINDS
from autobatch.policies.files import from_text, to_text
from autobatch.policies.rules.directed import Directed
from autobatch.schedule.schedule import Policy
from autobatch.trace.guards import Live

FIXED, ENUM = "fixed", "enum"
Name = Callable[[Any], str | None]
"""Returns the name of a module or a parameter, or None."""


def key_text(keys: Mapping[str, Key], name_of: Name) -> str:
    """Format the keys of a call's arguments as text, which is equal for equal keys.

    Raises:
        GraphError: a static argument cannot be stored in a file.
    """
    return json.dumps({name: _key(key, name, name_of) for name, key in keys.items()})


def kinds_of(keys: Collection[Key]) -> frozenset[str]:
    """Return the kinds of keys and of their children; `FIXED` for data that a program is specialised to."""
    own = {FIXED if key.kind == "static" and isinstance(key.detail.value, Fixed) else key.kind for key in keys}
    return frozenset(own).union(*(kinds_of(key.children) for key in keys))


def _key(key: Key, name: str, name_of: Name) -> Any:
    match key.kind:
        case "static":
            return ["static", _static(key.detail.value, name, name_of)]
        case "dict":
            detail = _static(key.detail.value, name, name_of)
        case "dataclass":
            detail = [key.detail.__name__, *(f.name for f in fields(key.detail))]
        case "tuple":
            detail = None if key.detail is None else key.detail.__name__
        case _:
            detail = None if key.detail is None else list(key.detail)
    found = [key.kind, detail, [_key(child, name, name_of) for child in key.children]]
    return [*found, key.below, key.dtype] if key.below or key.dtype else found


def _static(x: Any, name: str, name_of: Name) -> Any:
    """Encode a static argument for comparison: plain values unchanged, everything else by name."""
    # Subclasses come first: bools and enums may be ints, and np.float64 is a float. An enum of strs counts as its text.
    match x:
        case bool() | None | str():
            return x
        case enum.Enum():
            return ["enum", type(x).__name__, x.name]
        case int():
            return ["int", x]
        case np.bool_() | np.integer() | np.floating():
            return ["numpy", x.dtype.str, x.tobytes().hex()]
        case float():
            return ["float", repr(x)]
        case Fixed():
            data = np.asarray(x.numbers)
            return [FIXED, type(x.numbers).__name__, data.dtype.str, list(data.shape), data.ravel().tolist()]
        case tuple():
            return ["tuple", *(_static(part, name, name_of) for part in x)]
        case frozenset():  # its order depends on the process
            return ["frozenset", *sorted(json.dumps(_static(part, name, name_of)) for part in x)]
        case Module() | Parameter() if (found := name_of(x)) is not None:
            return ["part", found]
    if is_dataclass(x) and not isinstance(x, type):
        return ["dataclass", type(x).__name__, *(_static(getattr(x, f.name), name, name_of) for f in fields(x))]
    raise GraphError(
        f"argument {name!r} must be a str, a number, an enum, a module of the model, or a dataclass or tuple of these, "
        f"to be stored in a file; got {x!r} ({type(x).__name__})."
    )


class Encoder:
    """Encodes programs as JSON values.

    Args:
        name_of: returns names of parameters.

    Attributes:
        arrays: constants, by name.
    """

    def __init__(self, name_of: Name) -> None:
        self._name_of = name_of
        self.arrays: dict[str, Any] = {}

    def program(self, program: CellProgram) -> dict[str, Any]:
        """Encode a program, without the outputs that nodes keep for derivatives."""
        return {
            "vars": [[self._source(v.source), list(v.shape), v.domain] for v in program.vars],
            "outputs": list(program.results),
            "ties": [list(tie) for tie in program.ties],
        }

    def default(self, name: str, x: Any) -> Any:
        """Encode the default of an argument; enums by name, as they are only compared."""
        if isinstance(x, enum.Enum) and not isinstance(x, str):
            return [ENUM, type(x).__name__, x.name]
        if is_dataclass(x):
            raise GraphError(
                f"the default of argument {name!r} must be a number, a str, an array or an enum to be stored in a "
                f"file, got {x!r}; pass it in each call."
            )
        return self.value(x)

    def structure(self, x: Any) -> Any:
        """Encode the structure of a cell's result, whose leaves are output numbers."""
        if isinstance(x, int):
            return x
        if isinstance(x, Static):
            return ["static", self.value(x.value)]
        if isinstance(x, tuple):
            return ["tuple", None, [self.structure(part) for part in x]]
        kind, children = x.kind, [self.structure(part) for part in x.children]
        if kind == "dict":
            return ["dict", self.value(x.detail.value), children]
        if kind == "dataclass":
            return ["dataclass", [x.detail.__name__, *(f.name for f in fields(x.detail))], children]
        return [kind, None if x.detail is None else [x.detail.__name__, *x.detail._fields], children]

    def _source(self, source: Source) -> Any:
        match source:
            case Port(name, leaf, number, below, dtype):
                return ["port", name, leaf, number, below, dtype]
            case Attribute(name, leaf, is_float, column, dtype):
                return ["data", name, leaf, is_float, column, dtype]
            case Weight(parameter) if isinstance(parameter, Live):
                return ["constant", self.value(np.array(parameter.data))]
            case Weight(parameter):
                found = self._name_of(parameter)
                if found is None:
                    raise GraphError(f"parameters that cells read must belong to the model, got {parameter!r}.")
                return ["weight", found]
            case Constant(data):
                return ["constant", self.value(data)]
            case Instruction(op, args, static):
                if OPS.get(op.name) is not op:
                    raise GraphError(f"ops of cells must be registered with define_op, got {op.name!r}.")
                return ["op", op.name, list(args), {name: self.value(x) for name, x in static.items()}]
        raise AssertionError(source)

    def value(self, x: Any) -> Any:
        """Encode an option of an op, or a constant."""
        match x:
            case bool() | None | str():
                return x
            case int():
                return ["int", int(x)]
            case float():
                return ["float", repr(float(x))]  # JSON has no infinities
            case tuple():
                return ["tuple", *map(self.value, x)]
            case list():
                return ["list", *map(self.value, x)]
            case slice():
                return ["slice", *map(self.value, (x.start, x.stop, x.step))]
            case np.dtype():
                return ["dtype", x.str]
            case np.ndarray() | np.generic():
                name = f"constant.{len(self.arrays)}"
                self.arrays[name] = np.array(x)
                return ["array" if isinstance(x, np.ndarray) else "number", name]
        if x is Ellipsis:
            return ["ellipsis"]
        raise GraphError(f"cannot store the op option {x!r} ({type(x).__name__}) in a file.")


class Decoder:
    """Decodes the JSON values of an `Encoder`.

    Args:
        parameters: parameters by name.
        arrays: constants by name.

    Attributes:
        classes: re-created dataclasses and named tuples of results, by kind, name and fields.

    Raises:
        CheckpointError: an op is unknown.
        KeyError, TypeError, ValueError, IndexError: the JSON is malformed.
    """

    def __init__(self, parameters: Mapping[str, Parameter], arrays: Mapping[str, Any]) -> None:
        self._parameters, self._arrays = parameters, arrays
        self.classes: dict[tuple[str, ...], type] = {}

    def program(self, name: str, x: Mapping[str, Any]) -> CellProgram:
        vars = tuple(Var(self._source(source), tuple(shape), domain) for source, shape, domain in x["vars"])
        ties = tuple((first, second) for first, second in x["ties"])
        return CellProgram(name, vars, tuple(x["outputs"]), ties)

    def default(self, x: Any) -> Any:
        """Decode the default of an argument; an enum becomes a new one with the same names."""
        if isinstance(x, list) and x[0] == ENUM:
            _, kind, name = x
            make: Any = enum.Enum
            made = make(kind, [name])
            return made[name]
        return self.value(x)

    def structure(self, x: Any) -> Any:
        if isinstance(x, int):
            return x
        if x[0] == "static":
            return Static(self.value(x[1]))
        kind, detail, parts = x
        children = tuple(map(self.structure, parts))
        if kind == "dict":
            return Key("dict", Static(self.value(detail)), children)
        if kind == "list":
            return Key("list", None, children)
        if detail is None:
            return children
        return Key(kind, self._class(kind, *detail), children)

    def _class(self, kind: str, name: str, *names: str) -> type:
        """Return the dataclass or named tuple for results called `name`; the same class for the same fields."""
        for one in (name, *names):
            if not isinstance(one, str) or not one.isidentifier() or one.startswith("__"):
                raise CheckpointError(f"names of classes and fields must be identifiers, got {one!r}.")
        form = (kind, name, *names)
        if form not in self.classes:
            if kind == "dataclass":
                self.classes[form] = make_dataclass(name, names)
            else:
                self.classes[form] = namedtuple(name, names)
        return self.classes[form]

    def _source(self, x: Any) -> Source:
        kind, *content = x
        match kind:
            case "port":
                return Port(*content)
            case "data":
                return Attribute(*content)
            case "weight":
                return Weight(self._parameters[content[0]], content[0])
            case "constant":
                return Constant(self.value(content[0]))
            case "op":
                name, args, static = content
                if name not in OPS:
                    raise CheckpointError(f"op {name!r} of a cell is unknown; define it with ab.ops.define_op first.")
                op: Op = OPS[name]
                return Instruction(op, tuple(args), {option: self.value(value) for option, value in static.items()})
        raise ValueError(f"unknown kind of value {kind!r}")

    def value(self, x: Any) -> Any:
        """Decode an option of an op, or a constant."""
        if not isinstance(x, list):
            return x
        kind, *content = x
        match kind:
            case "int":
                return int(content[0])
            case "float":
                return float(content[0])
            case "tuple":
                return tuple(map(self.value, content))
            case "list":
                return list(map(self.value, content))
            case "slice":
                return slice(*map(self.value, content))
            case "dtype":
                return np.dtype(content[0])
            case "array":
                return self._arrays[content[0]]
            case "number":
                return self._arrays[content[0]][()]
            case "ellipsis":
                return Ellipsis
        raise ValueError(f"unknown kind of constant {kind!r}")


def describe_policy(policy: Policy, doing: str) -> dict[str, str]:
    """Return the `text` of a learned policy, or the `name` of any other; `doing` starts error messages."""
    if isinstance(policy, Directed) and policy.rule in KINDS:
        return {"text": to_text(policy, doing)}
    return {"name": policy.name}


def read_policy(content: Mapping[str, str], doing: str) -> Policy | str:
    """Return the policy that `describe_policy` described, or its name; raise a PolicyError for a malformed text."""
    return from_text(content["text"], policies.KINDS, doing) if "text" in content else content["name"]
