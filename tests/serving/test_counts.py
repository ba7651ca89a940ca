"""Test a server's statistics by definition."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from threading import Event
from time import monotonic

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.build import make_graph
from autobatch.graph.graph import NamedTypes
from autobatch.policies import get
from autobatch.serving import running
from autobatch.serving.counts import Counts, Latency, RoundCounts, ready_types, summarize
from autobatch.serving.running import Ended
from autobatch.system import background
from autobatch.system.background import Job
from checkout import ROOT
from helpers.programs.waiting_programs import Model, items
from helpers.runs.ways import each

PAGE = Path(str(resources.files("autobatch.serving").joinpath("live.html")))
TYPES = NamedTypes(("a", "b", "c"))
WAIT = 60.0


def served(n: int = 12, quantum: float = 1e-15) -> Counts:
    """Return the statistics of a server after programs of 0 to 4 turns, a few at a time."""
    model, given = Model(), items(*range(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "QUANTUM", quantum)
        with ab.serve(model.loop, backend="reference", max_running=3) as server:
            for future in [server.submit(given[k % 5]) for k in range(n)]:
                future.result(WAIT)
            return server.explain()


def test_the_time_of_a_request_is_shared_out() -> None:
    found = served()
    assert found.done == len(found.latencies) == 12
    for one in found.latencies:
        assert min(one.queued, one.own, one.others, one.rest) >= -1e-9
        assert one.queued + one.own + one.others + one.rest == pytest.approx(one.seconds)
    assert sum(found.summary()["shares"].values()) == pytest.approx(1.0)
    assert sum(one.own for one in found.latencies) == pytest.approx(sum(done.kernels for done in found.rounds))
    assert max(one.queued for one in found.latencies) > 0  # three places for twelve
    assert max(one.others for one in found.latencies) > 0


def test_batches_are_counted_by_type() -> None:
    found = served()
    batches = found.batches()
    assert sum(n for n, _ in batches.values()) == sum(done.types.size for done in found.rounds)
    assert sum(n for _, n in batches.values()) == sum(int(done.rows.sum()) for done in found.rounds)
    text = str(found)
    for name, (n_batches, n_nodes) in batches.items():
        assert f"{name}: {n_batches} batches of {n_nodes / n_batches:.1f} nodes" in text
    assert "12 done, 0 failed" in text


def test_a_server_that_did_nothing_says_so() -> None:
    found = Counts()
    assert found.batches() == {}
    assert [*found.visits()] == []
    assert found.summary()["shares"] == {"queued": 0.0, "own": 0.0, "others": 0.0, "rest": 0.0}
    assert str(found) == "requests: 0 done, 0 failed, 0 cancelled, 0 running, 0 waiting"


def test_rounds_without_batches_are_summarized() -> None:
    """Such as a round of instances without nodes."""
    none, one = np.zeros(0, np.int32), np.full(1, 3, np.int32)
    counts = Counts(names=["a"])
    counts.rounds.append(RoundCounts(1, none, none, 0.5, 0.0))
    assert counts.summary()["last"] == [[0.0, 1]]
    assert counts.batches() == {}
    assert "0.0 batches of 0.0 nodes" in str(counts)
    counts.rounds.append(RoundCounts(2, 0 * one, one, 0.5, 0.1))
    assert counts.summary()["last"] == [[0.0, 1], [3.0, 2]]


def test_requests_during_compilation_are_counted_apart() -> None:
    counts, release = Counts(), Event()
    ended = Ended(0, None, 0.0, 0.0)
    job = Job(release.wait)
    background.submit(job)
    before = monotonic()
    counts.finish(before, before, before + 9.0, ended)
    release.set()
    job.result()
    while background.n_waiting():
        pass
    counts.finish(before, before, before + 5.0, ended)  # it had arrived before the job ended
    after = monotonic() + 1e-6
    for ms in (1, 2, 3):
        counts.finish(after, after, after + 1e-3 * ms, ended)
    found = counts.summary()
    assert (found["done"], found["cold"], found["cold_ms"]) == (5, 2, pytest.approx(9000))
    assert found["p50_ms"] == pytest.approx(2)
    assert (
        "latency of 3 warm requests: p50 2.00, p99 2.98 ms; 2 answered during compilation, slowest 9000.00 ms\n"
        in str(counts)
    )


def test_latencies_during_compilation_only_are_not_shown_as_zeros() -> None:
    counts = Counts()
    counts.latencies.append(Latency(0.4, 0.0, 0.1, 0.0, is_cold=True))
    assert str(counts).splitlines()[1:] == ["latency: 1 answered during compilation, slowest 400.00 ms"]
    figures = figures_of_page(counts)
    assert figures["latency when warm, median"] == figures["latency when warm, 99th percentile"] == "none"
    assert figures["answered during compilation"] == "1 request"
    assert figures["slowest during compilation"] == "400.0 ms"
    counts.latencies.append(Latency(0.002, 0.0, 0.001, 0.0, is_cold=False))
    assert "latency of 1 warm request: p50 2.00, p99 2.00 ms; 1 answered during" in str(counts)


def test_several_servers_are_summed_up() -> None:
    one, other = served(7).figures(), served(5).figures()
    assert json.loads(json.dumps(one)) == one
    found = summarize([one, other])
    assert found["done"] == 12
    latencies = [1e3 * latency[0] for latency in (*one["latencies"], *other["latencies"])]
    assert found["p50_ms"] == pytest.approx(np.percentile(latencies, 50))
    rounds = np.array([*one["rounds"], *other["rounds"]])
    assert found["rounds"] == len(rounds)
    assert found["rows"] == pytest.approx(rounds[:, 2].sum() / rounds[:, 1].sum())
    assert found["round_ms"] == pytest.approx(1e3 * rounds[:, 3].mean())
    assert len(found["last"]) == len(one["rounds"])


def show_page(counts: Counts) -> dict[str, str]:
    """Return the content of each element of the live page, by its id."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    data = {**counts.summary(), "walk": [*counts.visits()], "servers": 1, "fault": "", "now": 0.0}
    command = ("node", ROOT / "tests" / "helpers" / "show_live.js", PAGE)
    ran = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True, check=True)
    content: dict[str, str] = json.loads(ran.stdout)
    assert content["problem"] == ""
    return content


def figures_of_page(counts: Counts) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", show_page(counts)["figures"]))


@each("n", (0, 12))
def test_the_live_page_names_axes_and_units(n: int) -> None:
    counts = served(n)
    data, content = counts.summary(), show_page(counts)
    values = figures_of_page(counts)
    assert values["done"] == f"{n} requests"
    assert values["latency when warm, median"] == (f"{data['p50_ms']:.1f} ms" if data["warm"] else "none")
    assert data["warm"] + data["cold"] == n
    assert all(
        re.fullmatch(r"none|1 request|[\d.]+ (requests(/s)?|ms|rows|batches)", value) for value in values.values()
    )
    assert "".join(content.values()).count("<rect") == 2 * len(data["last"])
    for chart, unit, place in (("rows", "rows", 0), ("shared", "requests", 1)):
        most = max([1.0, *(one[place] for one in data["last"])])
        assert float(content[f"{chart}-most"]) == pytest.approx(most, abs=0.5)
        figure = re.search(rf"<figure>((?!</figure>).)*id=\"{chart}\".*?</figure>", PAGE.read_text(), re.DOTALL)
        assert figure is not None
        assert {f"<span>{unit}</span>", "<span>round</span>"} <= set(re.findall(r"<span>\w+</span>", figure[0]))


@each("seed", range(20))
def test_ready_types_against_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    edges = [(int(rng.integers(0, k)), k) for k in range(1, n) for _ in range(rng.integers(0, 3))]
    graph = make_graph(TYPES, rng.integers(0, 3, n).tolist(), edges)
    schedule, done = get("score").schedule(graph), set[int]()
    found = ready_types(graph, schedule)
    assert found.shape == (3, schedule.n_batches)
    for k, (_, nodes) in enumerate(schedule):
        ready = {v for v in range(n) if v not in done and all(a in done for a, b in edges if b == v)}
        assert {*np.flatnonzero(found[:, k]).tolist()} == {int(graph.type_id[v]) for v in ready}
        done |= {*nodes.tolist()}


def test_the_last_round_is_followed() -> None:
    found = served(quantum=1e3)
    visits = [*found.visits()]
    assert [visit.rows for visit in visits] == found.rounds[-1].rows.tolist()
    assert all(visit.ran in visit.ready for visit in visits)
    assert {visit.ran for visit in visits} <= found.batches().keys()
