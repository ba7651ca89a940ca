"""Print lowered stages in the notation of programs: a line per statement, each value by its number.

`%7[64:128]` is a range of a value, `%7[0 by 4]` a strided view from element 0 on, and `%3[%2 * 64 ...]` elements that
an int of the row chooses. A reduction names its function and its axes: `%9: () = max over (5,) of %4`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autobatch.compiler.assignment import Storage
from autobatch.compiler.fusion import Kernel, Step
from autobatch.compiler.lowered import STORED, Area, Lowered
from autobatch.compiler.statement import EdgeCount, Index, Interpreted, Loop, Operand, Position, Product, Statement
from autobatch.compiler.view import View
from autobatch.ir.program import Instruction, show_lines
from autobatch.ops.define import Shape
from autobatch.ops.expression import Call, Expression, Number

SYMBOLS = {
    "less": ("<", 1), "less_equal": ("<=", 1), "greater": (">", 1), "greater_equal": (">=", 1), "equal": ("==", 1),
    "not_equal": ("!=", 1), "add": ("+", 2), "subtract": ("-", 2), "multiply": ("*", 3), "divide": ("/", 3),
}  # fmt: skip
"""The symbol and the precedence of each function of two arguments."""
AREAS = {
    Area.ROW: "the scratch row of a kernel",
    Area.BATCH: "scratch rows of a batch",
    Area.PERSISTENT: "scratch rows of all nodes",
    Area.INPUTS: "the inputs",
    Area.GRADIENTS: "the gradients of the inputs",
    Area.SAVED: "the saved values",
    Area.GATHER: "the gathered gradients of outputs",
    Area.INTS: "int data",
    Area.FLOATS: "float data",
}


def show_statements(lowered: Lowered, statements: Iterable[Statement]) -> list[str]:
    """Write a line per statement."""
    return [_show_statement(lowered, statement) for statement in statements]


def show_lowered(lowered: Lowered) -> str:
    """Write all statements of a stage, and the instructions that run once."""
    once = [line.strip() for line in show_lines(lowered.vars, lowered.shared)]
    lines = show_statements(lowered, lowered.statements)
    for whole, parts in lowered.parts.items():
        if parts:
            lines.append(f"%{whole} is made of {', '.join(f'%{part}' for part in dict.fromkeys(parts))}")
    return "\n".join([*(f"once: {line}" for line in once), *lines]) or "nothing to run"


def show_steps(lowered: Lowered, steps: Iterable[Step]) -> list[str]:
    """Write the steps of a stage, their loop nests, and the statements in these."""
    lines = []
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel):
            lines += [f"step {number}: {line}" for line in show_statements(lowered, [step])]
            continue
        lines.append(f"step {number}: kernel")
        for block in step.blocks:
            rows = "" if block.domain < 0 else f" of every edge of group {block.domain}"
            lines.append(f"  loop nest over {show_axes(block.axes)}{rows}:")
            lines += [f"    {line}" for line in show_statements(lowered, block.loops)]
    return lines


def show_axes(axes: Shape) -> str:
    """Write the axes of a loop nest."""
    return " x ".join(map(str, axes)) or "one element"


def name_of(statement: Statement) -> str:
    """Return the name of a statement's target, such as `%7` or `output 0`."""
    if isinstance(statement, Loop) and statement.stored is not None:
        what, number = statement.stored
        return f"output {number}" if what == "output" else f"gradient of port {number}"
    target = statement.target
    return f"%{target.value if isinstance(target, View) else target}"


def show_expression(
    tree: Expression,
    leaf: Callable[[Expression], str],
    names: Mapping[str, str] | None = None,
    select: str = "{x} if {condition} else {y}",
) -> str:
    """Print an expression in the notation of Python, or of C.

    Args:
        leaf: prints operands and numbers.
        names: the names of functions that differ from those in `autobatch.ops.expression`.
        select: the template of a choice between two numbers.

    >>> from autobatch.ops.elementwise import squared_error
    >>> show_expression(squared_error.scalar, lambda leaf: f"%{leaf.number}")
    '(%0 - %1) * (%0 - %1)'
    """

    def inside(tree: Expression, outer: int) -> str:
        text, binds = show(tree)
        return text if binds >= outer else f"({text})"

    def show(tree: Expression) -> tuple[str, int]:
        match tree:
            case Call("select", (condition, x, y)):
                return select.format(x=inside(x, 1), condition=inside(condition, 1), y=inside(y, 1)), 0
            case Call("negate", (x,)):
                return f"-{inside(x, 4)}", 4
            case Call(name, (x, y)) if name in SYMBOLS:
                symbol, binds = SYMBOLS[name]
                return f"{inside(x, binds)} {symbol} {inside(y, binds + 1)}", binds
            case Call(name, args):
                return f"{(names or {}).get(name, name)}({', '.join(inside(arg, 0) for arg in args)})", 5
        return leaf(tree), 5

    return inside(tree, 0)


def show_storage(lowered: Lowered, storage: Storage) -> str:
    """List where each value lies in memory, and the values that are parts of others, shared, or without memory."""
    lines: dict[str, list[str]] = {}
    for value, location in sorted(storage.locations.items()):
        at = (
            f"%{value} at {location.column}"
            if location.area is not Area.GATHER
            else f"%{value}: output {location.domain}"
        )
        lines.setdefault(AREAS[location.area], []).append(at)
    text = [f"in {area}: {', '.join(values)}" for area, values in lines.items()]
    inside = [f"%{part} in {_show_view(lowered, view)}" for part, view in storage.aliases.items()]
    text += [f"part of another value: {', '.join(inside)}"] if inside else []
    if storage.shared:
        text.append(f"shared by all rows: {', '.join(f'%{v} at {c}' for v, c in storage.shared.items())}")
    loose = [f"%{value}" for value in sorted(storage.registers) if value not in storage.locations | storage.aliases]
    text += [f"never in memory: {', '.join(loose)}"] if loose else []
    return "\n".join(text) or "nothing has memory"


def _show_statement(lowered: Lowered, statement: Statement) -> str:
    star = "*" if statement.domain >= 0 else ""
    match statement:
        case Product(terms=terms, target=target, adds=adds):
            text = " + ".join(
                f"{_show_view(lowered, t.rows)} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms
            )
            return f"%{target}: {star}({lowered.sizes[target]},) {'+=' if adds else '='} {text}"
        case Interpreted(target=target, args=args, why=why):
            source = lowered.vars[target].source
            assert isinstance(source, Instruction)
            shape = lowered.vars[target].shape
            call = f"{source.op.name}({', '.join(f'%{arg}' for arg in args)})"
            return f"%{target}: {star}{shape} = {call}  # interpreted: {why.value}"
        case Loop():
            return _show_loop(lowered, statement, star)


def _show_loop(lowered: Lowered, loop: Loop, star: str) -> str:
    text = show_expression(loop.expression, lambda leaf: _show_leaf(lowered, leaf))
    if loop.combine:
        kept = tuple(size for size, stride in zip(loop.shape, loop.target.strides, strict=True) if stride)
        return f"%{loop.target.value}: {star}{kept} = {loop.combine} over {star}{loop.shape} of {text}"
    if loop.target.value == STORED:
        return f"{name_of(loop)}: {star}{loop.shape} = {text}"
    return f"{_show_view(lowered, loop.target)}: {star}{loop.shape} = {text}"


def _show_leaf(lowered: Lowered, leaf: Expression) -> str:
    match leaf:
        case Number(data):
            return repr(data)
        case Position():
            return "i"
        case EdgeCount(group):
            return f"edges_{group}"
        case Operand(view, None):
            return _show_view(lowered, view)
        case Operand(view, Index() as moved):
            at = f"{_show_view(lowered, moved.at.view)} * {moved.step}"
            return f"%{view.value}[{view.offset} + {at} ...]" if view.offset else f"%{view.value}[{at} ...]"
    raise TypeError(f"a leaf of a loop must be an operand, a number, a position or an edge count, got {leaf!r}")


def _show_view(lowered: Lowered, view: View) -> str:
    if view.is_whole(lowered.sizes[view.value]):
        return f"%{view.value}"
    if not any(stride for stride, length in zip(view.strides, view.shape, strict=True) if length > 1):
        return f"%{view.value}[{view.offset}]" if lowered.sizes[view.value] > 1 else f"%{view.value}"
    if view.is_contiguous:
        return f"%{view.value}[{view.offset}:{view.offset + view.size}]"
    return f"%{view.value}[{view.offset} by {_show_steps(view.strides)}]"


def _show_steps(strides: Shape) -> str:
    return ", ".join(map(str, strides))
