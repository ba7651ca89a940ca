"""Update the tables of the documents from the records, and mark those whose records are older than their code.

    python experiments/tables.py

A document has each table between two marks, the first of which names it:

    <!-- table: throughput -->
    <!-- end of table -->

The text below a table says where its figures were measured, and whether the measured code has changed since. A test
fails if a document does not match the records. The pages and figures of the claims, and the list of all records,
`experiments/results/README.md`, are written too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import ablation
import batches
import data_parallel
import scale
import scaling
import serving
import step_time
import throughput
import training
from autobatch.cli.ending import run_process
from autobatch.errors import AutobatchError, DataError
from autobatch.policies.rules.rules import with_origin
from claims import NAMES, Records, load_claim, require, show, to_markdown
from digest import ROOT
from records import RESULTS, origins, place_of, read_record, read_records, write_whole
from table import Table

DOCUMENTS = (
    "README.md", "docs/results.md", "docs/batching_policies.md", "docs/howto/torch_modules.md", "docs/howto/serve.md",
    "docs/scaling.md", "docs/tutorials/environment.md",
)  # fmt: skip
INDEX = "experiments/results/README.md"
FIGURES = {
    "docs/throughput.png": ("throughput", throughput.draw_summary),
    "docs/batches.png": ("batches", batches.draw),
}
"""Figures of the documents: the claim of each, and the function that draws it."""
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
LATENCY = {
    "PyTorch, each": "PyTorch, one at a time", "PyTorch, batched": "PyTorch, batched by hand", "instances": "instances",
    "recorded": "recorded graphs", "plan found": "cached plan",
}  # fmt: skip
DECODING = {
    "rounds": "ours, in rounds", "replayed": "ours, words known in advance",
    "torch, batched": "PyTorch, padded mini-batch", "torch, one by one": "PyTorch, one by one",
    "training, rounds": "ours, training in rounds", "training, replayed": "ours, training, words known in advance",
}  # fmt: skip
RAGGED = {
    "padded": "PyTorch, padded", "nested": "PyTorch, nested", "recorded in the call": "ours, recorded in the call",
    "plan found": "cached plan",
}  # fmt: skip


def tabulate_latency(records: Records) -> Table:
    """Show microseconds of inference by mini-batch size."""
    rows = []
    for what, found in records[""].figures.items():
        mode, size = what.split(", ")
        if mode == "inference":
            rows.append((size, *(f"{found['us'][way]:,.0f}" for way in LATENCY)))
    return Table("", ("instances", *LATENCY.values()), rows)


def tabulate_decoding(records: Records) -> Table:
    """Show milliseconds of the first mini-batch."""
    ms = records[""].figures["0"]["ms"]
    return Table("", [f"{name}, ms" for name in DECODING.values()], [[f"{ms[way]:.0f}" for way in DECODING]])


def tabulate_ragged(records: Records) -> Table:
    """Show milliseconds by mode and width."""
    rows = []
    for what, ms in records[""].figures.items():
        mode, width = what.split(", dim ")
        rows.append((mode, width, *(f"{ms[way]:.1f}" for way in RAGGED)))
    return Table("", ("", "width", *RAGGED.values()), rows)


def tabulate_molecules(records: Records) -> Table:
    """Show milliseconds per step of training on forces, and the speed relative to the expert."""
    (found,) = (record.figures["ms"] for record in records.values())
    expert = found["PyTorch, batched by an expert"]
    return Table("", ("", "ms", "times"), [(way, f"{ms:.1f}", f"{expert / ms:.2f}") for way, ms in found.items()])


def tabulate_memory(records: Records) -> Table:
    """Show the peak memory of training steps, by model and implementation."""
    rows = [(model, way, f"{mib:.0f}") for model, by in records[""].figures.items() for way, mib in by.items()]
    return Table("", ("model", "", "MiB"), rows)


def tabulate_ways(records: Records) -> Table:
    """Show milliseconds, with a row for each variant and a column for each width or case."""
    figures = records[""].figures
    ways = dict.fromkeys(way for found in figures.values() for way in found)
    rows = [(way, *(f"{found[way]:.1f}" if way in found else "" for found in figures.values())) for way in ways]
    return Table("", ("", *(f"{what}, ms" for what in figures)), rows)


def tabulate_modules(records: Records) -> Table:
    """Show trees per second, by width."""
    rates = {f"width {found.figures['dim']}": found.figures["trees per second"] for found in records.values()}
    ways = dict.fromkeys(way for found in rates.values() for way in found)
    return Table("", ("", *rates), [(way, *(f"{found[way]:,.0f}" for found in rates.values())) for way in ways])


def tabulate_agents(records: Records) -> Table:
    """Show the batches of policies on each workload, and how long they learn and plan."""
    header = [f"{part}: {what}" for part in records for what in ("batches", "learning, s", "planning, ms")]
    rows = [["lower bound", *(x for found in records.values() for x in (f"{found.figures['bound']:.1f}", "", ""))]]
    ways = dict.fromkeys(way for found in records.values() for way in found.figures["ways"])
    for way in ways:
        row = [with_origin(way)]
        for found in records.values():
            one = found.figures["ways"][way]
            learning = "" if one["learning_s"] is None else f"{one['learning_s']:.1f}"
            row += [f"{one['batches']:.1f}", learning, f"{one['planning_ms']:.2f}"]
        rows.append(row)
    return Table("", ("", *header), rows)


def tabulate_planning(records: Records) -> Table:
    """Show the cost of a node."""
    return scale.table_of_planning(records[scale.PLANNING].figures)


def tabulate_policies(records: Records) -> Table:
    """Show the results of policies on the reference backend."""
    return throughput.table_of_policies(records[throughput.POLICIES].figures)


def tabulate_parallel(records: Records) -> Table:
    """Show steps by the number of processes."""
    return data_parallel.table_of_steps({part: record.figures for part, record in records.items()})


def tabulate_shares(records: Records) -> Table:
    """Show how uneven shares are."""
    return data_parallel.table_of_shares(records[data_parallel.SHARES].figures)


class Source(NamedTuple):
    """The source of a document's table."""

    experiment: str
    parts: Sequence[str]
    make: Callable[[Records], Table]

    def records(self) -> Records:
        """Read the existing records."""
        places = {part: place_of(RESULTS, self.experiment, part) for part in self.parts}
        return {part: read_record(place) for part, place in places.items() if place.is_file()}

    def markdown(self) -> str:
        """Write the table, and where its figures are from."""
        if not (records := self.records()):
            is_claim = self.experiment in NAMES
            command = "autobatch experiment {}" if is_claim else "python experiments/{}.py"
            return f"*Not measured yet: `{command.format(self.experiment)}`.*"
        return f"{self.make(records).markdown()}\n\n*{origins(records.values())}*"


def of_scaling(make: Callable[[Any], Table]) -> Source:
    """Make the source of a table of `scaling.py`."""
    return Source("scaling", ("",), lambda records: make(records[""].figures))


TABLES = {
    "throughput": Source("throughput", tuple(throughput.MODELS), throughput.tabulate_some),
    "policies": Source("throughput", (throughput.POLICIES,), tabulate_policies),
    "agents": Source("agents", ("tree-lstm-2type", "random-dag-8"), tabulate_agents),
    "planning": Source("scale", (scale.PLANNING,), tabulate_planning),
    "step-time": Source("step_time", step_time.CLAIM.parts, step_time.tabulate_steps),
    "ablation": Source("ablation", ablation.CLAIM.parts, ablation.tabulate_training),
    "training": Source("training", tuple(training.TASKS), training.tabulate_last),
    "batches": Source("batches", batches.CLAIM.parts, batches.tabulate_some),
    "first-trees": Source("batches", ("tree-lstm",), batches.tabulate_first),
    "latency": Source("latency", ("",), tabulate_latency),
    "ragged": Source("ragged", ("",), tabulate_ragged),
    "decoding": Source("decoding", ("",), tabulate_decoding),
    "molecules": Source("molecules", ("dim-64",), tabulate_molecules),
    "hessian": Source("hessian", ("",), tabulate_ways),
    "per-instance": Source("per_instance", ("",), tabulate_ways),
    "peak-memory": Source("peak_memory", ("",), tabulate_memory),
    "serving": Source("serving", serving.PARTS, serving.tabulate_some),
    "modules": Source("modules_of_torch", ("dim-64", "dim-256"), tabulate_modules),
    "data-parallel": Source("data_parallel", (*data_parallel.TRAINED, data_parallel.TORCH), tabulate_parallel),
    "shares": Source("data_parallel", (data_parallel.SHARES,), tabulate_shares),
    "scaling-check": of_scaling(scaling.table_of_check),
    "scaling-growing": of_scaling(partial(scaling.table_of_many, hows=("growing",))),
    "scaling-fixed": of_scaling(partial(scaling.table_of_many, hows=("fixed",))),
    "scaling-stragglers": of_scaling(scaling.table_of_stragglers),
    "scaling-needs": of_scaling(scaling.table_of_needs),
    "scaling-serving": of_scaling(scaling.table_of_serving),
}
"""Tables by the name in the mark."""


def renew(text: str) -> str:
    """Update the tables between the marks of a document.

    Raises:
        DataError: a mark names no table.
    """

    def table(found: re.Match[str]) -> str:
        if found[2] not in TABLES:
            raise DataError(f"a table must be one of {', '.join(TABLES)}, got {found[2]!r}.")
        return f"{found[1]}{TABLES[found[2]].markdown()}\n{found[3]}"

    return TABLE.sub(table, text)


def list_records() -> str:
    """List all records, with the machine, and whether their code has changed since."""
    rows = []
    for name, record in read_records(RESULTS).items():
        machine, commit = record.content["machine"], record.content["commit"]
        state = "stale" if record.is_stale else "current"
        rows.append((f"[{name}]({name}.json)", record.content["started"][:10], commit[:7], machine["cpu"], state))
    table = Table("", ("record", "measured", "commit", "processor", "code"), rows)
    return (
        "# Records\n\nA record is one run of an experiment: settings, commit, machine, raw seconds and figures. It is "
        "stale if the code that\nit measures has changed since. `python experiments/tables.py` writes this list."
        f"\n\n{table.markdown()}\n"
    )


def pages() -> dict[str, str]:
    """Return the text of every document, by its path in the checkout."""
    written = {path: renew((ROOT / path).read_text(encoding="utf-8")) for path in DOCUMENTS}
    for claim in map(load_claim, NAMES):
        if records := claim.records(RESULTS):
            written[f"experiments/results/{claim.name}.md"] = to_markdown(claim, records)
    return written | {INDEX: list_records()}


def write_all(words: Sequence[str]) -> None:
    """Write every document whose tables have changed, and every figure.

    Raises:
        AutobatchError: there are arguments; this tool takes none.
    """
    if words:
        raise AutobatchError(
            f"tables.py takes no arguments, got {words[0]!r}; tables are made from the records in experiments/results."
        )
    require(("matplotlib",), "writing the tables of the documents")
    from charts import draw_into

    for path, text in pages().items():
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text:
            write_whole(ROOT / path, text)
            print(f"updated {path}")
    for claim in map(load_claim, NAMES):
        if claim.records(RESULTS):
            show(claim, RESULTS)
    for path, (name, draw) in FIGURES.items():
        draw_into(ROOT / path, partial(draw, load_claim(name).records(RESULTS)))


if __name__ == "__main__":
    run_process(lambda: write_all(sys.argv[1:]))
