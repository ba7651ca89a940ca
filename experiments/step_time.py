"""Claim 5: measure where the time of a training step goes, in matrix products and elsewhere.

On each mini-batch, a whole step, its matrix products alone, and both with a clock around every part take turns, on one
thread of the cpu backend (`roofline.py` shows the parts of one model in detail). A step merges recorded graphs, plans
them, runs forward and backward, and takes a step of Adam. Recording, which happens once for all epochs, is timed
separately. Parts are models:

    python experiments/step_time.py only=tree-lstm dims=64,256
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from autobatch.cli.workload import load_workload, record
from charts import COLORS, entitle, legend_below, whiskers
from claims import Claim, Records, run_claim
from digest import STEP
from harness import find_data, name_of, take_turns
from records import Findings, Record, Settings
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}
SHARES = {
    "planning": "planning",
    "products forward": "products, forward",
    "forward": "element-wise, forward",
    "products backward": "products, backward",
    "backward": "element-wise, backward",
    "optimizer": "optimizer",
    "around": "other Python",
}
"""The shares of a step, at most seven; gradients of weights are part of backward."""


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones of the data's files."""

    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    minibatches: int = 4
    repeats: int = 15


def measure(config: Config, model: str) -> Findings:
    """Divide the steps of a model at every width."""
    import roofline

    seconds: dict[str, list[float]] = {}
    by_dim = {}
    for dim in config.dims:
        workload = load_workload(model, find_data(DATA[model]), dim, config.seed)
        how = roofline.Config(
            model=model, dim=dim, batch_size=config.batch_size, minibatches=config.minibatches, repeats=config.repeats
        )
        found = roofline.race_matmuls(workload, how)
        loss, instances = workload.batched("loss", "auto", "cpu"), workload.first(config.batch_size)
        recording = take_turns({"recording": partial(record, loss, instances)}, config.repeats)["recording"]
        seconds |= {f"dim {dim}, {what}": times for what, times in found.seconds.items()}
        seconds[f"dim {dim}, recording"] = recording
        by_dim[str(dim)] = {
            "ms": found.ms,
            "matmul_ms": found.matmul_ms,
            "shares_ms": divide(found.lines),
            "recording_ms": 1e3 * statistics.median(recording),
            **found.counts,
        }
    figures = {"data": name_of(workload.dataset), "dims": by_dim}
    return Findings(seconds, figures, table_of({model: figures}).text())


def divide(lines: Any) -> dict[str, float]:
    """Add up the parts of a step, timed with a clock around each. Return milliseconds of `SHARES`."""
    shares = dict.fromkeys(SHARES, 0.0)
    for line in lines:
        stage = {"weights": "backward"}.get(line.stage, line.stage)
        products = min(line.matmul_ms, line.ms)
        shares[stage] += line.ms - products
        if products:
            shares[f"products {stage}"] += products
    return shares


def table_of(figures: Mapping[str, Any]) -> Table:
    """Show a line for each model and width."""
    rows = []
    for model, found in figures.items():
        for dim, one in found["dims"].items():
            shares = (f"{ms:.2f}" for ms in one["shares_ms"].values())
            times = f"{one['ms']:.2f}", f"{one['ms'] / one['matmul_ms']:.2f}", f"{one['recording_ms']:.2f}"
            rows.append((f"{model}, width {dim}", *times, *shares))
    header = ("", "step, ms", "step / its products", "recording, once", *SHARES.values())
    return Table("A training step, in ms per mini-batch; each part is timed", header, rows)


def tabulate(records: Records) -> list[Table]:
    """Show all models."""
    return [table_of({model: found.figures for model, found in records.items()})]


def tabulate_steps(records: Records) -> Table:
    """Show all models without a title."""
    (table,) = tabulate(records)
    return Table("", table.header, table.rows)


def draw(records: Records, figure: Figure) -> None:
    """Draw the shares of a step, stacked, scaled to a step without clocks inside."""
    bars = [(model, dim, one) for model, found in records.items() for dim, one in found.figures["dims"].items()]
    figure.set_figheight(1.6 + 0.35 * len(bars))
    axes = figure.subplots()
    left = [0.0] * len(bars)
    for k, (share, name) in enumerate(SHARES.items()):
        widths = [100 * one["shares_ms"][share] / sum(one["shares_ms"].values()) for _, _, one in bars]
        axes.barh(range(len(bars)), widths, left=left, color=COLORS[k], label=name, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    ends = [step_range(records[model], dim) for model, dim, _ in bars]
    axes.errorbar(left, range(len(bars)), xerr=whiskers(left, *zip(*ends, strict=True)), fmt="none", ecolor="black")
    axes.set_yticks(range(len(bars)), [f"{model}, width {dim}\n{one['ms']:.1f} ms" for model, dim, one in bars])
    axes.invert_yaxis()
    axes.set_xlabel("time (% of a training step; lines: range of whole steps over the rounds)")
    axes.set_ylabel("model")
    legend_below(figure, axes)
    products = [100 * share_of_products(one) for _, _, one in bars]
    entitle(figure, f"Matrix products are {min(products):.0f}% to {max(products):.0f}% of a training step")


def share_of_products(one: Any) -> float:
    """Return the share of matrix products in a step."""
    shares = one["shares_ms"]
    return float(sum(ms for share, ms in shares.items() if share.startswith("products")) / sum(shares.values()))


def step_range(record: Record, dim: str) -> tuple[float, float]:
    """Return the shortest and the longest round of whole steps, in percent of the median."""
    timings, repeats = record.seconds[f"dim {dim}, step"], record.settings["repeats"]
    rounds = [sum(timings[k::repeats]) for k in range(repeats)]
    median = statistics.median(rounds)
    return 100 * min(rounds) / median, 100 * max(rounds) / median


def see(records: Records) -> str:
    """State the shares of products and planning in a step."""
    parts = []
    for model, found in records.items():
        for dim, one in found.figures["dims"].items():
            planning = one["shares_ms"]["planning"] / sum(one["shares_ms"].values())
            parts.append(f"{model} at width {dim}: {share_of_products(one):.0%} products, {planning:.0%} planning")
    return f"Of a training step: {'; '.join(parts)}."


CLAIM = Claim(
    name="step_time",
    heading="Where the time of a training step goes",
    claimed=(
        "Every part of a step is timed: planning (merge, rewrite, schedule, place); forward and backward, each divided "
        "into its matrix products, timed alone, and the rest; the optimizer; and the remaining Python code. "
        "Mini-batches are planned in every step."
    ),
    settings=Config(),
    quick=Config(dims=(64,), batch_size=16, minibatches=1, repeats=3),
    parts=tuple(DATA),
    quick_parts=("tree-lstm", "bilstm-tagger"),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=STEP,
)

if __name__ == "__main__":
    run_claim(CLAIM)
