"""Types of derivatives: what is called for the gradients, or the tangents, of the calls of a cell.

The body of such a type runs the body of the cell once more, and then the pullbacks of its ops, which are ops as well.
So it is traced, guarded and traced again like any cell, and has derivatives itself. In the finished program, products
with matrices are not computed again: they are arguments, outputs that the node of the cell keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autobatch.ir.arguments import Static
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.flows import products_of
from autobatch.ir.passes.autodiff import of_node, pull_back, push_forward
from autobatch.ir.program import Instruction, Port, Var, cone
from autobatch.ops.operators import OPS, STAGE
from autobatch.params.parameter import Parameter
from autobatch.trace.entries import Entry
from autobatch.trace.ragged import Ragged
from autobatch.trace.tracer import collect_outputs

GRADIENT, TANGENT = "gradient", "tangent"
NOTHING = "nothing"


class Pattern(NamedTuple):
    """Which derivatives of a cell a type computes.

    Attributes:
        kind: "gradient" or "tangent".
        outputs: the outputs of the cell that have gradients, or that shall have tangents: results by number, and
            products that nodes keep, by name.
        leaves: those of the arguments that shall have gradients, or that have tangents.
        parameters: likewise, parameters that the cell reads.
    """

    kind: str
    outputs: tuple[int | str, ...]
    leaves: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    def argument(self, cell: str, what: object) -> str:
        """The name of the argument that is the derivative of a result, a leaf or a parameter of a cell."""
        return f"{self.kind} of {what} of {cell}"


def product(number: int) -> str:
    """The name of a product of a cell, by its number."""
    return f"product {number}"


def product_argument(number: int, cell: str) -> str:
    """The name of the argument that is this product."""
    return f"{product(number)} of {cell}"


def derived_entry(entry: Entry, pattern: Pattern) -> Entry:
    """What is called for the derivatives of the calls of an entry."""

    def run(arguments: Mapping[str, Any]) -> dict[Any, Any]:
        return (_pull if pattern.kind == GRADIENT else _push)(entry, pattern, arguments)

    identity = (Static(pattern), *entry.identity)
    name, origin = f"{pattern.kind} of {entry.name}", ("derivative", entry.origin, pattern)
    return Entry(name, identity, entry.signature, run, entry.is_static, origin)


def _pull(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """The gradients of a cell's arguments and parameters, by leaf or by the parameter's place, as far as they exist."""
    builder, outputs, variables, known = _again(entry, pattern, arguments)
    given = _given(builder, entry, pattern, outputs, arguments)
    found = pull_back(builder, given, list(variables.values()))
    builder.replace(known)
    return _give(builder, variables, found)


def _push(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """The tangents of a cell's results, by number, as far as they exist."""
    builder, outputs, variables, known = _again(entry, pattern, arguments)
    found = push_forward(builder, _given(builder, entry, pattern, variables, arguments), list(outputs.values()))
    builder.replace(known)
    return _give(builder, outputs, found)


def _again(
    entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]
) -> tuple[Builder, dict[Any, int], dict[Any, int], dict[int, int]]:
    """Run the body of a cell once more.

    Returns:
        The builder, the values of the outputs, and of the leaves and parameters, that a pattern names; and for each
        product that is an argument what that is.
    """
    builder: Builder = STAGE.current
    outputs = list[Any]()
    collect_outputs(entry.run(arguments), outputs)
    values: dict[Any, int] = {number: builder.wrap(output).index for number, output in enumerate(outputs)}
    known = dict[int, int]()
    for number, index in enumerate(products_of(builder.vars, sorted(cone(builder.vars, values.values())))):
        values[product(number)] = index
        given = arguments.get(product_argument(number, entry.name))
        if given is not None and given.shape == builder.vars[index].shape:
            known[index] = given.index
    ports = {v.source.leaf: i for i, v in enumerate(builder.vars) if isinstance(v.source, Port)}
    variables: dict[Any, int] = {leaf: ports[leaf] for leaf in pattern.leaves}
    variables |= {f"parameter {n}": builder.wrap(p).index for n, p in enumerate(pattern.parameters)}
    return builder, {what: values[what] for what in pattern.outputs}, variables, known


def _given(
    builder: Builder, entry: Entry, pattern: Pattern, of: Mapping[Any, int], arguments: Mapping[str, Any]
) -> list[tuple[int, Traced]]:
    """The derivatives that the call is given, each with the value that it is of, which has as many rows."""
    given = list[tuple[int, Traced]]()
    for what, index in of.items():
        x = arguments[pattern.argument(entry.name, what)]
        x = x.row if isinstance(x, Ragged) else builder.wrap(x)
        first, second = sorted((builder.vars[index].domain, x.var.domain))
        if 0 <= first < second:
            builder.ties.add((first, second))
        given.append((index, x))
    return given


def _give(builder: Any, wanted: Mapping[Any, int], found: Sequence[Traced | None]) -> dict[Any, Any]:
    """Derivatives by name; rows where what they are of has rows."""
    given: dict[Any, Any] = {}
    for (what, index), x in zip(wanted.items(), found, strict=True):
        if x is not None:
            given[what] = Ragged(builder, x.index) if builder.vars[index].domain >= 0 else of_node(x)
    return given or {NOTHING: 0.0}


def passed_port(vars: Sequence[Var], index: int) -> str:
    """The name of the port that a value is, or that it is at each edge; else empty."""
    source = vars[index].source
    if isinstance(source, Instruction) and source.op is OPS["spread"]:
        source = vars[source.args[0]].source
    return source.name if isinstance(source, Port) else ""
