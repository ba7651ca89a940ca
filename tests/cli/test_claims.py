"""The project's claims: measured once, shown on one page, and the same in every document."""

from __future__ import annotations

import base64
import importlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import charts
import claims
import learned_policies
import report
import tables
from autobatch.errors import AutobatchError, DataError
from claims import Claim, load_claim, measure_parts, require
from digest import ROOT
from helpers.fakes.claims import make_claim
from helpers.runs.commands import Command
from helpers.runs.ways import each
from records import RESULTS, Findings, Record, Settings, read_records

PNG = b"\x89PNG\r\n"
CATEGORIES = ("change", "workload", "cell", "change to the planner", "model", "epoch", "episode")
"""Names of axes without units."""


class Page(HTMLParser):
    """Pictures and text of a page, and the addresses that it would load or link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.pictures: list[bytes] = []
        self.elsewhere: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "data", "action") and value is not None:
                if value.startswith("data:image/png;base64,"):
                    self.pictures.append(base64.b64decode(value.partition(",")[2], validate=True))
                elif not value.startswith("#"):
                    self.elsewhere.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def measured() -> list[str]:
    """The parts that the two claims have measured."""
    return []


@pytest.fixture
def two(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> list[Claim[Settings]]:
    """Replace the project's claims by two fake ones."""
    pytest.importorskip("matplotlib", reason="draws with it")
    made = {name: make_claim(name, measured) for name in ("first", "second")}
    monkeypatch.setattr(report, "NAMES", tuple(made))
    monkeypatch.setattr(report, "load_claim", made.__getitem__)
    return [*made.values()]


@pytest.mark.slow
def test_a_part_is_measured_once_for_the_same_settings_and_code(
    two: list[Claim[Settings]],
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    claim, _ = two
    measure_parts(claim, Settings(), ["three"], tmp_path, again=False)
    measure_parts(claim, Settings(), ["one", "three"], tmp_path, again=False)
    assert measured == ["three", "one"]
    assert "first-three.json exists already" in capsys.readouterr().out
    measure_parts(claim, Settings(seed=1), ["one"], tmp_path, again=False)
    measure_parts(claim, Settings(seed=1), ["one"], tmp_path, again=True)
    assert measured == ["three", "one", "one", "one"]
    monkeypatch.setattr("records.digest_of", lambda modules: "other")
    measure_parts(claim, Settings(seed=1), ["one"], tmp_path, again=False)
    assert measured == ["three", "one", "one", "one", "one"]


def test_what_is_interrupted_leaves_complete_records(
    two: list[Claim[Settings]], measured: list[str], tmp_path: Path
) -> None:
    claim, _ = two

    def measure(settings: Settings, part: str) -> Findings:
        if part == "three":
            raise KeyboardInterrupt
        return Findings({}, {"number": 3}, "")

    interrupted = Claim(**{**vars(claim), "measure": measure})
    with pytest.raises(KeyboardInterrupt):
        measure_parts(interrupted, Settings(), claim.parts, tmp_path, again=False)
    assert list(claim.records(tmp_path)) == ["one"]
    measure_parts(claim, Settings(), claim.parts, tmp_path, again=False)
    assert measured == ["three"]


def test_the_report_has_every_figure_and_needs_nothing_else(two: list[Claim[Settings]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="autobatch experiment all --out DIR"):
        report.write_report(tmp_path)
    for claim in two:
        measure_parts(claim, Settings(), claim.parts, tmp_path, again=False)
    (tmp_path / "second-one.json").unlink()
    stale = (tmp_path / "second-three.json").read_text().replace('"digest": "', '"digest": "0')
    (tmp_path / "second-three.json").write_text(stale)
    page = Page(report.write_report(tmp_path))
    assert [picture[: len(PNG)] for picture in page.pictures] == [PNG, PNG]
    assert page.elsewhere == []
    for said in ("first is < claimed", "Words have letters.", "Seen: 2.", "They count otherwise.", "letters of three"):
        assert said in page.text
    assert ": second-three." in page.text
    assert "Not measured here: one." in page.text


@pytest.mark.slow
@each("name", claims.NAMES)
def test_axes_of_figures_have_names_and_units(name: str) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="draws with it")
    pytest.importorskip("torch", reason="experiments compare with it")
    claim, figure = load_claim(name), figures.Figure()
    claim.draw(claim.records(RESULTS), figure)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert shown
    for axes in shown:
        for label in labels_of(axes, shown):
            assert label in CATEGORIES or re.search(r"\w\s\([^()]+\)$", label), label


def labels_of(axes: Any, shown: list[Any]) -> tuple[str, str]:
    """Return the labels of x and y; those without one share that of the panel below, or to the left."""
    row, column = (axes.get_subplotspec().rowspan, axes.get_subplotspec().colspan)
    places = [(one.get_subplotspec().rowspan, one.get_subplotspec().colspan, one) for one in shown]
    below = [one.get_xlabel() for y, x, one in places if x == column and y.start > row.start]
    left = [one.get_ylabel() for y, x, one in places if y == row and x.start < column.start]
    return axes.get_xlabel() or next(filter(None, below), ""), axes.get_ylabel() or next(filter(None, left), "")


def test_labels_of_panels_are_shared_below_and_to_the_left_only() -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="draws with it")
    (a, b), (c, d) = panels = figures.Figure().subplots(2, 2)
    a.set(xlabel="x a", ylabel="y a")
    d.set(xlabel="x d", ylabel="y d")
    found = [labels_of(axes, [*panels.flat]) for axes in (a, b, c, d)]
    assert found == [("x a", "y a"), ("x d", "y a"), ("", ""), ("x d", "y d")]


@pytest.mark.slow
@each(
    "script, words, said",
    [
        ("batches", ["only=nope"], "batches, got 'nope'; give some of tree-lstm, bilstm-tagger, "),
        ("memory_plan", ["only=nope"], "memory_plan, got 'nope'; it has none, leave out only=."),
        ("batches", ["foo"], "seed, threads, sizes, held_out, "),
        ("batches", ["foo=3"], "got 'foo'"),
        ("batches", ["sizes=many"], "sizes=1,8,32,64,256, got many."),
        ("latency", ["foo=3"], "seed, threads, "),
        ("report", ["foo=3"], "out=DIR, the folder of the records, got 'foo'"),
        ("tables", ["foo=3"], "got 'foo=3'"),
        ("all", ["foo=3"], "'foo'; give it to one claim: autobatch experiment batches ..."),
    ],
)
def test_what_is_told_wrongly_ends_in_a_sentence(command: Command, script: str, words: list[str], said: str) -> None:
    for package in ("matplotlib", "scipy", "torch"):
        pytest.importorskip(package, reason="a script needs it")
    status, out, err = command("experiment", script, *words)
    assert (status, out) == (2, "")
    assert err.startswith("autobatch: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert "(" not in err


def make_learned(ours: float, theirs: float) -> Record:
    """Make a record of machines that need this many batches per mini-batch; the lower bound is 10."""
    machines = {
        name: {
            "curves": [[[25, 2 * batches], [50, batches]]],
            "states": [7],
            "learning_s": 0.5,
            "above_first": [batches / 10 - 1],
            "above_held_out": [batches / 5 - 1],
        }
        for name, batches in ((learned_policies.CHOSEN, ours), (learned_policies.THEIRS, theirs))
    }
    return Record("learned", {"figures": {"machines": machines}})


def test_sentences_on_machines_follow_the_records() -> None:
    records = {"trees": make_learned(10, 12), "chains": make_learned(12, 12), "graphs": make_learned(15, 11)}
    message = learned_policies.message_of(records)
    assert message.endswith("the published one on 1 of 3 workloads, as near on chains, farther on graphs")
    seen = learned_policies.see(records)
    assert "after 50 to 50 episodes, which take 0.50 to 0.50 s, and leaves 7 to 7 states" in seen
    assert "on graphs, by 150.0 points." in seen
    assert seen.count("fewer batches on trees; as many on chains; more on graphs.") == 2


def test_words_are_listed() -> None:
    assert [claims.in_list(words) for words in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip


def test_the_message_of_a_figure_is_cut_into_lines_and_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    message = " ".join(["nothing is cut off"] * 12)
    lines: list[str] = []

    def draw(figure: Any) -> None:
        charts.entitle(figure, message)
        lines.extend(figure.get_suptitle().splitlines())

    assert charts.draw_into(tmp_path / "figure.png", draw) == message
    assert len(lines) == 3
    assert max(map(len, lines)) <= charts.LINE


def test_missing_packages_are_named_before_anything_is_measured() -> None:
    require(("numpy",), "measuring")
    with pytest.raises(AutobatchError, match="measuring all needs the packages no_such, none; pip install"):
        require(("numpy", "no_such", "none"), "measuring all")


def test_all_claims_run_in_turn_until_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    everything: Any = importlib.import_module("all")
    for name, status in (("batches", 0), ("learned_policies", 3)):
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint('told', *sys.argv[1:])\nsys.exit({status})\n")
    monkeypatch.setattr(everything, "FOLDER", tmp_path)
    monkeypatch.setattr(everything, "require", lambda packages, what: None)
    assert everything.measure_all([f"out={tmp_path}", "quick=True"]) == 3
    assert capfd.readouterr().out.count(f"told out={tmp_path} quick=True") == 2
    with pytest.raises(AutobatchError, match="'dim'; give it to one claim"):
        everything.measure_all(["dim=3"])


def test_documents_say_what_the_records_say() -> None:
    """`python experiments/tables.py` updates the documents."""
    for path, text in tables.pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is old; run python experiments/tables.py"


def test_every_table_of_a_stale_record_says_so() -> None:
    written = {path: (ROOT / path).read_text(encoding="utf-8") for path in tables.DOCUMENTS}
    marked = [(found[2], found[0]) for text in written.values() for found in tables.TABLE.finditer(text)]
    assert {name for name, _ in marked} == set(tables.TABLES)
    for name, block in marked:
        source = tables.TABLES[name]
        stale = [record.is_stale for record in source.records().values()]
        assert ("has changed since." in block) is any(stale), name
    index = (ROOT / tables.INDEX).read_text(encoding="utf-8")
    assert index.count("| stale |") == sum(record.is_stale for record in read_records(RESULTS).values())


def test_a_mark_that_names_no_table_is_refused() -> None:
    with pytest.raises(DataError, match=r"throughput, .*, got 'nothing'"):
        tables.renew("<!-- table: nothing -->\n<!-- end of table -->")


@each("name", claims.NAMES)
def test_every_claim_is_one_of_this_checkout(name: str) -> None:
    claim = load_claim(name)
    assert claim.name == name
    assert set(claim.quick_parts) <= set(claim.parts)
    assert (ROOT / "experiments" / f"{name}.py").is_file()
    records = claim.records(RESULTS)
    if records:
        assert claim.see(records)
        for table in claim.tabulate(records):
            assert {len(row) for row in table.rows} == {len(table.header)}
        assert "" not in [one.ours(records) for one in claim.published]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache of compiled cells, shared by claims."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("name", claims.NAMES)
def test_every_claim_is_measured_quickly_and_drawn(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, name: str
) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", cache)
    for package in ("matplotlib", *load_claim(name).needs):
        pytest.importorskip(package, reason="the claim needs it")
    only = [f"only={part}" for part in load_claim(name).quick_parts[:1] if part]
    status, _, err = command("experiment", name, *only, "--quick", "--out", tmp_path)
    assert (status, err) == (0, "")
    (page,) = tmp_path.glob("*.md")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert load_claim(name).heading in page.read_text()
    found = Page(report.write_report(tmp_path))
    assert (len(found.pictures), found.elsewhere) == (1, [])
