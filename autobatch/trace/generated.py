"""Generated functions: Python source that tries the forms of a cell one after another, and its global names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autobatch.ir.arguments import Static
from autobatch.trace.forms import BUILTINS, Form


class Namespace:
    """The globals of the generated functions.

    Attributes:
        names: the globals by name; a plain dict, since Python looks up names in any other mapping much more slowly.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = {**BUILTINS, **names}
        self._constants: dict[Static, str] = {}
        self._n_functions = 0

    def constant(self, x: Any) -> str:
        """The name of `x`."""
        key = Static(x)
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self.names[self._constants[key]] = x
        return self._constants[key]

    def generate(self, cell: str, signature: inspect.Signature, forms: Sequence[Form], slow: Callable[..., Any]) -> Any:
        """Make a function that replaces a cell: it logs calls of these forms, and passes others to `slow`."""
        self._n_functions += 1
        name = f"entry_{self._n_functions}"
        parameters = [
            p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Name(self.constant(p.default)))
            for p in signature.parameters.values()
        ]
        lines = [
            f"def {name}{inspect.Signature(parameters)}:",
            *_write_branches([(form.conditions, form.body) for form in forms]),
            f"return slow_{name}({', '.join(signature.parameters)})",
        ]
        self.names[f"slow_{name}"] = slow
        exec(compile("\n    ".join(lines), f"<recording of {cell}>", "exec"), self.names)
        function = self.names[name]
        function.__qualname__ = cell  # the name in Python's own messages
        function.stands_in = True  # copies of a module leave it out
        return function


class _Name:
    """Prints as a name; a signature's default in generated source."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _write_branches(branches: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> list[str]:
    """Write bodies under their conditions; a condition with which several begin is tested once."""
    lines = list[str]()
    for first in dict.fromkeys(conditions[:1] for conditions, _ in branches):
        alike = [(conditions, body) for conditions, body in branches if conditions[:1] == first]
        if len(alike) == 1 or not first:
            conditions, body = alike[0]
            inner = [*body]
        else:
            conditions, inner = first, _write_branches([(conditions[1:], body) for conditions, body in alike])
        lines += [f"if {' and '.join(conditions) or 'True'}:", *(f"    {line}" for line in inner)]
    return lines
