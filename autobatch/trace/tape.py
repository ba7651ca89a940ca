"""Derivatives of recorded calls: the layout of calls in the log, and the rules that record their derivatives.

The log of a recording is a list of calls. A backward pass over it records the gradients of a function's results: for
each call that they depend on, a call of another type, such as "gradient of merge". Its arguments are those of the call
and the gradients of the call's results; its results are the gradients of the call's arguments. A forward pass records
tangents in the same way. The new calls are logged like all others, so they are scheduled, placed and fused too, and can
be differentiated again.

The native `Tape` copies the calls that a function logs and walks over them. It requests a `Layout` once for each form,
and a `Rule` once for each kind of derivative; both are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from autobatch._native import Derivatives, Layout, Rule, Tape
from autobatch.graph.words import MOST_OUTPUTS
from autobatch.ir.arguments import Key, Static
from autobatch.ir.autodiff import of_node, pull_back, push_forward
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.flows import products_of
from autobatch.ir.program import NODE, CellProgram, Instruction, Port, Var, cone
from autobatch.ops.define import Shape
from autobatch.ops.operators import OPS, STAGE
from autobatch.params.parameter import Parameter
from autobatch.trace.entries import Entry
from autobatch.trace.forms import EACH, VALUE, Form, Item
from autobatch.trace.handles import Rows
from autobatch.trace.ragged import Ragged
from autobatch.trace.tracer import collect_outputs
from autobatch.trace.traces import Specialization

GRADIENT, TANGENT = "gradient", "tangent"
NOTHING = "nothing"
KINDS = GRADIENT, TANGENT
OF_LEAF, OF_PARAMETER, OF_OUTPUT = 0, 1, 2  # a rule's result is the derivative of this; see `native/record/rule.h`
FIRST_PRODUCT = MOST_OUTPUTS  # the core numbers products after all results


class Pattern(NamedTuple):
    """The derivatives of a cell that a derivative type computes, such as "gradient of merge".

    Attributes:
        kind: "gradient" or "tangent".
        outputs: the outputs whose gradients are given, or whose tangents are wanted: results by number, and products
            that nodes keep, by name.
        leaves: the leaves of the arguments whose gradients are wanted, or whose tangents are given.
        parameters: likewise, parameters that the cell reads.
    """

    kind: str
    outputs: tuple[int | str, ...]
    leaves: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    def argument(self, cell: str, what: object) -> str:
        """Return the name of the argument that is the derivative of a result, a leaf or a parameter of a cell."""
        return f"{self.kind} of {what} of {cell}"


def product(number: int) -> str:
    """Return the name of a product of a cell, by its number."""
    return f"product {number}"


def _product_argument(number: int, cell: str) -> str:
    return f"{product(number)} of {cell}"


def make_layout(number: int, form: Form, specialization: Specialization) -> Layout:
    """Describe the calls of a form to the core.

    Args:
        number: number of the form.
        specialization: specialization of the form.
    """
    program, shapes = specialization.node_type.program, list[Shape]()
    vars, own = program.vars, program.float_leaves
    names = [*range(len(program.results)), *(FIRST_PRODUCT + number for number in specialization.kept)]
    outputs, arguments = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for k, index in enumerate(program.outputs):
        if k in program.float_outputs:
            outputs.append((names[k], k, max(vars[index].domain, NODE), len(shapes)))
            shapes.append(vars[index].shape)
    for source, v in _ports(program):
        if source.leaf in own:
            arguments.append((source.leaf, max(v.domain, NODE), len(shapes)))
            shapes.append(v.shape)
    # In the order in which `native/record/layout.cpp` reads it.
    code = [len(form.ints)]
    for item in form.ints:
        code += [*_header(item), len(item.leaves), *chain(*([len(part), *part] for part in item.leaves))]
    code += [len(form.floats), *chain(*map(_header, form.floats))]
    code += [len(outputs), *chain(*outputs), len(arguments), *chain(*arguments)]
    n_lists = sum(key.n_lists for key in specialization.keys.values())
    return Layout(number, n_lists, code, tuple(shapes), tuple(program.parameters), _count_rows(program))


def make_rule(
    calls: Any,
    layout: Layout,
    kind: int,
    outputs: Sequence[int],
    leaves: Sequence[int],
    parameters: Sequence[Parameter],
    given: Sequence[Any],
    lengths: Sequence[int],
) -> Rule:
    """Make the rule for a derivative of the calls of a form, from the first such call.

    Args:
        calls: the calls of the recording.
        layout: layout of the form.
        kind: kind of the derivative, an index of KINDS.
        outputs: the numbers of the outputs that have gradients; for tangents, of all outputs.
        leaves, parameters: the leaves and parameters that have derivatives.
        given: the derivatives passed to the rule. Each is a parameter, or a pair: a shape, or None for the shape of its
            parameter, and the number of rows, or -1 for a single value.
        lengths: lengths of the lists of the call.
    """
    base, form = calls.specializations[layout.form], calls.forms[layout.form]
    pattern = Pattern(KINDS[kind], tuple(map(_name, outputs)), tuple(leaves), tuple(parameters))
    of_parameters = [f"parameter {n}" for n in range(len(parameters))]
    whats = pattern.outputs if pattern.kind == GRADIENT else (*of_parameters, *leaves)
    rows_given = [x[1] for x in given if not isinstance(x, Parameter) and x[1] >= 0]
    # In rounds, a node may have run before its derivative is recorded, too early to keep a product.
    products = _products(base) if not calls.in_rounds else {}
    argument = {pattern.argument(base.entry.name, what): n for n, what in enumerate(whats)}
    passed_keys = (_key_of(x, parameters[n] if n < len(parameters) else None) for n, x in enumerate(given))
    # The arguments of the derivative: those of the call, products that nodes may keep, and the given derivatives. Given
    # rows are variadic groups after the lists of the call.
    specialization = calls.specialization_of(
        calls.derived(base.entry, pattern),
        {**base.keys, **products, **dict(zip(argument, passed_keys, strict=True))},
        (*lengths, *rows_given),
    )
    program, vars = specialization.node_type.program, specialization.node_type.program.vars
    leaf_of = {source.name: source.leaf for source, _ in _ports(program)}
    walked = specialization.lengths.walked
    measured = _measured(program, walked)
    ints, floats = ([_needed(item, program, measured) for item in items] for items in (form.ints, form.floats))
    kept = {name: number for number, name in enumerate(products) if name in leaf_of}
    output_of = calls.traces.keep_products(base, kept.values())
    groups = iter(range(len(lengths), len(lengths) + len(rows_given)))
    group_of = [NODE if isinstance(x, Parameter) or x[1] < 0 else next(groups) for x in given]
    own = {n: leaf_of[name] for name, n in argument.items() if name in leaf_of}
    items = [item for item, _ in ints if item is not None]
    items += [Item(VALUE, ((leaf_of[name],),)) for name in kept]
    items += [Item(EACH, ((leaf,),), group=group_of[n]) for n, leaf in own.items()]
    number = calls.add_form(specialization, items, [item for item, _ in floats if item is not None])
    # In the order in which `native/record/rule.cpp` reads it.
    code = [
        *_logged(ints),
        *_logged(floats),
        len(kept),
        *(output_of[number] for number in kept.values()),
        len(own),
        *own,
    ]
    whats_made = [what for what in specialization.node_type.structure.labels if what != NOTHING]
    code.append(len(whats_made))
    for what, index in zip(whats_made, program.outputs, strict=False):
        # A result that only passes on a given derivative is not computed again: the core takes the given one.
        given_as = argument.get(_passed_port(vars, index), -1)
        code += [*_result(what, pattern), given_as, max(vars[index].domain, NODE)]

    def serves(lengths: Sequence[int]) -> bool:
        """Return whether the rule is valid for a call with lists of these lengths."""
        known = specialization.lengths
        is_known = not known.walked or known.of(lengths) in known.found
        # The rule's form is of the type that was in force when the rule was made; retracing may have replaced it.
        return specialization.number == number_of_type and is_known

    number_of_type = specialization.number
    return Rule(layout, number, len(given), code, bool(walked), serves, _count_rows(program))


def record_gradients(
    tape: Tape, seeds: Iterable[tuple[Any, Any]], wanted: Iterable[Any], parameters: Sequence[Parameter]
) -> Derivatives:
    """Record the gradients of some values and parameters.

    Args:
        tape: a closed tape.
        seeds: results, each with its gradient: values or `Rows`.
        wanted: values or `Rows` that only calls on the tape read.
    """
    values, terms = _pairs(seeds)
    return tape.gradients(values, terms, [ref for x in wanted for ref in _refs(x)], tuple(parameters))


def record_tangents(
    tape: Tape, seeds: Iterable[tuple[Any, Any]], parameters: Sequence[tuple[Parameter, Any]]
) -> Derivatives:
    """Record the tangents of everything that depends on some values and parameters.

    Args:
        tape: a closed tape.
        seeds: values or `Rows` that only calls on the tape read, each with its tangent.
        parameters: parameters, each with its tangent, a value or a parameter.
    """
    values, terms = _pairs(seeds)
    return tape.tangents(values, terms, tuple(p for p, _ in parameters), tuple(tangent for _, tangent in parameters))


def derived_entry(entry: Entry, pattern: Pattern) -> Entry:
    """Make the entry for the derivatives of an entry's calls."""

    def run(arguments: Mapping[str, Any]) -> dict[Any, Any]:
        return (_pull if pattern.kind == GRADIENT else _push)(entry, pattern, arguments)

    identity = (Static(pattern), *entry.identity)
    name, origin = f"{pattern.kind} of {entry.name}", ("derivative", entry.origin, pattern)
    return Entry(name, identity, entry.signature, run, entry.is_static, origin)


def _pull(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the existing gradients of a cell's arguments and parameters, by leaf or as "parameter N"."""
    builder, outputs, variables, known = _again(entry, pattern, arguments)
    given = _given(builder, entry, pattern, outputs, arguments)
    found = pull_back(builder, given, list(variables.values()))
    # Only now: a product that is an argument could not be differentiated.
    builder.replace(known)
    return _give(builder, variables, found)


def _push(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the existing tangents of a cell's results, by number."""
    builder, outputs, variables, known = _again(entry, pattern, arguments)
    found = push_forward(builder, _given(builder, entry, pattern, variables, arguments), list(outputs.values()))
    # After the differentiation, as in `_pull`.
    builder.replace(known)
    return _give(builder, outputs, found)


def _again(
    entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]
) -> tuple[Builder, dict[Any, int], dict[Any, int], dict[int, int]]:
    """Run the body of a cell again, in the trace of its derivative.

    Returns:
        The builder; the values of the pattern's outputs, and of its leaves and parameters; and for each product that
        is an argument, the value that replaces it.
    """
    builder: Builder = STAGE.current
    outputs = list[Any]()
    collect_outputs(entry.run(arguments), outputs)
    values: dict[Any, int] = {number: builder.wrap(output).index for number, output in enumerate(outputs)}
    known = dict[int, int]()
    # Numbered as in `_products`: the program of the cell consists of this cone, in this order.
    for number, index in enumerate(products_of(builder.vars, sorted(cone(builder.vars, values.values())))):
        values[product(number)] = index
        given = arguments.get(_product_argument(number, entry.name))
        if given is not None and given.shape == builder.vars[index].shape:
            known[index] = given.index
    ports = {v.source.leaf: i for i, v in enumerate(builder.vars) if isinstance(v.source, Port)}
    variables: dict[Any, int] = {leaf: ports[leaf] for leaf in pattern.leaves}
    variables |= {f"parameter {n}": builder.wrap(p).index for n, p in enumerate(pattern.parameters)}
    return builder, {what: values[what] for what in pattern.outputs}, variables, known


def _given(
    builder: Builder, entry: Entry, pattern: Pattern, of: Mapping[Any, int], arguments: Mapping[str, Any]
) -> list[tuple[int, Traced]]:
    """Return the given derivatives, each after its value; tie the numbers of rows of the two."""
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
    """Return the existing derivatives by name, as rows for values with rows."""
    given: dict[Any, Any] = {}
    for (what, index), x in zip(wanted.items(), found, strict=True):
        if x is not None:
            given[what] = Ragged(builder, x.index) if builder.vars[index].domain >= 0 else of_node(x)
    return given or {NOTHING: 0.0}


def _ports(program: CellProgram) -> Iterator[tuple[Port, Var]]:
    """Yield the arguments of a program that are values."""
    vars = (program.vars[index] for index in program.ports)
    return ((v.source, v) for v in vars if isinstance(v.source, Port))


def _header(item: Item) -> tuple[int, int, int]:
    return item.kind, item.group, item.size


def _count_rows(program: CellProgram) -> Callable[[int, Sequence[int]], int]:
    """Return the function that counts the rows of a variadic group, from the lengths of lists."""
    return lambda group, lengths: program.row_counts(lengths)[group]


def _name(number: int) -> int | str:
    """Return the name of an output in patterns, by its number in layouts."""
    return number if number < FIRST_PRODUCT else product(number - FIRST_PRODUCT)


def _result(what: int | str, pattern: Pattern) -> tuple[int, int]:
    """Return the kind and number of the object whose derivative a result is, for the core."""
    last = int(str(what).split()[-1])
    if pattern.kind == TANGENT:
        return OF_OUTPUT, last if isinstance(what, int) else FIRST_PRODUCT + last
    return OF_LEAF if isinstance(what, int) else OF_PARAMETER, last


def _products(base: Specialization) -> dict[str, Key]:
    """Return the products of a cell, as arguments of its derivatives; {} if a node cannot have so many outputs."""
    vars, name = base.node_type.program.vars, base.entry.name
    found = products_of(vars, base.node_type.program.instructions)
    if len(base.node_type.program.results) + len(found) > MOST_OUTPUTS:
        return {}
    return {_product_argument(number, name): Key("value", vars[index].shape) for number, index in enumerate(found)}


def _key_of(given: Any, parameter: Parameter | None) -> Key:
    """Return the key of a given derivative; if its shape is None, it has the shape of `parameter`."""
    if isinstance(given, Parameter):
        return Key("static", Static(given))
    shape, n_rows = given
    value = Key("value", shape if parameter is None or shape is not None else parameter.shape)
    return value if n_rows < 0 else Key("rows", None, (value,))


def _measured(program: CellProgram, walked: Sequence[int]) -> set[int]:
    """Return the groups of lists whose lengths a program needs: those that it iterates over, and all tied to these."""
    found, n_before = {*walked}, 0
    while len(found) > n_before:
        n_before = len(found)
        for tie in program.ties:
            if not found.isdisjoint(tie):
                found.update(tie)
    return found


def _needed(item: Item, program: CellProgram, measured: set[int]) -> tuple[Item | None, list[int] | None]:
    """Find the part of an item that is logged for a program, and the columns of its rows.

    Args:
        measured: the groups of lists whose length the program needs.

    Returns:
        The part, or None if nothing is logged; and the columns, or None for all.
    """
    if not (item.kind == EACH and item.group in measured) and not item.is_needed(program):
        return None, None
    left = [n for n, leaf in enumerate(item.columns) if leaf in program.leaves]
    if len(left) == len(item.columns):
        return item, None
    return item._replace(size=len(left), columns=tuple(item.columns[n] for n in left)), left


def _logged(items: Sequence[tuple[Item | None, list[int] | None]]) -> list[int]:
    """Encode the items, and their columns, that a rule logs."""
    logged = [(place, columns) for place, (item, columns) in enumerate(items) if item is not None]
    parts = ([place, -1] if columns is None else [place, len(columns), *columns] for place, columns in logged)
    return [len(logged), *chain(*parts)]


def _pairs(seeds: Iterable[tuple[Any, Any]]) -> tuple[list[int], list[int]]:
    """Return the refs of values, and those of their derivatives."""
    pairs = [pair for x, derivative in seeds for pair in zip(_refs(x), _refs(derivative), strict=True)]
    return [ref for ref, _ in pairs], [ref for _, ref in pairs]


def _refs(x: Any) -> Sequence[int]:
    """Return the refs of a value, or of its rows."""
    return x.refs if isinstance(x, Rows) else [x.ref]


def _passed_port(vars: Sequence[Var], index: int) -> str:
    """Return the name of the port that a value is, directly or spread to edges; "" for other values."""
    source = vars[index].source
    if isinstance(source, Instruction) and source.op is OPS["spread"]:
        source = vars[source.args[0]].source
    return source.name if isinstance(source, Port) else ""
