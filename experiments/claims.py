"""The nine claims of the project: each is a file here, and `autobatch experiment all` measures them all.

A claim measures *parts*, such as one for each model, and writes a record of each. Its table, its figure and its
sentences are made from the records alone, so that they can be made again without measuring. A part whose record is
there already, of the same settings and the same code, is not measured again; `again=True` does. `only=tree-lstm` picks
parts, and `--quick` measures so little that all claims together take minutes:

    python experiments/batches.py only=tree-lstm,lattice-lstm-arity sizes=32,256
    python experiments/batches.py --quick --out /tmp/report

With `ray=local` parts are measured as tasks of Ray, beside each other; with `ray=ADDRESS`, by a Ray that runs
elsewhere. What is counted is the same there, bit for bit. Timings are not: they are taken while other parts are
measured, and the record says so.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autobatch.cli.ending import run_process
from autobatch.cli.on_ray import LOCAL, as_done
from autobatch.cli.progress import show_progress
from autobatch.errors import AutobatchError
from digest import ROOT, RUNTIME
from harness import change, read_words, use_threads
from records import (
    QUICK,
    RESULTS,
    Findings,
    Record,
    Settings,
    Start,
    command_line,
    origins,
    place_of,
    read_record,
    write_record,
    write_whole,
)
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    "batches", "learned_policies", "memory_plan", "throughput", "step_time", "ablation", "scale", "training", "serving"
)  # fmt: skip
"""Of the claims, in the order of the report."""

Records = Mapping[str, Record]
"""By part."""
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Published:
    """A figure of the literature, and ours beside it."""

    what: str
    theirs: str
    source: str
    ours: Callable[[Records], str]
    """From the records; empty where they do not tell."""


@dataclass(frozen=True)
class Claim(Generic[S]):
    """A claim, and how it is measured and shown.

    Attributes:
        name: of its file and its records.
        heading: what is claimed, in a line.
        claimed: the same in a paragraph, with how it is measured.
        settings, quick: what is measured, and what little of it `--quick` measures.
        parts, quick_parts: names of what has a record each; one claim has a single part, whose name is empty.
        measure: measures a part.
        tabulate: makes tables of what was found.
        draw: draws a figure of it, for the width of a page.
        see: says in sentences what was seen.
        published: what the literature found.
        disagreement: says where we differ from it, and why.
        modules: prefixes of what is measured.
        needs: packages.
    """

    name: str
    heading: str
    claimed: str
    settings: S
    quick: S
    parts: Sequence[str]
    quick_parts: Sequence[str]
    measure: Callable[[S, str], Findings]
    tabulate: Callable[[Records], Sequence[Table]]
    draw: Callable[[Records, Figure], None]
    see: Callable[[Records], str]
    published: Sequence[Published] = ()
    disagreement: str = ""
    modules: Sequence[str] = RUNTIME
    needs: Sequence[str] = ()

    def records(self, folder: Path) -> dict[str, Record]:
        """Read the records that a folder has, by part."""
        places = {part: place_of(folder, self.name, part) for part in self.parts}
        return {part: read_record(place) for part, place in places.items() if place.is_file()}

    def beside(self, records: Records) -> Table:
        """Put the literature's figures beside ours."""
        rows = [(one.what, one.theirs, one.source, one.ours(records) or "–") for one in self.published]
        return Table("", ("", "published or measured elsewhere", "source", "ours"), rows)


def load_claim(name: str) -> Claim[Any]:
    """Load a claim by the name of its file."""
    claim: Claim[Any] = importlib.import_module(name).CLAIM
    return claim


def run_claim(claim: Claim[Any]) -> None:
    """Read the command line, measure the parts that have no record yet, and make table and figure from the records."""
    run_process(lambda: follow(claim, sys.argv[1:]))


def follow(claim: Claim[Any], words: Sequence[str]) -> None:
    """Measure and show a claim as the words of the command line say.

    Raises:
        AutobatchError: they name a part or a setting that there is not.
    """
    changes = read_words(words)
    ray = changes.pop("ray", "")
    is_quick, again = (changes.pop(name, "False") == "True" for name in ("quick", "again"))
    out = Path(changes.pop("out", QUICK if is_quick else RESULTS))
    parts = changes.pop("only").split(",") if "only" in changes else claim.quick_parts if is_quick else claim.parts
    if unknown := [part for part in parts if part not in claim.parts]:
        others = f"give some of {', '.join(claim.parts)}" if any(claim.parts) else "it has none, leave out only="
        raise AutobatchError(f"{unknown[0]!r} is no part of {claim.name}; {others}.")
    settings = change(claim.quick if is_quick else claim.settings, changes)
    use_threads(settings.threads)
    measure_parts(claim, settings, parts, out, again, LOCAL if ray == "True" else ray)


def measure_parts(
    claim: Claim[Any], settings: Settings, parts: Sequence[str], out: Path, again: bool, ray: str = ""
) -> None:
    """Measure parts, each unless its record is there already; then show what the folder's records say.

    Args:
        claim: which they are of.
        settings: how they are measured.
        parts: their names.
        out: the folder.
        again: measure also those whose record is there.
        ray: where Ray measures them, see `on_ray`; empty to measure here, one after the other.
    """
    require((*claim.needs, "matplotlib"), f"measuring {claim.name}")
    left = []
    for part in parts:
        start, place = Start.now(claim.name, settings, claim.modules), place_of(out, claim.name, part)
        if start.is_finished(place) and not again:
            print(f"{os.path.relpath(place)} is there already, of the same settings and the same code\n")
            continue
        if ray:
            left.append(part)
            continue
        findings = claim.measure(settings, part)
        start.write(place, findings)
        print(f"{findings.table}\n\nwritten to {os.path.relpath(place)}\n", flush=True)
    measure_on_ray(claim, settings, left, out, ray)
    show(claim, out)


def measure_on_ray(claim: Claim[Any], settings: Settings, parts: Sequence[str], out: Path, ray: str) -> None:
    """Measure parts in workers of Ray; write each record here as soon as it arrives.

    Raises:
        AutobatchError: a worker has other code than this process.
    """
    what, code = f"measuring {claim.name}", Start.now(claim.name, settings, claim.modules).code
    with show_progress(len(parts)) as progress:
        jobs = [(claim.name, settings, part) for part in parts]
        for number, (record, findings) in as_done(measure_part, jobs, ray, what) if parts else ():
            if record["code"] != code:
                raise AutobatchError(f"{what}: a worker has other code than {ROOT}; give all machines the same.")
            place = place_of(out, claim.name, parts[number])
            write_record(place, {**record, "command": command_line(), "ray": True}, findings.draw)
            progress.advance(what, parts[number])
            progress.say(f"{findings.table}\n\nwritten to {os.path.relpath(place)}\n")


def measure_part(name: str, settings: Settings, part: str) -> tuple[dict[str, Any], Findings]:
    """Measure a part in this process, a worker: give its record, and what was found."""
    claim = load_claim(name)
    start = Start.now(claim.name, settings, claim.modules)
    findings = claim.measure(settings, part)
    return start.to_record(findings), findings


def show(claim: Claim[Any], folder: Path) -> str:
    """Write the table and the figure of a claim beside its records; give the message of the figure."""
    from charts import draw_into

    records = claim.records(folder)
    write_whole(folder / f"{claim.name}.md", to_markdown(claim, records))
    return draw_into(folder / f"{claim.name}.png", lambda figure: claim.draw(records, figure))


def to_markdown(claim: Claim[Any], records: Records) -> str:
    """Write a claim, its figure and its tables as a page."""
    blocks = [f"# {claim.heading}", claim.claimed, claim.see(records), f"![{claim.heading}]({claim.name}.png)"]
    blocks += [table.markdown() for table in claim.tabulate(records)]
    if claim.published:
        blocks += ["## Beside the literature", claim.beside(records).markdown(), claim.disagreement]
    return "\n\n".join(filter(None, [*blocks, origins(records.values())])) + "\n"


def in_list(words: Sequence[str]) -> str:
    """Join words as a sentence lists them.

    >>> in_list(["trees", "chains", "lattices"])
    'trees, chains and lattices'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def as_sentence(text: str) -> str:
    """Begin with a capital, end with a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def require(packages: Sequence[str], what: str) -> None:
    """Refuse to begin what needs packages that are not installed.

    Raises:
        AutobatchError: names them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        some = f"package{'s'[: len(missing) > 1]} {', '.join(missing)}"
        raise AutobatchError(f"{what}: it needs the {some}; pip install --editable '.[experiments]' in the checkout.")
