"""Claim 4: a plain function of one instance, batched, is faster than the same model batched by hand.

The same models run on the same data from the same parameters, and take turns on every mini-batch in one process:
autobatch on recorded graphs, and PyTorch one instance at a time, batched by hand, and written by an expert. Losses and
gradients are first checked against autobatch's (`against_torch.py`). Rates are instances divided by the sum of the
mini-batches' median times. Training is forward, backward and a step of the same dense Adam. Widths are measured at one
mini-batch size, sizes at one width. Policies are compared on the reference backend, where nothing but planning is
compiled. Parts are models, and `policies`:

    python experiments/throughput.py only=lattice-lstm dims=64,256 batch_sizes=64
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

import autobatch as ab
from autobatch.cli.racing import MODES
from autobatch.cli.workload import load_workload
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.policies.rules.rules import with_origin
from charts import EACH, OURS, THEIRS, entitle, legend_below, panels, use_log, whiskers
from claims import Claim, Published, Records, as_sentence, run_claim
from digest import STEP
from harness import find_data, load_sst_or_listops, medians, name_of, take_turns
from records import Findings, Record, Settings
from table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = {"tree-lstm": "trees", "bilstm-tagger": "chains", "lattice-lstm": "lattices"}
NAMES = {
    "PyTorch, one at a time": "PyTorch, one at a time",
    "PyTorch, levels": "PyTorch, level by level",
    "PyTorch, packed": "PyTorch, packed `nn.LSTM`",
    "PyTorch, agenda": "PyTorch, batched by an agenda",
    "PyTorch, expert": "PyTorch, expert",
    "PyTorch, expert, oneDNN": "PyTorch, expert, oneDNN",
    "autobatch cpu, recorded graphs": "autobatch",
}
"""Names of the implementations that are shown."""
SINGLE, OWN = "PyTorch, one at a time", "autobatch cpu, recorded graphs"
BY_HAND = [way for way in NAMES if way not in (SINGLE, OWN)]
LINES = {"PyTorch, one at a time": EACH, "PyTorch, best by hand": THEIRS, "autobatch": OURS}
SHOWN = 64
"""The width at which mini-batch sizes are compared, and the size at which widths are."""
SIZE = "mini-batch size (instances)"
POLICIES = "policies"


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones of the data's files."""

    dims: tuple[int, ...] = (32, 64, 128, 256, 512)
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    instances: int = 256
    """Instances in all mini-batches of one size, of which there are 1 to 8."""
    repeats: int = 5
    policies: tuple[str, ...] = ("unbatched", "depth", "agenda", "score")

    def pairs(self) -> list[tuple[int, int]]:
        """Return (width, size) pairs: all widths at one mini-batch size, and all sizes at one width."""
        dim, size = (SHOWN if SHOWN in some else some[0] for some in (self.dims, self.batch_sizes))
        return sorted({*((one, size) for one in self.dims), *((dim, one) for one in self.batch_sizes)})

    def n_minibatches(self, size: int) -> int:
        """Return the number of mini-batches of a size."""
        return max(1, min(8, self.instances // size))


def measure(config: Config, part: str) -> Findings:
    """Time all implementations of a model, or all policies."""
    return measure_policies(config) if part == POLICIES else measure_model(config, part)


def measure_model(config: Config, model: str) -> Findings:
    """Time a model at every width and size."""
    import against_torch
    from baselines.ways import DATA

    seconds: dict[str, list[float]] = {}
    settings = []
    for dim, size in config.pairs():
        workload = load_workload(model, find_data(DATA[model]), dim, config.seed)
        setting, n = against_torch.Setting(dim, size, config.threads), config.n_minibatches(size)
        how = against_torch.Config(
            threads=config.threads, backends="cpu", minibatches=n, slow_minibatches=max(1, min(n, SHOWN // size)),
            repeats=config.repeats,
        )  # fmt: skip
        made = against_torch.make_ways(model, workload, size, how)
        ways = {way: made[way] for way in NAMES if way in made}
        rates: dict[str, dict[str, float]] = {way: {} for way in ways}
        for mode in MODES:
            with against_torch.threads_limited(config.threads):
                times = against_torch.time_ways(ways, mode, how, f"{model}, {setting}, {mode}")
            for way, by_minibatch in times.items():
                seconds[f"{setting}, {mode}: {way}"] = [t for timings in by_minibatch for t in timings]
                rate = size * len(by_minibatch) / sum(map(statistics.median, by_minibatch))
                rates[way][mode] = float(f"{rate:.5g}")
        settings.append({**setting._asdict(), "instances_per_s": rates})
    figures = {"model": model, "data": name_of(workload.dataset), "settings": settings}
    return Findings(seconds, figures, table_of(model, figures).text())


def table_of(model: str, figures: Any) -> Table:
    """Show the rates of a model at every width and size."""
    settings = [one for one in figures["settings"] if one["n_threads"] == 1]
    ways = [way for way in NAMES if way in settings[0]["instances_per_s"]]
    header = ("width × mini-batch", *(NAMES[way] for way in ways))
    rows = []
    for one, mode in product(settings, MODES):
        rates = (in_full(one["instances_per_s"][way][mode]) for way in ways)
        rows.append((f"{one['dim']} × {one['batch_size']}, {mode}", *rates))
    return Table(f"{MODELS[model]} ({model}, {figures['data']}): instances per second, one thread", header, rows)


def measure_policies(config: Config) -> Findings:
    """Time policies on the reference backend, on the same mini-batches of recorded trees, in both modes."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=SHOWN, rng=np.random.default_rng(config.seed), **data.sizes)
    optimizer = ab.optim.Adam(model, lr=1e-3)
    size = SHOWN if SHOWN in config.batch_sizes else config.batch_sizes[0]
    trees = data.train[: size * config.n_minibatches(size)]
    seconds: dict[str, list[float]] = {}
    for mode in ("inference", "training"):
        ways: dict[str, Callable[[], object]] = {}
        for policy in config.policies:
            loss = ab.batched(model.loss, policy=policy, backend="reference", plan_cache=0)
            minibatches = list(ab.minibatches(loss.record_all(trees), size))
            ways[f"{policy}, {mode}"] = partial(sweep, loss, minibatches, optimizer if mode == "training" else None)
        seconds |= take_turns(ways, config.repeats)
    counts = {}
    for policy in config.policies:
        report = ab.batched(model.loss, policy=policy, backend="reference").explain(trees[:size])
        counts[policy] = {name: getattr(report, name) for name in ("nodes", "batches", "lower_bound", "launches")}
    rates = {way: round(len(trees) / median, 1) for way, median in medians(seconds).items()}
    figures = {"data": name_of(data), "trees_per_s": rates, "counts": counts}
    return Findings(seconds, figures, table_of_policies(figures).text())


def sweep(loss: ab.Batched, minibatches: Sequence[Any], optimizer: ab.optim.Adam | None) -> None:
    """Run all mini-batches once; with an optimizer, train on them."""
    for batch in minibatches:
        if optimizer is None:
            loss(batch)
        else:
            _, grads = loss.value_and_grad(batch)
            optimizer.step(grads)


def table_of_policies(figures: Any) -> Table:
    """Show the results of policies on the reference backend."""
    rows = []
    for policy, counts in figures["counts"].items():
        rates = (in_full(figures["trees_per_s"][f"{policy}, {mode}"]) for mode in ("inference", "training"))
        rows.append(
            (with_origin(policy), *(f"{counts[name]:,}" for name in ("batches", "lower_bound", "launches")), *rates)
        )
    return Table("", ("policy", "batches", "lower bound", "launches", "trees/s, inference", "trees/s, training"), rows)


def tabulate(records: Records) -> list[Table]:
    """Show every model, and policies."""
    tables = [table_of(model, record.figures) for model, record in records.items() if model in MODELS]
    if POLICIES in records:
        by_policy = table_of_policies(records[POLICIES].figures)
        tables.append(Table("trees on the reference backend, by policy", by_policy.header, by_policy.rows))
    return tables


def tabulate_some(records: Records) -> Table:
    """Show widths 64 and 256 in mini-batches of 64, as in the README."""
    rows = []
    for model, kind in MODELS.items():
        found = {dim: find(records[model], dim, SHOWN) for dim in (64, 256)} if model in records else {}
        if None in found.values():
            continue
        for way, name in NAMES.items():
            if found and way in found[64]:
                rates = [in_full(found[dim][way][mode]) for dim in found for mode in MODES]
                rows.append((f"{kind}: {name}" if way == SINGLE else name, *rates))
    header = ("", "width 64, inference", "training", "width 256, inference", "training")
    return Table("", header, rows)


def in_full(rate: float) -> str:
    """Format a number in full, rounded to three digits."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def find(record: Record, dim: int, size: int) -> Any:
    """Find the rates of all implementations at a width and size, with one thread; None if they were not measured."""
    for one in record.figures["settings"]:
        if (one["dim"], one["batch_size"], one["n_threads"]) == (dim, size, 1):
            return one["instances_per_s"]
    return None


def spread(record: Record, dim: int, size: int, way: str, mode: str) -> tuple[float, float]:
    """Return the lowest and the highest rate of single rounds."""
    timings = np.array(record.seconds[f"dim {dim}, mini-batches of {size}, 1 thread, {mode}: {way}"])
    totals = timings.reshape(-1, record.settings["repeats"]).sum(axis=0)
    n_instances = size * timings.size / record.settings["repeats"]
    return float(n_instances / totals.max()), float(n_instances / totals.min())


def three_lines(record: Record, dim: int, size: int) -> dict[str, str]:
    """Return the implementation of each line of the figure; by hand, the one that trains fastest."""
    rates = find(record, dim, size)
    by_hand = max((way for way in BY_HAND if way in rates), key=lambda way: rates[way]["train"])
    return dict(zip(LINES, (SINGLE, by_hand, OWN), strict=True))


def draw(records: Records, figure: Figure) -> None:
    """Draw instances trained per second, by mini-batch size and by width."""
    models = [model for model in MODELS if model in records]
    axes = panels(figure, 2, len(models), 2.3)
    for k, model in enumerate(models):
        record = records[model]
        pairs = [(one["dim"], one["batch_size"]) for one in record.figures["settings"] if one["n_threads"] == 1]
        dims, sizes = ({pair[axis] for pair in pairs} for axis in (0, 1))
        dim, size = (SHOWN if SHOWN in some else min(some) for some in (dims, sizes))
        for ax, row, what in (
            (axes[k], [(dim, one) for one in sorted(sizes)], SIZE),
            (axes[len(models) + k], [(one, size) for one in sorted(dims)], "width (units)"),
        ):
            row = [pair for pair in row if pair in pairs]
            places = [pair[what == SIZE] for pair in row]
            for line, color in LINES.items():
                ways = [three_lines(record, *pair)[line] for pair in row]
                rates = [find(record, *pair)[way]["train"] for pair, way in zip(row, ways, strict=True)]
                ends = [spread(record, *pair, way, "train") for pair, way in zip(row, ways, strict=True)]
                bars = whiskers(rates, *zip(*ends, strict=True))
                ax.errorbar(places, rates, yerr=bars, fmt="o-", color=color, label=line)
            use_log(ax, "x", "y")
            ax.set_xticks(places, map(str, places), fontsize=7)
            ax.set_xlabel(what)
        axes[k].set_title(f"{MODELS[model]}, width {dim}", loc="left")
        axes[len(models) + k].set_title(f"{MODELS[model]}, mini-batches of {size}", loc="left")
    for ax in axes:
        ax.set_ylabel("training speed (instances/s;\nmedian, range of rounds)")
    legend_below(figure, axes[0])
    over_hand = [by_hand for model in models for _, by_hand in ratios_of(records[model]).values()]
    times = f"{brief(min(over_hand))} to {brief(max(over_hand))} times"
    entitle(figure, f"Batched automatically, models train {times} as fast as batched by hand")


def draw_summary(records: Records, figure: Figure) -> None:
    """Draw a bar for each of the figure's lines: the figure of the README."""
    models = [model for model in MODELS if model in records and find(records[model], SHOWN, SHOWN)]
    axes = panels(figure, 1, len(models), 1.5)
    for ax, model in zip(axes, models, strict=True):
        ways = three_lines(records[model], SHOWN, SHOWN)
        rates = [find(records[model], SHOWN, SHOWN)[way]["train"] for way in ways.values()]
        bars = ax.barh([*ways], rates, color=[*LINES.values()])
        ax.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
        ax.set_title(MODELS[model], loc="left")
        ax.set_xlim(right=max(rates) * 1.3)
        ax.set_xticks([])
        ax.grid(visible=False)
        ax.invert_yaxis()
        ax.spines["bottom"].set_visible(False)
        if ax is not axes[0]:
            ax.set_yticklabels([])
    entitle(figure, f"Instances trained a second; width {SHOWN}, mini-batches of {SHOWN}, one thread")


def ratios_of(record: Record) -> dict[tuple[int, int], tuple[float, float]]:
    """Return our training speed relative to one at a time, and to the best by hand, at each width and size."""
    ratios = {}
    for one in record.figures["settings"]:
        if one["n_threads"] == 1:
            pair, rates = (one["dim"], one["batch_size"]), one["instances_per_s"]
            single, by_hand, own = (rates[way]["train"] for way in three_lines(record, *pair).values())
            ratios[pair] = own / single, own / by_hand
    return ratios


def brief(ratio: float) -> str:
    """Format a ratio with two digits, or all digits before the point."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def see(records: Records) -> str:
    """State how much faster, and from which mini-batch size on."""
    parts = []
    for model in (model for model in MODELS if model in records):
        ratios = ratios_of(records[model])
        each, hand = ([ratio[k] for ratio in ratios.values()] for k in (0, 1))
        pays = min((size for (_, size), (ratio, _) in ratios.items() if ratio > 1), default=None)
        even = f"ahead of one at a time from mini-batches of {pays} on" if pays else "never ahead of one at a time"
        parts.append(
            f"{MODELS[model]}: {brief(min(each))} to {brief(max(each))} times as fast in training as PyTorch one at a "
            f"time, {brief(min(hand))} to {brief(max(hand))} times as fast as the best by hand; {even}, of the sizes "
            f"measured"
        )
    return as_sentence("; ".join(parts))


def ours_at(model: str, records: Records) -> str:
    """Format our inference rates at widths 64 and 256, mini-batches of 64."""
    found = [rates for dim in (64, 256) if model in records and (rates := find(records[model], dim, SHOWN))]
    return " / ".join(in_full(rates[OWN]["infer"]) for rates in found)


def over_agenda(records: Records) -> str:
    """Format our speed on lattices relative to PyTorch batched by an agenda."""
    rates = find(records["lattice-lstm"], SHOWN, SHOWN) if "lattice-lstm" in records else None
    if not rates:
        return ""
    return " / ".join(f"{rates[OWN][mode] / rates['PyTorch, agenda'][mode]:.2f}" for mode in MODES) + " (lattices)"


CLAIM = Claim(
    name="throughput",
    heading="A plain function of one instance, batched, is faster than the same model batched by hand",
    claimed=(
        "Trees, chains and lattices are compared with the same models in PyTorch: one instance at a time, and batched "
        "by hand in several ways, of which the figure shows the fastest. Recorded graphs are merged, scheduled and "
        "placed in every run. All versions use one thread and take turns on the same mini-batches."
    ),
    settings=Config(),
    quick=Config(dims=(16,), batch_sizes=(4, 16), instances=16, repeats=2, policies=("unbatched", "agenda")),
    parts=(*MODELS, POLICIES),
    quick_parts=("tree-lstm", "bilstm-tagger", POLICIES),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=STEP,
    published=[
        Published(
            "trees/s, inference, mini-batches of 64, width 64 / 256", "6,600 / 1,200; ours then 12,200 / 1,650",
            "ED-Batch's system, measured in one run with ours", partial(ours_at, "tree-lstm"),
        ),
        Published(
            "lattices/s, inference, mini-batches of 64, width 64 / 256", "3,450 / 720; ours then 5,700 / 890",
            "ED-Batch's system, measured in one run with ours", partial(ours_at, "lattice-lstm"),
        ),
        Published(
            "times as fast as DyNet's agenda: chains / trees / lattices", "1.15 / 1.39 / 2.45",
            "ED-Batch (arXiv:2302.03851), abstract", over_agenda,
        ),
    ],
    disagreement=(
        "ED-Batch's system builds graphs in advance, like recorded graphs here. DyNet was not measured: instead of its "
        "agenda, our figure is a comparison with lattices that PyTorch batches by an agenda, inference and training."
    ),
    needs=("torch",),
)  # fmt: skip

if __name__ == "__main__":
    run_claim(CLAIM)
