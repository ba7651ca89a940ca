"""The nine claims of the project: each is a file here, and `autobatch experiment all` measures them all.

A claim measures *parts*, such as one for each model, and writes a record of each. Its table, figure and sentences are
made from the records only, so they can be made again without measuring. A part is skipped if it has a record with the
same settings and the same code; `again=True` measures it nevertheless. `only=tree-lstm` selects parts, and `--quick`
measures so little that all claims together take minutes:

    python experiments/batches.py only=tree-lstm,lattice-lstm-arity sizes=32,256
    python experiments/batches.py --quick --out /tmp/report

With `ray=local`, parts are measured concurrently as tasks of Ray; with `ray=ADDRESS`, by a Ray cluster elsewhere.
Counts are identical there. Timings are not, because other parts run at the same time; the record says so.
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
"""Names of the claims, in the order of the report."""

Records = Mapping[str, Record]
"""Records by part."""
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Published:
    """A figure of the literature, and ours to compare it with."""

    what: str
    theirs: str
    source: str
    ours: Callable[[Records], str]
    """Format our figure from the records; empty if they do not contain it."""


@dataclass(frozen=True)
class Claim(Generic[S]):
    """A claim, and how it is measured and shown.

    Attributes:
        name: name of its file and its records.
        heading: the claim, in a line.
        claimed: the claim in a paragraph, with how it is measured.
        settings, quick: the settings, and smaller ones for `--quick`.
        parts, quick_parts: names of the parts, each of which has a record; one claim has a single part, with an empty
            name.
        measure: measures a part.
        tabulate: makes tables of the results.
        draw: draws a figure of the results, of a page's width.
        see: states the results in sentences.
        published: results of the literature.
        disagreement: where we differ from the literature, and why.
        modules: prefixes of the measured modules.
        needs: required packages.
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
        """Read the records of a folder, by part."""
        places = {part: place_of(folder, self.name, part) for part in self.parts}
        return {part: read_record(place) for part, place in places.items() if place.is_file()}

    def beside(self, records: Records) -> Table:
        """Compare the literature's figures with ours."""
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
    """Measure and show a claim as the command line's words say.

    Raises:
        AutobatchError: a part or a setting is unknown.
    """
    changes = read_words(words)
    ray = changes.pop("ray", "")
    is_quick, again = (changes.pop(name, "False") == "True" for name in ("quick", "again"))
    out = Path(changes.pop("out", QUICK if is_quick else RESULTS))
    parts = changes.pop("only").split(",") if "only" in changes else claim.quick_parts if is_quick else claim.parts
    if unknown := [part for part in parts if part not in claim.parts]:
        others = f"give some of {', '.join(claim.parts)}" if any(claim.parts) else "it has none, leave out only="
        raise AutobatchError(f"only= must name parts of {claim.name}, got {unknown[0]!r}; {others}.")
    settings = change(claim.quick if is_quick else claim.settings, changes)
    use_threads(settings.threads)
    measure_parts(claim, settings, parts, out, again, LOCAL if ray == "True" else ray)


def measure_parts(
    claim: Claim[Any], settings: Settings, parts: Sequence[str], out: Path, again: bool, ray: str = ""
) -> None:
    """Measure the parts that have no up-to-date record; then show the folder's records.

    Args:
        claim: the claim that they belong to.
        settings: how they are measured.
        parts: their names.
        out: the folder.
        again: measure parts with an up-to-date record too.
        ray: where Ray measures them, see `on_ray`; empty to measure here, one after the other.
    """
    require((*claim.needs, "matplotlib"), f"measuring {claim.name}")
    left = []
    for part in parts:
        start, place = Start.now(claim.name, settings, claim.modules), place_of(out, claim.name, part)
        if start.is_finished(place) and not again:
            print(f"{os.path.relpath(place)} exists already, with the same settings and code\n")
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
        AutobatchError: a worker's code differs from this process's.
    """
    what, code = f"measuring {claim.name}", Start.now(claim.name, settings, claim.modules).code
    with show_progress(len(parts)) as progress:
        jobs = [(claim.name, settings, part) for part in parts]
        for number, (record, findings) in as_done(measure_part, jobs, ray, what) if parts else ():
            if record["code"] != code:
                raise AutobatchError(
                    f"{what}: the code of a worker differs from {ROOT}; install the same code on all machines."
                )
            place = place_of(out, claim.name, parts[number])
            write_record(place, {**record, "command": command_line(), "ray": True}, findings.draw)
            progress.advance(what, parts[number])
            progress.say(f"{findings.table}\n\nwritten to {os.path.relpath(place)}\n")


def measure_part(name: str, settings: Settings, part: str) -> tuple[dict[str, Any], Findings]:
    """Measure a part in this process, a worker. Return its record and the findings."""
    claim = load_claim(name)
    start = Start.now(claim.name, settings, claim.modules)
    findings = claim.measure(settings, part)
    return start.to_record(findings), findings


def show(claim: Claim[Any], folder: Path) -> str:
    """Write a claim's table and figure beside its records. Return the figure's title."""
    from charts import draw_into

    records = claim.records(folder)
    write_whole(folder / f"{claim.name}.md", to_markdown(claim, records))
    return draw_into(folder / f"{claim.name}.png", lambda figure: claim.draw(records, figure))


def to_markdown(claim: Claim[Any], records: Records) -> str:
    """Write a claim, its figure and its tables as a page."""
    blocks = [f"# {claim.heading}", claim.claimed, claim.see(records), f"![{claim.heading}]({claim.name}.png)"]
    blocks += [table.markdown() for table in claim.tabulate(records)]
    if claim.published:
        blocks += ["## Compared with the literature", claim.beside(records).markdown(), claim.disagreement]
    return "\n\n".join(filter(None, [*blocks, origins(records.values())])) + "\n"


def in_list(words: Sequence[str]) -> str:
    """Join words into a list for a sentence.

    >>> in_list(["trees", "chains", "lattices"])
    'trees, chains and lattices'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def as_sentence(text: str) -> str:
    """Capitalize the first letter and add a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def require(packages: Sequence[str], what: str) -> None:
    """Check that required packages are installed.

    Raises:
        AutobatchError: some are missing; the message names them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        some = f"package{'s'[: len(missing) > 1]} {', '.join(missing)}"
        raise AutobatchError(f"{what} needs the {some}; pip install --editable '.[experiments]' in the checkout.")
