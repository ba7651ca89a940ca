"""Shrink a failing program: leave out whatever can be left out while it fails with the same signature."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from fuzzing.checks import Way
from fuzzing.program import Function, Line, Program
from fuzzing.specs import Several, Structure, Tree, Use, Value, constant, parts_of

Fails = Callable[[Program, Way], bool]
F = TypeVar("F", bound=Function)
T = TypeVar("T")


def shrink(program: Program, way: Way, fails: Fails, seconds: float) -> tuple[Program, Way]:
    """Shrink a failing program and simplify its configuration, until nothing can be left out or the time is up."""

    def is_smaller(new: tuple[Program, Way], old: tuple[Program, Way]) -> bool:
        return new[1] != old[1] or new[0].size < old[0].size

    return shrink_by((program, way), lambda both: candidates(*both), is_smaller, lambda both: fails(*both), seconds)


def shrink_by(
    x: T,
    candidates: Callable[[T], Iterator[T]],
    is_smaller: Callable[[T, T], bool],
    fails: Callable[[T], bool],
    seconds: float,
) -> T:
    """Shrink a failing object until no candidate is smaller and fails, or the time is up."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(x):
            if time.monotonic() > end:
                return x
            if is_smaller(candidate, x) and fails(candidate):
                x, smaller = candidate, True
                break
    return x


def candidates(program: Program, way: Way) -> Iterator[tuple[Program, Way]]:
    """Yield smaller programs, much smaller ones first, and simpler configurations."""
    for k in range(len(program.instances)):
        if len(program.instances) > 1:
            yield replace(program, instances=_without(program.instances, k)).without_the_unread(), way
    yield from ((focused.without_the_unread(), way) for focused in _focused(program))
    for simpler in way.simpler():
        yield program, simpler
    for changed in _changed_functions(program):
        yield changed.without_the_unread(), way
    for k, cell in enumerate(program.cells):
        yield from ((c.without_the_unread(), way) for c in _without_argument(program, k))
        yield from ((c.without_the_unread(), way) for c in _without_result(program, k))
        if not cell.is_method:
            yield _as_method(program, k), way


def _focused(program: Program) -> Iterator[Program]:
    """Yield programs whose loss is the sum of one value: an instance's, or one that a cell then returns alone."""
    instance = program.instances[0]
    for line in instance.lines:
        if isinstance(line.spec, Value):
            yield replace(program, instances=(_summed(instance, line), *program.instances[1:]))
    for k, cell in enumerate(program.cells):
        calls = [line for line in instance.lines if line.calls(cell.name)]
        for line in cell.lines if calls else ():
            if isinstance(line.spec, Value) and str(cell.returns) != line.target:
                changed = replace(cell, returns=Use(line.target, line.spec))
                before = instance.lines[: instance.lines.index(calls[0])]
                only = replace(instance, lines=(*before, replace(calls[0], spec=line.spec)))
                cells = (*program.cells[:k], changed, *program.cells[k + 1 :])
                yield replace(program, cells=cells, instances=(_summed(only, only.lines[-1]),))


def _summed(instance: Function, line: Line) -> Function:
    """Return the instance with the sum of a line's value as its loss."""
    if instance.lines[-1].form == "ab.sum({0})" and str(instance.lines[-1].args[0]) == line.target:
        loss, lines = instance.lines[-1], instance.lines
    else:
        loss = Line(f"{instance.lines[-1].target}0", "ab.sum({0})", (Use(line.target, line.spec),), Value(()))
        lines = (*instance.lines, loss)
    returns = Structure("tuple", (Use(loss.target, loss.spec), Structure("list", ())))
    return replace(instance, lines=lines, returns=returns)


def _without(items: tuple[Function, ...], k: int) -> tuple[Function, ...]:
    return items[:k] + items[k + 1 :]


def _changed_functions(program: Program) -> Iterator[Program]:
    """Yield programs with one smaller function."""
    for k, instance in enumerate(program.instances):
        for changed in _smaller(instance):
            yield replace(program, instances=(*program.instances[:k], changed, *program.instances[k + 1 :]))
    for k, cell in enumerate(program.cells):
        for changed in _smaller(cell):
            if _spec(changed.returns) == _spec(cell.returns):
                yield replace(program, cells=(*program.cells[:k], changed, *program.cells[k + 1 :]))


def _smaller(function: F) -> Iterator[F]:
    """Yield the function without some lines, with simpler arguments, or with a smaller result."""
    lines = function.lines
    for width in (8, 4, 2, 1):
        if width > 1 and len(lines) <= width:
            continue
        for start in reversed(range(0, len(lines), width)):
            yield _drop_lines(function, range(start, min(start + width, len(lines))))
    for k, line in enumerate(lines):
        for changed in _simpler_lines(line, lines[:k]):
            yield replace(function, lines=(*lines[:k], changed, *lines[k + 1 :]))
    yield from (replace(function, returns=tree) for tree in _simpler_trees(function.returns))


def _drop_lines(function: F, dropped: range) -> F:
    """Return the function without some lines; their readers read something of the same kind instead."""
    kept = [line for k, line in enumerate(function.lines) if k not in dropped]
    gone = [function.lines[k] for k in dropped]

    def change(use: Use) -> Tree:
        for line in gone:
            if use.reads(line.target):
                inside = [part for tree in line.args for part in _parts(tree) if part.spec == use.spec]
                inside = [part for part in inside if not any(part.reads(other.target) for other in gone)]
                return inside[0] if inside else constant(use.spec)
        return use

    return replace(function, lines=tuple(kept)).mapped(lambda tree: _map(tree, change))


def _parts(tree: Tree) -> Iterator[Use]:
    if isinstance(tree, Structure):
        for part in tree.parts:
            yield from _parts(part)
    else:
        yield tree
        if isinstance(tree.spec, Several):
            yield from parts_of(tree)


def _simpler_lines(line: Line, before: tuple[Line, ...]) -> Iterator[Line]:
    """Yield the line with constants as arguments, with shorter lists, or with a part of its form as its value."""
    for k, tree in enumerate(line.args):
        if isinstance(tree, Structure):
            for shorter in _simpler_trees(tree):
                yield replace(line, args=(*line.args[:k], shorter, *line.args[k + 1 :]))
        elif isinstance(tree.spec, Value) and not tree.text.startswith(("np.", "self.p")):
            yield replace(line, args=(*line.args[:k], constant(tree.spec), *line.args[k + 1 :]))
    if line.inner:
        for smaller in _smaller(line.inner):
            if _spec(smaller.returns) == _spec(line.inner.returns):
                yield replace(line, inner=smaller)
    for form in _simpler_forms(line.form):
        used = sorted({int(number) for number in re.findall(r"\{(\d+)\}", form)})
        new = {old: f"{{{place}}}" for place, old in enumerate(used)}
        yield replace(line, form=_renumbered(form, new), args=tuple(line.args[k] for k in used))


def _renumbered(form: str, new: dict[int, str]) -> str:
    return re.sub(r"\{(\d+)\}", lambda match: new[int(match[1])], form)


def _simpler_forms(form: str) -> Iterator[str]:
    """Yield the parts of a form, the largest first."""
    if form.startswith(("self.cell", "cell")) or not re.search(r"\{\d", form):
        return
    tree = ast.parse(re.sub(r"\{(\d+)\}", r"place_\1", form), mode="eval").body
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and node is not tree]
    texts = [re.sub(r"place_(\d+)", r"{\1}", ast.unparse(node)) for node in parts]
    yield from (text for text in texts if "{" in text and not re.fullmatch(r"[\w.]+", text))


def _simpler_trees(tree: Tree) -> Iterator[Tree]:
    """Yield structures with fewer parts in their lists."""
    if isinstance(tree, Use):
        return
    for k, part in enumerate(tree.parts):
        if tree.kind == "list":
            yield replace(tree, parts=tree.parts[:k] + tree.parts[k + 1 :])
        for simpler in _simpler_trees(part):
            yield replace(tree, parts=(*tree.parts[:k], simpler, *tree.parts[k + 1 :]))


def _map(tree: Tree, change: Callable[[Use], Tree]) -> Tree:
    if isinstance(tree, Use):
        return change(tree)
    return replace(tree, parts=tuple(_map(part, change) for part in tree.parts))


def _spec(tree: Tree) -> object:
    return tree.spec if isinstance(tree, Use) else (tree.kind, tuple(_spec(part) for part in tree.parts))


def _map_lines(program: Program, change: Callable[[Line], Line]) -> Program:
    def inside(line: Line) -> Line:
        return change(replace(line, inner=line.inner and changed(line.inner)))

    def changed(function: F) -> F:
        return replace(function, lines=tuple(map(inside, function.lines)))

    return replace(program, cells=tuple(map(changed, program.cells)), instances=tuple(map(changed, program.instances)))


def _without_argument(program: Program, k: int) -> Iterator[Program]:
    """Yield programs in which a cell takes one argument less, which is replaced by a constant."""
    cell = program.cells[k]
    for at, argument in enumerate(cell.takes):
        instead = constant(argument.spec)
        parts = [use for tree in cell.trees() for use in _parts(tree) if use.reads(argument.name)]
        if isinstance(instead, Structure) and any(use.text != argument.name for use in parts):
            continue

        def change(use: Use, argument: str = argument.name) -> Tree:
            return constant(use.spec) if use.reads(argument) else use

        takes = cell.takes[:at] + cell.takes[at + 1 :]
        changed = replace(cell, takes=takes).mapped(lambda tree, change=change: _map(tree, change))  # type: ignore[misc]
        cells = (*program.cells[:k], changed, *program.cells[k + 1 :])

        def call(line: Line, at: int = at) -> Line:
            if not line.calls(cell.name):
                return line
            form = re.sub(rf"(\w+=)?\{{{at}\}}(, )?", "", line.form).replace(", )", ")")
            form = re.sub(r"\{(\d+)\}", lambda m: f"{{{int(m[1]) - (int(m[1]) > at)}}}", form)
            return replace(line, form=form, args=line.args[:at] + line.args[at + 1 :])

        yield _map_lines(replace(program, cells=cells), call)


def _without_result(program: Program, k: int) -> Iterator[Program]:
    """Yield programs in which a cell returns one value less of a flat structure; a constant replaces it."""
    cell = program.cells[k]
    if not isinstance(cell.returns, Structure):
        return
    returns, spec = cell.returns, Several(cell.returns.kind, ())
    n = len(returns.parts)
    for at in range(n):
        left = returns.parts[:at] + returns.parts[at + 1 :]
        kept: Tree = left[0] if len(left) == 1 else Structure("tuple", left)
        paths = replace(spec, parts=(Value(()),) * n).paths
        new = {paths[j]: "" if len(left) == 1 else f"[{j - (j > at)}]" for j in range(n) if j != at}
        changed = replace(cell, returns=kept)
        cells = (*program.cells[:k], changed, *program.cells[k + 1 :])

        def renamed(function: Function, new: dict[str, str] = new, gone: str = paths[at]) -> Function:
            targets = [line.target for line in function.all_lines if line.calls(cell.name)]

            def change(use: Use) -> Tree:
                for target in targets:
                    for old, path in new.items():
                        if use.reads(f"{target}{old}"):
                            return replace(use, text=f"{target}{path}{use.text[len(target) + len(old) :]}")
                    if use.reads(f"{target}{gone}"):
                        return constant(use.spec)
                return use

            return function.mapped(lambda tree: _map(tree, change))

        yield replace(program, cells=tuple(map(renamed, cells)), instances=tuple(map(renamed, program.instances)))


def _as_method(program: Program, k: int) -> Program:
    """Return the program with a cell as a method."""
    cell = replace(program.cells[k], is_method=True)

    def call(line: Line) -> Line:
        return replace(line, form=f"self.{line.form}") if line.form.startswith(f"{cell.name}(") else line

    cells = (*program.cells[:k], cell, *program.cells[k + 1 :])
    return _map_lines(replace(program, cells=cells), call)
