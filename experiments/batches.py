"""Claim 1: with compaction, a fixed rule needs as few batches as machines that are learned on the workload.

Every policy plans the first mini-batch of a workload, on which machines learn, and held-out ones, which follow it.
Counts do not depend on the computer. Parts are workloads:

    python experiments/batches.py only=tree-lstm-2type,lattice-lstm-variadic sizes=32,256
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autobatch.policies.rules.rules import LEARNED, with_origin
from charts import COLORS, entitle
from claims import Claim, Published, Records, in_list, run_claim
from counted_plans import BOTH, PLANS, RAW, Effort, compare
from digest import STRUCTURE
from records import Findings
from table import Table
from workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = "32"
"""Size of the mini-batches in the figure and in sentences, if a record has it."""
DRAWN = {
    "tree-lstm": "trees", "bilstm-tagger": "tagger", "tree-lstm-2type": "two-type trees",
    "lattice-lstm-folded": "lattices, sums folded", "lattice-lstm-variadic": "lattices, one type of sum",
    "lattice-lstm-arity": "lattices, a type per arity", "random-dag-8": "random graphs, 8 types",
}  # fmt: skip
"""Workloads of the figure, and their names there."""
LINES = {
    "agenda, raw": ("agenda", RAW),
    "published machine, raw": ("published fsm", RAW),
    "agenda, compacted": ("agenda", BOTH),
    "learned machines, compacted": ("fsm", BOTH),
    "rule score, compacted": ("score", BOTH),
}
"""Lines of the figure: the policy, and which of its plans."""
IN_DOCUMENT = (
    ("trees", "tree-lstm", "256"), ("two-type trees", "tree-lstm-2type", "32"),
    ("two-type trees", "tree-lstm-2type", "256"), ("lattices, arity", "lattice-lstm-arity", "32"),
    ("lattices, variadic", "lattice-lstm-variadic", "32"), ("lattices, folded", "lattice-lstm-folded", "32"),
    ("tagger", "bilstm-tagger", "32"), ("random dags of 4 types", "random-dag-4", "64"),
    ("random dags of 8 types", "random-dag-8", "64"),
)  # fmt: skip
HEADER = (
    "", "chain bound", "better bound", "fewest known", f"{with_origin('agenda')}, raw", "and compacted",
    "published FSM, raw", "and compacted", "our FSM, compacted", "`score`, raw", "and compacted",
)  # fmt: skip


def measure(effort: Effort, workload: str) -> Findings:
    """Compare the policies on mini-batches of every size."""
    seconds: dict[str, list[float]] = {}
    by_size: dict[str, Any] = {}
    for size in effort.sizes:
        data, graphs = WORKLOADS[workload].minibatches(size, 1 + effort.held_out, effort.seed)
        by_size[str(size)] = compare(graphs, effort, partial(seconds.__setitem__), size)
    figures = {"workload": workload, "data": data, "plans": PLANS, "weights": LEARNED._asdict(), "sizes": by_size}
    rows = [to_row(f"{workload}, {size}", found) for size, found in by_size.items()]
    return Findings(seconds, figures, Table("", HEADER, rows).text())


def to_row(name: str, found: Any) -> list[str]:
    """Format the means over held-out mini-batches."""
    reached, plans = found["reached"], {policy: counted["held-out"] for policy, counted in found["policies"].items()}
    proven = reached["optimal"][1:]
    counts = [(policy, plan) for policy in ("agenda", "published fsm") for plan in (RAW, BOTH)]
    counts += [("fsm", BOTH), ("score", RAW), ("score", BOTH)]
    return [
        name,
        *(f"{statistics.fmean(reached[bound][1:]):.1f}" for bound in ("chain bound", "better bound")),
        f"{statistics.fmean(reached['fewest'][1:]):.1f} ({sum(proven)} of {len(proven)})",
        *(f"{plans[policy][plan]:.1f}" for policy, plan in counts),
    ]


def tabulate(records: Records) -> list[Table]:
    """Show every workload and size, and what planning and learning cost."""
    sizes = [(name, size, found) for name, one in records.items() for size, found in one.figures["sizes"].items()]
    rows = [to_row(f"{name}, {size}", found) for name, size, found in sizes]
    title = "Batches of a held-out mini-batch, mean; in brackets, how many of the fewest known are proven optimal"
    costs = []
    for name, size, found in sizes:
        score, learned = (found["policies"][policy] for policy in ("score", "fsm"))
        timed = [*score["ns/node"].values(), *learned["ns/node"].values()]
        learning = f"{sum(learned['learning s'].values()):.2f}", f"{learned['episodes']:g}", f"{learned['states']:g}"
        costs.append((f"{name}, {size}", *(f"{ns:.0f}" for ns in timed), *learning))
    ways = "one direction", "both, compacted"
    header = ("", *(f"{who}, {way}" for who in ("score", "FSM") for way in ways), "learning, s", "episodes", "states")
    return [Table(title, HEADER, rows), Table("Planning, in ns per node, and learning of both machines", header, costs)]


def tabulate_some(records: Records) -> Table:
    """Show the workloads and sizes of the document on policies."""
    rows = [
        to_row(f"{title}, {size}", records[workload].figures["sizes"][size])
        for title, workload, size in IN_DOCUMENT
        if workload in records and size in records[workload].figures["sizes"]
    ]
    return Table("", HEADER, rows)


def tabulate_first(records: Records) -> Table:
    """Show the first 32 trees, with one loss for all."""
    if "tree-lstm" not in records or SHOWN not in records["tree-lstm"].figures["sizes"]:
        return Table("", ("", "batches"), ())
    found = records["tree-lstm"].figures["sizes"][SHOWN]
    rows = [("lower bound", f"{found['reached']['chain bound'][0]}")]
    counts = {policy: found["policies"][policy]["first"][RAW] for policy in ("depth", "agenda", "score")}
    rows += [(with_origin(policy), f"{count:.0f}") for policy, count in counts.items()]
    return Table(
        "", ("", "batches"), [*rows, ("`score`, compacted", f"{found['policies']['score']['first'][BOTH]:.0f}")]
    )


def shown_size(record: Any) -> str:
    """Return the size to show: 32, or the first that was measured."""
    sizes = record.figures["sizes"]
    return SHOWN if SHOWN in sizes else str(next(iter(sizes)))


def drawn_of(records: Records) -> list[str]:
    """Return the workloads that the figure shows: those of `DRAWN`, or else whatever was measured."""
    return [workload for workload in DRAWN if workload in records] or [*records]


def draw(records: Records, figure: Figure) -> None:
    """Draw how far above the bound each policy is, on average and at most."""
    figure.set_figheight(4.2)
    axes = figure.subplots()
    rows = drawn_of(records)
    for k, (label, (policy, plan)) in enumerate(LINES.items()):
        means, most = [], []
        for workload in rows:
            found = records[workload].figures["sizes"][shown_size(records[workload])]
            bound = statistics.fmean(found["reached"]["better bound"][1:])
            counted = found["policies"][policy]
            means.append(100 * max(0.0, counted["held-out"][plan] / bound - 1))
            most.append(max(means[-1], 100 * counted["most above bound"][plan] / bound))
        spread = [[0.0] * len(rows), [top - mean for mean, top in zip(means, most, strict=True)]]
        places = [row + 0.14 * (k - 2) for row in range(len(rows))]
        axes.errorbar(
            means,
            places,
            xerr=spread,
            fmt="o",
            color=COLORS[k],
            label=label.replace(policy, with_origin(policy)),
            elinewidth=1,
        )
    axes.set_yticks(range(len(rows)), [DRAWN.get(workload, workload) for workload in rows])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=-0.1)
    ticks = (0, 1, 3, 10, 30, 100, 300)
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    sizes = sorted({shown_size(records[workload]) for workload in rows}, key=int)
    axes.set_xlabel(
        f"batches above the better bound (%; mean and worst of held-out mini-batches of {' and '.join(sizes)})"
    )
    axes.set_ylabel("workload")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3)
    entitle(figure, message_of({workload: records[workload] for workload in rows}))


def message_of(records: Records) -> str:
    """State how far above the bound the figure's compacted policies are, and how far apart."""
    compacted = [which for which in LINES.values() if which[1] == BOTH]
    far = [[100 * max(0.0, above_bound(record, *which)) for which in compacted] for record in records.values()]
    raw = [100 * above_bound(record, *which) for record in records.values() for which in LINES.values()
           if which[1] == RAW]  # fmt: skip
    most, apart = max(map(max, far)), max(max(some) - min(some) for some in far)
    return (
        f"Compacted, every policy is on average at most {most:.0f}% above the bound, and at most {apart:.0f} points "
        f"from the others; raw, up to {max(raw):.0f}% above it"
    )


def see(records: Records) -> str:
    """State how far above the bound the policies are."""
    far = {label: [above_bound(record, *which) for record in records.values()] for label, which in LINES.items()}
    most = dict(zip(records, far["rule score, compacted"], strict=True))
    worst = max(most, key=most.__getitem__)
    left_out = sorted(records.keys() - set(drawn_of(records)))
    drawn = f" The figure leaves out {in_list(left_out)}." if left_out else ""
    averages = "; ".join(f"{label}: {100 * statistics.fmean(found):.1f}%" for label, found in far.items())
    return (
        f"On {len(records)} workloads, held-out mini-batches need this many batches more than the better bound, on "
        f"average: {averages}. The rule score is farthest above on {worst}, by {100 * most[worst]:.1f}%.{drawn}"
    )


def above_bound(record: Any, policy: str, plan: int) -> float:
    """Return how far a policy is above the better bound, as a fraction of it."""
    found = record.figures["sizes"][shown_size(record)]
    return float(
        found["policies"][policy]["held-out"][plan] / statistics.fmean(found["reached"]["better bound"][1:]) - 1
    )


def ours_on(workload: str, size: str, records: Records) -> str:
    """State our counts for the first mini-batch of a size."""
    if workload not in records or size not in records[workload].figures["sizes"]:
        return ""
    found = records[workload].figures["sizes"][size]
    published, ours = found["policies"]["published fsm"]["first"][RAW], found["policies"]["fsm"]["first"][BOTH]
    return f"{published:.0f} (its machine, here), {ours:.0f} (ours), {found['reached']['better bound'][0]} (bound)"


def published(rows: Sequence[tuple[str, str, str, str]]) -> list[Published]:
    """Compare the paper's counts for learned machines with ours."""
    source = "ED-Batch (arXiv:2302.03851)"
    return [Published(what, theirs, source, partial(ours_on, workload, size)) for what, theirs, workload, size in rows]


CLAIM = Claim(
    name="batches",
    heading="With compaction, a fixed rule plans as few batches as state machines learned on the workload",
    claimed=(
        "The rule score, whose weights were learned on other graphs, plans from the inputs and from the outputs, "
        "deletes superfluous batches, and keeps the shorter plan. It then needs as few batches as state machines "
        "learned on the workload, and on trees and sentences as few as the lower bound. State machines learn on the "
        "first mini-batch; the batches of all policies are counted on later ones."
    ),
    settings=Effort(),
    quick=Effort(
        sizes=(8,), held_out=2, learning_seeds=1, search_steps=100, bound_states=20_000, exact_states=2_000, repeats=1
    ),
    parts=tuple(WORKLOADS),
    quick_parts=tuple(DRAWN),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    published=[
        *published((
            ("batches, 32 lattices, a type per arity of sums", "314", "lattice-lstm-arity", "32"),
            ("batches, 32 lattices, one type of sums", "273", "lattice-lstm-variadic", "32"),
            ("batches, 32 lattices, sums folded", "155", "lattice-lstm-folded", "32"),
            ("batches, 256 two-type trees", "38", "tree-lstm-2type", "256"),
        )),
        Published(
            "batches of its system, 32 lattices", "309", "measured elsewhere",
            partial(ours_on, "lattice-lstm-arity", "32"),
        ),
        Published(
            "batches of DyNet's agenda on elementary ops, 32 lattices", "4,520", "measured elsewhere",
            lambda records: "not comparable: cells are recorded, not elementary ops",
        ),
    ],
    disagreement=(
        "The form of the sum matters more than the policy: the published machine needs half as many batches if sums "
        "are folded into their readers. Compaction, which is not in the paper, removes most of the other differences."
    ),
    modules=STRUCTURE,
    needs=("scipy",),
)  # fmt: skip

if __name__ == "__main__":
    run_claim(CLAIM)
