"""Variants: ways to run a mini-batch with equal results up to rounding; and reading and writing decisions.

A variant says which rewrites and planner switches are on, the number of threads, and the library for matrix products.
Decisions are a table of variants: one for each class of mini-batches, and under "*" one for all others. They can be
saved as JSON, edited and reused: `ab.batched(loss, tune=decisions)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from autobatch.blas.choosing import BY_SIZE
from autobatch.errors import PlanError
from autobatch.graph.rewrite.passes import PASSES
from autobatch.plan.plan import Planner

OTHERS = "*"
REWRITES = ("fold", "share")
LAYOUTS = ("joins", "stacks", "sums", "recomputes")
WORDS = {"recomputes": ("nothing", "cheap", "more", "all")}  # the values of switches other than on and off
NOT_TRIED = "all"
WANTED = {bool: "true or false", int: "an int of at least 1", str: "the name of a library, or 'by size'"}
Decisions: TypeAlias = dict[str, "Variant"]


@dataclass(frozen=True)
class Variant:
    """One way to run a mini-batch.

    Attributes:
        fold, share: passes of `autobatch.graph.rewrite.passes`.
        joins, stacks, sums, recomputes: switches of `autobatch.memplan.planner.MemoryPlanner`; `sums` needs the two
            before it.
        threads: the number of threads for a mini-batch.
        matmul: the library for matrix products; "by size": the one measured as fastest for each size.

    >>> Variant().differs_from(Variant(share=True, threads=2))
    'share off, 1 thread'
    """

    fold: bool = True
    share: bool = False
    joins: bool = True
    stacks: bool = True
    sums: bool = True
    recomputes: str = "cheap"
    threads: int = 1
    matmul: str = BY_SIZE

    @classmethod
    def of(cls, rewrites: tuple[str, ...], planner: Planner, threads: int, matmul: str) -> Variant:
        """Make the variant that options describe; switches that a planner lacks count as off."""
        choices: dict[str, Any] = {name: name in rewrites for name in REWRITES}
        choices |= {name: WORDS[name][0] if name in WORDS else False for name in LAYOUTS}
        choices |= {name: getattr(planner, name) for name in switches_of(planner)}
        return cls(**choices, threads=threads, matmul=matmul)

    @property
    def switches(self) -> tuple[bool | str, ...]:
        """The values of the planner's switches."""
        return tuple(getattr(self, name) for name in LAYOUTS)

    def rewrites(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """List the passes of this variant; `given` says which others are on."""
        return tuple(name for name in PASSES if (getattr(self, name) if name in REWRITES else name in given))

    def planner(self, given: Planner) -> Planner:
        """Make a planner like `given`, with the switches of this variant."""
        switches: dict[str, Any] = {name: getattr(self, name) for name in switches_of(given)}
        made: Planner = replace(given, **switches)  # type: ignore[type-var]
        return made

    def neighbours(self, switches: Iterable[str], max_threads: int) -> Iterator[Variant]:
        """Make the variants that differ in one choice.

        Args:
            switches: the switches that may change.
            max_threads: the most threads: tried are all powers of two up to it, and itself; 0 if the number may not
                change.
        """
        for name in switches:
            values: tuple[Any, ...] = WORDS.get(name, (False, True))
            yield from (replace(self, **{name: v}) for v in values if v not in (getattr(self, name), NOT_TRIED))
        numbers = {2**k for k in range(max_threads.bit_length())} | {max_threads}
        yield from (replace(self, threads=n) for n in sorted(numbers - {0, self.threads}))

    def changed_as(self, *others: Variant) -> Variant:
        """Make this variant with the changes of all others; where they disagree, the first wins."""
        changes: dict[str, Any] = {}
        for other in reversed(others):
            changes |= {name: value for name, value in asdict(other).items() if value != getattr(self, name)}
        return replace(self, **changes)

    def differs_from(self, base: Variant) -> str:
        """Say what differs from `base`; "as given" if nothing does."""
        told = []
        for name, value in asdict(self).items():
            special = {
                "threads": f"{value} thread{'' if value == 1 else 's'}",
                "matmul": f"products by {value}",
                "recomputes": f"recomputes {value}",
            }
            if value != getattr(base, name):
                told.append(special.get(name, f"{name} {'on' if value else 'off'}"))
        return ", ".join(told) or "as given"


def switches_of(planner: Planner | None) -> tuple[str, ...]:
    """List the switches that a planner has."""
    names = {field.name for field in fields(planner)} if is_dataclass(planner) else ()
    return tuple(name for name in LAYOUTS if name in names)


def read_decisions(tune: Any, base: Variant, planner: Planner) -> Decisions:
    """Read pinned decisions.

    Args:
        tune: a table as `loss.decisions` gives it; or choices for all mini-batches, such as {"threads": 2}; or the path
            of a JSON file with either.
        base: gives the choices that are not stated.
        planner: the planner whose switches may be named.

    Raises:
        PlanError: the file cannot be read, or names an unknown choice or value; or nothing is chosen.
    """
    table: Any = _read_file(tune) if isinstance(tune, str | os.PathLike) else tune
    if not isinstance(table, Mapping):
        raise PlanError(
            f"tune={tune!r} is neither 'off', 'auto', a table of decisions nor the path of one; give what "
            f"loss.decisions holds."
        )
    if not table:
        raise PlanError(f"tune={tune!r} is a table without a choice; give one such as {{'threads': 2}}, or 'off'.")
    if not any(isinstance(value, Mapping) for value in table.values()):
        table = {OTHERS: table}
    found = {str(label): read_variant(f"for {str(label)!r}", choices, base) for label, choices in table.items()}
    for label, variant in found.items():
        for name in set(LAYOUTS) - {*switches_of(planner)}:
            if getattr(variant, name) != getattr(base, name):
                raise PlanError(
                    f"reading decisions for {label!r}: the planner {planner!r} has no switch {name!r}; leave it out."
                )
    libraries = {variant.matmul for variant in found.values()}
    if len(libraries) > 1:
        raise PlanError(f"reading decisions: products by {' and '.join(sorted(libraries))}; give one for all classes.")
    return {OTHERS: replace(base, matmul=libraries.pop()), **found}


def read_variant(where: str, choices: Any, base: Variant) -> Variant:
    """Read the choices of a variant, with `base` for the rest; PlanError for an unknown choice or value."""
    doing = f"reading decisions {where}"
    if not isinstance(choices, Mapping):
        raise PlanError(f"{doing}: {choices!r} is no table of choices; give one such as {{'threads': 1}}.")
    default = asdict(Variant())
    for name, value in choices.items():
        if name not in default:
            raise PlanError(f"{doing}: there is no choice {name!r}; there are {', '.join(default)}.")
        kind = type(default[name])
        if type(value) is not kind or (kind is int and value < 1) or value not in WORDS.get(name, (value,)):
            wanted = " or ".join(map(repr, WORDS[name])) if name in WORDS else WANTED[kind]
            raise PlanError(f"{doing}: {name}={value!r} should be {wanted}.")
    return replace(base, **choices)


def write_decisions(decisions: Mapping[str, Variant]) -> dict[str, dict[str, Any]]:
    """Write decisions as a table that JSON can hold and `read_decisions` reads."""
    return {label: asdict(variant) for label, variant in decisions.items()}


def _read_file(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise PlanError(
            f"tune={os.fspath(path)!r} is neither 'off' nor 'auto', and there is no file of this name; give one of "
            f"these words, or the path of a JSON file with what loss.decisions holds."
        ) from error
    except (OSError, ValueError) as error:
        raise PlanError(
            f"reading decisions from {os.fspath(path)!r}: {error}; give 'off', 'auto', or the path of a JSON file with "
            f"what loss.decisions holds."
        ) from error
