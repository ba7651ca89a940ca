"""Ways to run a mini-batch that give the same results up to rounding, and how choices among them are written down.

A variant says which rewrites and planner's switches are on, how many threads there are, and which library
multiplies. Decisions are a table of variants: one for each class of mini-batches, and under "*" one for all others. As
JSON they can be kept, edited and given back: `ab.batched(loss, tune=decisions)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from autobatch.blas.choosing import BY_SIZE
from autobatch.errors import BackendError, PlanError
from autobatch.graph.rewrite.passes import PASSES
from autobatch.plan.plan import Planner

OTHERS = "*"
REWRITES = ("fold", "share")
LAYOUTS = ("joins", "stacks", "sums", "recomputes")
WORDS = {"recomputes": ("nothing", "cheap", "more", "all")}  # the values of a switch that is not just on or off
NOT_TRIED = "all"
Decisions: TypeAlias = dict[str, "Variant"]


@dataclass(frozen=True)
class Variant:
    """One way to run a mini-batch.

    Attributes:
        fold, share: passes of `autobatch.graph.rewrite.passes`: readers take sums themselves; equal nodes are computed
            once.
        joins, stacks, sums: switches of `autobatch.memplan.planner.MemoryPlanner`; `sums` needs the other two.
        recomputes: another, how much backward computes again instead of keeping it: "nothing", "cheap", "more", "all".
        threads: that a mini-batch has.
        matmul: the library that multiplies; "by size": the fastest for each size, as it was measured.

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
        """The variant that options as they are given amount to."""
        choices: dict[str, Any] = {name: name in rewrites for name in REWRITES}
        choices |= {name: WORDS[name][0] if name in WORDS else False for name in LAYOUTS}
        choices |= {name: getattr(planner, name) for name in switches_of(planner)}
        return cls(**choices, threads=threads, matmul=matmul)

    def rewrites(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """The passes of this variant, where `given` says what is on beside its own; `given` itself if that is it."""
        wanted = {name for name in given if name not in REWRITES} | {n for n in REWRITES if getattr(self, n)}
        return given if wanted == set(given) else tuple(name for name in PASSES if name in wanted)

    def planner(self, given: Planner) -> Planner:
        """The planner with the switches of this variant; `given` itself if they are its own."""
        changes = {n: getattr(self, n) for n in switches_of(given) if getattr(self, n) != getattr(given, n)}
        planner: Any = given
        return replace(planner, **changes) if changes else given

    def neighbours(self, planner: Planner | None, rewrites: bool, max_threads: int) -> Iterator[Variant]:
        """The variants that differ in one choice.

        Args:
            planner: whose switches may change; None if they may not.
            rewrites: whether passes may be switched.
            max_threads: the most that may be used: all powers of two up to it are given, and itself; 0 if the number
                may not change.
        """
        for name in REWRITES if rewrites else ():
            yield self._flipped(name)
        for name in switches_of(planner):
            if name in WORDS:
                words = (word for word in WORDS[name] if word not in (getattr(self, name), NOT_TRIED))
                yield from (self._with(name, word) for word in words)
                continue
            changed = self._flipped(name)
            yield changed if changed.joins and changed.stacks else replace(changed, sums=False)
        numbers = {2**k for k in range(max_threads.bit_length())} | {max_threads}
        yield from (replace(self, threads=n) for n in sorted(numbers - {0, self.threads}))

    def _flipped(self, name: str) -> Variant:
        return self._with(name, not getattr(self, name))

    def _with(self, name: str, value: Any) -> Variant:
        return replace(self, **{name: value})

    def changed_as(self, *others: Variant) -> Variant:
        """This variant with all that others change in it; where they disagree, as the first does."""
        changes: dict[str, Any] = {}
        for other in reversed(others):
            changes |= {name: value for name, value in asdict(other).items() if value != getattr(self, name)}
        return replace(self, **changes)

    def differs_from(self, base: Variant) -> str:
        """What differs from `base`, in words; "as given" if nothing does."""
        told = []
        for name, value in asdict(self).items():
            if value != getattr(base, name):
                match name:
                    case "threads":
                        told.append(f"{value} thread{'s'[: value > 1]}")
                    case "matmul":
                        told.append(f"products by {value}")
                    case "recomputes":
                        told.append(f"{name} {value}")
                    case _:
                        told.append(f"{name} {'on' if value else 'off'}")
        return ", ".join(told) or "as given"


def switches_of(planner: Planner | None) -> tuple[str, ...]:
    """The switches that a planner has."""
    if planner is None or not is_dataclass(planner):
        return ()
    names = {field.name for field in fields(planner)}
    return tuple(name for name in LAYOUTS if name in names)


def check_threads(threads: int | str) -> None:
    """Refuse what is no number of threads with a BackendError."""
    is_number = isinstance(threads, int | np.integer) and not isinstance(threads, bool) and threads >= 1
    if not is_number and not (isinstance(threads, str) and threads == "auto"):
        raise BackendError(f"threads={threads!r} is no number of threads; give an int of at least 1, or 'auto'.")


def read_decisions(tune: Any, base: Variant, planner: Planner) -> Decisions:
    """Read pinned decisions.

    Args:
        tune: a table as `loss.decisions` gives it; or choices for all mini-batches, such as {"threads": 2}; or the
            path of a JSON file that holds either.
        base: holds where nothing is said.
        planner: whose switches may be named.

    Raises:
        PlanError: the file cannot be read, or names a choice or value that there is not; or nothing is chosen.
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
    found = {str(label): _read_variant(str(label), choices, base, planner) for label, choices in table.items()}
    libraries = {variant.matmul for variant in found.values()}
    if len(libraries) > 1:
        raise PlanError(f"reading decisions: products by {' and '.join(sorted(libraries))}; give one for all classes.")
    return {OTHERS: replace(base, matmul=next(iter(libraries), base.matmul)), **found}


def write_decisions(decisions: Mapping[str, Variant]) -> dict[str, dict[str, Any]]:
    """Decisions as a table that JSON can hold and `read_decisions` reads."""
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


def _read_variant(label: str, choices: Any, base: Variant, planner: Planner) -> Variant:
    doing = f"reading decisions for {label!r}"
    if not isinstance(choices, Mapping):
        raise PlanError(f"{doing}: {choices!r} is no table of choices; give one such as {{'threads': 1}}.")
    names = [field.name for field in fields(Variant)]
    for name, value in choices.items():
        if name not in names:
            raise PlanError(f"{doing}: there is no choice {name!r}; there are {', '.join(names)}.")
        if not is_value(name, value):
            wanted = " or ".join(map(repr, WORDS[name])) if name in WORDS else WANTED[type(value_of(name))]
            raise PlanError(f"{doing}: {name}={value!r} should be {wanted}.")
        if name in LAYOUTS and name not in switches_of(planner) and value != getattr(base, name):
            raise PlanError(f"{doing}: the planner {planner!r} has no switch {name!r}; leave it out.")
    return replace(base, **choices)


def is_value(name: str, value: object) -> bool:
    """Whether a choice may have this value."""
    if type(value) is not type(value_of(name)):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return value >= 1
    return name not in WORDS or value in WORDS[name]


def value_of(name: str) -> object:
    """The value of a choice where nothing is said."""
    return getattr(Variant(), name)


WANTED = {bool: "true or false", int: "an int of at least 1", str: "the name of a library, or 'by size'"}
