"""Claim 6: measure what each technique is worth by switching off one at a time.

Each model runs on the cpu backend with everything on, and with one technique at a time switched off. The variants take
turns on the same mini-batches of recorded graphs. `passes.py` measures single passes of the compiler. Parts are models:

    python experiments/ablation.py only=lattice-lstm dim=256
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import autobatch as ab
from autobatch.cli.workload import load_workload, record
from autobatch.graph.rewrite import DEFAULT
from autobatch.memplan.planner import MemoryPlanner
from autobatch.policies.rules.rules import with_origin
from charts import COLORS, entitle, panels, use_log, whiskers
from claims import Claim, Records, run_claim
from digest import STEP
from harness import find_data, medians, name_of, take_turns
from records import Findings, Record, Settings
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}
FULL = "everything"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    FULL: {},
    "no batching": {"policy": "unbatched"},
    "policy agenda": {"policy": "agenda"},
    "memory not planned": {"planner": MemoryPlanner(joins=False, sums=False, stacks=False, reuses=False)},
    "kernels not fused": {"planner": MemoryPlanner(fuses=False, cuts=False, hoists=False, simplifies=False)},
    "sums not folded": {"rewrites": tuple(name for name in DEFAULT if name != "fold")},
    "plans made anew": {"plan_cache": 0},
    "cells interpreted": {"backend": "reference"},
}
"""How each technique is switched off."""
RECORDED_ANEW = "recorded anew"
WITHOUT = (*(way for way in OPTIONS if way != FULL), RECORDED_ANEW)
"""The variants that are compared with `FULL`."""
MODES = ("inference", "training")
COUNTED = ("batches", "launches", "planned_bytes")
HEADER = (
    "",
    "inference: time",
    "batches",
    "launches",
    "buffer, kB",
    "training: time",
    "batches",
    "launches",
    "buffer, kB",
)


@dataclass(frozen=True)
class Config(Settings):
    """Settings. The mini-batches are the first ones of the data's files."""

    dim: int = 64
    batch_size: int = 64
    minibatches: int = 4
    repeats: int = 15


def measure(config: Config, model: str) -> Findings:
    """Time all variants of a model, in inference and training."""
    workload = load_workload(model, find_data(DATA[model]), config.dim, config.seed)
    instances = workload.first(config.batch_size * config.minibatches)
    raw = list(ab.minibatches(instances, config.batch_size))
    seconds: dict[str, list[float]] = {}
    figures: dict[str, Any] = {"data": name_of(workload.dataset)}
    for mode in MODES:
        losses, calls = dict[str, Any](), dict[str, Callable[[], None]]()
        for way, options in {**OPTIONS, RECORDED_ANEW: {}}.items():
            loss = ab.batched(workload.model.loss, **{"policy": "score", "backend": "cpu", **options})
            graphs = list(ab.minibatches(record(loss, instances), config.batch_size))
            losses[way] = loss
            calls[way] = partial(run_all, loss, raw if way == RECORDED_ANEW else graphs, mode == "training")
        times = take_turns(calls, config.repeats)
        typical = medians(times)
        figures[mode] = {
            way: {
                "time": round(typical[way] / typical[FULL], 3),
                **{name: getattr(loss.last, name) for name in COUNTED},
            }
            for way, loss in losses.items()
        }
        seconds |= {f"{mode}, {way}": timings for way, timings in times.items()}
    return Findings(seconds, figures, table_of(model, figures).text())


def run_all(loss: Any, batches: list[Any], training: bool) -> None:
    """Run each mini-batch once."""
    for batch in batches:
        _ = loss.value_and_grad(batch) if training else loss(batch)


def table_of(model: str, figures: Mapping[str, Any]) -> Table:
    """Show all variants of a model."""
    rows = []
    for way in figures[MODES[0]]:
        row = [way]
        for mode in MODES:
            found = figures[mode][way]
            row += [f"{found['time']:.2f}", f"{found['batches']:,}", f"{found['launches']:,}"]
            row.append(f"{found['planned_bytes'] / 1024:,.0f}")
        rows.append(row)
    return Table(f"{model}, {figures['data']}: times are multiples of those with everything", HEADER, rows)


def tabulate(records: Records) -> list[Table]:
    """Show all models."""
    return [table_of(model, one.figures) for model, one in records.items()]


def tabulate_training(records: Records) -> Table:
    """Show training times, with a column for each model."""
    ways = list(next(iter(records.values())).figures["training"])
    rows = [(way, *(f"{one.figures['training'][way]['time']:.2f}" for one in records.values())) for way in ways]
    return Table("", ("", *records), rows)


def draw(records: Records, figure: Figure) -> None:
    """Draw the training time without each technique, and with recording; the longest is on top."""
    axes = panels(figure, 1, len(records), 2.8)
    ways = sorted(WITHOUT, key=lambda way: -typical_time(records, way))
    names = [way.replace("agenda", with_origin("agenda")) for way in ways]
    for ax, (model, one) in zip(axes, records.items(), strict=True):
        times = [one.figures["training"][way]["time"] for way in ways]
        ends = [time_range(one, way) for way in ways]
        ax.barh(names, [time - 1 for time in times], left=1, color=COLORS[0], height=0.6)
        ax.errorbar(times, names, xerr=whiskers(times, *zip(*ends, strict=True)), fmt="none", ecolor="black")
        for row, (time, end) in enumerate(zip(times, ends, strict=True)):
            ax.text(max(1, time, end[1]) * 1.08, row, f"{time:.2f}", va="center", fontsize=7)
        ax.axvline(1, color="black", lw=1)
        ax.set_xlim(0.5 * min(times), 3 * max(times))
        use_log(ax, "x")
        ax.set_title(model, loc="left")
        ax.invert_yaxis()
        ax.set_xlabel("training time\n(relative to all on;\nmedian, range of rounds)")
        if ax is axes[0]:
            ax.set_ylabel("change")
        else:
            ax.set_yticklabels([])
    worth = ", ".join(f"{way} (×{typical_time(records, way):.1f})" for way in ways[:3])
    entitle(figure, f"What makes training slowest, alone, in the mean of the models: {worth}")


def typical_time(records: Records, way: str) -> float:
    """Return the training time of a variant relative to `FULL`: the geometric mean over the models."""
    return statistics.geometric_mean(one.figures["training"][way]["time"] for one in records.values())


def time_range(one: Record, way: str) -> tuple[float, float]:
    """Return the shortest and the longest round relative to the median of `FULL`."""
    timings, full = one.seconds[f"training, {way}"], statistics.median(one.seconds[f"training, {FULL}"])
    return min(timings) / full, max(timings) / full


def see(records: Records) -> str:
    """State what each technique is worth in training."""
    parts = []
    for way in WITHOUT:
        times = [one.figures["training"][way]["time"] for one in records.values()]
        ends = f"{min(times):.2f} to {max(times):.2f}" if min(times) < max(times) else f"{times[0]:.2f}"
        parts.append(f"{way}: {ends}")
    return f"Times of training, as multiples of those with everything, over {len(records)} models: {'; '.join(parts)}."


CLAIM = Claim(
    name="ablation",
    heading="The effect of each technique: one switched off at a time",
    claimed=(
        "“Everything” is the policy score, planned memory, fused kernels, folded sums, cached plans, compiled cells. "
        "Each variant switches off one of these. All variants take turns on the same mini-batches of recorded graphs, "
        "except “recorded anew”: there, everything is on, and every run records its instances, as in a first epoch."
    ),
    settings=Config(),
    quick=Config(dim=16, batch_size=8, minibatches=1, repeats=2),
    parts=tuple(DATA),
    quick_parts=("tree-lstm",),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=STEP,
)

if __name__ == "__main__":
    run_claim(CLAIM)
