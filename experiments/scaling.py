"""Predict training steps of many processes from measured costs, and check predictions for 1, 2 and 4 processes.

The costs of `step_model.py` are measured on one process and on exchanges of made-up gradients: the time of shares of
several sizes, as a function of their predicted work; of the optimizer; of exchanges by bytes, for each number of
processes; the slowdown of processes that compute at the same time, independently; and how much the time of one share
varies. Between these measurements, groups of 1, 2 and 4 processes train by turns, and their steps are compared with the
model's predictions. The model then predicts steps of 8 to 1000 processes, each with its own core and machine, over an
assumed network, with shares by count and by cost; and what 10^9 instances would need.

    python experiments/scaling.py models=tree-lstm turns=3 dim=64
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.workload import load_workload, record
from autobatch.devices.store import HOST
from autobatch.distributed.exchange import Exchange, Kept
from autobatch.distributed.wire import TorchWire
from autobatch.engine.counts import Clock
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.system.processor import usable_cores
from data_parallel import COST, COUNT, NAMES, divide
from digest import STEP
from harness import find_data, run
from records import Findings, Settings
from step_model import (
    Costs,
    FloatArray,
    Machine,
    Measured,
    Network,
    fit,
    fit_line,
    fit_power,
    spread_by_speed,
    step_parts,
)  # fmt: skip
from table import Table
from teams import DATA, Step, Team, Trainer, stage_seconds, step_seconds

MODULES = (*STEP, "autobatch.distributed", "autobatch.serving")
FLOATS = 1 << 18  # size of one made-up array: 1 MiB
SENT = ((0, 0), (1, 0), (4, 0), (16, 0), (0, 250), (0, 1000), (0, 4000), (4, 1000))
"""Timed exchanges: numbers of arrays of 1 MiB, and of rows of a table."""
TABLE = 20_000  # rows of the made-up table
SHARE_SIZES = (256, 128, 64, 32, 16)
CHECK_DRAWS = 100  # samples of the time of a step while other processes compute
DRAWS = 5  # samples of mini-batches, for each prediction of many processes
INSTANCES = 10**9
HOUR, DAY = 3600.0, 86400.0  # seconds
GROUPS, GROUP = "in groups", 16
SLOW = 2.0  # relative time of the straggler
TOLERANCE = 0.1


@dataclass(frozen=True)
class Config(Settings):
    """What is measured, and the assumed network: 25 Gbit/s, 20 µs."""

    models: tuple[str, ...] = ("tree-lstm", "lattice-lstm")
    processes: tuple[int, ...] = (1, 2, 4)
    dim: int = 256
    batch_size: int = 256
    minibatches: int = 4
    turns: int = 9
    exchanges: int = 20
    many: tuple[int, ...] = (8, 32, 128, 512, 1000)
    fixed_batch: int = 16_384
    """Instances of a mini-batch whose size does not grow with the number of processes."""
    gbit_per_s: float = 25.0
    latency_us: float = 20.0
    requests: int = 256


class Probe(Trainer):
    """Trains, and times exchanges."""

    def __init__(self, rank: int, n: int, model: str, dim: int, size: int, minibatches: int, seed: int) -> None:
        super().__init__(rank, n, model, dim, size, minibatches, seed)
        self.rank, self.dim, self.kept = rank, dim, Kept()
        self.wire = TorchWire(300.0) if n > 1 else None

    def exchange(self, n_arrays: int, n_rows: int, repeats: int) -> list[float]:
        """Return the seconds of exchanges of arrays of 1 MiB and of drawn rows of a table."""
        assert self.wire is not None
        rng, seconds = np.random.default_rng(self.rank), list[float]()
        for _ in range(repeats + 1):
            grads: dict[str, Gradient] = {str(k): np.ones(FLOATS, np.float32) for k in range(n_arrays)}
            if n_rows:
                ids = np.sort(rng.choice(TABLE, n_rows, replace=False))
                grads["table"] = Rows(ids, np.ones((n_rows, self.dim), np.float32), (TABLE, self.dim))
            self.wire.gather(np.zeros(1, np.int64))  # so that all start together
            start = perf_counter()
            exchange = Exchange(self.wire, {}, len(grads), HOST, self.kept)
            exchange.add(np.float64(1.0), grads, Clock())
            seconds.append(perf_counter() - start)
        return seconds[1:]

    def describe(self) -> dict[str, Any]:
        """Count what a mini-batch contains, and describe its gradients."""
        rows, size = dict[int, int](), 0
        for size in SHARE_SIZES:
            if size <= len(self.graphs):
                _, grads = self.loss.value_and_grad(self.graphs[:size])
                rows[size] = sum(g.ids.nbytes + g.values.nbytes for g in grads.values() if isinstance(g, Rows))
        tables = [g for g in grads.values() if isinstance(g, Rows)]
        return {
            "costs": self.costs,
            "nodes": np.array([graph.n_nodes for graph in self.graphs]),
            "graph_bytes": sum(graph.words.nbytes + graph.floats.nbytes for graph in self.graphs),
            "dense_bytes": sum(g.nbytes for g in grads.values() if not isinstance(g, Rows)),
            "table_bytes": sum(g.dtype.itemsize * int(np.prod(g.shape)) for g in tables),
            "row_bytes": rows,
        }


@dataclass
class Measurements:
    """Measurements of a model."""

    about: dict[str, Any]
    shares: list[list[int]]
    steps: dict[int, list[list[list[Step]]]]
    """By number of processes: turns, processes, steps."""
    alone: list[list[float]]
    """Seconds of the shares, by turns."""
    beside: dict[int, list[list[float]]]
    """By number of processes that compute at the same time, independently: relative times of their steps, by turns."""
    exchanges: dict[int, dict[tuple[int, int], list[float]]]


@dataclass(frozen=True)
class Slowed:
    """The slowdown of steps while other processes compute too, beyond what sharing a core explains."""

    factor: float
    noise: float
    """The standard deviation of the slowdown's logarithm, from step to step."""

    @classmethod
    def of(cls, ratios: Sequence[Sequence[float]], shared: float) -> Slowed:
        """Compute it from the ratios of steps, by turns, with `shared` processes per core.

        >>> Slowed.of([[3.0, 3.0], [2.0, 2.0], [4.0, 4.0]], 2.0)
        Slowed(factor=1.5, noise=0.0)
        """
        within = np.concatenate([np.log(np.array(turn) / fmean(turn)) for turn in ratios])
        return cls(max(1.0, median(map(fmean, ratios)) / shared), deviation(within))


def deviation(x: FloatArray) -> float:
    """Return the standard deviation of normally distributed numbers, from their quartiles."""
    quarters = np.percentile(x, (25, 75))
    return float(quarters[1] - quarters[0]) / 1.349


def measure(config: Config) -> Iterator[Findings]:
    """Measure every model, compare its steps with the predictions, and predict many processes."""
    seconds: dict[str, list[float]] = {}
    figures: dict[str, Any] = {"models": {}, "network": {"gbit_per_s": config.gbit_per_s, "us": config.latency_us}}
    merge_s = time_merge(config)
    network = Network(config.gbit_per_s * 1e9 / 8, config.latency_us * 1e-6, merge_s)
    spread_s = time_spread(config)
    figures |= {"merge_ns_per_byte": 1e9 * merge_s, "spread_us_per_instance": 1e6 * spread_s}
    for model in config.models:
        found = measure_model(config, model)
        costs, carriers = calibrate(found, config)
        slowed = {n: Slowed.of(ratios, max(1.0, n / usable_cores())) for n, ratios in found.beside.items()}
        figures["models"][model] = {
            "data": found.about["nodes"].size,
            "costs": asdict(costs),
            "slowed": {str(n): asdict(one) for n, one in slowed.items()},
            "exchange": {str(n): asdict(carrier) for n, carrier in carriers.items()},
            "check": check(found, costs, carriers, slowed, config),
            "growing": foresee(found, costs, network, spread_s, config, grows=True),
            "fixed": foresee(found, costs, network, spread_s, config, grows=False),
            "straggler": slow_down(found, costs, network, spread_s, config),
            "needs": needs_of(found, costs, model, config),
        }
        seconds |= {
            f"{model}, {n} processes, process {rank}": [step["step"] for turn in turns for step in turn[rank]]
            for n, turns in found.steps.items() for rank in range(n)
        }  # fmt: skip
        seconds |= {
            f"{model}, a share of {len(share)} instances, {k}": [turn[k] for turn in found.alone]
            for k, share in enumerate(found.shares)
        }
        seconds |= {
            f"{model}, {n} processes, exchange of {arrays} MiB of arrays and {rows} rows": timings
            for n, timed in found.exchanges.items() for (arrays, rows), timings in timed.items()
        }  # fmt: skip
    figures["serving"] = time_admission(config)
    tables = (tabulate(figures) for tabulate in TABULATED)
    yield Findings(seconds, figures, "\n\n".join(table.text() for table in tables))


def measure_model(config: Config, model: str) -> Measurements:
    """Let groups train by turns, and time shares and exchanges in between."""
    sizes = model, config.dim, config.batch_size, config.minibatches, config.seed
    with ExitStack() as stack:
        singles = [stack.enter_context(Team(1, Probe, *sizes)) for _ in range(max(config.processes))]
        one = singles[0]
        teams = {n: one if n == 1 else stack.enter_context(Team(n, Probe, *sizes)) for n in config.processes}
        (about,) = one.call("describe")
        shares = make_shares(len(about["costs"]), config.batch_size)
        found = Measurements(about, shares, {n: [] for n in teams}, [], {}, {})
        found.beside, found.exchanges = {n: [] for n in teams if n > 1}, {n: {} for n in teams if n > 1}
        rng = np.random.default_rng(config.seed)
        for _ in range(config.turns):
            for n in rng.permutation([*teams]).tolist():
                found.steps[n].append(teams[n].call("turn"))
            found.alone += one.call("time_alone", shares)
            (alone,) = one.call("turn")
            for n, ratios in found.beside.items():
                for single in singles[:n]:
                    single.begin("turn")
                together = [steps for single in singles[:n] for steps in single.answers()]
                ratios.append([
                    step["step"] / own["step"] for steps in together for step, own in zip(steps, alone, strict=True)
                ])  # fmt: skip
            for n, timed in found.exchanges.items():
                for sent in SENT:
                    timings = teams[n].call("exchange", *sent, -(-config.exchanges // config.turns))
                    timed.setdefault(sent, []).extend(max(some) for some in zip(*timings, strict=True))
    return found


def make_shares(n: int, size: int) -> list[list[int]]:
    """Make shares of several sizes, from successive instances."""
    shares, begin = list[list[int]](), 0
    for wanted in SHARE_SIZES:
        length = min(wanted, size, n)
        for _ in range(2):
            shares.append([(begin + k) % n for k in range(length)])
            begin += length
    return shares


def calibrate(found: Measurements, config: Config) -> tuple[Costs, dict[int, Measured]]:
    """Compute the costs of one process, and of exchanges among each number of processes."""
    typical = np.median(found.alone, axis=0)
    work = [float(found.about["costs"][share].sum()) for share in found.shares]
    fixed, per_work = fit_line(work, typical.tolist())
    stages = stage_seconds(found.steps[1]) if 1 in found.steps else {"optimizer": 0.0, "divide": 0.0}
    noise = deviation(np.log(np.array(found.alone) / typical).reshape(-1))
    rows: dict[int, int] = found.about["row_bytes"]
    costs = Costs(
        fixed, per_work, stages["optimizer"], stages["divide"] / config.batch_size,
        noise, found.about["dense_bytes"],
        fit_power([*rows], [*rows.values()]), found.about["table_bytes"],
    )  # fmt: skip
    carriers = {1: Measured(0.0, 0.0, 0.0)}
    row_bytes = 8.0 + 4 * config.dim
    for n, timed in found.exchanges.items():
        columns = [[1.0, arrays * 4.0 * FLOATS, rows * row_bytes] for arrays, rows in timed]
        carriers[n] = Measured(*fit(columns, [median(timings) for timings in timed.values()]))
    return costs, carriers


def check(
    found: Measurements, costs: Costs, carriers: Mapping[int, Measured], slowed: Mapping[int, Slowed], config: Config
) -> dict[str, Any]:
    """Compare the measured step of each number of processes with the prediction."""
    works, cores, rng = found.about["costs"], usable_cores(), np.random.default_rng(config.seed)
    batches = list(ab.minibatches(range(len(works)), config.batch_size))
    checked = {}
    for n, turns in found.steps.items():
        beside = slowed.get(n, Slowed(1.0, 0.0))
        machine = Machine(cores, beside.factor)
        parts = mean_parts([
            step_parts(costs, loads_of(works[batch], n, COST), len(batch), carriers[n], machine, factors)
            for batch in batches for factors in np.exp(beside.noise * rng.standard_normal((CHECK_DRAWS, n)))
        ])  # fmt: skip
        measured, predicted = median(step_seconds(turn) for turn in turns), sum(parts.values())
        checked[str(n)] = {
            "measured_ms": 1e3 * measured,
            "predicted_ms": 1e3 * predicted,
            "error": predicted / measured - 1,
            "within": abs(predicted / measured - 1) <= TOLERANCE,
            "parts_ms": {part: 1e3 * one for part, one in parts.items()},
            "measured_parts_ms": {stage: 1e3 * one for stage, one in stage_seconds(turns).items()},
        }
    return checked


def foresee(
    found: Measurements, costs: Costs, network: Network, spread_s: float, config: Config, grows: bool
) -> dict[str, Any]:
    """Predict steps of many processes, for mini-batches of fixed or growing size, drawn with replacement."""
    rng = np.random.default_rng(config.seed)
    works = found.about["costs"]
    one = config.batch_size / sum(mean_parts([
        step_parts(costs, [float(works[batch].sum())], config.batch_size, Measured(0.0, 0.0, 0.0), Machine(1))
        for batch in rng.integers(len(works), size=(DRAWS, config.batch_size))
    ]).values())  # fmt: skip
    foreseen: dict[str, Any] = {}
    for n in config.many:
        size = config.batch_size * n if grows else config.fixed_batch
        batches = [works[rng.integers(len(works), size=size)] for _ in range(DRAWS)]
        noises = [np.exp(costs.noise * rng.standard_normal(n)) for _ in range(DRAWS)]
        ways = {}
        for way, mine in ways_of(costs, n, size, spread_s).items():
            parts = mean_parts([
                step_parts(mine, loads_of(batch, n, way), size, network, Machine(n), noise)
                for batch, noise in zip(batches, noises, strict=True)
            ])  # fmt: skip
            rate = size / sum(parts.values())
            ways[way] = {
                "instances_per_s": rate, "of_n": rate / (n * one),
                "parts_ms": {part: 1e3 * seconds for part, seconds in parts.items()},
            }  # fmt: skip
        foreseen[str(n)] = {"instances": size, "ways": ways}
    return foreseen


def ways_of(costs: Costs, n: int, size: int, spread_s: float) -> dict[str, Costs]:
    """Return the costs of each way of dividing a mini-batch among n processes.

    The last one is not implemented: processes divide by cost within groups, each of which divides only its own part of
    the mini-batch; and tables are added up as arrays if this sends less than the rows of all processes.
    """
    by_cost = replace(costs, divide_s=costs.divide_s + spread_s)
    in_groups = replace(by_cost, divide_s=by_cost.divide_s / n_groups(n))
    if n * costs.rows_of(size / n) > 2 * costs.table_bytes:
        in_groups = replace(in_groups, dense_bytes=costs.dense_bytes + costs.table_bytes, row_bytes=(0.0, 1.0))
    return {COUNT: costs, COST: by_cost, GROUPS: in_groups}


def slow_down(found: Measurements, costs: Costs, network: Network, spread_s: float, config: Config) -> dict[str, Any]:
    """Predict the step of the most processes with one that takes twice as long, for each way of dividing."""
    n, rng = max(config.many), np.random.default_rng(config.seed)
    size = config.batch_size * n
    many = ways_of(costs, n, size, spread_s)[COST]
    works = found.about["costs"][rng.integers(len(found.about["costs"]), size=size)]
    factors = np.ones(n)
    factors[0] = SLOW
    shared: dict[str, FloatArray] = {way: np.array(loads_of(works, n, way)) for way in (COUNT, COST)}
    speeds = spread_by_speed(works, 1.0 / factors)
    steps = {
        "even": step_parts(many, shared[COST], size, network, Machine(n)),
        **{way: step_parts(many, loads, size, network, Machine(n), factors) for way, loads in shared.items()},
        "by cost and speed": step_parts(many, speeds, size, network, Machine(n), factors),
    }
    return {way: 1e3 * sum(parts.values()) for way, parts in steps.items()} | {"processes": n}


def needs_of(found: Measurements, costs: Costs, model: str, config: Config) -> dict[str, float]:
    """Estimate what 10^9 instances like the measured ones need, in an epoch."""
    nodes = float(found.about["nodes"].mean())
    planning = stage_seconds(found.steps[1])["planning"] / (nodes * config.batch_size) if 1 in found.steps else 0.0
    recording = time_recording(config, model) / nodes
    step = costs.fixed_s / config.batch_size + costs.per_work_s * float(found.about["costs"].mean())
    bytes_per_node = found.about["graph_bytes"] / float(found.about["nodes"].sum())
    return {
        "nodes_per_instance": nodes,
        "recording_ns_per_node": 1e9 * recording,
        "planning_ns_per_node": 1e9 * planning,
        "bytes_per_node": bytes_per_node,
        "ms_per_instance": 1e3 * step,
        "dense_bytes": costs.dense_bytes,
        "row_bytes": costs.rows_of(config.batch_size),
        "table_bytes": costs.table_bytes,
        "recording_core_hours": recording * nodes * INSTANCES / HOUR,
        "planning_core_hours": planning * nodes * INSTANCES / HOUR,
        "step_core_hours": step * INSTANCES / HOUR,
        "graphs_tb": bytes_per_node * nodes * INSTANCES / 1e12,
    }


def n_groups(n: int) -> int:
    """Return the number of groups in which n processes divide mini-batches by cost, each group separately."""
    return -(-n // GROUP)


def loads_of(costs: FloatArray, n: int, way: str) -> list[float]:
    """Return the cost of each process's share."""
    if way == GROUPS:
        parts = np.array_split(np.arange(n), n_groups(n))
        cut = (np.cumsum([0, *map(len, parts)]) * len(costs) / n).astype(int)
        return [
            load
            for part, begin, end in zip(parts, cut[:-1], cut[1:], strict=True)
            for load in loads_of(costs[begin:end], len(part), COST)
        ]
    return [float(costs[own].sum()) for own in divide(costs, n, way)]


def mean_parts(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each part over steps."""
    return {part: fmean(step[part] for step in steps) for part in steps[0]}


def time_merge(config: Config) -> float:
    """Return the seconds per byte of adding another process's rows to the sum."""
    rng, n_rows, n = np.random.default_rng(config.seed), 1000, 16
    ids = np.concatenate([np.sort(rng.choice(TABLE, n_rows, replace=False)) for _ in range(n)])
    values = np.ones((n * n_rows, config.dim), np.float32)
    whole, seconds = Rows.zeros((TABLE, config.dim)), list[float]()
    for _ in range(9):
        whole.clear()
        start = perf_counter()
        whole.add(ids, values.reshape(-1))
        seconds.append(perf_counter() - start)
    return median(seconds[2:]) / (ids.nbytes + values.nbytes)


def time_spread(config: Config) -> float:
    """Return the seconds per instance of dividing a mini-batch among the most processes, beyond those for one."""
    costs = np.random.default_rng(config.seed).random(config.fixed_batch)
    seconds: dict[int, list[float]] = {1: [], max(config.many): []}
    for _ in range(5):
        for n, timings in seconds.items():
            start = perf_counter()
            ab.distributed.spread(costs, n)
            timings.append(perf_counter() - start)
    one, many = (median(timings) for timings in seconds.values())
    return max(many - one, 0.0) / config.fixed_batch


def time_recording(config: Config, model: str) -> float:
    """Return the seconds per recorded instance."""
    workload = load_workload(model, find_data(DATA[model]), config.dim, config.seed)
    loss, instances = workload.batched("loss", "auto", "cpu"), workload.up_to(config.batch_size)
    seconds = []
    for _ in range(6):
        start = perf_counter()
        record(loss, instances)
        seconds.append(perf_counter() - start)
    return median(seconds[1:]) / len(instances)


def time_admission(config: Config) -> dict[str, float]:
    """Measure what a request costs a server of trees: until `submit` returns, and until all are done."""
    workload = load_workload("tree-lstm", find_data("sst"), config.dim, config.seed)
    workload.model.eval()
    requests, admitted, done = workload.up_to(config.requests), list[float](), list[float]()
    with ab.serve(workload.model.scores, backend="cpu") as server:
        for _ in range(4):
            began, futures = perf_counter(), []
            for request in requests:
                start = perf_counter()
                futures.append(server.submit(request))
                admitted.append(perf_counter() - start)
            for future in futures:
                future.result()
            done.append(perf_counter() - began)
    later = admitted[len(requests) :]
    return {"admission_us": 1e6 * fmean(later), "ms_per_request": 1e3 * median(done[1:]) / len(requests)}


def table_of_check(figures: Mapping[str, Any]) -> Table:
    """Compare predictions with measurements."""
    rows = [
        (NAMES[model], n, f"{one['measured_ms']:.1f}", f"{one['predicted_ms']:.1f}", f"{100 * one['error']:+.0f}%")
        for model, found in figures["models"].items() for n, one in found["check"].items()
    ]  # fmt: skip
    return Table("", ("", "processes", "step measured, ms", "predicted, ms", "error"), rows)


def table_of_many(figures: Mapping[str, Any], hows: Sequence[str] = ("growing", "fixed")) -> Table:
    """Show predictions for many processes; the parts of a step are those of shares by cost."""
    rows = []
    for model, found in figures["models"].items():
        for how in hows:
            for n, one in found[how].items():
                size = one["instances"]
                title = f"{size // int(n):,} per process" if how == "growing" else f"{size:,} in total"
                ways = one["ways"]
                parts = ways[COST]["parts_ms"]
                sent = sum(parts[part] for part in ("messages", "arrays", "rows"))
                shown = parts["compute"], ways[COUNT]["parts_ms"]["wait"], parts["wait"], parts["divide"], sent
                rows.append((
                    f"{NAMES[model]}, {title}", n, *(f"{way['instances_per_s']:,.0f}" for way in ways.values()),
                    *(f"{ways[way]['of_n']:.0%}" for way in (COST, GROUPS)),
                    *(f"{ms:.0f}" for ms in (*shown, parts["merging rows"])),
                ))  # fmt: skip
    header = (
        f"instances/s, {COUNT}", COST, GROUPS, f"efficiency, {COST}", GROUPS, "compute, ms", f"wait, {COUNT}",
        f"wait, {COST}", "divide", "on the network", "merging rows",
    )  # fmt: skip
    return Table("", ("", "processes", *header), rows)


def table_of_stragglers(figures: Mapping[str, Any]) -> Table:
    """Show the step with one slow process."""
    named = {"even": "no straggler, ms", COUNT: COUNT, COST: COST, "by cost and speed": "by cost and speed"}
    rows = []
    for model, found in figures["models"].items():
        slowed = found["straggler"]
        rows.append((f"{NAMES[model]}, {slowed['processes']} processes", *(f"{slowed[way]:,.0f}" for way in named)))
    return Table("", ("", *named.values()), rows)


def table_of_needs(figures: Mapping[str, Any]) -> Table:
    """Show what 10^9 instances need."""
    lines = {
        "nodes of an instance": ("nodes_per_instance", 1.0, ".0f"),
        "recording, ns per node": ("recording_ns_per_node", 1.0, ".0f"),
        "planning, ns per node": ("planning_ns_per_node", 1.0, ".0f"),
        "recorded graphs, bytes per node": ("bytes_per_node", 1.0, ".1f"),
        "forward and backward, planned, ms per instance": ("ms_per_instance", 1.0, ".2f"),
        "gradients that are arrays, MB per process and step": ("dense_bytes", 1e-6, ".1f"),
        "rows of tables, MB per process and step": ("row_bytes", 1e-6, ".1f"),
        "tables, MB": ("table_bytes", 1e-6, ".0f"),
        "10^9 instances: recording, core hours, once": ("recording_core_hours", 1.0, ",.0f"),
        "planning, core hours per epoch": ("planning_core_hours", 1.0, ",.0f"),
        "forward and backward, core hours per epoch": ("step_core_hours", 1.0, ",.0f"),
        "recorded graphs, TB": ("graphs_tb", 1.0, ".1f"),
    }
    needs = {NAMES[model]: found["needs"] for model, found in figures["models"].items()}
    rows = [
        (line, *(format(factor * one[key], form) for one in needs.values()))
        for line, (key, factor, form) in lines.items()
    ]
    return Table("", ("", *needs), rows)


def table_of_serving(figures: Mapping[str, Any]) -> Table:
    """Show what a request costs a server."""
    found = figures["serving"]
    per_core = 1e3 / found["ms_per_request"]
    row = (
        f"{found['admission_us']:.0f}", f"{found['ms_per_request']:.2f}", f"{per_core:,.0f}",
        f"{INSTANCES / DAY / per_core:,.0f}",
    )  # fmt: skip
    header = "`submit`, µs", "per request, ms", "requests/s per core", "cores for 10^9 requests a day"
    return Table("", header, [row])


TABULATED = table_of_check, table_of_many, table_of_stragglers, table_of_needs, table_of_serving

if __name__ == "__main__":
    run(Config(), measure, modules=MODULES)
